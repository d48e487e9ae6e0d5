//! An engine's failure is a result: recorded with its class, and the campaign goes on.

use schema::probe::Probe;
use schema::run::{FailureClass, Phase, RunRecord, Status, ValidityVerdict};

use crate::scratch::{Scratch, is_alive};

/// Runs one planned run of v0.9.2, which fails, and returns its committed record.
#[track_caller]
fn failed_run(scratch: &Scratch, env: &[(&str, &str)]) -> RunRecord {
    let args = ["release-bench", "v0.9.2", "--repeats", "1"];
    scratch
        .run_with(&args, env)
        .expect(1, &["1 of 1 runs failed or are INVALID", "commit   c0ffee"]);
    for pid in scratch.pids("server.pids") {
        assert!(!is_alive(pid), "a server process is left: {pid}");
    }
    let mut records = scratch.records(&scratch.root().join("results"));
    assert_eq!(records.len(), 1);
    records.remove(0).1
}

#[test]
fn every_failure_of_a_server_has_its_class() {
    let scratch = Scratch::new();
    for (env, class, phase, message) in [
        (
            ("REDLINE_FAKE", "refuse"),
            FailureClass::Unsupported,
            Phase::Load,
            "`--threads 9` is not supported",
        ),
        (
            ("REDLINE_FAKE", "crash"),
            FailureClass::Crash,
            Phase::Load,
            "cannot read {path}/model.gguf",
        ),
        (("REDLINE_FAKE", "killed"), FailureClass::Oom, Phase::Load, "signal 9 (SIGKILL)"),
        (("REDLINE_FAKE", "deaf"), FailureClass::Hang, Phase::Load, "not ready after 3 s"),
        (("BENCH_FAKE", "garbage"), FailureClass::BadOutput, Phase::Load, "{address} is not JSON"),
    ] {
        let record = failed_run(&scratch, &[env]);
        let failure = record.failure.clone().unwrap();
        assert_eq!((failure.class, failure.phase), (class, phase), "{env:?}");
        assert!(failure.message.contains(message), "{env:?}: {}", failure.message);
        assert_eq!(record.status, Status::Failed);
        assert_eq!(record.validity.verdict, ValidityVerdict::Invalid);
        std::fs::remove_dir_all(scratch.root().join("results")).unwrap();
    }
}

#[test]
fn a_server_that_dies_in_mid_run_is_a_crash_while_measuring() {
    let scratch = Scratch::new();
    let record = failed_run(&scratch, &[("REDLINE_FAKE", "dies"), ("BENCH_FAKE", "patient")]);
    let failure = record.failure.unwrap();
    assert_eq!((failure.class, failure.phase), (FailureClass::Crash, Phase::Measure));
    assert!(failure.message.starts_with("the server ended with exit code 7 during the run"));
    assert!(failure.message.contains("page table is torn"), "{}", failure.message);
}

#[test]
fn a_server_that_falls_silent_hangs() {
    let scratch = Scratch::new();
    let failure = failed_run(&scratch, &[("BENCH_FAKE", "silent")]).failure.unwrap();
    assert_eq!((failure.class, failure.phase), (FailureClass::Hang, Phase::Measure));
    assert!(failure.message.contains("no longer answers"), "{}", failure.message);
}

#[test]
fn a_port_that_was_taken_meanwhile_is_replaced() {
    let scratch = Scratch::new();
    let args = ["release-bench", "v0.9.2", "--repeats", "1"];
    scratch.run_with(&args, &[("REDLINE_FAKE", "unlucky")]).expect(0, &[]);
    assert_eq!(scratch.pids("server.pids").len(), 2, "one launch in vain");
}

#[test]
fn a_server_of_another_version_is_not_measured_under_this_name() {
    let scratch = Scratch::new();
    scratch.write_probe(&Probe { version: Some("0.9.1".into()), ..Probe::default() });
    let failure = failed_run(&scratch, &[]).failure.unwrap();
    assert_eq!(failure.class, FailureClass::Infrastructure);
    assert!(failure.message.contains("reports version 0.9.1, expected 0.9.2"));
    assert!(scratch.pids("bench.pids").is_empty(), "nothing was measured");
}

#[test]
fn a_failed_run_does_not_end_the_campaign() {
    let scratch = Scratch::new();
    let env = [("REDLINE_FAKE", "crash")];
    scratch
        .run_with(&["release-bench", "v0.9.2"], &env)
        .expect(1, &["Run 2 of 2", "2 of 2 runs failed or are INVALID"]);
    assert_eq!(scratch.records(&scratch.root().join("results")).len(), 2);
}

#[test]
fn what_a_server_started_ends_with_it() {
    let scratch = Scratch::new();
    let args = ["release-bench", "v0.9.2", "--repeats", "1"];
    scratch.run_with(&args, &[("REDLINE_FAKE", "family")]).expect(0, &[]);
    let pids = scratch.pids("server.pids");
    assert_eq!(pids.len(), 2, "the server and its child");
    assert!(pids.iter().all(|pid| !is_alive(*pid)), "{pids:?}");
}
