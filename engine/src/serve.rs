//! `redline serve`: joins configuration, checkpoint and device to a loaded model, and hands it to
//! the server.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use crate::capacity::{self, FreeMemory};
use crate::config::{
    Config, DeviceChoice, DtypeChoice, Source, SpeculativeAlgorithm, config_sha256, no_gpu,
};
use crate::http::{
    Access, ConnectionLimits, KvFacts, ModelFacts, Names, Origins, Ready, ServerInfo,
};
use crate::load::{self, LoadError, LoadOptions, log_libraries};
use crate::server::{Loaded, Rules, Server, allow_files, listen};
use crate::tokenize::{NoTokenizer, Text, Tokenizer};
use crate::worker::{DRAFTS_MAX, Handle};
use crate::{COMMIT, EnvironmentError, keys, log, memory};
use engine_core::clock::Clock;
use engine_cuda::driver::Cubins;
use engine_model::{ModelInfo, RopeChoice};
use engine_schedule::Limits;
use engine_weights::{Checkpoint, ModelSource};

/// Longest time that running requests have to end once the server is told to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Facts with which `redline serve` starts: configuration, model, cache folders and clock.
#[derive(Debug, Clone)]
pub struct Start {
    /// Configuration, resolved from flags, profile and defaults.
    pub config: Config,
    /// Folder, .gguf file or hub id of the model.
    pub model: String,
    /// Folder of the local hub cache, in which hub ids are looked up, as environment variables
    /// (such as `HF_HUB_CACHE`, else `HOME`) give it; `None` if none of them is set.
    pub hub_cache: Option<PathBuf>,
    /// Folders of the CUDA kernels' machine code: prepared files, and a cache of compiled kernels.
    pub cubins: Cubins,
    /// Clock that was started when the process started.
    pub clock: Clock,
}

/// Function that loads a model and settles the flags that depend on it: [`prepare`], or a stand-in
/// for it in tests.
pub type Prepare = fn(&Start, Handle) -> Result<Loaded>;

/// Runs the server until SIGTERM, Ctrl-C or a failure of the engine. The socket is open while
/// `prepare` still loads the model, so that `/health` can say so.
///
/// # Errors
/// The machine lacks GPUs that the flags require, the host has no address or may not be served
/// without an API key, the API key cannot be read, no address to listen on is available, the system
/// denies signal handlers or threads, the model is unusable, or the engine failed.
pub async fn serve(mut start: Start, prepare: Prepare) -> Result<()> {
    engine_cpu::keep_large_blocks_apart();
    // Checked before the socket opens, so that an impossible command fails at once.
    if start.config.device == DeviceChoice::Cuda {
        check_gpus(engine_cuda::usable().len(), start.config.tp)?;
    }
    let addresses = start.config.addresses()?;
    let rules = Rules {
        access: access(&start.config, &addresses)?,
        origins: origins(&start.config)?,
        connections: ConnectionLimits::of_files(allow_files()?),
        grace: GRACE,
    };
    let listener = listen(&addresses)?;
    let started = || EnvironmentError("failed to start".into());
    // The system has replaced port 0 by a free one.
    start.config.port = listener.local_addr().with_context(started)?.port();
    let mut terminate = signal(SignalKind::terminate()).with_context(started)?;
    let mut interrupt = signal(SignalKind::interrupt()).with_context(started)?;
    let (stop, stops) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
            if stop.send(()).is_err() {
                break;
            }
        }
    });
    let clock = start.clock;
    let load = move |handle| {
        let loaded = prepare(&start, handle);
        engine_cpu::give_back_freed();
        loaded
    };
    let server = Server::start(load, rules, clock)?;
    let ready = |address: SocketAddr| log(format_args!("ready http://{address}"));
    server.run(listener, stops, ready).await
}

/// Returns the rule by which requests are accepted or refused on `addresses`, those of `--host`.
fn access(config: &Config, addresses: &[SocketAddr]) -> Result<Access> {
    if let Some(path) = &config.api_key_file {
        return Ok(Access::Keys(keys::read(path)?));
    }
    let is_open = addresses.iter().any(|address| !address.ip().is_loopback());
    Ok(Access::Keyless(Names { host: config.host.clone(), is_open }))
}

/// Returns the origins of web pages that may use the server, as `--allow-origin` names them.
fn origins(config: &Config) -> Result<Origins> {
    let values = config.allow_origin.as_deref().unwrap_or_default();
    let origins = Origins::read(values).map_err(|value| {
        anyhow!(
            "`--allow-origin {value}` is invalid: it must be an origin such as \
             `https://chat.example`, or `*`"
        )
    })?;
    if origins.is_any() && config.api_key_file.is_none() {
        bail!(
            "with `--allow-origin *` every web page that is opened on this machine can use the \
             server; hint: give `--api-key-file`, or name the origins"
        );
    }
    Ok(origins)
}

fn check_gpus(found: usize, wanted: usize) -> Result<()> {
    if found == 0 {
        bail!(EnvironmentError(no_gpu()));
    }
    if found < wanted {
        bail!(EnvironmentError(format!(
            "`--tp {wanted}` needs a GPU for each rank, and there are {found} of compute capability \
             8.0 or later; hint: `--tp {found}`, or `--device cpu`"
        )));
    }
    Ok(())
}

/// Loads the model, settles the flags that depend on it, runs a warm-up step (on a GPU) and
/// allocates the KV cache from the memory that is left. The routes submit requests to the engine
/// loop by `handle`.
///
/// # Errors
/// The model cannot be found or is unusable, a flag is out of the range that the model allows, the
/// memory does not suffice, or the device reports an error.
pub fn prepare(start: &Start, handle: Handle) -> Result<Loaded> {
    let mut config = start.config.clone();
    // The host samples on as many threads as a CPU computes on. An earlier model of the process has
    // started them.
    let _ = rayon::ThreadPoolBuilder::new()
        .num_threads(config.threads)
        .thread_name(|_| "sampler".into())
        .build_global();
    let start_us = start.clock.elapsed_us();
    let source =
        ModelSource::find(&start.model, start.hub_cache.as_deref()).map_err(LoadError::from)?;
    if config.device == DeviceChoice::Cpu || engine_cuda::usable().is_empty() {
        let is_random = config.load_format.random_seed().is_some();
        let weights = if is_random { 0 } else { memory::weights_bytes(&source.files) };
        memory::check(weights, config.threads)?;
    }
    let (mut loaded, tokenizer) = load(&source, &options(&config, &start.cubins))?;
    let weights_load_us = start.clock.elapsed_us() - start_us;
    for gpu in &loaded.device.idle_gpus {
        log(format_args!("`{}` stays idle: the CPU computes the requested types", gpu.name));
    }
    log_libraries(loaded.device.lacks_library());
    let info = loaded.model.info().clone();
    settle(&mut config, &info, &source.id)?;
    let is_cuda = loaded.device.kind == "cuda";
    config.device = if is_cuda { DeviceChoice::Cuda } else { DeviceChoice::Cpu };
    let limits = allocate_kv(&config, &info, &mut loaded)?;
    log_model(&source.id, &info, &loaded, &limits);
    let effective = loaded.device.effective(&config);
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
            tokenizer_sha256: tokenizer.as_ref().map(|tokenizer| tokenizer.sha256.clone()),
            dtype: info.compute_dtype,
            parameters: info.parameters,
            max_seq_len: info.max_seq_len,
        },
        // Filled in when the server is ready.
        startup_us: 0,
        weights_load_us,
    };
    let text: Arc<dyn Text> = match tokenizer {
        Some(tokenizer) => Arc::new(tokenizer),
        None => Arc::new(NoTokenizer),
    };
    let ready = Ready {
        handle,
        text,
        limits,
        vocab_size: info.vocab_size,
        embedding_size: info.embedding_size,
        model_name: config.model_name.unwrap_or(source.id),
        info: server_info,
        weights_sha256: loaded.weights_sha256,
    };
    Ok((loaded.model, ready))
}

/// Runs the largest step as a warm-up (profile run) on a GPU, allocates the KV cache and slots for
/// recurrent state from the memory that is left, and returns the scheduler's limits.
fn allocate_kv(config: &Config, info: &ModelInfo, loaded: &mut load::Loaded) -> Result<Limits> {
    let (tokens, sequences) = (config.max_prefill_token_num, config.max_batch_size);
    let profiled = loaded.model.profile_run(tokens, sequences);
    let memory = match profiled.context("failed to run the largest step as a warm-up")? {
        Some(free) => FreeMemory { bytes: free, is_own: true },
        None => FreeMemory { bytes: loaded.free_bytes, is_own: false },
    };
    let run_ahead = loaded.model.run_ahead();
    let limits = capacity::limits(config, info, memory)?;
    let limits = Limits { run_ahead, max_drafts: drafts(config, run_ahead, &limits)?, ..limits };
    let failed = "failed to allocate the KV cache";
    loaded.model.allocate_kv(limits.pages, limits.page_tokens).context(failed)?;
    if let Some(states) = limits.states {
        loaded.model.allocate_states(states.slots).context(failed)?;
    }
    Ok(limits)
}

/// Returns the largest number of drafts of a sequence in a step: 0 without speculative decoding; an
/// error if the device or the model cannot take rows of wrong drafts back.
fn drafts(config: &Config, run_ahead: usize, limits: &Limits) -> Result<usize> {
    if config.speculative_algorithm == SpeculativeAlgorithm::None {
        return Ok(0);
    }
    let obstacle = match (run_ahead, &limits.states) {
        (0, None) => return Ok(DRAFTS_MAX),
        (0, Some(_)) => "models with recurrent state",
        _ => "a GPU; hint: `--device cpu`",
    };
    bail!("`--speculative-algorithm ngram` is not supported for {obstacle}");
}

/// Loads model and tokenizer in parallel, since reading the tokenizer takes nearly as long as
/// loading the model.
fn load(
    source: &ModelSource,
    options: &LoadOptions,
) -> load::Result<(load::Loaded, Option<Tokenizer>)> {
    let checkpoint = Checkpoint::open(&source.files, options.random_seed)?;
    thread::scope(|scope| {
        let tokenizer = scope.spawn(|| Tokenizer::load(&checkpoint.config));
        let loaded = load::load_checkpoint(&checkpoint, options)?;
        // A panic of the tokenizer's thread goes on here, and the server reports it.
        let tokenizer = tokenizer.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        Ok((loaded, tokenizer))
    })
}

/// Returns the options for loading a model, translated from the flags of `redline serve`.
fn options(config: &Config, cubins: &Cubins) -> LoadOptions {
    LoadOptions {
        device: config.device,
        cubins: cubins.clone(),
        tp: NonZeroUsize::new(config.tp),
        threads: NonZeroUsize::new(config.threads),
        kv: config.kv_dtype,
        random_seed: config.load_format.random_seed(),
        dtype: config.dtype,
        // `--dtype f32` reproduces reference outputs, whose RoPE frequencies were rounded to the
        // checkpoint's type; `auto` keeps exact frequencies, even where it computes in f32.
        rope: match config.dtype {
            DtypeChoice::F32 => RopeChoice::AsConverted,
            _ => RopeChoice::Exact,
        },
        isa: None,
    }
}

/// Replaces `auto` and unset flags by the values that the loaded model decides; an error if
/// `--max-seq-len` is more than the model was made for.
fn settle(config: &mut Config, info: &ModelInfo, id: &str) -> Result<()> {
    match config.max_seq_len {
        Some(wanted) if wanted > info.max_seq_len => {
            let made_for = info.max_seq_len;
            bail!(
                "`--max-seq-len {wanted}` is more than the {made_for} tokens that the model was made for"
            );
        }
        Some(_) => {}
        None => {
            config.max_seq_len = Some(info.max_seq_len);
            config.sources.insert("max-seq-len".into(), Source::Model);
        }
    }
    if config.model_name.is_none() {
        config.model_name = Some(id.to_owned());
        config.sources.insert("model-name".into(), Source::Model);
    }
    config.settle_dtypes(info.compute_dtype, info.kv_type.name());
    Ok(())
}

/// Prints to standard error the loaded model's architecture, number of weights, data type and
/// device, and the sizes of the KV cache and of the recurrent state.
fn log_model(id: &str, info: &ModelInfo, loaded: &load::Loaded, limits: &Limits) {
    log(format_args!(
        "{id}: {} of {} million {} weights in {} on {} ({}, {} threads)",
        info.architecture,
        info.parameters / 1_000_000,
        loaded.weights,
        info.compute_dtype,
        loaded.device.name,
        loaded.device.isa,
        loaded.device.threads,
    ));
    log(format_args!(
        "KV cache: {} pages of {} tokens in {}, at most {} MiB; {} sequences of at most {} tokens",
        limits.pages,
        limits.page_tokens,
        info.kv_type.name(),
        (limits.pages as u64 * capacity::page_bytes(info)) >> 20,
        limits.max_batch_size,
        limits.max_seq_len,
    ));
    if let Some(states) = limits.states {
        log(format_args!(
            "recurrent state: {} slots, at most {} MiB; snapshots every {} tokens",
            states.slots,
            (states.slots as u64 * info.state_bytes as u64) >> 20,
            states.interval,
        ));
    }
}
