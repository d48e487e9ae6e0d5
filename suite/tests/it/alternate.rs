//! `redline-bench alternate`: pairs of slices in random order, the idle server frozen, both awake
//! again at the end.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::alternation::{Alternation, Side};
use suite::mock_server::script::{Answer, Framing, Scripted, When};

use crate::harness::{ready_url, wait_until};
use crate::workspace::{Workspace, server, stderr, url};

/// Mock server in a process group of its own.
struct Frozen {
    process: Child,
    url: String,
}

impl Frozen {
    /// Starts a server whose tokens are `gap_us` microseconds apart.
    fn start(gap_us: u32) -> Self {
        let mut emitter = Command::new(env!("CARGO_BIN_EXE_redline-emitter"));
        emitter.args(["--detach", "--pace", &format!("1000:{gap_us}")]).process_group(0);
        let mut process =
            emitter.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        Self { url: ready_url(&mut process), process }
    }

    fn group(&self) -> String {
        format!("group:{}", self.process.id())
    }

    /// Ends the server with a signal that a frozen process would not notice.
    fn end(mut self) {
        let id = Pid::from_raw(i32::try_from(self.process.id()).expect("an id"));
        kill(id, Signal::SIGTERM).expect("it runs");
        wait_until(|| self.process.try_wait().expect("a child").is_some());
    }
}

fn alternate(workspace: &Workspace, baseline: &str, candidate: &str) -> Command {
    let mut command = workspace.bench();
    command.args(["alternate", "--baseline-url", baseline, "--candidate-url", candidate]);
    command.args(["--slice-requests", "8"]);
    command
}

fn read(path: &Path) -> Alternation {
    serde_json::from_slice(&fs::read(path).expect("a file")).expect("an alternation")
}

fn pairs_of(found: &Alternation) -> Vec<[Side; 2]> {
    let pairs = found.slices.chunks(2);
    pairs.map(|pair| [pair[0].variant, pair[1].variant]).collect()
}

#[test]
fn both_answer_the_same_in_random_order_and_the_idle_one_is_frozen() {
    let workspace = Workspace::new();
    let (baseline, candidate) = (Frozen::start(500), Frozen::start(2_000));
    let run = |seed: &str| -> (Output, Alternation) {
        let mut command = alternate(&workspace, &baseline.url, &candidate.url);
        command.args(["--baseline-freeze", &baseline.group()]);
        command.args(["--candidate-freeze", &candidate.group()]);
        let output = command
            .args(["--pairs", "6", "--seed", seed, "--out", "slices.json"])
            .output()
            .expect("runs");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (output, read(&workspace.path("slices.json")))
    };
    let (output, found) = run("1");
    assert_eq!((found.slices.len(), found.slice_requests), (12, 8));
    for (pair, sides) in pairs_of(&found).iter().enumerate() {
        assert_ne!(sides[0], sides[1], "pair {pair} has both variants");
    }
    for slice in &found.slices {
        assert_eq!((slice.output_tokens, slice.requests_failed), (8 * 64, 0));
        assert_eq!(slice.idle_cpu_us, Some(0), "the idle server worked: {slice:?}");
    }
    assert!(pairs_of(&found).iter().any(|sides| *sides != pairs_of(&found)[0]), "one order");
    assert_eq!(pairs_of(&run("1").1), pairs_of(&found), "the seed decides the order");
    assert_ne!(pairs_of(&run("5").1), pairs_of(&found));
    // Gaps of the candidate are four times as long, whatever else the machine does.
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.starts_with("TPOT p50")).expect("a row");
    let ratio: f64 = line.split_whitespace().nth(2).expect("a ratio").parse().expect("a number");
    assert!(ratio > 1.0, "{said}");
    assert!(line.contains("95 % interval"), "{said}");
    // On one more start, intervals are over starts.
    let mut command = alternate(&workspace, &baseline.url, &candidate.url);
    command.args(["--pairs", "6", "--earlier", "slices.json", "--out", "second.json"]);
    let output = command.output().expect("runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("over 2 starts"), "{said}{}", stderr(&output));
    let line = said.lines().find(|line| line.starts_with("TPOT p50")).expect("a row");
    assert!(line.contains("95 % interval"), "{said}");
    baseline.end();
    candidate.end();
}

#[test]
fn an_interrupted_alternation_leaves_both_servers_awake() {
    let workspace = Workspace::new();
    let (baseline, candidate) = (Frozen::start(500), Frozen::start(500));
    let mut command = alternate(&workspace, &baseline.url, &candidate.url);
    command.args(["--baseline-freeze", &baseline.group()]);
    command.args(["--candidate-freeze", &candidate.group(), "--pairs", "100000"]);
    command.args(["--out", "slices.json"]);
    let mut client = command.stderr(Stdio::piped()).spawn().expect("it starts");
    // One of them is frozen at any time from the first slice on.
    let state = |server: &Frozen| {
        let stat = fs::read_to_string(format!("/proc/{}/stat", server.process.id()));
        stat.expect("it runs").rsplit(") ").next().expect("fields").starts_with('T')
    };
    wait_until(|| state(&baseline) || state(&candidate));
    let id = Pid::from_raw(i32::try_from(client.id()).expect("an id"));
    kill(id, Signal::SIGINT).expect("it runs");
    assert_eq!(client.wait().expect("it ends").code(), Some(4));
    assert!(!workspace.path("slices.json").exists());
    baseline.end();
    candidate.end();
}

#[test]
fn a_failed_request_is_counted_in_its_slice_and_a_server_that_cannot_be_frozen_is_an_error() {
    let workspace = Workspace::new();
    let events = Answer::events(vec![Scripted::text(0, "{}")]);
    // Two requests find the route, two warm up.
    let when = When { index: Some(6), ..When::default() };
    let failing = Answer { when, status: 500, framing: Framing::Length, ..events };
    let (baseline, candidate) = (server(Vec::new()), server(vec![failing]));
    let mut command = alternate(&workspace, &url(&baseline), &url(&candidate));
    let output = command.args(["--pairs", "2", "--out", "slices.json"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let found = read(&workspace.path("slices.json"));
    let failed = |side| -> u64 {
        let slices = found.slices.iter().filter(|slice| slice.variant == side);
        slices.map(|slice| slice.requests_failed).sum()
    };
    assert_eq!((failed(Side::Baseline), failed(Side::Candidate)), (0, 1));
    assert!(found.slices.iter().all(|slice| slice.idle_cpu_us.is_none()));

    let mut command = alternate(&workspace, &url(&baseline), &url(&candidate));
    let output = command.args(["--baseline-freeze", "group:2147483647"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("baseline"), "{}", stderr(&output));
}
