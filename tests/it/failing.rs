//! A server that dies, hangs or sends garbage during a run: the run is recorded as failed with the
//! right failure class, the command ends with exit code 1, and no process or lock is left.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::run::{Failure, FailureClass, Phase, RunRecord, Status, ValidityVerdict};
use serde_json::{Value, json};
use tests::clone::{Clone, already_built_path};
use tests::program::{Ended, wait, while_running};
use tests::scripted::Scripted;
use tests::server::client;

/// Scenario of ten sequential requests after two for warm-up.
const ONE_BY_ONE: &str = "ladder-lite-c1";

/// Number of requests that the server answers before it fails, warm-up included.
const ANSWERED: u64 = 6;

/// Starts `release-bench` with one run of one scenario.
fn start(clone: &Clone, scenario: &str, more: &[&str], path: Option<&Path>) -> Child {
    let words = ["release-bench", "--scenario", scenario, "--repeats", "1"];
    let words: Vec<&str> = words.iter().chain(more).copied().collect();
    let mut command = clone.program("redline-campaign", &words);
    if let Some(folder) = path {
        command.env("PATH", already_built_path(folder));
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
}

/// Scripted answer with steady gaps, given `times` times, or always for 0.
fn steady(times: u64, gap_us: u64) -> Value {
    json!({"times": times, "steady": {"first_us": 2000, "gap_us": gap_us}})
}

/// Asserts that the campaign recorded its only run as failed and left nothing else; returns the
/// record.
#[track_caller]
fn failed_run(clone: &Clone, ended: Ended, before: &(String, String)) -> RunRecord {
    ended.expect_code(1).expect_said("1 of 1 runs failed or are INVALID");
    nothing_is_left(clone, before);
    let mut runs = clone.uncommitted_runs();
    let (_, run) = runs.pop().expect("the run was recorded");
    assert_eq!(runs, [], "one run was planned");
    assert_eq!(run.validity.verdict, ValidityVerdict::Invalid, "{run:?}");
    assert_ne!(run.status, Status::Ok);
    sound_as_data(clone, &run);
    run
}

/// Asserts that no process, no lock and no change to the working tree is left.
#[track_caller]
fn nothing_is_left(clone: &Clone, before: &(String, String)) {
    assert_eq!(*before, clone.state());
    assert_eq!(clone.processes(), []);
    assert!(!clone.root().join("target/release-bench.lock").exists(), "the lock is left");
}

/// Asserts that a registry with this failed run is sound. Moves the campaign's folder, which has
/// the layout of a registry, out of the clone, because `check` would use the clone's registry
/// instead.
#[track_caller]
fn sound_as_data(clone: &Clone, run: &RunRecord) {
    let campaign = run.campaign.as_ref().expect("a campaign's run").id.as_str();
    let registry = clone.root().with_file_name(campaign);
    std::fs::rename(clone.root().join("target/campaigns").join(campaign), &registry)
        .expect("movable");
    let registry = registry.to_str().expect("UTF-8");
    // A record of a working tree does not belong in a registry; that is the only finding.
    let from_tree = run.engine.release.ends_with("-dev");
    let code = if from_tree { 2 } else { 0 };
    let checked =
        clone.run("redline-results", &["check", "--registry", registry]).expect_code(code);
    let lines = checked.stdout.lines().filter(|line| line.starts_with("breach "));
    let rules: Vec<&str> = lines.filter_map(|line| line.split(' ').nth(1)).collect();
    let against: &[&str] = if from_tree { &["S08"] } else { &[] };
    assert_eq!(rules, against, "{}", checked.stdout);
}

#[track_caller]
fn assert_failure(run: &RunRecord, class: FailureClass, says: &str) {
    let Failure { class: found, phase, message } = run.failure.as_ref().expect("a failure");
    assert_eq!((*found, *phase), (class, Phase::Measure), "{message}");
    assert!(message.contains(says), "`{says}` is not in\n{message}");
}

#[test]
fn what_a_server_sends_in_mid_run_decides_the_class() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let before = clone.state();
    let chunk = "data: {\"choices\":[{\"index\":0,\"text\":\"t\",\"token_ids\":[28]}]}\n\n";
    // One good chunk comes before what each case breaks.
    let cases = [
        (
            json!({"events": [{"text": chunk}, {"text": "data: {\"choi\u{0}\n\n"}]}),
            FailureClass::BadOutput,
            "bad-event",
        ),
        (
            json!({"framing": "raw", "events": [{"base64": "AAECAwQFBgcNCg0K"}]}),
            FailureClass::BadOutput,
            "bad-http",
        ),
        (
            json!({"status": 504, "events": [{"text": "too late"}]}),
            FailureClass::Timeout,
            "http-504",
        ),
        (json!({"events": [{"text": chunk}, {"action": "close"}]}), FailureClass::Crash, "closed"),
        (json!({"events": [{"text": chunk}, {"action": "stall"}]}), FailureClass::Hang, "for 1 s"),
    ];
    for (mut answer, class, says) in cases {
        answer["times"] = 0.into();
        let server = Scripted::answering(&[steady(ANSWERED, 1000), answer]);
        let more = ["--url", server.url(), "--timeout-s", "1"];
        let child = start(&clone, ONE_BY_ONE, &more, None);
        let ended = wait(child, Duration::from_secs(180));
        let run = failed_run(&clone, ended, &before);
        assert_failure(&run, class, says);
        assert_eq!(run.status, Status::Partial, "four of ten were answered");
        assert_eq!(run.counts.and_then(|counts| counts.requests_ok), Some(ANSWERED - 2));
    }
}

#[test]
fn a_server_of_someone_else_that_dies_in_mid_run_is_a_crash() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let before = clone.state();
    let server = Scripted::answering(&[steady(0, 5000)]);
    let mut child = start(&clone, ONE_BY_ONE, &["--url", server.url()], None);
    server.wait_for_request(ANSWERED, &mut child);
    drop(server);
    let run = failed_run(&clone, wait(child, Duration::from_secs(180)), &before);
    assert_failure(&run, FailureClass::Crash, "no longer answers");
}

/// Process of the engine that `campaign` started, once it runs more than four requests.
fn busy_engine(clone: &Clone, campaign: &mut Child) -> Pid {
    let client = client();
    let (id, port) = while_running(campaign, "the engine", || {
        let (id, line) =
            clone.processes().into_iter().find(|(_, line)| line.contains(" serve "))?;
        let port = line.split_once("--port ")?.1.split(' ').next()?.to_owned();
        Some((id, port))
    });
    while_running(campaign, "requests in the engine", || {
        let page =
            client.get(format!("http://127.0.0.1:{port}/metrics")).send().ok()?.text().ok()?;
        let running =
            page.lines().find_map(|line| line.strip_prefix("redline_requests_running "))?;
        // The warm-up has only two requests.
        (running.trim().parse::<f64>().ok()? > 4.0).then_some(())
    });
    Pid::from_raw(i32::try_from(id).expect("process ids are small"))
}

/// Measures the clone with the engine that was built with the tests, and sends it a signal mid-run.
#[track_caller]
fn signalled(clone: &Clone, signal: Signal) -> RunRecord {
    let before = clone.state();
    let folder = tempfile::tempdir().expect("a temporary folder");
    // Long enough for the first prefill, which two tests at once slow down.
    let more = ["--worktree", "--timeout-s", "10"];
    let mut child = start(clone, "balanced-lite", &more, Some(folder.path()));
    kill(busy_engine(clone, &mut child), signal).expect("it runs");
    failed_run(clone, wait(child, Duration::from_secs(90)), &before)
}

#[test]
fn an_engine_that_dies_in_mid_run_is_a_crash() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::as_built();
    // SIGUSR1, because the engine does not handle it and it leaves no core file.
    let run = signalled(&clone, Signal::SIGUSR1);
    assert_failure(&run, FailureClass::Crash, "signal 10 (SIGUSR1) during the run");
}

#[test]
fn an_engine_that_is_killed_in_mid_run_lacked_memory() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::as_built();
    let run = signalled(&clone, Signal::SIGKILL);
    assert_failure(&run, FailureClass::Oom, "signal 9 (SIGKILL) during the run");
}

#[test]
fn an_engine_that_stops_in_mid_run_is_a_hang() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::as_built();
    let run = signalled(&clone, Signal::SIGSTOP);
    assert_failure(&run, FailureClass::Hang, "no progress on any connection for 10 s");
    assert_failure(&run, FailureClass::Hang, "no longer answers");
}

#[test]
fn a_second_campaign_is_refused_and_the_first_goes_on() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let before = clone.state();
    let server = Scripted::answering(&[steady(0, 5000)]);
    let mut first = start(&clone, ONE_BY_ONE, &["--url", server.url()], None);
    server.wait_for_request(3, &mut first);
    let second = start(&clone, ONE_BY_ONE, &["--url", server.url()], None);
    let refused = wait(second, Duration::from_secs(30)).expect_code(4);
    let holder = format!(
        "error: another release-bench runs in this clone (process {})\n\
         hint: wait for it to end, or stop it with Ctrl-C\n",
        first.id()
    );
    assert_eq!((refused.stderr, refused.stdout), (holder, String::new()));
    wait(first, Duration::from_secs(180)).expect_code(0);
    let runs = clone.uncommitted_runs();
    let [(_, run)] = &runs[..] else { panic!("one run was planned: {runs:?}") };
    assert_eq!(run.counts.as_ref().and_then(|counts| counts.requests_ok), Some(10));
    nothing_is_left(&clone, &before);
}
