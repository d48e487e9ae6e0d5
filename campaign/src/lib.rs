//! Campaigns: resolve and build a release, fetch its inputs, launch its server for every planned
//! run, have it measured, and hand the records to the registry.
//!
//! This package knows neither HTTP nor git objects nor templates: it runs `git`, `cargo`,
//! `redline-bench`, `redline-results` and `redline-site`. Each stage of a campaign is a folder, and
//! they stand in the order of a campaign: `release_bench` and `lab` go through them.
//!
//! A program needs two things of it: a [`World`], which [`environment::gather`] makes, and [`run`].
//! What `bench` shares with campaigns is public.

// The stages of a campaign.
pub mod build;
pub mod executor;
pub mod inputs;
pub mod launch;
pub mod node;
pub mod plan;
pub mod publish;

// The commands that go through them.
mod cli;
pub mod kernels;
mod lab;
mod release_bench;
mod serve;

// What every command works with.
mod catalog;
pub mod clock;
mod console;
pub mod environment;
pub mod files;
pub mod git;
mod lines;
pub mod lock;
pub mod places;
pub mod process;
mod redact;
pub mod stop;
pub mod tools;
pub mod world;

pub use catalog::{Catalog, CatalogError, Engine, ScenarioEntry};
pub use cli::{Cli, Inputs};
pub use stop::Stop;
pub use world::World;

use cli::Verb;
use schema::exit::Exit;

/// Carries out what `cli` asks for.
///
/// # Errors
/// What cannot be done, to what, and what helps; it says with which code the program ends.
pub fn run(world: &World, cli: &Cli) -> Result<Exit, Stop> {
    match &cli.command {
        Verb::ReleaseBench(flags) => release_bench::run(world, flags),
        Verb::Ingest(flags) => publish::ingest::run(world, flags),
        Verb::Lab(flags) => lab::run(world, flags),
        Verb::Fetch(flags) => inputs::fetch::run(world, flags),
        Verb::Serve(flags) => serve::run(world, flags),
        Verb::Kernels(flags) => kernels::run(world, flags),
        Verb::Node(flags) => node::run(world, flags),
    }
}
