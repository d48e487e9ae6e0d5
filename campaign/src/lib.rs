//! Campaigns: resolve and build a release, fetch its models and datasets, start a fresh server for
//! every planned run, have it measured, and hand the records to the registry.
//!
//! This package knows neither HTTP nor git objects nor templates: it runs `git`, `cargo`,
//! `redline-bench`, `redline-results` and `redline-site`. Each stage of a campaign has a folder;
//! the modules `campaign` and `lab` call the stages in the order in which they are declared
//! below.
//!
//! A program needs two things of this package: a [`World`], which [`world::gather`] makes,
//! and [`run`]. Items that the package `bench` shares with campaigns are public.

// The stages of a campaign.
pub mod build;
pub mod executor;
pub mod inputs;
pub mod node;
pub mod plan;
pub mod publish;
pub mod server_spec;

// The commands that run the stages.
mod campaign;
mod cli;
mod gate;
pub mod kernels;
mod lab;
mod matrix;
mod reproduce;
mod serve;

// Parts that every command uses.
pub mod catalog;
pub mod clock;
mod console;
mod disk;
pub mod files;
pub mod git;
pub mod lock;
pub mod places;
pub mod process;
mod redact;
pub mod stop;
pub mod tools;
pub mod world;

#[cfg(test)]
#[path = "../tests/simulation/mod.rs"]
mod simulation;

pub use catalog::{Catalog, Engine, ScenarioEntry};
pub use cli::{Cli, Inputs, Packages, parse_hours, parse_time};
pub use stop::Stop;
pub use world::World;

use cli::Verb;
use schema::exit::Exit;

/// Runs the subcommand that `cli` names and returns the exit code of its result.
///
/// # Errors
/// The command cannot be carried out. The [`Stop`] states the cause, a hint and the exit code.
pub fn run(world: &World, cli: &Cli) -> Result<Exit, Stop> {
    match &cli.command {
        Verb::ReleaseBench(flags) => campaign::run(world, flags),
        Verb::Gate(flags) => gate::run(world, flags),
        Verb::Ingest(flags) => publish::ingest::run(world, flags),
        Verb::Lab(flags) => lab::run(world, flags),
        Verb::Reproduce(flags) => reproduce::run(world, flags),
        Verb::Fetch(flags) => serve::fetch(world, flags),
        Verb::Serve(flags) => serve::serve(world, flags),
        Verb::Kernels(flags) => kernels::run(world, flags),
        Verb::Matrix(flags) => matrix::run(world, flags),
        Verb::Node(flags) => node::run(world, flags),
    }
}
