//! Redline beside others: rival engines and clients, the validation of a release on a GPU, a soak,
//! and the registry's tools at size.
//!
//! Nothing here is part of a campaign. The commands share with campaigns how a server is built and
//! launched, how inputs are fetched, and how processes end; they are no campaign's to call.

#![warn(missing_docs)]

mod cli;
mod clients;
mod document;
mod gpu_validation;
mod peer;
mod scale;
mod soak;

pub use cli::Cli;

use campaign::{Stop, World};
use cli::Verb;
use schema::exit::Exit;

/// Carries out what `cli` asks for.
///
/// # Errors
/// What cannot be done, to what, and what helps; it says with which code the program ends.
pub fn run(world: &World, cli: &Cli) -> Result<Exit, Stop> {
    match &cli.command {
        Verb::PeerBench(flags) => peer::run(world, flags),
        Verb::ClientBench(flags) => clients::run(world, flags),
        Verb::ScaleBench(flags) => scale::run(world, flags),
        Verb::Soak(flags) => soak::run(world, flags),
        Verb::GpuValidation { step } => gpu_validation::run(world, step),
    }
}
