//! Program `redline-results`: adds records to a registry, checks it, compares releases.

mod cli;
mod commands;

use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Parser;
use cli::{Arguments, Command, SubmitCommand};
use commands::{World, additions, imports, queries, submissions};
use judge::finding::first_of;
use registry::repository::{Unsound, chain, exit_of};
use schema::event::EventKind;
use schema::exit::Exit;
use schema::untrusted;

fn main() -> ExitCode {
    // On wrong use clap ends the process itself, with code 2.
    let arguments = Arguments::parse();
    let exit = match world().and_then(|world| run(&world, &arguments.command)) {
        Ok(exit) => exit,
        Err(error) => {
            let unsound = error.downcast_ref::<Unsound>();
            for line in first_of(unsound.iter().flat_map(|of| &of.findings)) {
                eprintln!("{line}");
            }
            eprintln!("error: {}", untrusted::lines(&chain(&error)));
            exit_of(&error)
        }
    };
    ExitCode::from(exit.code())
}

/// Reads clock, random bits and the program's location, which the program takes in nowhere else.
/// `SOURCE_DATE_EPOCH`, where set, replaces the clock, as in other programs whose output must be
/// reproducible.
fn world() -> anyhow::Result<World> {
    let unix_ms = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => {
            let unix_s: u64 =
                text.parse().context("`SOURCE_DATE_EPOCH` is no number of seconds")?;
            unix_s.saturating_mul(1_000)
        }
        Err(_) => u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?,
    };
    let mut random = [0; 16];
    getrandom::fill(&mut random).context("the system gives no random bits")?;
    let program = std::env::current_exe()?;
    Ok(World {
        unix_ms,
        random: u128::from_le_bytes(random),
        tools: program.parent().unwrap_or(Path::new(".")).to_owned(),
        program: build_of(&program)?,
    })
}

/// Returns a name of this build of the program (version, size and time of the file), for the index:
/// another build may judge files differently.
fn build_of(program: &Path) -> anyhow::Result<String> {
    let facts = fs::metadata(program)?;
    let built = facts.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
    Ok(format!("{} {} bytes, built {built}", env!("CARGO_PKG_VERSION"), facts.len()))
}

fn run(world: &World, command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Preflight { place } => additions::preflight(&place.registry),
        Command::Record(given) => additions::record(world, given),
        Command::Sync(given) => additions::synchronize(world, given),
        Command::Retract(given) => additions::about(world, EventKind::Retract, given),
        Command::Annotate(given) => additions::about(world, EventKind::Annotate, given),
        Command::Waive(given) => additions::waive(world, given),
        Command::Epoch(given) => additions::epoch(world, given),
        Command::Import(given) => imports::import_files(world, given),
        Command::Check { place, format } => queries::check(world, &place.registry, *format),
        Command::Diff(given) => queries::diff(world, given),
        Command::Trend(given) => queries::trend(given),
        Command::Lab(given) => queries::lab(given),
        Command::List(given) => queries::list(world, given),
        Command::Best(given) => queries::best(given),
        Command::Export(given) => match &given.bundle {
            Some(out) => submissions::export(world, given, out),
            None => queries::export(given),
        },
        Command::Submit(SubmitCommand::Check(given)) => submissions::check(world, given),
        Command::Submit(SubmitCommand::Accept(given)) => submissions::accept(world, given),
        Command::Rules { format } => queries::rules(*format),
        Command::Show { run, sources } => queries::show(run, sources),
    }
}
