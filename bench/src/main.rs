//! `redline-peers`: parses the command line, gathers the environment, runs the subcommand.

use std::process::ExitCode;

use bench::Cli;
use campaign::world;
use clap::Parser;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let world = world::gather(cli.root.as_deref(), cli.tools_dir.as_deref(), cli.given());
    world::exit_code(world.and_then(|world| bench::run(&world, &cli)))
}
