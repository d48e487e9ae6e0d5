//! A gate that cannot go on: servers that fail, a load generator that is killed, an interrupt. Each
//! ends in time, leaves no process behind and loses no finished start.

use std::fs;
use std::process::Command;

use schema::comparison::Diff;
use schema::verdict::VerdictKind;

use crate::scratch::{Ended, Scratch, signal, wait_for};

const RELEASES: [&str; 6] = ["gate", "v0.9.1", "--candidate", "v0.9.2", "--budget", "15s"];
const RESUME: [&str; 2] = ["gate", "--resume"];
/// A candidate whose server the stand-in of the engine treats as `--fast` or `--broken`.
const BROKEN: [&str; 2] = ["--variant", "broken=--broken"];
const FAST: [&str; 2] = ["--variant", "quick=--fast"];

/// Slices take a second, and the memory of the servers, which are two processes each, is not known.
const SLOWLY: [(&str, &str); 2] = [("BENCH_FAKE", "patient"), ("REDLINE_FAKE", "family")];

#[track_caller]
fn held_by_a_failure(scratch: &Scratch, ended: &Ended) -> Diff {
    assert!(ended.stdout.starts_with("Hold: "), "{}", ended.stdout);
    let text = fs::read_to_string(scratch.root().join("target/gate/diff.json")).unwrap();
    let diff: Diff = serde_json::from_str(&text).unwrap();
    let row = diff.rows().find(|row| row.verdict.metric == "requests_failed").unwrap();
    assert_eq!(row.verdict.verdict, VerdictKind::NewFailure);
    scratch.commits_nothing();
    diff
}

#[test]
fn a_candidate_that_does_not_start_is_a_new_failure_after_two_starts() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    let ended = scratch.run(&[&RELEASES[..], &BROKEN].concat()).expect(1, &["new-failure"]);
    let diff = held_by_a_failure(&scratch, &ended);
    assert_eq!(scratch.starts().len(), 2);
    let said = "v0.9.2 (broken) failed: the server ended with exit code 2 before it was ready";
    let remarks = diff.cells[0].remarks.join("\n");
    assert!(remarks.contains(said) && !remarks.contains("v0.9.1 failed"), "{remarks}");
    assert!(scratch.pids("bench.pids").is_empty(), "nothing was asked");
}

#[test]
fn a_candidate_that_dies_between_slices_is_a_new_failure_after_two_starts() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    let env = [("REDLINE_FAKE", "torn"), ("BENCH_FAKE", "asks")];
    let ended = scratch.run_with(&[&RELEASES[..], &FAST].concat(), &env).expect(1, &[]);
    let diff = held_by_a_failure(&scratch, &ended);
    assert_eq!(scratch.starts().len(), 2);
    let remarks = diff.cells[0].remarks.join("\n");
    let said = "v0.9.2 (quick) failed: the server ended with exit code 7 during the run";
    assert!(remarks.contains(said), "{remarks}");
}

#[test]
fn a_candidate_that_refuses_its_warm_up_is_a_new_failure() {
    let scratch = Scratch::new();
    let ended = scratch.run_with(&RELEASES, &[("BENCH_FAKE", "refuses")]).expect(1, &[]);
    let diff = held_by_a_failure(&scratch, &ended);
    let remarks = diff.cells[0].remarks.join("\n");
    let said = "v0.9.2 failed: the server runs and no longer answers: in its warm-up, 2 of 2";
    assert!(remarks.contains(said) && !remarks.contains("v0.9.1 failed"), "{remarks}");
}

#[test]
fn an_interrupted_gate_goes_on_with_the_starts_that_it_has() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    let child = scratch.start_until(&RELEASES, &SLOWLY, "bench.pids");
    wait_for("two starts", || scratch.starts().len() >= 2);
    signal(child, "INT").expect(4, &["of both servers are kept", "`--resume` continues it"]);
    scratch.commits_nothing();
    let kept = scratch.starts();
    let read = |paths: &[std::path::PathBuf]| -> Vec<String> {
        paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
    };
    let before = read(&kept);
    let asked = scratch.pids("bench.pids").len();
    scratch.run_with(&RESUME, &SLOWLY[1..]).expect(0, &["Resume gate", "Ship: "]);
    let starts = scratch.starts();
    assert_eq!(read(&starts[..kept.len()]), before, "finished starts are not made again");
    let again = scratch.pids("bench.pids").len() - asked;
    assert_eq!(starts.len(), kept.len() + again);
    assert!(scratch.root().join("target/gate/diff.json").is_file());
    scratch.commits_nothing();
    scratch.run(&RESUME).expect(2, &["no unfinished gate"]);
}

/// A frozen process does not notice SIGTERM.
#[test]
fn an_interrupt_while_a_server_is_frozen_leaves_no_process() {
    let scratch = Scratch::new();
    let mut command = scratch.command(&RELEASES);
    command.env("BENCH_FAKE", "freezes").stderr(std::process::Stdio::piped());
    let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    wait_for("a frozen server", || scratch.fixtures().join("asked").exists());
    let frozen = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.contains("State:\tT")
    };
    assert!(scratch.pids("server.pids").iter().all(frozen));
    signal(child, "INT").expect(4, &["error: interrupted"]);
    scratch.commits_nothing();
}

/// The next attempt is another job, which takes the finished starts over.
#[test]
fn a_load_generator_that_is_killed_ends_the_gate_and_loses_no_start() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    let child = scratch.start_until(&RELEASES, &SLOWLY, "bench.pids");
    wait_for("the third start", || scratch.pids("bench.pids").len() == 3);
    let generator = scratch.pids("bench.pids")[2].to_string();
    assert!(Command::new("kill").args(["-9", &generator]).status().unwrap().success());
    let ended = Ended::of(child.wait_with_output().unwrap());
    let said = "`redline-bench alternate` ended with signal 9 (SIGKILL)";
    ended.expect(4, &[said, "2 finished starts of both servers are kept"]);
    scratch.commits_nothing();
    let kept = scratch.starts();
    assert_eq!(kept.len(), 2);
    let asked = scratch.pids("bench.pids").len();
    scratch.run_with(&RESUME, &SLOWLY[1..]).expect(0, &["Ship: "]);
    let job = |path: &std::path::PathBuf| path.parent().unwrap().parent().unwrap().to_owned();
    let starts = scratch.starts();
    let second = starts.iter().filter(|path| job(path) != job(&kept[0])).count();
    assert_eq!(second, 2 + scratch.pids("bench.pids").len() - asked);
    let text = fs::read_to_string(scratch.root().join("target/gate/campaign.json")).unwrap();
    let record: schema::campaign::CampaignRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(record.alternations[0].starts.len(), second);
    scratch.commits_nothing();
}

#[test]
fn a_budget_is_exceeded_by_one_start_at_most() {
    let scratch = Scratch::new();
    scratch.write_equal_slices();
    let flags = ["gate", "v0.9.1", "--candidate", "v0.9.2", "--budget", "3s"];
    scratch.run_with(&flags, &[("BENCH_FAKE", "patient")]).expect(3, &["Inconclusive: "]);
    let text = fs::read_to_string(scratch.root().join("target/gate/campaign.json")).unwrap();
    let record: schema::campaign::CampaignRecord = serde_json::from_str(&text).unwrap();
    let starts = &record.alternations[0].starts;
    let ends: Vec<u64> = starts.iter().map(|start| start.end_us).collect();
    let (last, before) = ends.split_last().unwrap();
    assert!(*last >= 3_000_000 && before.iter().all(|end| *end < 3_000_000), "{ends:?}");
}
