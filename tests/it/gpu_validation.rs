//! GPU validations: their files name what there is, and bundles run on a machine without network and
//! compiler: a rehearsal without a GPU, and the smoke test of an H200 where there is none.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use fixtures::{CONVERSATIONS, GPT_OSS_TOKENIZER, QWEN3_TOKENIZER, cached, files_under, skip};
use schema::gpu_validation::{
    GpuValidation, Outcome, StageReport, StageWork, ValidationBundle, ValidationCommand, parse,
};
use schema::kernel::KernelRecord;
use schema::run::RunRecord;
use serde::de::DeserializeOwned;
use serde_json::json;
use tests::clone::{Clone, path_with, repository, target};
use tests::program::{command, run, wait};

/// Placeholders of the engine's test programs in a command of a GPU validation, and the names under
/// which cargo builds them.
const TEST_PROGRAMS: [(&str, &str); 2] =
    [("{tests}", "engine_model"), ("{cuda_tests}", "engine_cuda")];
/// Largest archive that a machine may be given that is lent for minutes, in MiB.
const LENT_MIB: &str = "64";

/// Every GPU validation of the suite, by its id.
fn validations() -> Vec<(String, GpuValidation)> {
    let paths = files_under(&repository().join("suite/validations"));
    let read = |path: PathBuf| {
        let id = path.file_stem().and_then(OsStr::to_str).expect("a name").to_owned();
        let text = std::fs::read_to_string(&path).expect("readable");
        let validation = parse(&text).unwrap_or_else(|error| panic!("`{id}`: {error}"));
        (id, validation)
    };
    let all: Vec<_> = paths.into_iter().map(read).collect();
    assert!(all.len() >= 3, "two GPUs and the rehearsal: {all:?}");
    all
}

fn commands(validation: &GpuValidation) -> impl Iterator<Item = &ValidationCommand> {
    validation.calls.iter().flat_map(|call| &call.commands)
}

#[test]
fn scenarios_models_and_targets_of_validations_are_in_the_suite() {
    let of_suite = |folder: &str, id: &str| {
        let path = repository().join("suite").join(folder).join(format!("{id}.toml"));
        std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("`{}`: {error}", path.display()))
    };
    for (id, validation) in validations() {
        for scenario in validation.scenarios() {
            let text = of_suite("scenarios", scenario);
            schema::scenario::Scenario::parse(&text)
                .unwrap_or_else(|e| panic!("`{scenario}`: {e}"));
        }
        let served = validation.models.iter().map(|model| &model.id);
        for model in served.chain(validation.models_of_commands()) {
            let file = schema::model::parse_model(&of_suite("models", model));
            let file = file.unwrap_or_else(|error| panic!("`{model}`: {error}"));
            assert!(file.config.is_some(), "`{model}` has weights, which no bundle can carry");
        }
        if !validation.matches.device_name.is_empty() {
            let target = schema::target::parse(&of_suite("targets", &id));
            let target = target.unwrap_or_else(|error| panic!("`{id}`: {error}"));
            assert_eq!(target.matches, validation.matches, "`{id}`: other machines");
        }
    }
}

#[test]
fn filters_of_validations_select_tests() {
    for (placeholder, package) in TEST_PROGRAMS {
        let Some(program) = newest_test_program(package) else {
            skip("a built test program", "cargo test --no-run --release --workspace");
            return;
        };
        let words = ["--list", "--format", "terse"];
        let listed = run(&mut command(&program, &repository(), &words)).expect_code(0).stdout;
        let names: Vec<&str> =
            listed.lines().filter_map(|line| line.strip_suffix(": test")).collect();
        for (id, validation) in validations() {
            for of_stage in commands(&validation) {
                let mut words = of_stage.argv.iter().skip_while(|word| *word != placeholder);
                if words.next().is_none() {
                    continue;
                }
                let (stage, mut filters) = (&of_stage.id, 0);
                for filter in words {
                    let selected = names.iter().any(|name| name.contains(filter.as_str()));
                    assert!(selected, "`{id}`: `{filter}` of `{stage}` selects no test");
                    filters += 1;
                }
                assert!(filters > 0, "`{id}`: `{stage}` would run tests that need no GPU");
            }
        }
    }
}

/// The bundle is packed from a clone, run in a folder outside any clone, and its results collected.
#[test]
fn extra_a_validation_is_rehearsed_without_a_gpu() {
    if cached(CONVERSATIONS).is_none() {
        return;
    }
    let clone = Clone::as_built();
    let before = clone.state();
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A real build in the clone would compile the engine twice, for minutes, into the target folder
    // of the tests that run beside it.
    let path = path_with(folder.path(), &[("cargo", &built_tests())]);
    packed(&clone, folder.path(), "rehearsal", |pack| pack.env("PATH", path));
    let place = folder.path().join("bundle");
    for call in ["smoke", "verify", "times", "scenarios", "sweep"] {
        let words = ["--out", "results", "--call", call];
        let mut validate = command(&place.join("validate"), folder.path(), &words);
        // An empty environment, as on a machine that knows nothing of this workspace.
        validate.env_clear().env("PATH", "/usr/bin:/bin");
        run(&mut validate).expect_code(0);
    }

    let results = folder.path().join("results");
    let described: ValidationBundle = read(&place.join("bundle.json"));
    for stage in &described.stages {
        let report: StageReport = read(&results.join(format!("stages/{}.json", stage.id)));
        let expected = if stage.id == "memcheck" { Outcome::Skipped } else { Outcome::Done };
        assert_eq!(report.outcome, expected, "{report:?}");
    }
    let printed = std::fs::read_to_string(results.join("stages/conformance.stdout"));
    let printed = printed.expect("the stage has an output");
    assert!(printed.starts_with("passed "), "{printed}");
    let runs: Vec<RunRecord> =
        files_under(&results.join("results/runs")).iter().map(|path| read(path)).collect();
    assert_eq!(runs.len(), 3);
    let runs_before =
        |run: &RunRecord| run.campaign.as_ref().and_then(|slot| slot.server_runs_before);
    let mut shared: Vec<Option<u32>> = runs.iter().map(runs_before).collect();
    shared.sort_unstable();
    assert_eq!(shared, [Some(0), Some(0), Some(1)], "one server for the scenarios of a call");
    for run in &runs {
        assert_eq!(run.model.weights.as_deref(), Some("random"));
        let counts = run.counts.as_ref().expect("it was measured");
        assert!(counts.requests_ok > Some(0), "{counts:?}");
        assert_eq!(counts.requests_ok, counts.requests_planned);
    }

    let archive = folder.path().join("results.tar.gz");
    let collected =
        clone.run("redline-peers", &["gpu-validation", "collect", archive.to_str().expect("text")]);
    let collected = collected.expect_code(0);
    assert!(collected.stdout.contains("balanced-lite"), "no table:\n{}", collected.stdout);
    let unpacked = clone.root().join("target/validations/collected/results/results/kernels");
    let record: KernelRecord = read(&files_under(&unpacked)[0]);
    let bench = record.model_bench.expect("`redline bench` printed it");
    assert_eq!((bench.model.as_str(), bench.device.as_str()), ("tiny-random", "cpu"));
    assert!(bench.threads.is_some() && bench.limits.read_bytes_per_s > 0.0, "{bench:?}");
    assert!(!bench.prefill.is_empty() && !bench.decode.is_empty(), "{bench:?}");
    assert_eq!(before, clone.state());
}

/// What a machine with an H200 is given: all of it in one archive of 64 MiB. Where no GPU can be
/// used, no stage of its smoke test passes.
#[test]
fn extra_the_bundle_for_an_h200_can_be_carried_and_passes_nothing_without_a_gpu() {
    let inputs = [CONVERSATIONS, QWEN3_TOKENIZER, GPT_OSS_TOKENIZER];
    if inputs.iter().any(|input| cached(input).is_none()) {
        return;
    }
    let code = files_under(&target().join("cuda"));
    if !code.iter().any(|path| path.extension().is_some_and(|ending| ending == "cubin")) {
        skip("the CUDA toolchain", "cargo xtask cuda-check");
        return;
    }
    let clone = Clone::as_built();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let own_target = folder.path().join("target");
    let released = own_target.join("release");
    std::fs::create_dir_all(&released).expect("writable");
    std::os::unix::fs::symlink(target().join("release/redline"), released.join("redline"))
        .expect("writable");
    // The kernels were compiled by the stage before the tests, which takes minutes: the code of the
    // real `cuda-check` is put where it would put it.
    let compile = format!(
        "[ \"$1\" = xtask ] && mkdir -p \"$CARGO_TARGET_DIR/cuda\" &&\n\
         exec cp '{}'/*.cubin \"$CARGO_TARGET_DIR/cuda\"\n",
        target().join("cuda").display()
    );
    let cargo = compile + &built_tests();
    let path = path_with(folder.path(), &[("cargo", &cargo), ("nvidia-smi", H200)]);
    packed(&clone, folder.path(), "h200-141g", |pack| {
        pack.env("PATH", &path).env("CARGO_TARGET_DIR", &own_target)
    });

    let place = folder.path().join("bundle");
    let described: ValidationBundle = read(&place.join("bundle.json"));
    let kernels = files_under(&clone.root().join("engine/cuda/kernels"));
    for kernel in kernels.iter().filter(|path| path.extension() == Some(OsStr::new("cu"))) {
        let name = kernel.file_stem().and_then(OsStr::to_str).expect("a name");
        assert!(place.join(format!("cubins/{name}.sm_90a.cubin")).is_file(), "`{name}`");
    }
    let scenarios: BTreeSet<&String> =
        described.stages.iter().filter_map(|stage| scenario_of(&stage.work)).collect();
    // A manifest for each of the two tokenizers.
    assert_eq!(files_under(&place.join("plans")).len(), 2 * scenarios.len());

    if Path::new("/dev/nvidiactl").exists() {
        skip("a machine without a GPU", "run it elsewhere");
        return;
    }
    let words = ["--out", "results", "--call", "smoke"];
    let mut validate = command(&place.join("validate"), folder.path(), &words);
    run(validate.env_clear().env("PATH", path)).expect_code(1);
    for stage in described.stages.iter().filter(|stage| stage.call == "smoke") {
        let path = folder.path().join(format!("results/stages/{}.json", stage.id));
        let report: StageReport = read(&path);
        let expected = if stage.id == "device" { Outcome::Done } else { Outcome::Failed };
        assert_eq!(report.outcome, expected, "{report:?}");
    }
}

/// Shell script in place of `nvidia-smi`, which reports an H200.
const H200: &str = "echo 'NVIDIA H200, 143771, 580.95.05, 96.00, 700.00, 1980, 1980'";

fn scenario_of(work: &StageWork) -> Option<&String> {
    match work {
        StageWork::Scenario { scenario, .. } => Some(scenario),
        StageWork::Command { .. } => None,
    }
}

/// Packs the working tree for a validation from `clone`, for a machine that is lent for minutes, and
/// unpacks the bundle into `folder`. `prepare` changes the command's environment.
#[track_caller]
fn packed(
    clone: &Clone,
    folder: &Path,
    validation: &str,
    prepare: impl FnOnce(&mut Command) -> &mut Command,
) {
    let words = ["gpu-validation", "pack", "--worktree", "--validation", validation];
    let words = [&words[..], &["--size-max", LENT_MIB]].concat();
    let mut pack = clone.program("redline-peers", &words);
    prepare(&mut pack).stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(pack.spawn().expect("it starts"), Duration::from_secs(240)).expect_code(0);
    let archive = clone.root().join(format!("target/validations/{validation}/bundle.tar.xz"));
    let words = ["-xf", archive.to_str().expect("text")];
    run(&mut command("tar".as_ref(), folder, &words)).expect_code(0);
}

/// Shell script in place of `cargo`: the engine is the one that was built with the tests, and the
/// engine's test programs are reported as cargo reports them.
fn built_tests() -> String {
    let message = |package: &str| {
        let path = newest_test_program(package).expect("the workspace's tests are built together");
        json!({"target": {"name": package}, "profile": {"test": true}, "executable": path})
    };
    let messages = TEST_PROGRAMS.map(|(_, package)| message(package).to_string());
    format!("[ \"$1\" = build ] || cat <<'MESSAGES'\n{}\nMESSAGES", messages.join("\n"))
}

/// Path of the test program of a package's library that was linked last; `None` where none was built.
fn newest_test_program(package: &str) -> Option<PathBuf> {
    let linked = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok();
    let is_program = |path: &PathBuf| {
        let stem = path.file_name().and_then(|name| name.to_str()?.strip_prefix(package));
        path.extension().is_none() && stem.is_some_and(|rest| rest.starts_with('-'))
    };
    let entries = std::fs::read_dir(target().join("release/deps")).expect("readable");
    let programs = entries.map(|entry| entry.expect("readable").path()).filter(is_program);
    programs.max_by_key(linked)
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).expect("readable");
    serde_json::from_str(&text).expect("of its schema")
}
