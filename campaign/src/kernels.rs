//! `kernels`: runs the engine's criterion benches and turns what criterion left into one record.

pub mod criterion;

use std::path::Path;
use std::process::Command;

use schema::canonical::record_sha256;
use schema::exit::Exit;
use schema::kernel::{KernelBench, KernelRecord, SCHEMA};
use schema::run::{Absent, EngineFacts, Time, unexplained_nulls};

use crate::cli::Kernels;
use crate::git::Git;
use crate::hardware;
use crate::lock::Lock;
use crate::plan::Side;
use crate::process::{self, describe};
use crate::publish::{self, Registry};
use crate::record::RecordError;
use crate::release;
use crate::run::Engine;
use crate::sides::{self, Origin, REDLINE, Wanted};
use crate::stop::Stop;
use crate::worktree;
use crate::world::{Ids, World};

const ENGINE: &str = "redline";

/// Seconds to warm up and to measure, and samples, for each of about a thousand benches: with
/// criterion's own eight seconds they would take hours.
const CRITERION: [&str; 6] =
    ["--warm-up-time", "0.1", "--measurement-time", "0.3", "--sample-size", "20"];

/// Runs the benches of a release, or of the working tree.
///
/// # Errors
/// The benches fail, or the record is refused.
pub fn run(world: &World, flags: &Kernels) -> Result<Exit, Stop> {
    world.tools.check()?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
    let (path, file) = world.catalog.engine(REDLINE)?;
    let engine = Engine { id: REDLINE.to_owned(), path, file };
    let wanted = match &flags.release {
        Some(name) => {
            let found = release::resolve(&release::read_history(&git, &[name])?, name)?;
            let side = Side::plain(REDLINE, &found.name);
            Wanted { side, engine, origin: Origin::Release(found) }
        }
        None => sides::working_tree(world, &git, &engine, None)?,
    };
    let commits = matches!(wanted.origin, Origin::Release(_));
    let root = flags.registry.clone().unwrap_or_else(|| world.places.root().to_owned());
    let registry = Registry { tools: &world.tools, dir: &root, interrupt: &world.interrupt };
    if commits {
        registry.preflight()?;
    }
    let mut ids = Ids::new(world.clock.unix_ms(), world.random);
    let id = ids.next_id();
    let places = world.places.campaign(&id);
    let started_at = world.clock.rfc3339();
    let started = world.clock.elapsed();
    let home = places.criterion();
    bench(world, &git, &wanted, &home)?;
    let wall = world.clock.elapsed().saturating_sub(started);
    let benches = criterion::read(&home)?;
    let time = Time {
        started_at: Some(started_at),
        finished_at: Some(world.clock.rfc3339()),
        wall_us: u64::try_from(wall.as_micros()).ok(),
        ..Time::default()
    };
    let machine = hardware::detect(&world.programs, world.cores, &world.interrupt)?;
    let mut record = KernelRecord {
        schema: SCHEMA.to_owned(),
        id,
        engine: engine_facts(world, &wanted),
        time,
        ..KernelRecord::default()
    };
    (record.hardware, record.absent) = machine.facts(&machine.id(false));
    fill(&mut record, benches)?;
    let place = schema::path::of_kernels(&record).map_err(RecordError::from)?;
    let path = publish::write(&places.overlay(), &place, &record)?;
    let answer = |text: String| world.console.answer(&text);
    answer(table(&record));
    if !commits {
        answer(format!("record   {} (not committed)", world.places.shown(&path)));
        return Ok(Exit::Well);
    }
    let count = record.benches.len();
    let (release, hardware) = (&record.engine.release, &record.hardware.id);
    let message = format!("results: {count} kernels of {ENGINE} {release} on {hardware}\n");
    registry.render_pages(&places.overlay())?;
    let commit = registry.record(&places.overlay(), &message)?;
    answer(format!("record   {}", world.places.shown(&root.join("results").join(place))));
    answer(format!("commit   {}", commit.as_deref().unwrap_or("none")));
    Ok(Exit::Well)
}

/// Runs `cargo bench` with criterion's files in a folder of this run alone, so that no earlier
/// figure is taken for a new one.
fn bench(world: &World, git: &Git, wanted: &Wanted, home: &Path) -> Result<(), Stop> {
    let tree = match &wanted.origin {
        Origin::Release(found) => {
            let tree = world.places.release_tree(&found.name);
            worktree::prepare(git, found, &tree)?;
            tree
        }
        _ => world.places.root().to_owned(),
    };
    world.console.step(world.clock.elapsed(), &format!("Bench the ops of {}", wanted.side.release));
    let mut cargo = Command::new(&world.programs.cargo);
    cargo
        .args(["bench", "--locked", "-p", "engine", "--bench", "*", "--"])
        .args(CRITERION)
        .env("CRITERION_HOME", home);
    crate::build::call_in(&mut cargo, &world.places, &tree);
    let status = process::show(&mut cargo, &world.interrupt)?;
    if status.success() {
        return Ok(());
    }
    Err(Stop::environment(format!("`cargo bench` ended with {}", describe(status))))
}

fn engine_facts(world: &World, wanted: &Wanted) -> EngineFacts {
    let (commit, dirty) = match &wanted.origin {
        Origin::Release(found) => (Some(found.commit.clone()), false),
        Origin::Tree { commit, dirty, .. } => (commit.clone(), *dirty),
        _ => (None, false),
    };
    let mut rustc = Command::new(&world.programs.rustc);
    let toolchain = process::text(rustc.arg("-V"), &world.interrupt).ok();
    EngineFacts {
        name: ENGINE.to_owned(),
        release: wanted.side.release.clone(),
        commit,
        dirty: Some(dirty),
        features: Some(Vec::new()),
        toolchain: toolchain.map(|text| text.trim().to_owned()),
        ..EngineFacts::default()
    }
}

/// Puts the benches in, gives every null a reason, and signs the record.
///
/// # Errors
/// There are no benches, or the record has no canonical form.
pub fn fill(record: &mut KernelRecord, benches: Vec<KernelBench>) -> Result<(), Stop> {
    if benches.is_empty() {
        return Err(Stop::environment("the benches left no figures")
            .with_hint("does `cargo bench -p engine` run any bench?"));
    }
    record.benches = benches;
    let value = serde_json::to_value(&*record).unwrap_or_default();
    for path in unexplained_nulls(&value) {
        let reason = reason(&path, &record.absent);
        record.absent.insert(path, reason);
    }
    record.record_sha256 = record_sha256(record).map_err(RecordError::from)?;
    Ok(())
}

fn reason(path: &str, known: &Absent) -> String {
    let last = path.rsplit('.').next().unwrap_or_default();
    let reason = match (path.split('.').next().unwrap_or_default(), last) {
        ("benches", "limit_share") => "the machine's limit was not measured beside the bench",
        ("benches", _) => "the bench does not state it",
        ("engine", "binary_sha256") => "every op has a bench binary of its own",
        ("time", _) => "benches have no load",
        _ => known.get(path).map_or("not known", String::as_str),
    };
    reason.to_owned()
}

/// A line for each bench, for a person.
fn table(record: &KernelRecord) -> String {
    let line = |bench: &KernelBench| {
        let name = format!("{}/{}_{}/{}", bench.op, bench.shape, bench.dtype, bench.isa);
        let (median, mad) = (bench.median_ns / 1000.0, bench.mad_ns / 1000.0);
        format!("{name:<56} {median:>12.2} us  +- {mad:.2}")
    };
    record.benches.iter().map(line).collect::<Vec<_>>().join("\n")
}
