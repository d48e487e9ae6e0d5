//! Program `redline-results`: adds records to a registry, checks it, compares releases.

mod cli;
mod commands;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use clap::Parser;
use cli::{
    Arguments, Command, DiffArguments, DiffFormat, Format, RecordArguments, Sources,
    TrendArguments, TrendFormat,
};
use commands::{World, events, import, queries};
use judge::Registry;
use judge::diff::{self, Filter};
use judge::trend;
use registry::check::{CheckError, check};
use registry::commit::Clock;
use registry::record::{RecordError, record};
use registry::render::RenderError;
use registry::repository::{RESULTS, RepositoryError, WorkTree};
use registry::sync::SyncError;
use registry::{changes, junit, list};
use schema::event::EventKind;
use schema::exit::Exit;
use store::StoreError;

fn main() -> ExitCode {
    // On wrong use clap ends the process itself, with code 2.
    let arguments = Arguments::parse();
    let done = world().and_then(|world| run(&world, &arguments.command));
    match done {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::from(exit_of(&error).code())
        }
    }
}

/// Reads clock, random bits and the program's location, which enter here and nowhere else.
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

/// Name of this build of the program, for the index: another build may judge files differently.
fn build_of(program: &Path) -> anyhow::Result<String> {
    let facts = fs::metadata(program)?;
    let built = facts.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
    Ok(format!("{} {} bytes, built {built}", env!("CARGO_PKG_VERSION"), facts.len()))
}

fn run(world: &World, command: &Command) -> anyhow::Result<Exit> {
    match command {
        Command::Preflight { place } => preflight(&place.registry),
        Command::Record(arguments) => run_record(world, arguments),
        Command::Sync(given) => commands::sync::run(world, given),
        Command::Retract(given) => {
            events::write(world, EventKind::Retract, given.into(), &given.event)
        }
        Command::Annotate(given) => {
            events::write(world, EventKind::Annotate, given.into(), &given.event)
        }
        Command::Waive(given) => events::write(world, EventKind::Waive, given.into(), &given.event),
        Command::Epoch(given) => events::write(world, EventKind::Epoch, given.into(), &given.event),
        Command::Check { place, format } => run_check(world, &place.registry, *format),
        Command::Diff(arguments) => run_diff(world, arguments),
        Command::Import(given) => import::run(world, given),
        Command::Trend(arguments) => run_trend(arguments),
        Command::Lab(given) => commands::lab::run(given),
        Command::List(given) => queries::list(world, given),
        Command::Best(given) => queries::best(given),
        Command::Export(given) => queries::export(given),
        Command::Rules { format } => queries::rules(*format),
        Command::Show { run, sources } => queries::show(run, sources),
    }
}

fn preflight(registry: &Path) -> anyhow::Result<Exit> {
    let head = WorkTree::open(registry)?.ready()?;
    print(&json(&head)?)?;
    Ok(Exit::Well)
}

fn run_record(world: &World, arguments: &RecordArguments) -> anyhow::Result<Exit> {
    let clock = Clock { unix_s: world.unix_s() };
    let RecordArguments { overlay, place, message, .. } = arguments;
    let recorded = match record(&place.registry, overlay, message, clock) {
        Err(RecordError::Unsound(findings)) => {
            for finding in &findings {
                eprintln!("{finding}");
            }
            return Err(RecordError::Unsound(findings).into());
        }
        other => other?,
    };
    for line in recorded.notes.iter().map(|note| format!("note: {note}")) {
        eprintln!("{line}");
    }
    for remark in &recorded.remarks {
        eprintln!("{remark}");
    }
    if arguments.json {
        print(&json(&recorded)?)?;
        return Ok(Exit::Well);
    }
    let commit = recorded.commit.as_deref().unwrap_or("none");
    let mut lines = vec![match recorded.paths.len() {
        0 => format!("nothing new: {} holds all {} files", recorded.branch, recorded.known),
        n => format!("commit {commit} on {}: {n} files", recorded.branch),
    }];
    lines.extend(recorded.paths.iter().map(|path| format!("  {path}")));
    print(&lines.join("\n"))?;
    Ok(Exit::Well)
}

fn run_check(world: &World, registry: &Path, format: Format) -> anyhow::Result<Exit> {
    let report = check(registry, Some(&world.place(registry)), world.unix_ms)?;
    match format {
        Format::Json => print(&json(&report)?)?,
        _ => print(&report.to_string())?,
    }
    Ok(report.exit())
}

fn run_diff(world: &World, arguments: &DiffArguments) -> anyhow::Result<Exit> {
    let releases = [arguments.baseline.as_str(), arguments.candidate.as_str()];
    let loaded = load_releases(&arguments.sources, &releases)?;
    let on = &arguments.on;
    let filter = Filter { engine: on.engine.clone(), hardware: on.hardware.clone() };
    let mut diff = diff::diff(&loaded, &arguments.baseline, &arguments.candidate, &filter)?;
    diff::waivers::apply(&mut diff, &loaded, world.unix_s());
    diff.commits = changes::between(&arguments.sources.place.registry, &loaded, &diff);
    let text = match arguments.format {
        DiffFormat::Text => diff::text::text(&diff),
        DiffFormat::Md => diff::markdown::markdown(&diff),
        DiffFormat::Json => json(&diff)?,
        DiffFormat::Junit => junit::junit(&diff)?,
    };
    print(text.trim_end())?;
    Ok(diff.exit())
}

fn run_trend(arguments: &TrendArguments) -> anyhow::Result<Exit> {
    let results = arguments.place.registry.join(RESULTS);
    let loaded = said(store::load_runs(&[&results], &(&arguments.cells).into())?);
    let cells = &arguments.cells;
    let filter = trend::Filter {
        engine: cells.on.engine.clone(),
        hardware: cells.on.hardware.clone(),
        model: cells.model.clone(),
        scenario: cells.scenario.clone(),
        metric: arguments.metric.clone(),
    };
    let trends = trend::trends(&loaded, &filter)?;
    match arguments.format {
        TrendFormat::Text => print(&trend::text::text(&trends))?,
        TrendFormat::Json => print(&json(&trends)?)?,
    }
    Ok(Exit::Well)
}

/// Loads the registry and the overlay that `sources` name.
fn load(sources: &Sources) -> anyhow::Result<Registry> {
    let roots = sources.roots();
    let roots: Vec<&Path> = roots.iter().map(PathBuf::as_path).collect();
    Ok(said(store::load(&roots)?))
}

/// Loads only the runs of these releases. Loads everything where a release has no run, so that the
/// error can list the releases that exist.
fn load_releases(sources: &Sources, releases: &[&str]) -> anyhow::Result<Registry> {
    let roots = sources.roots();
    let roots: Vec<&Path> = roots.iter().map(PathBuf::as_path).collect();
    let loaded = store::load_releases(&roots, releases)?;
    if loaded.releases().len() < releases.len() {
        return load(sources);
    }
    Ok(said(loaded))
}

/// Returns what was loaded, after printing the findings about unreadable files.
fn said(loaded: Registry) -> Registry {
    for finding in &loaded.findings {
        eprintln!("{finding}");
    }
    loaded
}

fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)?)
}

/// Writes to standard output. A reader that closed the pipe is not an error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Formats an error and its causes on one line, with their hints on lines of their own at the end.
fn chain(error: &anyhow::Error) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut hints: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default().to_owned();
        // A transparent error repeats the text of its cause.
        if messages.last() != Some(&first) {
            messages.push(first);
        }
        for hint in lines.map(|line| format!("\n{line}")) {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
    }
    messages.join(": ") + &hints.concat()
}

fn exit_of(error: &anyhow::Error) -> Exit {
    if let Some(error) = error.downcast_ref::<RecordError>() {
        return error.exit();
    }
    if let Some(error) = error.downcast_ref::<SyncError>() {
        return error.exit();
    }
    if let Some(error) = error.downcast_ref::<RepositoryError>() {
        return error.exit();
    }
    if let Some(error) = error.downcast_ref::<CheckError>() {
        return error.exit();
    }
    if error.is::<diff::DiffError>()
        || error.is::<trend::TrendError>()
        || error.is::<list::FindError>()
        || error.is::<registry::import::ImportError>()
    {
        return Exit::Unsound;
    }
    if error.is::<StoreError>() || error.is::<io::Error>() || error.is::<RenderError>() {
        return Exit::Environment;
    }
    Exit::Unsound
}
