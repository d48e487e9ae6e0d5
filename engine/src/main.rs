//! `redline`: serves a model, or measures it. Time, environment and arguments enter here.

use std::process::ExitCode;
use std::thread;

use clap::Parser;
use engine::cli::{Cli, Surroundings};
use engine::clock::Clock;
use engine::say::say;
use engine::weights::hub_cache;

fn main() -> ExitCode {
    let surroundings = Surroundings {
        clock: Clock::start(),
        cores: thread::available_parallelism().map_or(1, usize::from),
        hub_cache: hub_cache(|name| std::env::var(name).ok()),
    };
    match Cli::parse().run(surroundings) {
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
