//! `redline`: serves a model, or measures it. Time, environment and arguments enter here.

use std::error::Error;
use std::process::ExitCode;
use std::thread;

use clap::{Parser, Subcommand};
use engine::clock::Clock;
use engine::config::{Config, Flags};
use engine::device::cpu;
use engine::launch::{self, COMMIT, Launch, LaunchError};
use engine::weights::hub_cache;

/// Serves large language models over an OpenAI-compatible API.
#[derive(Debug, Parser)]
#[command(name = "redline", version = version(), arg_required_else_help = true)]
struct Cli {
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
        flags: Flags,
    },
}

fn main() -> ExitCode {
    let clock = Clock::start();
    let Command::Serve { model, flags } = Cli::parse().command;
    match serve(model, flags, clock) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::from(error.exit_code())
        }
    }
}

fn serve(model: String, flags: Flags, clock: Clock) -> Result<(), LaunchError> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let config = Config::resolve(flags, cores, &cpu::processor_name())?;
    let hub_cache = hub_cache(|name| std::env::var(name).ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let launch = Launch { config, model, hub_cache, clock };
    runtime.map_err(LaunchError::Start)?.block_on(launch::serve(launch))
}

fn version() -> String {
    format!("{} ({})", env!("CARGO_PKG_VERSION"), COMMIT.unwrap_or("unknown commit"))
}

fn chain(error: &dyn Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}
