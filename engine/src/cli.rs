//! The command line of `redline`: parses the arguments and dispatches to serve, chat,
//! bench or perplexity. It must not read the environment; `main` passes that in.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::bench::{self, BenchFlags};
use crate::chat::{self, ChatFlags};
use crate::config::{Config, Flags, LogFormat, Machine};
use crate::load::LoadError;
use crate::perplexity::{self, PerplexityFlags};
use crate::serve::{self, Prepare, Start};
use crate::server::{EnginePanic, allow_files};
use crate::{EnvironmentError, log, log_error, print, shortened, version};
use engine_core::DeviceError;
use engine_core::clock::Clock;
use engine_cuda::driver::Cubins;
use tokio::runtime::Runtime;

/// Limit on the number of characters of the message with which the process ends: errors of a
/// checkpoint may repeat a part of it, however long.
const ERROR_CHARS_MAX: usize = 4000;

/// Serves large language models over an OpenAI-compatible API.
#[derive(Debug, Parser)]
#[command(name = "redline", version = version(), arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a model over HTTP until SIGTERM or Ctrl-C
    Serve {
        /// Folder with config.json and safetensors, .gguf file, or hub id in the local cache
        model: String,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Chats with a model in the terminal, without a server
    Chat {
        /// Folder, .gguf file or hub id of the model, as for `serve`
        model: String,
        #[command(flatten)]
        flags: Box<ChatFlags>,
    },
    /// Measures prefill and decode throughput without a server
    Bench {
        /// Folder, .gguf file or hub id of the model, as for `serve`
        #[arg(required_unless_present = "kernels")]
        model: Option<String>,
        #[command(flatten)]
        flags: BenchFlags,
    },
    /// Measures how well a model predicts a text (perplexity)
    Perplexity {
        /// Folder, .gguf file or hub id of the model, as for `serve`
        model: String,
        #[command(flatten)]
        flags: PerplexityFlags,
    },
}

/// Facts about the process and its machine that a command may use; gathered in `main`.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Clock that was started when the process started.
    pub clock: Clock,
    /// Number of processors that this process may use.
    pub cores: usize,
    /// Folder of the local hub cache, in which hub ids are looked up, as environment variables
    /// (such as `HF_HUB_CACHE`, else `HOME`) give it; `None` if none of them is set.
    pub hub_cache: Option<PathBuf>,
    /// Folders of the CUDA kernels' machine code: prepared files, and a cache of compiled kernels.
    pub cubins: Cubins,
}

impl Cli {
    /// Runs the command that the arguments name and returns the exit code of the process. `serve`
    /// loads its model by `prepare`. The result goes to standard output, an error to standard
    /// error.
    pub fn run(self, surroundings: Surroundings, prepare: Prepare) -> ExitCode {
        match self.answer(surroundings, prepare) {
            Ok(text) => print(&text),
            Err(error) => {
                if let Some(failed) = error.downcast_ref::<bench::ChecksFailed>() {
                    print(&failed.document);
                }
                let message = format!("{error:#}");
                log_error(&shortened(&message, ERROR_CHARS_MAX));
                ExitCode::from(exit_code(&error))
            }
        }
    }

    fn answer(self, surroundings: Surroundings, prepare: Prepare) -> Result<String> {
        let Surroundings { clock, cores, hub_cache, cubins } = surroundings;
        match self.command {
            Command::Bench { model, flags } => {
                bench::run(model.as_deref(), hub_cache.as_deref(), &flags, &cubins, clock)
                    .context("failed to measure the model")
            }
            Command::Perplexity { model, flags } => {
                perplexity::run(&model, hub_cache.as_deref(), &flags)
                    .context("failed to measure the perplexity")
            }
            Command::Chat { model, flags } => {
                let config = config_for(&flags.serving(), cores)?;
                let start = Start { config, model, hub_cache, cubins, clock };
                with_runtime(|runtime| chat::run(runtime, start, &flags, prepare))?;
                Ok(String::new())
            }
            Command::Serve { model, flags } => {
                let config = config_for(&flags, cores)?;
                if config.log_format == LogFormat::Json {
                    log::use_json(clock);
                }
                let start = Start { config, model, hub_cache, cubins, clock };
                // Before the runtime, which panics if it may not open its own files.
                allow_files()?;
                with_runtime(|runtime| runtime.block_on(serve::serve(start, prepare)))?;
                Ok(String::new())
            }
        }
    }
}

/// Resolves flags to the configuration for this machine, which has `cores` processors.
fn config_for(flags: &Flags, cores: usize) -> Result<Config> {
    let (processor, gpus) = (engine_cpu::processor_name(), engine_cuda::usable());
    let gpus: Vec<&str> = gpus.iter().map(|gpu| &*gpu.name).collect();
    Config::resolve(flags, &Machine { cores, processor: &processor, gpus: &gpus })
}

/// Runs a command on a runtime with one thread: one is enough for all clients, and the model needs
/// the other cores.
fn with_runtime(command: impl FnOnce(&Runtime) -> Result<()>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context(EnvironmentError("failed to start".into()))?;
    let result = command(&runtime);
    // Returns without waiting for blocking tasks, such as hashing of the weights or tokenizing.
    runtime.shutdown_background();
    result
}

/// Returns the exit code of a failed command: 2 for wrong use or unsound data, 4 for a failure of
/// the environment, 101 for a bug.
fn exit_code(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<LoadError>() {
        error.exit_code()
    } else if error.is::<EnginePanic>() {
        101
    } else if error.is::<EnvironmentError>() || error.is::<DeviceError>() {
        4
    } else {
        2
    }
}
