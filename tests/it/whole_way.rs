//! `release-bench` from a fresh clone to the rendered page.

use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached, files_under};
use tests::clone::{Clone, already_built_path};
use tests::program::wait;

/// One scenario with one run: everything that `release-bench` does, once.
#[test]
fn a_release_is_built_measured_recorded_and_shown() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    // The user's own changes, staged or not, must stay as they are.
    std::fs::write(clone.root().join("README.md"), "mine\n").expect("writable");
    std::fs::write(clone.root().join("staged.txt"), "mine too\n").expect("writable");
    clone.git(&["add", "staged.txt"]);
    let before = (clone.git(&["status", "--porcelain"]), clone.git(&["diff", "--cached"]));
    let records = files_under(&clone.root().join("results/runs")).len();

    let words = ["release-bench", "v0.11.0", "--scenario", "thinking-lite", "--repeats", "1"];
    let mut command = clone.program("redline-campaign", &words);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("it starts");
    let ended = wait(child, Duration::from_secs(580)).expect_code(0);

    assert_eq!(before, (clone.git(&["status", "--porcelain"]), clone.git(&["diff", "--cached"])));
    let changed = clone.git(&["show", "--name-only", "--format=", "HEAD"]);
    assert!(changed.lines().all(|path| path.starts_with("results/")), "{changed}");
    assert_eq!(files_under(&clone.root().join("results/runs")).len(), records + 1);

    let record = changed.lines().find(|path| path.contains("/runs/")).expect("a run was committed");
    let text = std::fs::read_to_string(clone.root().join(record)).expect("readable");
    let run: schema::run::RunRecord = serde_json::from_str(&text).expect("a record");
    assert_eq!(run.counts.and_then(|counts| counts.requests_ok), Some(8));
    assert_eq!(run.engine.release, "v0.11.0");

    let page = format!("results/pages/redline/v0.11.0/{}.md", run.hardware.id);
    assert!(changed.lines().any(|path| path == page), "{page} is not in the commit:\n{changed}");
    assert!(ended.stdout.contains("thinking-lite"), "no table:\n{}", ended.stdout);
    assert!(clone.root().join("target/site/index.html").is_file());
    clone.run("redline-results", &["check"]).expect_code(0);
    clone.run("redline-site", &["check"]).expect_code(0);
}

/// A working tree can be measured, too; its records are not committed.
#[test]
fn a_working_tree_is_measured_and_never_committed() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::as_built();
    let before = clone.state();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = ["release-bench", "--worktree", "--scenario", "balanced-lite", "--repeats", "1"];
    let mut command = clone.program("redline-campaign", &words);
    command.env("PATH", already_built_path(folder.path()));
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().expect("it starts");
    let ended = wait(child, Duration::from_secs(200)).expect_code(0);
    assert!(ended.stdout.contains("balanced-lite"), "no table:\n{}", ended.stdout);
    assert_eq!(before, clone.state());
    let runs = clone.uncommitted_runs();
    let [(_, run)] = &runs[..] else { panic!("one run was planned: {runs:?}") };
    assert_eq!(run.counts.as_ref().and_then(|counts| counts.requests_ok), Some(32));
    assert!(run.engine.release.ends_with("-dev") || run.engine.dirty == Some(true));
}
