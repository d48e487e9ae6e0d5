//! Redline beside others: comparison with rival engines and load generators, GPU validation of a
//! release, a test for leaks, the time that the registry's tools take on a large registry, and
//! what the gate finds of planted changes.
//!
//! Nothing here is part of a campaign. The commands share with `campaign` how servers are built and
//! started, how inputs are fetched, and how processes end; `campaign` never calls them.

#![warn(missing_docs)]

mod cli;
mod clients;
mod gate_bench;
mod gpu_validation;
mod peer;
mod scale;
mod soak;

pub use cli::Cli;

use campaign::executor::LOCAL;
use campaign::files::{read_text, write_whole};
use campaign::node::run::Bench;
use campaign::places::CampaignPlaces;
use campaign::stop::Ends;
use campaign::{Stop, World};
use clap::ValueEnum;
use cli::Verb;
use schema::exit::Exit;
use schema::run::HardwareFacts;

/// Failure of a compared engine or client. A command that ends because of it has exit code 1;
/// `client-bench` records the failure of another client than Redline's and goes on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct RivalError(String);

impl Ends for RivalError {
    fn exit(&self) -> Exit {
        Exit::Worse
    }
}

/// Converts a count, size or time to a float; all values are far below 2^53, so none is rounded.
#[expect(clippy::cast_precision_loss, reason = "whole numbers below 2^53 keep their value")]
fn float(value: u64) -> f64 {
    value as f64
}

/// Converts a positive count or size to an integer, without its fraction; all are far below 2^53.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 2^53")]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Returns the name of a flag's value as it is written on the command line.
fn name_of(value: impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Runs the subcommand that `cli` names and returns the exit code of its result.
///
/// # Errors
/// The command cannot be carried out. The [`Stop`] states the cause, a hint and the exit code.
pub fn run(world: &World, cli: &Cli) -> Result<Exit, Stop> {
    match &cli.command {
        Verb::PeerBench(flags) => peer::run(world, flags),
        Verb::ClientBench(flags) => clients::run(world, flags),
        Verb::GateBench(flags) => gate_bench::run(world, flags),
        Verb::ScaleBench(flags) => scale::run(world, flags),
        Verb::Soak(flags) => soak::run(world, flags),
        Verb::GpuValidation { step } => gpu_validation::run(world, step),
    }
}

/// Writes `table` into the page at `document` (a path below this clone's root), between the markers
/// that name `command` as the writer.
///
/// # Errors
/// The page has no such markers, or cannot be read or written.
fn write_table(world: &World, document: &str, command: &str, table: &str) -> Result<(), Stop> {
    let path = world.places.root.join(document);
    let written = schema::document::insert(&read_text(&path)?, command, table)
        .map_err(|why| Stop::wrong_use(format!("the table has no place in `{document}`: {why}")))?;
    Ok(write_whole(&path, written.as_bytes())?)
}

/// Builds the runner of benchmark runs on this machine, outside of `redline-campaign`; the runs'
/// records name `campaign` as their campaign's id.
fn local_bench<'a>(
    world: &'a World,
    campaign: &'a str,
    places: &'a CampaignPlaces,
    hardware: &'a HardwareFacts,
) -> Bench<'a> {
    let (url, timeout_s, limit) = (None, None, None);
    Bench { world, campaign, executor: LOCAL, places, hardware, url, timeout_s, limit }
}
