//! Startup of `redline serve`: joins configuration, checkpoint and device to a loaded model, and
//! hands it to the server.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

use crate::bench::BenchError;
use crate::capacity::{self, FreeMemory};
use crate::config::{
    Config, ConfigError, DeviceChoice, DtypeChoice, LoadFormat, Setting, Source, config_sha256,
};
use crate::http::{KvFacts, ModelFacts, ServerInfo};
use crate::listen::listen;
use crate::load::{self, LoadError, LoadOptions};
use crate::perplexity::PerplexityError;
use crate::say::say;
use crate::server::{Loaded, ServeError, Server};
use crate::text::CheckpointText;
use crate::tokenize::Tokenizer;
use engine_core::DeviceError;
use engine_core::clock::Clock;
use engine_cuda::driver::Cubins;
use engine_model::{ModelInfo, RopeChoice};
use engine_schedule::Limits;
use engine_weights::{Checkpoint, ModelSource};

/// Seed of random weights (`--load-format random`). Fixed, so that two starts have equal weights.
const RANDOM_WEIGHTS_SEED: u64 = 1;

/// Commit that this binary was built from; the builder sets it in `REDLINE_COMMIT`.
pub const COMMIT: Option<&str> = option_env!("REDLINE_COMMIT");

/// Error message where `--device cuda` finds no supported GPU.
pub(crate) const NO_GPU: &str = "`--device cuda` needs a GPU of compute capability 8.0 or later with its \
                                 driver, and there is none; hint: `--device cpu`";

/// Version and commit of this binary, as `--version` prints them.
pub fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        format!("{} ({})", env!("CARGO_PKG_VERSION"), COMMIT.unwrap_or("unknown commit"))
    });
    &VERSION
}

/// Everything that `redline serve` needs to start: configuration, model, caches and clock.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Configuration, resolved from flags, profile and defaults.
    pub config: Config,
    /// Folder, .gguf file or hub id of the model.
    pub model: String,
    /// Folder of the local hub cache, in which hub ids are looked up.
    pub hub_cache: Option<PathBuf>,
    /// Folders of the CUDA kernels' machine code: prepared files, and a cache of compiled kernels.
    pub cubins: Cubins,
    /// Clock that was started when the process started.
    pub clock: Clock,
}

/// Reason why a model cannot be loaded or served with the given flags.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum PrepareError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("failed to allocate the KV cache")]
    Kv(#[source] DeviceError),
    #[error("failed to run the largest step as a warm-up")]
    ProfileRun(#[source] DeviceError),
    #[error(
        "`--max-seq-len {asked}` is more than the {made_for} tokens that the model was made for"
    )]
    TooLong { asked: usize, made_for: usize },
    #[error(
        "too little memory for one KV page: {free_bytes} bytes are free, a page takes {page_bytes} and \
         a sequence's state {state_bytes}; hint: raise `--cache-max-entry-count`, or free memory"
    )]
    NoPage { free_bytes: u64, page_bytes: u64, state_bytes: u64 },
}

/// Reason why `redline` ended with an error, whichever command ran.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum LaunchError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("failed to listen on {addresses:?}")]
    Listen { addresses: Vec<SocketAddr>, source: io::Error },
    #[error("failed to start")]
    Start(#[source] io::Error),
    #[error("{}", NO_GPU)]
    NoGpu,
    #[error(
        "`--tp {wanted}` needs a GPU for each rank, and there are {found} of compute capability 8.0 or \
         later; hint: `--tp {found}`, or `--device cpu`"
    )]
    FewGpus { found: usize, wanted: usize },
    #[error(transparent)]
    Serve(#[from] ServeError<PrepareError>),
    #[error("failed to measure the model")]
    Bench(#[from] BenchError),
    #[error("failed to measure the perplexity")]
    Perplexity(#[from] PerplexityError),
}

impl LaunchError {
    /// Exit code of the process: 2 wrong use or unsound data, 4 the environment, 101 a bug.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Config(_) => 2,
            Self::Listen { .. } | Self::Start(_) | Self::NoGpu | Self::FewGpus { .. } => 4,
            Self::Bench(error) => error.exit_code(),
            Self::Perplexity(error) => error.exit_code(),
            Self::Serve(error) => match error {
                ServeError::Load(error) => error.exit_code(),
                ServeError::Step(_) | ServeError::Thread(_) => 4,
                ServeError::Panic(_) => 101,
            },
        }
    }
}

impl PrepareError {
    /// Exit code of the process; the codes are those of [`LaunchError::exit_code`].
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Load(error) => error.exit_code(),
            Self::Kv(_) | Self::ProfileRun(_) | Self::NoPage { .. } => 4,
            Self::TooLong { .. } => 2,
        }
    }
}

/// Function that loads a model and settles the flags that depend on it: [`prepare`], or a stand-in
/// for it in tests.
pub type Prepare = fn(&Launch) -> Result<Loaded, PrepareError>;

/// Runs the server until a signal or a failure. The socket is open while `prepare` still loads the
/// model, so that `/health` can say so.
///
/// # Errors
/// The flags are not supported, the port is taken, the model is unusable, or the engine failed.
pub async fn serve(mut launch: Launch, prepare: Prepare) -> Result<(), LaunchError> {
    engine_cpu::keep_large_blocks_apart();
    // Checked before the socket opens, so that an impossible command fails at once.
    if launch.config.device.value == DeviceChoice::Cuda {
        match (engine_cuda::usable().len(), launch.config.tp.value) {
            (0, _) => return Err(LaunchError::NoGpu),
            (found, wanted) if found < wanted => {
                return Err(LaunchError::FewGpus { found, wanted });
            }
            _ => {}
        }
    }
    let addresses = launch.config.addresses()?;
    let api_key = launch.config.read_api_key()?;
    let listening = listen(&addresses);
    let listener = listening.map_err(|source| LaunchError::Listen { addresses, source })?;
    // The system has replaced port 0 by a free one.
    launch.config.port.value = listener.local_addr().map_err(LaunchError::Start)?.port();
    let mut terminate = signal(SignalKind::terminate()).map_err(LaunchError::Start)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(LaunchError::Start)?;
    let clock = launch.clock;
    let load = move || {
        let loaded = prepare(&launch);
        engine_cpu::give_back_freed();
        loaded
    };
    let server = Server::start(load, api_key.as_deref(), clock)?;
    let shutdown = async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        say(format_args!("draining: running requests may finish, new ones are refused"));
    };
    let ready = |address: SocketAddr| say(format_args!("ready http://{address}"));
    Ok(server.run(listener, shutdown, ready).await?)
}

/// Loads the model, settles the flags that depend on it, runs a warm-up step and allocates the KV
/// cache from the memory that is left.
///
/// # Errors
/// The model is unusable, or the memory does not suffice for it.
pub fn prepare(launch: &Launch) -> Result<Loaded, PrepareError> {
    let mut config = launch.config.clone();
    let start_us = launch.clock.elapsed_us();
    let source =
        ModelSource::find(&launch.model, launch.hub_cache.as_deref()).map_err(LoadError::from)?;
    let (mut loaded, tokenizer) = load(&source, &options(&config, &launch.cubins))?;
    let weights_load_us = launch.clock.elapsed_us() - start_us;
    for gpu in &loaded.device.idle_gpus {
        say(format_args!("`{}` stays idle: the CPU computes the requested types", gpu.name));
    }
    if loaded.device.lacks_library {
        say(format_args!(
            "`libcublasLt` is not found: our own kernels compute all matmuls; hint: put its \
             folder in `LD_LIBRARY_PATH`"
        ));
    }
    let info = loaded.info().clone();
    settle(&mut config, &info, &source.id)?;
    config.device.value = device_choice(loaded.device.kind);
    let run_ahead = loaded.model.run_ahead();
    let (tokens, sequences) = (config.max_prefill_token_num.value, config.max_batch_size.value);
    // The warm-up step takes all memory but that of the KV cache, so that the rest is known after
    // it.
    let free = loaded.model.profile_run(tokens, sequences).map_err(PrepareError::ProfileRun)?;
    let memory = match free {
        Some(free) => FreeMemory { bytes: free, is_own: true },
        None => FreeMemory { bytes: loaded.free_bytes, is_own: false },
    };
    let limits = Limits { run_ahead, ..capacity::limits(&config, &info, memory)? };
    loaded.model.allocate_kv(limits.pages, limits.page_tokens).map_err(PrepareError::Kv)?;
    if let Some(states) = limits.states {
        loaded.model.allocate_states(states.slots).map_err(PrepareError::Kv)?;
    }
    log_model(&source.id, &info, &loaded, &limits);
    let effective = config.effective();
    let server_info = ServerInfo {
        engine: "redline",
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT,
        device: loaded.device.kind,
        device_name: loaded.device.name,
        config_sha256: config_sha256(&effective),
        config: effective,
        kv: KvFacts {
            pages: limits.pages,
            page_tokens: limits.page_tokens,
            bytes: limits.pages as u64 * capacity::page_bytes(&info),
            dtype: info.kv_type.name(),
        },
        model: ModelFacts {
            id: source.id.clone(),
            architecture: info.architecture.clone(),
            // Filled in per request, since it may still be computed.
            weights_sha256: None,
            weights: loaded.weights,
            format: loaded.format,
            revision: source.revision,
            tokenizer_sha256: tokenizer.as_ref().map(|tokenizer| tokenizer.sha256().to_owned()),
            dtype: info.compute_dtype,
            parameters: info.parameters,
            max_seq_len: info.max_seq_len,
        },
        // Filled in when the server is ready.
        startup_us: 0,
        weights_load_us,
    };
    Ok(Loaded {
        model: loaded.model,
        text: Arc::new(CheckpointText::new(tokenizer)),
        limits,
        model_name: config.model_name.value.unwrap_or(source.id),
        info: server_info,
        weights_sha256: loaded.weights_sha256,
    })
}

/// Loads model and tokenizer in parallel: reading the tokenizer takes nearly as long.
fn load(
    source: &ModelSource,
    options: &LoadOptions,
) -> Result<(load::Loaded, Option<Tokenizer>), LoadError> {
    let checkpoint = Checkpoint::open(&source.files, options.random_seed)?;
    thread::scope(|scope| {
        let tokenizer = scope.spawn(|| Tokenizer::load(checkpoint.config()));
        let loaded = load::load_checkpoint(&checkpoint, options)?;
        // A panic of the tokenizer's thread goes on here, and the server reports it.
        let tokenizer = tokenizer.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok((loaded, tokenizer))
    })
}

/// Options for loading a model, translated from the flags.
fn options(config: &Config, cubins: &Cubins) -> LoadOptions {
    LoadOptions {
        device: config.device.value,
        cubins: cubins.clone(),
        tp: NonZeroUsize::new(config.tp.value),
        threads: NonZeroUsize::new(config.threads.value),
        kv: config.kv_dtype.value,
        random_seed: random_seed(config.load_format.value),
        dtype: config.dtype.value,
        // `--dtype f32` reproduces reference outputs, whose RoPE frequencies were rounded to the
        // checkpoint's type; `auto` keeps exact frequencies, even where it computes in f32.
        rope: match config.dtype.value {
            DtypeChoice::F32 => RopeChoice::AsConverted,
            _ => RopeChoice::Exact,
        },
        isa: None,
    }
}

/// Seed of random weights, or `None` where the weights are read from the checkpoint.
pub(crate) fn random_seed(format: LoadFormat) -> Option<u64> {
    match format {
        LoadFormat::Auto => None,
        LoadFormat::Random => Some(RANDOM_WEIGHTS_SEED),
    }
}

fn device_choice(kind: &str) -> DeviceChoice {
    if kind == "cuda" { DeviceChoice::Cuda } else { DeviceChoice::Cpu }
}

/// Replaces `auto` and unset flags by the values that the loaded model decides.
fn settle(config: &mut Config, info: &ModelInfo, id: &str) -> Result<(), PrepareError> {
    match config.max_seq_len.value {
        Some(asked) if asked > info.max_seq_len => {
            return Err(PrepareError::TooLong { asked, made_for: info.max_seq_len });
        }
        Some(_) => {}
        None => {
            config.max_seq_len = Setting { value: Some(info.max_seq_len), source: Source::Model };
        }
    }
    if config.model_name.value.is_none() {
        config.model_name = Setting { value: Some(id.to_owned()), source: Source::Model };
    }
    config.settle_dtypes(info.compute_dtype, info.kv_type.name());
    Ok(())
}

/// Prints type and size of the loaded model, and the size of the KV cache, to standard error.
fn log_model(id: &str, info: &ModelInfo, loaded: &load::Loaded, limits: &Limits) {
    say(format_args!(
        "{id}: {} of {} million {} weights in {} on {} ({}, {} threads)",
        info.architecture,
        info.parameters / 1_000_000,
        loaded.weights,
        info.compute_dtype,
        loaded.device.name,
        loaded.device.isa,
        loaded.device.threads,
    ));
    say(format_args!(
        "KV cache: {} pages of {} tokens in {}, at most {} MiB; {} sequences of at most {} tokens",
        limits.pages,
        limits.page_tokens,
        info.kv_type.name(),
        (limits.pages as u64 * capacity::page_bytes(info)) >> 20,
        limits.max_batch_size,
        limits.max_seq_len,
    ));
    if let Some(states) = limits.states {
        say(format_args!(
            "recurrent state: {} slots, at most {} MiB; snapshots every {} tokens",
            states.slots,
            (states.slots as u64 * info.state_bytes as u64) >> 20,
            states.interval,
        ));
    }
}
