//! A GPU validation bundle runs on a machine without network and compiler: a rehearsal without a
//! GPU.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fixtures::{CONVERSATIONS, cached, files_under};
use schema::gpu_validation::{Outcome, StageReport, ValidationBundle};
use schema::run::RunRecord;
use serde::de::DeserializeOwned;
use serde_json::json;
use tests::clone::{Clone, path_with, target};
use tests::program::{command, run, wait};

/// The bundle is packed from a clone, run in a folder outside any clone, and its results collected.
#[test]
fn extra_a_validation_is_rehearsed_without_a_gpu() {
    if cached(CONVERSATIONS).is_none() {
        return;
    }
    let clone = Clone::as_built();
    let before = clone.state();
    let folder = tempfile::tempdir().expect("a temporary folder");
    // The limits of a machine that is lent for minutes: one archive of 64 MiB goes there.
    let words = ["gpu-validation", "pack", "--worktree", "--validation", "rehearsal"];
    let words = [&words[..], &["--size-max", "64"]].concat();
    let mut pack = clone.program("redline-peers", &words);
    pack.env("PATH", path_with(folder.path(), &[("cargo", &built_tests())]));
    pack.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(pack.spawn().expect("it starts"), Duration::from_secs(240)).expect_code(0);

    let packed = clone.root().join("target/validations/rehearsal/bundle.tar.xz");
    let words = ["-xf", packed.to_str().expect("text")];
    run(&mut command("tar".as_ref(), folder.path(), &words)).expect_code(0);
    let place = folder.path().join("bundle");
    for call in ["smoke", "verify", "times", "scenarios"] {
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
    let shared: BTreeSet<Option<u32>> = runs.iter().map(runs_before).collect();
    assert_eq!(shared, [Some(0), Some(1), Some(2)].into(), "one server for all scenarios");
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
    assert_eq!(before, clone.state());
}

/// Shell script in place of `cargo`: the engine is the one that was built with the tests, and the
/// engine's test programs are reported as cargo reports them. A real build in the clone would
/// compile the engine twice, for minutes, into the target folder of the tests that run beside it.
fn built_tests() -> String {
    let message = |package: &str| {
        let path = newest_test_program(package);
        json!({"target": {"name": package}, "profile": {"test": true}, "executable": path})
    };
    let messages = ["engine_model", "engine_cuda"].map(|package| message(package).to_string());
    format!("[ \"$1\" = build ] || cat <<'MESSAGES'\n{}\nMESSAGES", messages.join("\n"))
}

/// Path of the test program of a package's library that was linked last.
fn newest_test_program(package: &str) -> PathBuf {
    let linked = |path: &PathBuf| path.metadata().and_then(|found| found.modified()).ok();
    let is_program = |path: &PathBuf| {
        let stem = path.file_name().and_then(|name| name.to_str()?.strip_prefix(package));
        path.extension().is_none() && stem.is_some_and(|rest| rest.starts_with('-'))
    };
    let entries = std::fs::read_dir(target().join("release/deps")).expect("readable");
    let programs = entries.map(|entry| entry.expect("readable").path()).filter(is_program);
    programs.max_by_key(linked).expect("the workspace's tests are built together")
}

fn read<T: DeserializeOwned>(path: &Path) -> T {
    let text = std::fs::read_to_string(path).expect("readable");
    serde_json::from_str(&text).expect("of its schema")
}
