//! `redline-bench alternate`: pairs of slices in random order, the idle server frozen, both awake
//! again at the end.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::alternation::{Alternation, Side};
use schema::run::CacheState;
use serde_json::Value;
use suite::mock_server::script::{Answer, Framing, Route, Script, Scripted, Steady, When};
use suite::mock_server::server::Logged;

use crate::harness::{Exchange, ready_url, wait_until};
use crate::workspace::{PLAN, Workspace, server, stderr, url};

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

/// The campaign reads from the message whose fault it was.
#[test]
fn a_warm_up_that_fails_names_its_side() {
    let workspace = Workspace::new();
    let events = Answer::events(vec![Scripted::text(0, "{}")]);
    // Two requests find the route.
    let when = When { index: Some(2), ..When::default() };
    let failing = Answer { when, status: 500, framing: Framing::Length, ..events };
    let (baseline, candidate) = (server(Vec::new()), server(vec![failing]));
    let mut command = alternate(&workspace, &url(&baseline), &url(&candidate));
    let output = command.args(["--pairs", "2", "--out", "slices.json"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.lines().any(|line| line.starts_with("error: candidate: ")), "{said}");
    assert!(!workspace.path("slices.json").exists());
}

/// Arguments by which both servers get the requests of the short scenario as token ids.
const SHORT: [&str; 10] = [
    "--baseline-engine",
    "redline.toml",
    "--candidate-engine",
    "redline.toml",
    "--tokenizer",
    "tiny.json",
    "--scenario",
    "short.toml",
    "--dataset",
    "rows.json",
];

/// Number of arguments of [`SHORT`] before those that a plan replaces.
const KEPT_BY_PLAN: usize = 6;

/// Has two servers answer two pairs of slices, and returns the slices.
fn slices(workspace: &Workspace, servers: [&Exchange; 2], extra: &[&str]) -> Alternation {
    let mut command = workspace.bench();
    let [baseline, candidate] = servers.map(url);
    command.args(["alternate", "--baseline-url", &baseline, "--candidate-url", &candidate]);
    command.args(["--pairs", "2", "--out", "slices.json"]).args(extra);
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    read(&workspace.path("slices.json"))
}

fn requests(exchange: &Exchange) -> usize {
    exchange.log().iter().filter(|line| line.event == Logged::Received).count()
}

/// Both prefix caches must have seen the same prompts.
#[test]
fn the_size_of_a_slice_is_chosen_with_requests_to_both_servers() {
    let workspace = Workspace::new();
    let servers = [server(Vec::new()), server(Vec::new())];
    let found = slices(&workspace, [&servers[0], &servers[1]], &[]);
    assert!(found.slice_requests >= 4, "a request for each user: {}", found.slice_requests);
    let [baseline, candidate] = [requests(&servers[0]), requests(&servers[1])];
    assert_eq!(baseline, candidate);
    let of_slices = 2 * usize::try_from(found.slice_requests).expect("few");
    assert!(baseline > of_slices + 4, "{baseline} requests, of which {of_slices} in slices");
}

#[test]
fn a_saved_plan_gives_the_requests_of_its_scenario_and_replaces_it() {
    let workspace = Workspace::new();
    let drawn = [server(Vec::new()), server(Vec::new())];
    let from_scenario = slices(&workspace, [&drawn[0], &drawn[1]], &SHORT);
    assert!(workspace.bench().args(PLAN).status().expect("runs").success());
    let planned = [server(Vec::new()), server(Vec::new())];
    let plan = [&SHORT[..KEPT_BY_PLAN], &["--plan", "plan.json"]].concat();
    let from_plan = slices(&workspace, [&planned[0], &planned[1]], &plan);
    assert!(from_scenario.scenario.manifest_sha256.is_some());
    assert_eq!(from_plan.scenario, from_scenario.scenario);
    let tokens = |found: &Alternation| -> Vec<u64> {
        found.slices.iter().map(|slice| slice.output_tokens).collect()
    };
    assert_eq!(tokens(&from_plan), tokens(&from_scenario));
    assert_eq!(planned.each_ref().map(requests), drawn.each_ref().map(requests));

    let mut command = alternate(&workspace, &url(&planned[0]), &url(&planned[1]));
    let output = command.args(SHORT).args(["--plan", "plan.json"]).output().expect("runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
}

#[test]
fn greedy_outputs_are_compared_request_by_request_and_sampled_ones_are_not() {
    let workspace = Workspace::new();
    let shorter = || {
        let steady = Steady { tokens: Some(3), ..Steady::default() };
        server(vec![Answer { times: 0, ..Answer::steady(steady) }])
    };
    let of = |servers: [&Exchange; 2]| {
        let outputs = slices(&workspace, servers, &SHORT).outputs;
        (outputs.compared, outputs.differ)
    };
    assert_eq!(of([&server(Vec::new()), &server(Vec::new())]), (8, 0), "two pairs of four");
    assert_eq!(of([&server(Vec::new()), &shorter()]), (8, 8));
    let greedy = fs::read_to_string(workspace.path("short.toml")).expect("readable");
    workspace.write("short.toml", &greedy.replace(", temperature = 0.0", ""));
    assert_eq!(of([&server(Vec::new()), &shorter()]), (0, 0));
}

#[test]
fn the_state_of_both_prefix_caches_is_as_asked_where_both_could_be_emptied() {
    let workspace = Workspace::new();
    let plain = fs::read_to_string(workspace.path("short.toml")).expect("readable");
    let with_cache = |cache: &str| workspace.write("short.toml", &format!("{plain}{cache}"));
    let both = || [server(Vec::new()), server(Vec::new())];
    let state = |servers: &[Exchange; 2]| {
        slices(&workspace, [&servers[0], &servers[1]], &SHORT).prefix_cache
    };
    let cold = both();
    assert_eq!(state(&cold), CacheState::Cold);
    with_cache("cache = { state = \"primed\", share = 0.5 }\n");
    let primed = both();
    assert_eq!(state(&primed), CacheState::Primed);
    // Two slices of the whole scenario: each is a round, before which each of its prompts is primed.
    assert_eq!(requests(&primed[1]), requests(&cold[1]) + 2 * 4);
    with_cache("cache = { state = \"unknown\" }\n");
    assert_eq!(state(&both()), CacheState::Unknown);
    with_cache("");
    let mut keeps = Script::steady();
    keeps.routes.insert("/reset_prefix_cache".into(), Route::of(404, Value::Null));
    let keeps = Exchange::playing(keeps);
    assert_eq!(state(&[server(Vec::new()), keeps]), CacheState::Unknown, "one keeps its cache");
}

/// A server that is gone would answer nothing in all slices to come, in which the other one is asked
/// in vain.
#[test]
fn an_alternation_ends_with_a_server_that_no_longer_answers() {
    let workspace = Workspace::new();
    let candidate = Frozen::start(500);
    let baseline = server(Vec::new());
    let mut command = alternate(&workspace, &url(&baseline), &candidate.url);
    command.args(["--seconds", "600", "--out", "slices.json"]);
    let client = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    wait_until(|| requests(&baseline) > 30);
    candidate.end();
    let output = client.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let found = read(&workspace.path("slices.json"));
    let (before, last) = found.slices.split_at(found.slices.len() - 2);
    let failed = |slices: &[schema::alternation::Slice]| -> u64 {
        slices.iter().map(|slice| slice.requests_failed).sum()
    };
    assert_eq!(failed(last), failed(&found.slices), "{} slices before the last", before.len());
    assert!(failed(last) > 0 && before.len() >= 2);
}
