//! Loading of models on the CPU for tests.

use std::num::NonZeroUsize;

use engine_core::KvType;
use engine_core::collective::InProcess;
use engine_cpu::{Arithmetic, Cpu, Isa};
use engine_weights::{Checkpoint, ModelSource};

use crate::{Decoder, LoadError, Model, ModelInfo, Parallel, RopeChoice, on_ranks};

/// Options with which a test loads a model.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    pub tp: Option<NonZeroUsize>,
    pub threads: Option<NonZeroUsize>,
    pub kv: KvType,
    pub random_seed: Option<u64>,
    pub arithmetic: Arithmetic,
    pub isa: Option<Isa>,
    pub rope: RopeChoice,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            tp: None,
            threads: None,
            kv: KvType::F16,
            random_seed: None,
            arithmetic: Arithmetic::default(),
            isa: None,
            rope: RopeChoice::default(),
        }
    }
}

#[derive(Debug)]
pub struct Loaded {
    pub model: Box<dyn Model>,
}

impl Loaded {
    pub fn info(&self) -> &ModelInfo {
        self.model.info()
    }
}

pub fn load(source: &ModelSource, options: &LoadOptions) -> Result<Loaded, LoadError> {
    let checkpoint = Checkpoint::open(&source.files, options.random_seed)?;
    let isa = options.isa.unwrap_or_else(Isa::best);
    let threads = options.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap();
    let load = |cpu: Cpu| {
        Decoder::load(cpu.with(options.arithmetic), &checkpoint, options.kv, options.rope)
    };
    let model: Box<dyn Model> = match options.tp.map_or(1, NonZeroUsize::get) {
        1 => Box::new(load(Cpu::new(isa, threads.get()))?),
        ranks => {
            let each = (threads.get() / ranks).max(1);
            let load = |way| load(Cpu::in_group(isa, each, Box::new(way)));
            Box::new(Parallel::new(on_ranks(InProcess::group(ranks), load)?))
        }
    };
    Ok(Loaded { model })
}
