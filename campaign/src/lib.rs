//! Campaigns: resolve and build a release, fetch its inputs, launch its server for every planned
//! run, have it measured, and hand the records to the registry.
//!
//! This package knows neither HTTP nor git objects nor templates: it runs `git`, `cargo`,
//! `redline-bench`, `redline-results` and `redline-site`. Modules stand in reading order, and the
//! first line of each says what it is: `release_bench` is the way from a command to a commit,
//! `drive` carries jobs out, `node` is what a job does.
//!
//! A program needs two things of it: a [`World`], which it gathers, and [`run`]. What tests of its
//! own look at beside is public too: how a server is started ([`launch`], [`container`]), and how
//! jobs get to their nodes ([`executor`]).

#![warn(missing_docs)]

// What every command works with.
mod catalog;
mod cli;
mod console;
mod files;
mod git;
mod lines;
mod lock;
mod places;
mod process;
mod redact;
mod stop;
mod tools;
mod world;

// The machine at hand.
mod calibration;
mod fitness;
mod gpu;
mod hardware;
mod target;

// What is measured, decided before anything is built.
mod brief;
mod decide;
mod estimate;
pub mod launch;
mod plan;
mod release;
mod sides;

// What that needs: programs and inputs.
mod build;
mod checkpoint;
pub mod container;
mod fetch;
mod inputs;
mod installed;
mod worktree;

// A campaign from its journal to its last job.
mod collect;
mod confirm;
mod drive;
mod ending;
pub mod executor;
mod job;
mod journal;
mod ready;
mod release_bench;
mod resume;
mod submit;
mod tell;

// A job on its node, launch by launch.
mod failure;
mod node;
mod record;
mod run;
mod server;
mod steps;
mod unmeasured;

// From finished runs to a commit and pages.
mod beside;
mod document;
mod finish;
mod ingest;
mod publish;

// The other campaigns, and what is no campaign.
mod clients;
mod kernels;
mod lab;
mod peer;
mod proof;
mod scale;
mod serve;
mod soak;

pub use catalog::Catalog;
pub use cli::Cli;
pub use console::Console;
pub use inputs::cache::Cache;
pub use places::Places;
pub use plan::split_flags;
pub use process::Interrupt;
pub use redact::Identity;
pub use stop::Stop;
pub use tools::Tools;
pub use world::{Clock, Programs, World};

use cli::Verb;
use schema::exit::Exit;

/// Carries out what `cli` asks for.
///
/// # Errors
/// What cannot be done, to what, and what helps; it says with which code the program ends.
pub fn run(world: &World, cli: &Cli) -> Result<Exit, Stop> {
    match &cli.command {
        Verb::ReleaseBench(flags) => release_bench::run(world, flags),
        Verb::Ingest(flags) => ingest::run(world, flags),
        Verb::Lab(flags) => lab::run(world, flags),
        Verb::Fetch(flags) => fetch::run(world, flags),
        Verb::Serve(flags) => serve::run(world, flags),
        Verb::Kernels(flags) => kernels::run(world, flags),
        Verb::PeerBench(flags) => peer::run(world, flags),
        Verb::ClientBench(flags) => clients::run(world, flags),
        Verb::ScaleBench(flags) => scale::run(world, flags),
        Verb::Soak(flags) => soak::run(world, flags),
        Verb::Node(flags) => node::run(world, flags),
        Verb::GpuProof { step } => proof::run(world, step),
    }
}
