//! Redline beside others: comparison with rival engines and load generators, GPU validation of a
//! release, a memory-leak test, and the registry's tools on a large registry.
//!
//! Nothing here is part of a campaign. The commands share with `campaign` how servers are built and
//! started, how inputs are fetched, and how processes end; `campaign` never calls them.

#![warn(missing_docs)]

mod cli;
mod clients;
mod document;
mod gpu_validation;
mod peer;
mod scale;
mod soak;

pub use cli::Cli;

use campaign::stop::Ends;
use campaign::{Stop, World};
use cli::Verb;
use schema::exit::Exit;

/// Failure of a compared engine or client: exit code 1.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RivalError(String);

impl Ends for RivalError {
    fn exit(&self) -> Exit {
        Exit::Worse
    }
}

/// Runs the subcommand that `cli` names and returns the exit code of its result.
///
/// # Errors
/// The command cannot be carried out. The [`Stop`] states the cause, a hint and the exit code.
pub fn run(world: &World, cli: &Cli) -> Result<Exit, Stop> {
    match &cli.command {
        Verb::PeerBench(flags) => peer::run(world, flags),
        Verb::ClientBench(flags) => clients::run(world, flags),
        Verb::ScaleBench(flags) => scale::run(world, flags),
        Verb::Soak(flags) => soak::run(world, flags),
        Verb::GpuValidation { step } => gpu_validation::run(world, step),
    }
}
