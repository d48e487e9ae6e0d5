//! A registry written by an earlier release's tools: today's tools read, judge, extend and render
//! it.

use std::process::Stdio;
use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached, files_under};
use serde_json::json;
use tests::clone::Clone;
use tests::program::{run, wait};
use tests::scripted;

/// Commit with the first records: forty runs of v0.9.1 and v0.9.2, written by the tools of v0.9.2.
const WRITTEN: &str = "a98a243006ea519da17ae5ba0909efc0251246a6";

#[test]
fn a_registry_of_v0_9_2_is_read_and_extended() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let old = Clone::of_this_repository(&["--no-checkout"]);
    old.git(&["checkout", "--quiet", "-B", "old", WRITTEN]);
    let runs = files_under(&old.root().join("results/runs")).len();
    let registry = old.root().display().to_string();
    let today = Clone::of_this_repository(&[]);
    let at = |words: &[&str]| {
        today.run("redline-results", &[words, &["--registry", &registry]].concat())
    };

    at(&["check"]).expect_code(0);
    let listed = at(&["list"]).expect_code(0).stdout;
    assert!(listed.contains("v0.9.1") && listed.contains("v0.9.2"), "{listed}");
    let judged = at(&["diff", "v0.9.1", "v0.9.2"]);
    assert!([0, 1, 3].map(Some).contains(&judged.code), "{:?}\n{}", judged.code, judged.stderr);
    assert!(judged.stdout.contains("thinking-lite"), "{}", judged.stdout);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let steady = json!({"times": 0, "steady": {"first_us": 4_000, "gap_us": 100}});
    scripted::release(folder.path(), "0.9.2", &[steady]);
    let words = ["release-bench", "v0.9.2", "--scenario", "ladder-lite-c1", "--repeats", "1"];
    let words = [&words[..], &["--registry", &registry]].concat();
    let mut extends = today.program("redline-campaign", &words);
    extends.env("PATH", scripted::path_of_releases(folder.path()));
    extends.env("CARGO_TARGET_DIR", folder.path().join("target"));
    extends.stdout(Stdio::piped()).stderr(Stdio::piped());
    wait(extends.spawn().expect("it starts"), Duration::from_secs(200)).expect_code(0);

    let changed = old.git(&["diff", "--name-status", WRITTEN, "HEAD"]);
    let records = |line: &&str| line.contains("/runs/") || line.contains("/campaigns/");
    let records: Vec<&str> = changed.lines().filter(records).collect();
    assert!(records.iter().all(|line| line.starts_with('A')), "a record changed:\n{changed}");
    assert_eq!(records.len(), 2, "one run and its campaign:\n{changed}");
    assert_eq!(files_under(&old.root().join("results/runs")).len(), runs + 1);
    at(&["check"]).expect_code(0);
    let site = folder.path().join("site").display().to_string();
    let words = ["build", "--registry", &registry, "--out", &site];
    let mut builds = today.program("redline-site", &words);
    run(&mut builds).expect_code(0);
    assert!(folder.path().join("site/index.html").is_file());
}
