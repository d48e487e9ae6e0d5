//! The command line of `redline`: which command does what. Knows no environment but what it is
//! given.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::bench::{self, BenchFlags, Subject};
use crate::config::{Config, Flags, Machine};
use crate::launch::{self, Launch, LaunchError, Prepare};
use crate::perplexity::{self, PerplexityFlags};
use crate::say::say;
use engine_core::clock::Clock;
use engine_cuda::driver::Cubins;

/// Serves large language models over an OpenAI-compatible API.
#[derive(Debug, Parser)]
#[command(name = "redline", version = launch::version(), arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves a model until it is told to stop
    Serve {
        /// Folder with config.json and safetensors, .gguf file, or hub id in the local cache
        model: String,
        #[command(flatten)]
        flags: Box<Flags>,
    },
    /// Measures prefill and decode without a server
    Bench {
        /// Whether to read the weights or to make them up, as for `serve`
        #[arg(required_unless_present = "kernels")]
        model: Option<String>,
        #[command(flatten)]
        flags: BenchFlags,
    },
    /// Measures how well a model predicts a text
    Perplexity {
        /// Whether to read the weights or to make them up, as for `serve`
        model: String,
        #[command(flatten)]
        flags: PerplexityFlags,
    },
}

/// What a command may know of the world.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// Started where the process was.
    pub clock: Clock,
    /// Processors that this process may use.
    pub cores: usize,
    /// Cache folder in which hub ids are looked up.
    pub hub_cache: Option<PathBuf>,
    /// Location and cache of the compiled GPU kernels.
    pub cubins: Cubins,
}

impl Cli {
    /// Does what was asked, serving what `prepare` makes, and says how it ended: on standard output
    /// what was asked for, on standard error what went wrong.
    pub fn run(self, surroundings: Surroundings, prepare: Prepare) -> ExitCode {
        match self.answer(surroundings, prepare) {
            Ok(text) => {
                print!("{text}");
                ExitCode::SUCCESS
            }
            Err(error) => {
                let code = error.exit_code();
                say(format_args!("error: {:#}", anyhow::Error::new(error)));
                ExitCode::from(code)
            }
        }
    }

    fn answer(self, surroundings: Surroundings, prepare: Prepare) -> Result<String, LaunchError> {
        let Surroundings { clock, cores, hub_cache, cubins } = surroundings;
        match self.command {
            Command::Bench { model, flags } => {
                let subject = Subject { model: model.as_deref(), hub_cache: hub_cache.as_deref() };
                Ok(bench::run(subject, &flags, &cubins, clock)?)
            }
            Command::Perplexity { model, flags } => {
                Ok(perplexity::run(&model, hub_cache.as_deref(), &flags)?)
            }
            Command::Serve { model, flags } => {
                let (processor, gpus) = (engine_cpu::processor_name(), engine_cuda::usable());
                let gpus: Vec<&str> = gpus.iter().map(|gpu| &*gpu.name).collect();
                let machine = Machine { cores, processor: &processor, gpus: &gpus };
                let config = Config::resolve(*flags, &machine)?;
                serve(Launch { config, model, hub_cache, cubins, clock }, prepare)?;
                Ok(String::new())
            }
        }
    }
}

/// One thread answers all clients: the model has better uses for the others.
fn serve(launch: Launch, prepare: Prepare) -> Result<(), LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(LaunchError::Start)?;
    let result = runtime.block_on(launch::serve(launch, prepare));
    // What may still be hashing or tokenizing holds up nobody.
    runtime.shutdown_background();
    result
}
