//! A GPU validation bundle runs on a machine without network and compiler: a rehearsal without a
//! GPU.

use std::process::Stdio;
use std::time::Duration;

use fixtures::{CONVERSATIONS, cached, files_under};
use schema::gpu_validation::{Outcome, StageReport, ValidationBundle};
use schema::run::RunRecord;
use serde::de::DeserializeOwned;
use tests::clone::Clone;
use tests::program::{command, run, wait};

/// The bundle is packed from a clone, run in a folder outside any clone, and its results collected.
#[test]
fn extra_a_validation_is_rehearsed_without_a_gpu() {
    if cached(CONVERSATIONS).is_none() {
        return;
    }
    let clone = Clone::of_this_repository(&[]);
    let before = clone.state();
    let words = ["gpu-validation", "pack", "--worktree", "--validation", "rehearsal"];
    let mut pack = clone.program("redline-peers", &words);
    pack.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(pack.spawn().expect("it starts"), Duration::from_secs(900)).expect_code(0);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = folder.path().join("bundle");
    std::fs::rename(clone.root().join("target/validations/rehearsal/bundle"), &place)
        .or_else(|_| copied(&clone.root().join("target/validations/rehearsal/bundle"), &place))
        .expect("the bundle can be carried");
    // An empty environment, as on a machine that knows nothing of this workspace.
    let mut validate = command(&place.join("validate"), folder.path(), &["--out", "results"]);
    validate.env_clear().env("PATH", "/usr/bin:/bin");
    run(&mut validate).expect_code(0);

    let results = folder.path().join("results");
    let described: ValidationBundle = read(&place.join("bundle.json"));
    for stage in &described.stages {
        let report: StageReport = read(&results.join(format!("stages/{}.json", stage.id)));
        let expected = if stage.id == "sanitizer" { Outcome::Skipped } else { Outcome::Done };
        assert_eq!(report.outcome, expected, "{report:?}");
    }
    let printed = std::fs::read_to_string(results.join("stages/conformance.stdout"));
    let printed = printed.expect("the stage has an output");
    assert!(printed.starts_with("passed "), "{printed}");
    let runs: Vec<RunRecord> =
        files_under(&results.join("results/runs")).iter().map(|path| read(path)).collect();
    assert_eq!(runs.len(), 3);
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

/// Copies a folder; used where it cannot be renamed, across file systems.
fn copied(from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
    let status = std::process::Command::new("cp").arg("-r").arg(from).arg(to).status()?;
    if status.success() { Ok(()) } else { Err(std::io::Error::other("cp failed")) }
}

fn read<T: DeserializeOwned>(path: &std::path::Path) -> T {
    let text = std::fs::read_to_string(path).expect("readable");
    serde_json::from_str(&text).expect("of its schema")
}
