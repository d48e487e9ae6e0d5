//! Loading of a model: from its name to weights on a device.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use engine_core::collective::InProcess;
use engine_core::{DeviceError, KvType};
use engine_cpu::{Arithmetic, Cpu, Isa};
use engine_cuda::Cuda;
use engine_cuda::driver::gpu::{Gpu, kernel_code, nccl_version};
use engine_cuda::driver::{Cubins, Driver};
use engine_model::{
    Decoder, LoadError as ModelError, Model, ModelInfo, Parallel, RopeChoice, on_ranks,
};
use engine_weights::{Checkpoint, CheckpointError, Digest, ModelSource};

use crate::config::{CPU, CUDA, Config, DeviceChoice, DtypeChoice, KvDtypeChoice, Setting, Source};
use crate::tokenize::TokenizerError;
use crate::{log, memory};

/// `Result` with [`LoadError`] as the error, unless another is named.
pub type Result<T, E = LoadError> = std::result::Result<T, E>;

/// Error: a model or its tokenizer cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LoadError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("`{id}` embeds texts and generates none; hint: `redline serve` and `/v1/embeddings`")]
    Embeds { id: String },
    #[error("`--dtype int4` is not supported by this release; supported: auto, f32, bf16, int8")]
    Int4,
    #[error(
        "`--dtype bf16` needs a processor with AVX-512 BF16, which `{processor}` lacks; hint: \
         `--dtype auto` computes bf16 weights in f32 there"
    )]
    NoBf16 { processor: String },
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
        CheckpointError::unsupported(&checkpoint.path, reason).into()
    }

    /// Returns the exit code of a process that ends with this error: 4 for a failure of the
    /// environment, such as a missing file, a device error, a processor without bf16 or a thread that
    /// the system denies; 2 for any other, such as a wrong or unsupported file.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Model(
                ModelError::Checkpoint(
                    CheckpointError::NotFound { .. } | CheckpointError::Read { .. },
                )
                | ModelError::Device(_),
            )
            | Self::NoBf16 { .. }
            | Self::Tokenizer(
                TokenizerError::Checkpoint(CheckpointError::Read { .. })
                | TokenizerError::NoThread(_),
            ) => 4,
            _ => 2,
        }
    }
}

/// Returns the arithmetic in which a CPU with the instruction set `isa` multiplies matrices for a
/// value of `--dtype`.
fn arithmetic(dtype: DtypeChoice, isa: Isa) -> Result<Arithmetic> {
    match dtype {
        DtypeChoice::Auto => Ok(Arithmetic::AsStored),
        DtypeChoice::F32 => Ok(Arithmetic::F32),
        DtypeChoice::Bf16 if isa.has_bf16() => Ok(Arithmetic::Bf16),
        DtypeChoice::Bf16 => Err(LoadError::NoBf16 { processor: engine_cpu::processor_name() }),
        DtypeChoice::Int8 => Ok(Arithmetic::Int8),
        DtypeChoice::Int4 => Err(LoadError::Int4),
    }
}

/// Options of loading a model: device, parallelism, types and random weights.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Kind of device to load the model on.
    pub device: DeviceChoice,
    /// Number of tensor-parallel ranks (`--tp`); `None` means 1.
    pub tp: Option<NonZeroUsize>,
    /// Number of CPU compute threads, of all ranks together (`--threads`); `None` means the number
    /// of processors that this process may use.
    pub threads: Option<NonZeroUsize>,
    /// Data type of the KV cache (`--kv-dtype`).
    pub kv: KvDtypeChoice,
    /// Seed of random weights in the shapes of the model's configuration, which replace the
    /// checkpoint's weights; `None` reads the checkpoint's weights.
    pub random_seed: Option<u64>,
    /// Data type in which matrix multiplications are computed (`--dtype`).
    pub dtype: DtypeChoice,
    /// Instruction set of the CPU device, which no flag sets; `None` means the best that the
    /// processor has.
    pub isa: Option<Isa>,
    /// Rounding of the RoPE frequencies, which follows from `--dtype`.
    pub rope: RopeChoice,
    /// Folders of the CUDA kernels' machine code: prepared files, and a cache of compiled kernels.
    pub cubins: Cubins,
}

/// Facts about the device that a model is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Kind of the device, `cpu` or `cuda`.
    pub kind: &'static str,
    /// Name of the processor or the GPU.
    pub name: String,
    /// Number of CPU compute threads, of all ranks together; on GPUs the number of ranks.
    pub threads: usize,
    /// Instruction set of the CPU kernels, or generation of the GPU.
    pub isa: &'static str,
    /// GPUs that the driver lists although the model is on the CPU, because `--device auto` could
    /// not use them; otherwise empty.
    pub idle_gpus: Vec<engine_cuda::Gpu>,
    /// Libraries of NVIDIA that compute for a model on a GPU; `None` on a CPU.
    pub libraries: Option<Libraries>,
}

impl DeviceInfo {
    /// Returns true if the model is on a GPU and the GEMM library cuBLASLt, which may be faster than
    /// this engine's own kernels, was not found.
    pub fn lacks_library(&self) -> bool {
        self.libraries.as_ref().is_some_and(|libraries| libraries.gemm.is_none())
    }

    /// Returns the effective configuration of a server on the device: all flags, and on a GPU the
    /// libraries that compute.
    pub fn effective(&self, config: &Config) -> BTreeMap<String, Setting> {
        let mut all = config.effective();
        all.extend(self.libraries.iter().flat_map(Libraries::settings));
        all
    }
}

/// Libraries of NVIDIA that this machine has and that change what computes: two machines with equal
/// GPUs may differ in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Libraries {
    /// GEMM library with its version; `None` if our own kernels compute all matmuls.
    pub gemm: Option<String>,
    /// Origin of the kernels' machine code: the compiler with its version, or a folder of cubins.
    pub kernel_code: String,
    /// Library of collective operations with its version; `None` where one rank needs none.
    pub collectives: Option<String>,
}

impl Libraries {
    /// Returns the libraries that `driver` and the other GPUs of `ranks` ranks use.
    fn of(driver: &dyn Driver, cubins: &Cubins, ranks: usize) -> Self {
        Self {
            gemm: driver.blas().map(|blas| blas.version().to_owned()),
            kernel_code: kernel_code(cubins),
            collectives: if ranks > 1 { nccl_version() } else { None },
        }
    }

    fn settings(&self) -> Vec<(String, Setting)> {
        let gemm = self.gemm.as_deref().unwrap_or("own kernels");
        let always = [("gemm-library", gemm), ("kernel-code", &self.kernel_code)];
        let collectives = self.collectives.as_deref().map(|version| ("collectives", version));
        let named = always.into_iter().chain(collectives);
        let setting = |value: &str| Setting { value: value.into(), source: Source::Machine };
        named.map(|(name, value)| (name.to_owned(), setting(value))).collect()
    }
}

/// Model on its device, with the facts that its server reports.
#[derive(Debug)]
pub struct Loaded {
    /// Model with its weights loaded; its KV cache is not allocated yet.
    pub model: Box<dyn Model>,
    /// Facts about the device that the model is on: kind, name, threads and instruction set.
    pub device: DeviceInfo,
    /// SHA-256 of the weights' files (for random weights, of their seed and the configuration),
    /// which may still be computed in the background.
    pub weights_sha256: Digest,
    /// Origin of the weights: `real` for the checkpoint's, `random` for generated ones.
    pub weights: &'static str,
    /// File format of the checkpoint: `gguf` or `safetensors`; for random weights that of the
    /// configuration.
    pub format: &'static str,
    /// Number of bytes of memory that are free after the weights were loaded: of the first GPU, or
    /// those that a process on the CPU could allocate (0 if the system does not say).
    pub free_bytes: u64,
}

/// Opens the model's files and loads its weights on the device that `options` choose.
///
/// # Errors
/// A file is missing or damaged, the checkpoint or the options need something that this release or
/// this machine does not support, or the device reports an error or does not have enough memory.
pub fn load(source: &ModelSource, options: &LoadOptions) -> Result<Loaded> {
    load_checkpoint(&Checkpoint::open(&source.files, options.random_seed)?, options)
}

/// Checks that a model generates, as commands need that measure how.
///
/// # Errors
/// The model embeds texts.
pub(crate) fn check_generates(info: &ModelInfo, source: &ModelSource) -> Result<()> {
    match info.embedding_size {
        Some(_) => Err(LoadError::Embeds { id: source.id.clone() }),
        None => Ok(()),
    }
}

/// Prints which of NVIDIA's libraries this process has opened, with their paths, and whether a GPU
/// lacks cuBLASLt.
pub(crate) fn log_libraries(lacks_library: bool) {
    for (name, path) in engine_cuda::driver::gpu::opened() {
        log(format_args!("{name}: `{}`", path.display()));
    }
    if lacks_library {
        log(format_args!(
            "cuBLASLt is not found by the dynamic linker, in Python's packages or in \
             `/usr/local/cuda`, or cannot be used: our own kernels compute all matmuls; hint: put \
             the folder of `libcublasLt` in `LD_LIBRARY_PATH`"
        ));
    }
}

/// Loads the weights of a checkpoint, which was opened with the random seed in `options`, on the
/// device that `options` choose.
///
/// # Errors
/// Anything that [`load`] fails with, except for errors of opening the checkpoint.
pub fn load_checkpoint(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Loaded> {
    let is_cuda = match options.device {
        DeviceChoice::Cuda => true,
        DeviceChoice::Auto => {
            options.on_gpu().is_ok()
                && engine_cuda::usable().len() >= options.ranks()
                && Decoder::<Cuda>::missing_feature(checkpoint)?.is_none()
        }
        DeviceChoice::Cpu => false,
    };
    let (model, device, free_bytes) =
        if is_cuda { on_cuda(checkpoint, options)? } else { on_cpu(checkpoint, options)? };
    Ok(Loaded {
        model,
        device,
        weights_sha256: checkpoint.digest.clone(),
        weights: if checkpoint.is_random() { "random" } else { "real" },
        format: checkpoint.container(),
        free_bytes,
    })
}

/// Loaded model, facts about its device, and number of bytes of memory that are free after loading.
type OnDevice = (Box<dyn Model>, DeviceInfo, u64);

impl LoadOptions {
    /// Checks that a GPU supports these options, and returns the data type that the KV cache has on
    /// a GPU.
    ///
    /// # Errors
    /// Returns the reason why a GPU does not support these options.
    fn on_gpu(&self) -> Result<KvType, &'static str> {
        if !CUDA.has_dtype(self.dtype) {
            return Err("a GPU multiplies matrices in bf16 only");
        }
        CUDA.kv_type(self.kv).ok_or("the KV cache of a GPU is bf16 or fp8")
    }

    /// Returns the number of tensor-parallel ranks that the options ask for, 1 by default.
    fn ranks(&self) -> usize {
        self.tp.map_or(1, NonZeroUsize::get)
    }
}

/// Loads a checkpoint's weights on a GPU that is already open.
///
/// # Errors
/// A tensor is missing or damaged, the checkpoint or the options need something that this release
/// does not support on a GPU, or the device reports an error or does not have enough memory.
pub fn load_on(
    gpu: Arc<dyn Driver>,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<Box<dyn Model>> {
    Ok(Box::new(load_part(Cuda::new(gpu), checkpoint, options)?))
}

/// Loads a checkpoint's weights on a GPU, or in a tensor-parallel group the part of them that
/// belongs to the device's rank.
fn load_part(
    device: Cuda,
    checkpoint: &Checkpoint,
    options: &LoadOptions,
) -> Result<Decoder<Cuda>> {
    let kv_type = options.on_gpu().map_err(|reason| LoadError::unsupported(checkpoint, reason))?;
    let device = device.keeping(options.cubins.choices.clone());
    Ok(Decoder::load(device, checkpoint, kv_type, options.rope)?)
}

/// Loads a checkpoint on the first GPU, or on as many GPUs as there are ranks.
fn on_cuda(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<OnDevice> {
    // Checked before a GPU is opened, which takes seconds.
    options.on_gpu().map_err(|reason| LoadError::unsupported(checkpoint, reason))?;
    let ranks = options.ranks();
    let (model, driver): (Box<dyn Model>, Arc<dyn Driver>) = if ranks == 1 {
        let gpu: Arc<dyn Driver> = Gpu::open(0, &options.cubins)?;
        (load_on(Arc::clone(&gpu), checkpoint, options)?, gpu)
    } else {
        let members = Gpu::open_group(ranks, &options.cubins)?;
        // The first GPU stands for the group in the description of the device.
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
        libraries: Some(Libraries::of(&*driver, &options.cubins, ranks)),
    };
    let memory = driver.memory()?;
    Ok((model, info, memory.free))
}

fn on_cpu(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<OnDevice> {
    // Available parallelism respects the process's CPU affinity and its control group.
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
            // The server reports GPUs that `auto` found unusable.
            DeviceChoice::Auto => engine_cuda::gpus(),
            DeviceChoice::Cpu | DeviceChoice::Cuda => Vec::new(),
        },
        libraries: None,
    };
    let refused =
        || LoadError::unsupported(checkpoint, "the KV cache of the CPU is in f32, f16 or bf16");
    let kv_type = CPU.kv_type(options.kv).ok_or_else(refused)?;
    let arithmetic = arithmetic(options.dtype, isa)?;
    let load = |device| Decoder::load(device, checkpoint, kv_type, options.rope);
    let model: Box<dyn Model> = if ranks == 1 {
        Box::new(load(Cpu::new(isa, threads).with(arithmetic))?)
    } else {
        let device =
            |way| Cpu::in_group(isa, (threads / ranks).max(1), Box::new(way)).with(arithmetic);
        let ways = InProcess::group(ranks);
        Box::new(Parallel::new(on_ranks(ways, |way| load(device(way)))?))
    };
    Ok((model, info, memory::free_bytes()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::emulated::{Emulated, Script};
    use crate::tiny_gguf::tiny_llama_gguf;

    #[test]
    fn libraries_of_a_gpu_are_named_with_their_versions() {
        let cubins = Cubins { prepared: Some("/somewhere".into()), ..Cubins::default() };
        for (algorithms, gemm) in [(0, "own kernels"), (1, "emulated")] {
            let script = Script { algorithms, ..Script::default() };
            let Some(gpu) = Emulated::with(1 << 20, script) else { return };
            let libraries = Libraries::of(&*gpu, &cubins, 1);
            let settings: Vec<(String, Value)> =
                libraries.settings().into_iter().map(|(name, one)| (name, one.value)).collect();
            let wanted = [("gemm-library", gemm), ("kernel-code", "cubins")];
            let wanted = wanted.map(|(name, value)| (name.to_owned(), Value::from(value)));
            assert_eq!(settings, wanted, "one rank needs no collectives");
        }
    }

    #[test]
    fn a_denied_thread_is_the_environments_fault_and_a_wrong_template_the_checkpoints() {
        let denied = TokenizerError::NoThread(std::io::ErrorKind::WouldBlock.into());
        assert_eq!(LoadError::Tokenizer(denied).exit_code(), 4);
        let (path, reason) = ("model.gguf".into(), "its chat template is wrong".to_owned());
        let wrong = TokenizerError::Unusable { path, reason };
        assert_eq!(LoadError::Tokenizer(wrong).exit_code(), 2);
    }

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
