//! The program `redline`: serves a model or measures it. Time, environment and arguments are read
//! here and handed down.

use std::process::ExitCode;
use std::thread;

use clap::{CommandFactory, FromArgMatches, Subcommand};
use engine::cli::{Cli, Surroundings};
use engine::launch;
use engine_core::clock::Clock;
use engine_cuda::driver::Cubins;
use engine_weights::hub_cache;

use crate::manual::Manual;

mod manual;

fn main() -> ExitCode {
    let program = Manual::augment_subcommands(Cli::command());
    // Man pages and completions are made from the same definition of the command line.
    let asked = program.clone().get_matches();
    // `completions` and `man` need neither clock nor environment.
    if let Ok(manual) = Manual::from_arg_matches(&asked) {
        return manual.answer(program);
    }
    let cli = Cli::from_arg_matches(&asked).unwrap_or_else(|error| error.exit());
    let variable = |name: &str| std::env::var(name).ok();
    let surroundings = Surroundings {
        clock: Clock::start(),
        cores: thread::available_parallelism().map_or(1, usize::from),
        hub_cache: hub_cache(variable),
        cubins: Cubins::of_environment(variable),
    };
    cli.run(surroundings, launch::prepare)
}
