//! `redline`: serves a model, or measures it. Time, environment and arguments enter here.

use std::process::ExitCode;
use std::thread;

use clap::Parser;
use engine::cli::{Cli, Surroundings};
use engine::clock::Clock;
use engine::launch;
use engine::weights::hub_cache;

fn main() -> ExitCode {
    let surroundings = Surroundings {
        clock: Clock::start(),
        cores: thread::available_parallelism().map_or(1, usize::from),
        hub_cache: hub_cache(|name| std::env::var(name).ok()),
    };
    Cli::parse().run(surroundings, launch::prepare)
}
