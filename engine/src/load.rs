//! From a model's name to a model on a device.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use engine_core::collective::InProcess;
use engine_core::{DeviceError, KvType};
use engine_cpu::{Arithmetic, Cpu, Isa};
use engine_cuda::Cuda;
use engine_cuda::driver::gpu::Gpu;
use engine_cuda::driver::{Cubins, Driver};
use engine_model::{
    Decoder, LoadError as ModelError, Model, ModelInfo, Parallel, RopeChoice, on_ranks,
};
use engine_weights::{Checkpoint, CheckpointError, Digest, ModelSource};

use crate::config::DeviceChoice;
use crate::tokenize::TokenizerError;

/// A model or its tokenizer that cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LoadError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

impl From<CheckpointError> for LoadError {
    fn from(error: CheckpointError) -> Self {
        Self::Model(error.into())
    }
}

impl From<DeviceError> for LoadError {
    fn from(error: DeviceError) -> Self {
        Self::Model(ModelError::Device(error))
    }
}

impl LoadError {
    fn unsupported(checkpoint: &Checkpoint, reason: &str) -> Self {
        let path = checkpoint.path().to_owned();
        CheckpointError::Unsupported { path, reason: reason.to_owned() }.into()
    }

    /// Exit code of the process: a file that is not there is the environment's fault, one that is
    /// wrong is unsound.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Model(
                ModelError::Checkpoint(
                    CheckpointError::NotFound { .. } | CheckpointError::Read { .. },
                )
                | ModelError::Device(_),
            ) => 4,
            Self::Tokenizer(TokenizerError::Checkpoint(CheckpointError::Read { .. })) => 4,
            _ => 2,
        }
    }
}

/// Type of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvChoice {
    /// f16 on the CPU: half the memory, and the reference outputs still hold. bf16 on a GPU.
    #[default]
    Auto,
    /// Four bytes an element; on the CPU alone.
    F32,
    /// Two bytes; on the CPU alone.
    F16,
    /// Two bytes; on a GPU alone.
    Bf16,
    /// One byte, e4m3; on a GPU alone.
    Fp8,
}

impl KvChoice {
    /// The type on the CPU, if it has it.
    fn on_cpu(self) -> Option<KvType> {
        match self {
            Self::Auto | Self::F16 => Some(KvType::F16),
            Self::F32 => Some(KvType::F32),
            Self::Bf16 | Self::Fp8 => None,
        }
    }

    /// The type on a GPU, if it has it.
    fn on_cuda(self) -> Option<KvType> {
        match self {
            Self::Auto | Self::Bf16 => Some(KvType::Bf16),
            Self::Fp8 => Some(KvType::Fp8),
            Self::F32 | Self::F16 => None,
        }
    }
}

/// How to load a model.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Where to compute.
    pub device: DeviceChoice,
    /// Ranks that share the model; one where not given.
    pub tp: Option<NonZeroUsize>,
    /// Threads of the CPU device, of all ranks together; all processors that this process may use where not given.
    pub threads: Option<NonZeroUsize>,
    /// What keys and values are kept in.
    pub kv: KvChoice,
    /// Makes random weights of the configuration's shape from this seed instead of reading them.
    pub random_seed: Option<u64>,
    /// What the CPU device multiplies matrices in.
    pub arithmetic: Arithmetic,
    /// Instruction set of the CPU device; the best where not given.
    pub isa: Option<Isa>,
    /// How frequencies are rounded.
    pub rope: RopeChoice,
    /// Where the kernels' machine code is, and where it is kept.
    pub cubins: Cubins,
}

/// The device that a model is on, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// `cpu` or `cuda`.
    pub kind: &'static str,
    /// The processor's name, or the GPU's.
    pub name: String,
    /// Threads of the CPU that compute, of all ranks together; of GPUs the number of ranks.
    pub threads: usize,
    /// Instruction set of the kernels.
    pub isa: &'static str,
    /// GPUs that were found and are not used.
    pub idle_gpus: Vec<engine_cuda::Gpu>,
    /// Whether it is a GPU without the library that may multiply faster than our own kernels.
    pub lacks_library: bool,
}

/// A model on its device, and what its server has to say of it.
#[derive(Debug)]
pub struct Loaded {
    /// Its KV cache is not allocated yet.
    pub model: Box<dyn Model>,
    /// Where it is.
    pub device: DeviceInfo,
    /// SHA-256 of the weight files, computed in the background.
    pub weights_sha256: Digest,
    /// `real` or `random`.
    pub weights: &'static str,
    /// Container of the weights: `gguf` or `safetensors`.
    pub format: &'static str,
    /// Bytes of the device that are free after the weights were loaded.
    pub free_bytes: u64,
}

impl Loaded {
    /// As [`Model::info`].
    pub fn info(&self) -> &ModelInfo {
        self.model.info()
    }
}

/// Loads `source`. The files are released when this returns.
///
/// # Errors
/// A file is missing or damaged, or asks for something that this release does not have.
pub fn load(source: &ModelSource, options: &LoadOptions) -> Result<Loaded, LoadError> {
    load_checkpoint(&Checkpoint::open(&source.files, options.random_seed)?, options)
}

/// Loads `checkpoint`, which was opened with the seed of `options`.
///
/// # Errors
/// As [`load`], but for what opening it finds.
pub fn load_checkpoint(
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<Loaded, LoadError> {
    let is_cuda = match options.device {
        DeviceChoice::Cuda => true,
        DeviceChoice::Auto => {
            options.suits_cuda() && engine_cuda::usable().len() >= options.ranks()
        }
        DeviceChoice::Cpu => false,
    };
    let (model, device, free_bytes) =
        if is_cuda { on_cuda(checkpoint, options)? } else { on_cpu(checkpoint, options)? };
    Ok(Loaded {
        model,
        device,
        weights_sha256: checkpoint.digest(),
        weights: if checkpoint.is_random() { "random" } else { "real" },
        format: checkpoint.container(),
        free_bytes,
    })
}

/// A model, its device, and the bytes that are free there.
type OnDevice = (Box<dyn Model>, DeviceInfo, u64);

impl LoadOptions {
    /// Why a GPU does not compute what is asked for, if it does not.
    fn unsuited(&self) -> Option<&'static str> {
        let is_bf16 = matches!(self.arithmetic, Arithmetic::AsStored | Arithmetic::Bf16);
        if !is_bf16 {
            Some("products are in bf16 on a GPU")
        } else if self.kv.on_cuda().is_none() {
            Some("the KV cache of a GPU is in bf16 or fp8")
        } else {
            None
        }
    }

    /// Ranks that share the model.
    fn ranks(&self) -> usize {
        self.tp.map_or(1, NonZeroUsize::get)
    }

    /// Whether a GPU computes what is asked for.
    pub fn suits_cuda(&self) -> bool {
        self.unsuited().is_none()
    }
}

/// Loads `checkpoint` on a GPU that is open.
///
/// # Errors
/// As [`load_checkpoint`].
pub fn load_on(
    gpu: Arc<dyn Driver>,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<Box<dyn Model>, LoadError> {
    Ok(Box::new(load_part(Cuda::new(gpu), checkpoint, options)?))
}

/// `checkpoint` on a GPU, or its rank's part of it.
fn load_part(
    device: Cuda,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<Decoder<Cuda>, LoadError> {
    let (Some(kv_type), None) = (options.kv.on_cuda(), options.unsuited()) else {
        return Err(LoadError::unsupported(checkpoint, options.unsuited().unwrap_or_default()));
    };
    let device = device.keeping(options.cubins.choices.clone());
    Ok(Decoder::load(device, checkpoint, kv_type, options.rope)?)
}

fn on_cuda(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<OnDevice, LoadError> {
    if let Some(reason) = options.unsuited() {
        return Err(LoadError::unsupported(checkpoint, reason));
    }
    let ranks = options.ranks();
    let (model, driver): (Box<dyn Model>, Arc<dyn Driver>) = if ranks == 1 {
        let gpu: Arc<dyn Driver> = Gpu::open(0, &options.cubins)?;
        (load_on(Arc::clone(&gpu), checkpoint, options)?, gpu)
    } else {
        let members = Gpu::open_group(ranks, &options.cubins)?;
        let first = Arc::clone(&members[0].driver);
        let devices = Cuda::group(members)?;
        let load = |device| load_part(device, checkpoint, options);
        (Box::new(Parallel::new(on_ranks(devices, load)?)), first)
    };
    let facts = driver.facts();
    let info = DeviceInfo {
        kind: "cuda",
        name: facts.name.clone(),
        threads: ranks,
        isa: engine_cuda::generation(facts.capability),
        idle_gpus: Vec::new(),
        lacks_library: driver.blas().is_none(),
    };
    let memory = driver.memory()?;
    Ok((model, info, memory.free))
}

fn on_cpu(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<OnDevice, LoadError> {
    let threads = options.threads.or_else(|| thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get);
    let isa = options.isa.unwrap_or_else(Isa::best);
    let ranks = options.ranks();
    let info = DeviceInfo {
        kind: "cpu",
        name: engine_cpu::processor_name(),
        threads: threads.max(ranks),
        isa: isa.name(),
        idle_gpus: match options.device {
            DeviceChoice::Auto => engine_cuda::gpus(),
            DeviceChoice::Cpu | DeviceChoice::Cuda => Vec::new(),
        },
        lacks_library: false,
    };
    let Some(kv_type) = options.kv.on_cpu() else {
        return Err(LoadError::unsupported(checkpoint, "the KV cache of the CPU is in f32 or f16"));
    };
    let load = |device| Decoder::load(device, checkpoint, kv_type, options.rope);
    let model: Box<dyn Model> = if ranks == 1 {
        Box::new(load(Cpu::new(isa, threads).with(options.arithmetic))?)
    } else {
        let device = |way| {
            Cpu::in_group(isa, (threads / ranks).max(1), Box::new(way)).with(options.arithmetic)
        };
        let ways = InProcess::group(ranks);
        Box::new(Parallel::new(on_ranks(ways, |way| load(device(way)))?))
    };
    Ok((model, info, engine_cpu::free_bytes()))
}

#[cfg(test)]
mod tests {
    use engine_weights::fixture::tiny_llama_gguf;

    use super::*;

    #[test]
    fn random_weights_are_told_from_those_of_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, tiny_llama_gguf(1)).unwrap();
        let source = ModelSource::find(path.to_str().unwrap(), None).unwrap();
        let [real, random] = [None, Some(1)].map(|random_seed| {
            load(&source, &LoadOptions { random_seed, ..LoadOptions::default() }).unwrap()
        });
        assert_eq!((real.weights, random.weights), ("real", "random"));
        assert_ne!(real.weights_sha256.wait(), random.weights_sha256.wait());
        assert!(real.free_bytes > 0, "free memory is known");
    }
}
