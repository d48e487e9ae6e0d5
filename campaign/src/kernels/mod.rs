//! The command `kernels`: runs the engine's criterion kernel benchmarks, and the release's own
//! `redline bench`, which compares a model's speed with the machine's limits, and makes one record of
//! both.

mod criterion;

use std::path::Path;
use std::process::Command;

use schema::canonical::record_sha256;
use schema::exit::Exit;
use schema::kernel::{BenchLimits, KernelBench, KernelRecord, ModelBench, SCHEMA};
use schema::run::{EngineFacts, Time};

use crate::build;
use crate::build::variants::{self, Origin, REDLINE, Wanted};
use crate::cli::Kernels;
use crate::git::Git;
use crate::inputs::Input;
use crate::lock::Lock;
use crate::node::hardware;
use crate::node::record::RecordError;
use crate::plan::decide::default_cell;
use crate::process::{self, describe};
use crate::publish::{self, Registry};
use crate::stop::Stop;
use crate::world::{Ids, World};

/// Prompt lengths, batch sizes and context of the model benchmark: a short and a long prompt, one
/// user and many.
const MODEL_BENCH: [&str; 8] = ["-p", "64,512", "-n", "64", "-b", "1,8,32", "--context", "128"];

/// Criterion's times in seconds and number of samples for each of about a thousand benchmarks; with
/// criterion's default of eight seconds each they would take hours.
const CRITERION: [&str; 6] =
    ["--warm-up-time", "0.1", "--measurement-time", "0.3", "--sample-size", "20"];

/// Runs the benchmarks of a release, or of the working tree.
///
/// # Errors
/// The benchmarks fail, or the record is refused.
pub fn run(world: &World, flags: &Kernels) -> Result<Exit, Stop> {
    world.tools.check()?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let engine = world.catalog.engine(REDLINE)?;
    let wanted = match &flags.release {
        Some(name) => variants::named(world, &engine, Some(name), None)?,
        None => variants::working_tree(world, &engine, None)?,
    };
    let commits = matches!(wanted.origin, Origin::Release(_));
    let root = flags.registry.clone().unwrap_or_else(|| world.places.root().to_owned());
    let registry = Registry::new(world, &root);
    if commits {
        registry.preflight()?;
    }
    let mut ids = Ids::new(world.clock.unix_ms(), world.random);
    let id = ids.next_id();
    let places = world.places.campaign(&id);
    let started_at = world.clock.rfc3339();
    let started = world.clock.elapsed();
    let home = places.criterion();
    // First, so that a failure is known before the kernel benchmarks, which take minutes.
    let model_bench = model_bench(world, &wanted, flags)?;
    bench(world, &wanted, &home)?;
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
        model_bench,
        ..KernelRecord::default()
    };
    record.hardware = machine.facts(&machine.id(false));
    fill(&mut record, benches)?;
    let place = schema::path::of_kernels(&record).map_err(RecordError::from)?;
    let path = publish::write(&places.staged(), &place, &record)?;
    let answer = |text: String| world.console.answer(&text);
    answer(table(&record));
    if !commits {
        answer(format!("record   {} (not committed)", world.places.shown(&path)));
        return Ok(Exit::Well);
    }
    let count = record.benches.len();
    let (release, hardware) = (&record.engine.release, &record.hardware.id);
    let message = format!("results: {count} kernels of {REDLINE} {release} on {hardware}\n");
    registry.render_pages(&places.staged())?;
    let commit = registry.record(&places.staged(), &message)?;
    answer(format!("record   {}", world.places.shown(&root.join("results").join(place))));
    answer(format!("commit   {}", commit.as_deref().unwrap_or("none")));
    Ok(Exit::Well)
}

/// Runs the release's model benchmark. If it fails, the kernel benchmarks are still recorded and
/// the failure is only noted, unless the model was named with `--model`.
fn model_bench(
    world: &World,
    wanted: &Wanted,
    flags: &Kernels,
) -> Result<Option<ModelBench>, Stop> {
    match measure_model(world, wanted, flags.model.as_deref()) {
        Err(stop) if flags.model.is_none() => {
            world.interrupt.check()?;
            world.console.note(&format!("no model benchmark: {stop}"));
            Ok(None)
        }
        measured => measured.map(Some),
    }
}

/// Builds the release and has it benchmark `model`, by default the first model of the target `cpu`.
fn measure_model(world: &World, wanted: &Wanted, model: Option<&str>) -> Result<ModelBench, Stop> {
    let id = default_cell(world, model)?.model;
    let file = world.catalog.model(&id)?;
    let spec = variants::build_one(world, wanted)?;
    let binary =
        spec.built.binary.ok_or_else(|| Stop::environment("the release has no program"))?;
    let weights = world.fetcher().obtain(&Input::model(&id, &file))?;
    world.step(&format!("Benchmark {id} against the machine's limits"));
    let mut bench = Command::new(binary);
    bench.arg("bench").arg(weights.served()).args(MODEL_BENCH).arg("--json");
    let written = process::capture(&mut bench, &world.interrupt)?;
    if !written.status.success() {
        let (how, last) = (describe(written.status), written.last_said().unwrap_or("silent"));
        return Err(Stop::environment(format!("`redline bench` ended with {how}: {last}")));
    }
    let printed: ModelBench = serde_json::from_str(&written.stdout).map_err(|error| {
        Stop::environment(format!("`redline bench` printed no bench of a model: {error}"))
    })?;
    // `redline bench` prints the path of the file; the record names the model.
    Ok(ModelBench { model: id, ..printed })
}

/// Runs `cargo bench` with criterion's files in a new folder, so that no earlier figure is mistaken
/// for a new one.
fn bench(world: &World, wanted: &Wanted, home: &Path) -> Result<(), Stop> {
    let tree = match &wanted.origin {
        Origin::Release(found) => {
            let tree = world.places.release_tree(&found.name);
            let git = Git::open(&world.programs.git, world.places.root(), &world.interrupt)?;
            build::check_out(&git, found, &tree)?;
            tree
        }
        _ => world.places.root().to_owned(),
    };
    world.step(&format!("Run the kernel benchmarks of {}", wanted.variant.release));
    let mut cargo = Command::new(&world.programs.cargo);
    cargo
        .args(["bench", "--locked", "-p", "engine", "--bench", "*", "--"])
        .args(CRITERION)
        .env("CRITERION_HOME", home);
    build::call_in(&mut cargo, &world.places, &tree);
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
        name: REDLINE.to_owned(),
        release: wanted.variant.release.clone(),
        commit,
        dirty: Some(dirty),
        features: Some(Vec::new()),
        toolchain: toolchain.map(|text| text.trim().to_owned()),
        ..EngineFacts::default()
    }
}

/// Adds the benchmarks to the record, gives every null a reason, and adds the hash.
///
/// # Errors
/// There are no benchmarks, or the record has no canonical form.
pub fn fill(record: &mut KernelRecord, benches: Vec<KernelBench>) -> Result<(), Stop> {
    if benches.is_empty() {
        return Err(Stop::environment("the benches left no figures")
            .with_hint("does `cargo bench -p engine` run any bench?"));
    }
    record.benches = benches;
    if let Some(ModelBench { limits, .. }) = &record.model_bench {
        for bench in &mut record.benches {
            bench.limit_share = bench.limit_share.or_else(|| limit_share(bench, limits));
        }
    }
    record.record_sha256 = record_sha256(record).map_err(RecordError::from)?;
    Ok(())
}

/// Share of the machine's arithmetic limit that a matrix multiplication or attention reaches;
/// `None` for other kernels, which mostly move data that may lie in caches.
#[expect(clippy::cast_precision_loss, reason = "operations of one call are far below 2^53")]
fn limit_share(bench: &KernelBench, limits: &BenchLimits) -> Option<f64> {
    let per_s = match bench.op.as_str() {
        "matmul" | "attention" => limits.f32_flops_per_s,
        "matmul_int8" => limits.int8_ops_per_s,
        "matmul_bf16" => limits.bf16_flops_per_s?,
        _ => return None,
    };
    let reached = bench.flops? as f64 / (bench.median_ns / 1e9);
    Some(reached / per_s).filter(|share| share.is_finite())
}

/// Renders a line for each benchmark.
fn table(record: &KernelRecord) -> String {
    let line = |bench: &KernelBench| {
        let name = format!("{}/{}_{}/{}", bench.op, bench.shape, bench.dtype, bench.isa);
        let (median, mad) = (bench.median_ns / 1000.0, bench.mad_ns / 1000.0);
        format!("{name:<56} {median:>12.2} us  +- {mad:.2}")
    };
    record.benches.iter().map(line).collect::<Vec<_>>().join("\n")
}
