//! Resume of a campaign that was killed: it continues from every state without repeating a finished
//! run.

use std::fs;
use std::path::PathBuf;
use std::process::Child;

use crate::scratch::{Scratch, files_below, is_alive, wait_for};

const TWO: &[&str] = &["release-bench", "v0.9.2"];
const RESUME: &[&str] = &["release-bench", "v0.9.2", "--resume"];
const PATIENT: (&str, &str) = ("BENCH_FAKE", "patient");

impl Scratch {
    fn journal(&self) -> PathBuf {
        self.campaign().join("journal.jsonl")
    }

    fn journal_text(&self) -> String {
        let dir = self.root().join("target/campaigns");
        let text = |path: &PathBuf| fs::read_to_string(path).ok();
        files_below(&dir)
            .iter()
            .find(|path| path.ends_with("journal.jsonl"))
            .and_then(text)
            .unwrap_or_default()
    }

    /// Starts the command and waits until its journal has a line of this state.
    fn start_until_state(&self, state: &str) -> Child {
        let mut command = self.command(TWO);
        command.envs([PATIENT, ("SITE_FAKE", "patient")]).stdout(std::process::Stdio::null());
        let child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
        let line = format!("{{\"state\":\"{state}\"");
        wait_for(&format!("state `{state}`"), || self.journal_text().contains(&line));
        child
    }

    /// Process id of the node that runs the one job.
    fn node(&self) -> u32 {
        let files = files_below(&self.campaign().join("jobs"));
        let path = files.iter().find(|path| path.ends_with("process")).unwrap();
        fs::read_to_string(path).unwrap().split(' ').next().unwrap().parse().unwrap()
    }

    fn launches(&self) -> usize {
        self.pids("bench.pids").len()
    }

    #[track_caller]
    fn is_complete(&self) {
        for pids in ["server.pids", "bench.pids"] {
            for pid in self.pids(pids) {
                wait_for("a process to end", || !is_alive(pid));
            }
        }
        assert!(!self.root().join("target/release-bench.lock").exists(), "the lock is left");
        let runs: Vec<String> = self
            .records(&self.root().join("results"))
            .iter()
            .map(|(_, run)| run.id.clone())
            .collect();
        let planned = self.journal_text();
        assert_eq!(runs.len(), 2, "{runs:?}");
        assert!(runs.iter().all(|run| planned.contains(run)), "{runs:?}");
        let records = self.calls().matches("results record").count();
        assert_eq!(records, 1, "committed once");
        assert_eq!(self.git(&["status", "--porcelain", "--", ":!results"]), "");
    }
}

fn kill_9(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_controller_that_is_killed_at_any_state_goes_on_and_launches_nothing_twice() {
    for state in
        ["campaign", "planned", "submitted", "running", "collected", "checked", "committed"]
    {
        let scratch = Scratch::new();
        kill_9(scratch.start_until_state(state));
        scratch.run_with(RESUME, &[PATIENT]).expect(0, &["Resume campaign", "the table of v0.9.2"]);
        scratch.is_complete();
        assert_eq!(scratch.launches(), 2, "killed at `{state}`");
        scratch.run(RESUME).expect(2, &["no unfinished campaign of `v0.9.2`"]);
    }
}

/// A crash between an action and its line in the journal: the resumed campaign finds the result
/// and does not repeat the action.
#[test]
fn a_journal_that_lacks_its_last_lines_loses_nothing() {
    let scratch = Scratch::new();
    scratch.run(TWO).expect(0, &[]);
    let whole = fs::read_to_string(scratch.journal()).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    assert!(lines.len() >= 7, "{whole}");
    let results = files_below(&scratch.root().join("results"));
    for kept in 1..lines.len() {
        let torn = &lines[kept][..lines[kept].len() / 2];
        fs::write(scratch.journal(), format!("{}{torn}", lines[..kept].concat())).unwrap();
        scratch.run(RESUME).expect(0, &["its journal was incomplete and is dropped"]);
        assert_eq!(scratch.launches(), 2, "{kept} lines were kept");
        assert_eq!(files_below(&scratch.root().join("results")), results);
    }
}

#[test]
fn a_node_that_is_killed_is_replaced_and_its_block_begins_again() {
    let scratch = Scratch::new();
    let child = scratch.start_until(TWO, &[PATIENT], "bench.pids");
    wait_for("the second run", || scratch.launches() == 2);
    let killed =
        std::process::Command::new("kill").args(["-9", &scratch.node().to_string()]).status();
    assert!(killed.unwrap().success());
    let ended = crate::scratch::Ended::of(child.wait_with_output().unwrap());
    ended.expect(0, &["the node was lost: its process is gone; the rest of the job is retried"]);
    scratch.is_complete();
    assert_eq!(scratch.launches(), 3, "the first block was not launched again");
}

#[test]
fn when_controller_and_node_are_killed_finished_blocks_stay() {
    let scratch = Scratch::new();
    let child = scratch.start_until(TWO, &[PATIENT], "bench.pids");
    wait_for("the second run", || scratch.launches() == 2);
    let node = scratch.node();
    kill_9(child);
    assert!(
        std::process::Command::new("kill")
            .args(["-9", &node.to_string()])
            .status()
            .unwrap()
            .success()
    );
    wait_for("the node to end", || !is_alive(node));
    scratch
        .run_with(RESUME, &[PATIENT])
        .expect(0, &["the rest of the job is retried", "Run 2 of 2"]);
    scratch.is_complete();
    assert_eq!(scratch.launches(), 3);
}

#[test]
fn a_node_that_is_killed_each_time_is_recorded_as_infrastructure() {
    let scratch = Scratch::new();
    let args = ["release-bench", "v0.9.2", "--repeats", "1"];
    let child = scratch.start_until(&args, &[("BENCH_FAKE", "slow")], "bench.pids");
    for attempt in 1..=3 {
        wait_for("a launch", || scratch.launches() == attempt);
        let nodes = files_below(&scratch.campaign().join("jobs"));
        let processes = nodes.iter().filter(|path| path.ends_with("process"));
        for text in processes.map(|path| fs::read_to_string(path).unwrap()) {
            let pid = text.split(' ').next().unwrap();
            let _ = std::process::Command::new("kill")
                .args(["-9", pid])
                .stderr(std::process::Stdio::null())
                .status();
        }
    }
    let ended = crate::scratch::Ended::of(child.wait_with_output().unwrap());
    ended.expect(1, &["on each of 3 attempts; recorded as failed", "1 of 1 runs failed"]);
    let (_, record) = scratch.records(&scratch.root().join("results")).remove(0);
    let failure = record.failure.unwrap();
    assert_eq!(failure.class, schema::run::FailureClass::Infrastructure);
    for pids in ["server.pids", "bench.pids"] {
        assert!(scratch.pids(pids).iter().all(|pid| !is_alive(*pid)), "{pids}");
    }
}

#[test]
fn an_interrupted_campaign_goes_on_where_it_was() {
    let scratch = Scratch::new();
    let child = scratch.start_until(TWO, &[PATIENT], "bench.pids");
    wait_for("the second run", || scratch.launches() == 2);
    crate::scratch::signal(child, "INT").expect(4, &["`--resume` continues it"]);
    scratch.run(RESUME).expect(0, &["a block that was interrupted begins again", "Run 2 of 2"]);
    scratch.is_complete();
    assert_eq!(scratch.launches(), 3);
    let aside = files_below(&scratch.campaign().join("jobs"));
    assert!(aside.iter().any(|path| path.to_string_lossy().contains("/aside/1/")), "{aside:?}");
}

#[test]
fn a_second_writer_is_refused() {
    let scratch = Scratch::new();
    let child = scratch.start_until_state("running");
    scratch.run(RESUME).expect(4, &["another release-bench runs in this clone"]);
    kill_9(child);
    scratch.run(RESUME).expect(0, &[]);
    scratch.is_complete();
}

/// A job left running would share the cores with a new campaign, although nobody holds the lock.
#[test]
fn no_campaign_begins_beside_a_job_that_was_left_running() {
    let scratch = Scratch::new();
    kill_9(scratch.start_until_state("running"));
    scratch.run(TWO).expect(4, &["still runs (process ", "`--resume` continues its campaign"]);
    scratch.run(RESUME).expect(0, &[]);
    scratch.is_complete();
}

#[test]
fn only_the_campaign_that_is_asked_for_goes_on() {
    let scratch = Scratch::new();
    scratch.run(RESUME).expect(2, &["no unfinished campaign of `v0.9.2`", "leave `--resume` out"]);
    kill_9(scratch.start_until_state("submitted"));
    scratch
        .run(&["release-bench", "v0.9.1", "--resume"])
        .expect(2, &["no unfinished campaign of `v0.9.1`"]);
    let other = ["release-bench", "v0.9.2", "--repeats", "5", "--resume"];
    scratch.run(&other).expect(2, &["no unfinished campaign of `v0.9.2`"]);
    scratch.run(&["release-bench", "--resume"]).expect(0, &[]);
    scratch.is_complete();
}

#[test]
fn a_node_on_which_something_is_missing_measures_nothing() {
    let scratch = Scratch::new();
    let ended = scratch.run_with(TWO, &[("BENCH_FAKE", "absent")]);
    ended.expect(4, &["`redline-bench` does not run on this node", "`--resume` continues it"]);
    assert!(scratch.pids("server.pids").is_empty());
    let model = files_below(&scratch.cache()).into_iter().find(|path| path.ends_with("model.gguf"));
    let model = model.unwrap();
    let kept = fs::read(&model).unwrap();
    fs::remove_file(&model).unwrap();
    scratch.run(RESUME).expect(4, &["model.gguf` is not on this node"]);
    fs::write(&model, "weights").unwrap();
    scratch.run(RESUME).expect(4, &["has 7 bytes on this node, expected 23"]);
    fs::write(&model, kept).unwrap();
    scratch.run(RESUME).expect(0, &["Run 2 of 2"]);
    scratch.is_complete();
    assert_eq!(scratch.launches(), 2);
}
