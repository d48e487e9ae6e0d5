//! The command `kernels`: runs the engine's criterion kernel benchmarks, and the release's own
//! `redline bench`, which compares a model's speed with the machine's limits, and writes one record
//! of both.

use std::path::{Path, PathBuf};
use std::process::Command;

use schema::canonical::{CanonicalError, record_sha256};
use schema::exit::Exit;
use schema::kernel::{BenchLimits, KernelBench, KernelRecord, ModelBench, SCHEMA};
use schema::run::{EngineFacts, Time};
use serde_json::Value;

use crate::build;
use crate::build::variants::{self, Origin, REDLINE, Wanted};
use crate::cli::{Kernels, Packages};
use crate::files::{files_below, read_text};
use crate::git::Git;
use crate::inputs::Input;
use crate::lock::Lock;
use crate::node::hardware;
use crate::plan::decide::default_cell;
use crate::process::{self, describe};
use crate::publish::{self, Registry};
use crate::stop::{Stop, environment, wrong_use};
use crate::world::{Ids, World};

/// Arguments of `redline bench` with prompt lengths, output length, batch sizes and context of the
/// model benchmark: a short and a long prompt, one user and many.
const MODEL_BENCH: [&str; 8] = ["-p", "64,512", "-n", "64", "-b", "1,8,32", "--context", "128"];

/// Arguments of criterion with the times in seconds and the number of samples for each of about a
/// thousand benchmarks; with criterion's default of eight seconds each they would take hours.
const CRITERION: [&str; 6] =
    ["--warm-up-time", "0.1", "--measurement-time", "0.3", "--sample-size", "20"];

/// Runs the benchmarks of a release, or of the working tree, and writes a kernel record of them,
/// which for a release is committed.
///
/// # Errors
/// A file of the suite is missing or invalid, the release cannot be resolved or built, the
/// benchmarks or a tool fail, the clone is in use by another campaign, a file cannot be read or
/// written, the registry refuses the record, or the command is interrupted.
pub fn run(world: &World, flags: &Kernels) -> Result<Exit, Stop> {
    world.tools.check()?;
    let _lock = Lock::take(&world.places.lock(), world.pid)?;
    let engine = world.catalog.engine(REDLINE)?;
    let wanted = match &flags.release {
        Some(name) => variants::named(world, &engine, Some(name), Packages::default())?,
        None => variants::working_tree(world, &engine, None)?,
    };
    let commits = matches!(wanted.origin, Origin::Release(_));
    let root = flags.registry.clone().unwrap_or_else(|| world.places.root.clone());
    let registry = Registry::new(world, &root);
    if commits {
        registry.preflight()?;
    }
    let mut ids = Ids::new(world.clock.unix_ms(), world.random);
    let id = ids.next_id();
    let places = world.places.campaign(&id);
    let started_at = world.clock.rfc3339();
    let started = world.clock.elapsed();
    let home = places.dir.join("criterion");
    // First, so that a failure is known before the kernel benchmarks, which take minutes.
    let model_bench = model_bench(world, &wanted, flags)?;
    bench(world, &wanted, &home)?;
    let wall = world.clock.elapsed().saturating_sub(started);
    let benches = read_criterion(&home)?;
    let time = Time {
        started_at: Some(started_at),
        finished_at: Some(world.clock.rfc3339()),
        wall_us: u64::try_from(wall.as_micros()).ok(),
        ..Time::default()
    };
    let machine = hardware::detect(world)?;
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
    let place = schema::path::of_kernels(&record)?;
    let path = publish::write(&places.staged(), &place, &record)?;
    let answer = |text: String| world.console.answer(&text);
    answer(table(&record))?;
    if !commits {
        answer(format!("record   {} (not committed)", world.places.shown(&path)))?;
        return Ok(Exit::Well);
    }
    let count = record.benches.len();
    let (release, hardware) = (&record.engine.release, &record.hardware.id);
    let message = format!("results: {count} kernels of {REDLINE} {release} on {hardware}\n");
    registry.render_pages(&places.staged())?;
    let commit = registry.record(&places.staged(), &message)?;
    answer(format!("record   {}", world.places.shown(&root.join("results").join(place))))?;
    answer(format!("commit   {}", commit.as_deref().unwrap_or("none")))?;
    Ok(Exit::Well)
}

/// Runs the release's model benchmark. A failure is returned as an error if the model was named
/// with `--model`; otherwise it is only printed, and the result is `None`, so that the kernel
/// benchmarks are still recorded.
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
    let weights = world.obtain(&Input::model(&id, &file))?;
    world.step(&format!("Benchmark {id} against the machine's limits"));
    let mut bench = Command::new(binary);
    bench.arg("bench").arg(weights.served()).args(MODEL_BENCH).arg("--json");
    let written = process::capture(&mut bench, &world.interrupt)?;
    if !written.status.success() {
        let (how, last) = (describe(written.status), written.last_said().unwrap_or("silent"));
        return Err(environment!("`redline bench` ended with {how}: {last}"));
    }
    let printed: ModelBench = serde_json::from_str(&written.stdout)
        .map_err(|error| environment!("`redline bench` printed no bench of a model: {error}"))?;
    // `redline bench` prints the path of the file; the record names the model.
    Ok(ModelBench { model: id, ..printed })
}

/// Runs `cargo bench` with criterion's files in the new folder `home`, so that no earlier figure is
/// mistaken for a new one.
fn bench(world: &World, wanted: &Wanted, home: &Path) -> Result<(), Stop> {
    let (tree, commit) = match &wanted.origin {
        Origin::Release(found) => {
            let tree = world.places.release_tree(&found.name);
            let git = Git::open(&world.places.root, &world.interrupt)?;
            build::check_out(&git, found, &tree)?;
            (tree, found.commit.as_str())
        }
        _ => (world.places.root.clone(), ""),
    };
    world.step(&format!("Run the kernel benchmarks of {}", wanted.variant.release));
    let mut cargo = Command::new("cargo");
    cargo
        // All but `refusal`, which is no kernel; older releases have other names.
        .args(["bench", "--locked", "-p", "engine", "--bench", "[!r]*", "--"])
        .args(CRITERION)
        .env("CRITERION_HOME", home);
    build::call_in(&mut cargo, &world.places, &tree, commit)?;
    let status = process::show(&mut cargo, &world.interrupt)?;
    if status.success() {
        return Ok(());
    }
    Err(environment!("`cargo bench` ended with {}", describe(status)))
}

fn engine_facts(world: &World, wanted: &Wanted) -> EngineFacts {
    let (commit, dirty) = match &wanted.origin {
        Origin::Release(found) => (Some(found.commit.clone()), false),
        Origin::Tree { commit, dirty, .. } => (commit.clone(), *dirty),
        _ => (None, false),
    };
    let mut rustc = Command::new("rustc");
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

/// Puts the benchmarks into the record, each with the share of the machine's arithmetic limit that
/// it reaches, where the record's model benchmark has measured that limit, and adds the record's
/// hash.
///
/// # Errors
/// The record has no canonical form.
pub fn fill(record: &mut KernelRecord, benches: Vec<KernelBench>) -> Result<(), CanonicalError> {
    record.benches = benches;
    if let Some(ModelBench { limits, .. }) = &record.model_bench {
        for bench in &mut record.benches {
            bench.limit_share = bench.limit_share.or_else(|| limit_share(bench, limits));
        }
    }
    record.record_sha256 = record_sha256(record)?;
    Ok(())
}

/// Returns the share of the machine's arithmetic limit that a matrix multiplication or attention
/// reaches; `None` for other kernels, which mostly move data that may lie in caches, and where
/// operations or limit are not known.
#[expect(clippy::cast_precision_loss, reason = "operations of one call are far below 2^53")]
fn limit_share(bench: &KernelBench, limits: &BenchLimits) -> Option<f64> {
    let per_s = match bench.op.as_str() {
        // The type of the KV cache follows the model's name.
        "attention" if bench.dtype.ends_with("_bf16") => limits.bf16_flops_per_s?,
        "matmul" | "attention" => limits.f32_flops_per_s?,
        "matmul_int8" => limits.int8_ops_per_s?,
        "matmul_bf16" => limits.bf16_flops_per_s?,
        _ => return None,
    };
    let reached = bench.flops? as f64 / (bench.median_ns / 1e9);
    Some(reached / per_s).filter(|share| share.is_finite())
}

/// Formats one line for each benchmark of the record: its name, and the median and median absolute
/// deviation of its time in microseconds.
fn table(record: &KernelRecord) -> String {
    let line = |bench: &KernelBench| {
        let name = format!("{}/{}_{}/{}", bench.op, bench.shape, bench.dtype, bench.isa);
        let (median, mad) = (bench.median_ns / 1000.0, bench.mad_ns / 1000.0);
        format!("{name:<56} {median:>12.2} us  +- {mad:.2}")
    };
    record.benches.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Reads every benchmark below `home`, sorted by name, from the result files of criterion 0.8:
/// `<home>/**/new/benchmark.json`, `estimates.json` and `sample.json`. Their form is undocumented
/// and may change with criterion.
///
/// # Errors
/// There are no benchmarks, or a file is missing, cannot be read or has another form.
fn read_criterion(home: &Path) -> Result<Vec<KernelBench>, Stop> {
    let files = files_below(home);
    let finished = files.iter().filter(|path| path.ends_with("new/benchmark.json"));
    let mut benches = finished.map(|path| read_one(path)).collect::<Result<Vec<_>, _>>()?;
    if benches.is_empty() {
        return Err(Stop::environment("the benches left no figures")
            .with_hint("does `cargo bench -p engine` run any bench?"));
    }
    let key = |b: &KernelBench| (b.op.clone(), b.shape.clone(), b.dtype.clone(), b.isa.clone());
    benches.sort_by_key(key);
    Ok(benches)
}

fn read_one(benchmark: &Path) -> Result<KernelBench, Stop> {
    let read = |file: &str| -> Result<(PathBuf, Value), Stop> {
        let path = benchmark.with_file_name(file);
        let value = serde_json::from_str(&read_text(&path)?).unwrap_or_default();
        Ok((path, value))
    };
    let benchmark = read("benchmark.json")?;
    let estimates = read("estimates.json")?;
    let sample = read("sample.json")?;
    let id = at(&benchmark, "/full_id", Value::as_str)?;
    let [op, shape, dtype, isa] = name(id)
        .ok_or_else(|| wrong_use!("bench `{id}` is not named `<op>/<shape>_<dtype>/<isa>`"))?;
    // Work of one call, if the benchmark states it, under the name of criterion's kind of
    // throughput. Redline's benchmarks state floating-point operations as "elements".
    let work = |kinds: [&str; 2]| {
        let throughput = benchmark.1.get("throughput")?;
        kinds.iter().find_map(|kind| throughput.pointer(kind)?.as_u64())
    };
    // Kernels of a GPU name its architecture, such as `sm_90a`, in place of an instruction set.
    let device = if isa.starts_with("sm_") { "cuda" } else { "cpu" };
    Ok(KernelBench {
        op,
        shape,
        dtype,
        isa,
        device: device.to_owned(),
        median_ns: at(&estimates, "/median/point_estimate", Value::as_f64)?,
        mad_ns: at(&estimates, "/median_abs_dev/point_estimate", Value::as_f64)?,
        samples: at(&sample, "/iters", Value::as_array)?.len() as u64,
        bytes: work(["/Bytes", "/ElementsAndBytes/bytes"]),
        flops: work(["/Elements", "/ElementsAndBytes/elements"]),
        limit_share: None,
    })
}

/// Splits a benchmark's name such as `matmul/T512_K576_N1536_q4_1/avx512` into operation, shape,
/// data type and instruction set; `None` if it has another form. The shape is the leading parts
/// that are a letter and a number; the rest is the data type.
fn name(full_id: &str) -> Option<[String; 4]> {
    let [op, middle, isa] = full_id.split('/').collect::<Vec<_>>().try_into().ok()?;
    let parts: Vec<&str> = middle.split('_').collect();
    let sizes = parts.iter().take_while(|part| is_size(part)).count();
    if sizes == 0 || sizes == parts.len() || op.is_empty() || isa.is_empty() {
        return None;
    }
    let (shape, dtype) = (parts[..sizes].join("_"), parts[sizes..].join("_"));
    Some([op.to_owned(), shape, dtype, isa.to_owned()])
}

/// Returns true for an upper-case letter followed by a number, such as `T512`.
fn is_size(part: &str) -> bool {
    let mut bytes = part.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_uppercase())
        && part.len() > 1
        && bytes.all(|byte| byte.is_ascii_digit())
}

/// Returns the value at the JSON pointer `pointer` of a result file, which criterion 0.8 always
/// writes.
fn at<'a, T>(
    (path, value): &'a (PathBuf, Value),
    pointer: &str,
    read: impl FnOnce(&'a Value) -> Option<T>,
) -> Result<T, Stop> {
    value.pointer(pointer).and_then(read).ok_or_else(|| {
        let path = path.display();
        wrong_use!("`{path}` is not what criterion 0.8 writes: no `{pointer}`")
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(home: &Path, folder: &str, id: &str, throughput: &str) {
        let dir = home.join(folder).join("new");
        fs::create_dir_all(&dir).unwrap();
        let estimate = |ns: f64| {
            format!(r#"{{"confidence_interval":{{}},"point_estimate":{ns},"standard_error":0.1}}"#)
        };
        let benchmark = format!(
            r#"{{"group_id":"g","function_id":null,"value_str":null,"throughput":{throughput},"full_id":"{id}","directory_name":"d","title":"t"}}"#
        );
        let estimates = format!(
            r#"{{"mean":{m},"median":{m},"median_abs_dev":{d},"slope":null,"std_dev":{d}}}"#,
            m = estimate(1500.5),
            d = estimate(12.25)
        );
        fs::write(dir.join("benchmark.json"), benchmark).unwrap();
        fs::write(dir.join("estimates.json"), estimates).unwrap();
        fs::write(
            dir.join("sample.json"),
            r#"{"sampling_mode":"Flat","iters":[1.0,1.0,1.0],"times":[1.0,1.0,1.0]}"#,
        )
        .unwrap();
    }

    #[test]
    fn criterions_files_become_benches() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), "rms", "rms_norm/T64_D576_f32/portable", "null");
        write(
            home.path(),
            "mm/x",
            "matmul/T512_K576_N1536_q4_1/avx512",
            r#"{"ElementsAndBytes":{"elements":9,"bytes":7}}"#,
        );
        write(home.path(), "mm/y", "matmul/T1_K576_N1536_q4_1/sm_90a", r#"{"Bytes":7}"#);
        write(home.path(), "mm8/x", "matmul_int8/T8_K576_N1536_q8_0/avx2-vnni", "null");
        let benches = read_criterion(home.path()).unwrap();
        let line = |b: &KernelBench| {
            let counts = format!("{:?} {:?} n={}", b.bytes, b.flops, b.samples);
            format!("{} {} {} {} {} {counts}", b.op, b.shape, b.dtype, b.isa, b.device)
        };
        let lines: Vec<String> = benches.iter().map(line).collect();
        assert_eq!(
            lines,
            [
                "matmul T1_K576_N1536 q4_1 sm_90a cuda Some(7) None n=3",
                "matmul T512_K576_N1536 q4_1 avx512 cpu Some(7) Some(9) n=3",
                "matmul_int8 T8_K576_N1536 q8_0 avx2-vnni cpu None None n=3",
                "rms_norm T64_D576 f32 portable cpu None None n=3",
            ]
        );
        assert!((benches[0].median_ns - 1500.5).abs() < 1e-9);
        assert!((benches[0].mad_ns - 12.25).abs() < 1e-9);
    }

    #[test]
    fn another_form_is_named_with_its_file() {
        let home = tempfile::tempdir().unwrap();
        write(home.path(), "x", "matmul/T1_f32/avx2", "null");
        fs::write(home.path().join("x/new/estimates.json"), r#"{"median":1}"#).unwrap();
        let error = read_criterion(home.path()).unwrap_err();
        assert!(error.to_string().contains("estimates.json` is not what criterion 0.8 writes"));
        assert_eq!(error.exit(), Exit::Unsound);
    }

    #[test]
    fn a_bench_must_be_named_by_op_shape_and_isa() {
        for bad in ["matmul", "matmul/T1/avx2", "matmul/f32/avx2", "a/T1_f32/b/c", "/T1_f32/avx2"] {
            assert_eq!(name(bad), None, "`{bad}` was taken");
        }
    }
}
