//! Arrival processes of `redline-bench` (open, closed, ramp, trace) against the mock server. Times
//! have only lower bounds, which script and schedule guarantee even on a busy machine.

use std::fs;

use expect_test::expect;
use judge::quantile::Bins;
use schema::measurement::Measurement;
use schema::run::Status;
use serde_json::{Value, json};
use suite::mock_server::script::{Answer, Script, Steady};
use suite::mock_server::server::Logged;

use crate::harness::Exchange;
use crate::workspace::{PLAN, Workspace, scenario, server, stderr, url};

const MS: u64 = 1_000_000;

/// Mock server that takes `first_us` for the first token and sends the others at once.
fn slow(first_us: u64) -> Exchange {
    let steady = Steady { first_us, ..Steady::default() };
    let script = Script {
        requests: vec![Answer { times: 0, ..Answer::steady(steady) }],
        ..Script::steady()
    };
    Exchange::playing(script)
}

fn samples(measurement: &Measurement, name: &str) -> Option<u64> {
    let histograms = measurement.histograms.as_ref().expect("histograms");
    let named = histograms.named();
    let found = named.iter().find(|(other, _)| *other == name).expect("a name");
    found.1.map(|histogram| Bins::decode(histogram).expect("readable").samples)
}

fn percentile_us(measurement: &Measurement, name: &str, share: f64) -> f64 {
    let histograms = measurement.histograms.as_ref().expect("histograms");
    let named = histograms.named();
    let found = named.iter().find(|(other, _)| *other == name).expect("a name");
    let bins = Bins::decode(found.1.expect("samples")).expect("readable");
    bins.reached(&[share])[0]
}

/// Ten requests per second, one at a time, half a second each: the last request waits longest. A
/// clock that starts when the server becomes free would hide that wait (coordinated omission).
#[test]
fn a_cap_queues_and_the_clock_runs_from_the_schedule() {
    let workspace = Workspace::new();
    let arrival = "{ kind = \"constant\", requests_per_s = 10.0, concurrency_max = 1 }";
    let text = scenario(8, arrival).replace("requests = 2,", "requests = 0,");
    workspace.write("short.toml", &text);
    let (code, found) = workspace.run(&slow(500_000), &[]);
    assert_eq!((code, found.status), (Some(0), Status::Ok));
    assert_eq!(found.client.as_ref().and_then(|client| client.streams_max), Some(1));
    // The eighth request is due after 0.7 s, starts after 3.5 s and therefore ends 3.3 s late.
    assert!(percentile_us(&found, "e2e_scheduled_us", 1.0) >= 3_290_000.0);
    assert!(percentile_us(&found, "queue_us", 1.0) >= 2_790_000.0);
    assert!(percentile_us(&found, "e2e_us", 0.0) < 3_290_000.0, "from the send it is another time");
    assert_eq!(samples(&found, "queue_us"), Some(8));
    let client = found.client.clone().expect("client");
    let lag = client.schedule_lag_us_p99.expect("sent");
    assert!(lag < 2_790_000, "the wait behind the cap is not the client's lag: {lag} us");
}

#[test]
fn sends_keep_their_schedule_however_slow_the_answers() {
    let workspace = Workspace::new();
    workspace.write("short.toml", &scenario(10, "{ kind = \"constant\", requests_per_s = 100.0 }"));
    let exchange = slow(400_000);
    let (code, found) = workspace.run(&exchange, &[]);
    assert_eq!((code, found.status), (Some(0), Status::Ok));
    let log = exchange.log();
    let received = |request: u64| {
        let mut of = log.iter().filter(|line| line.request == request);
        of.find(|line| line.event == Logged::Received).expect("received").at_ns
    };
    // Two warm-up requests come before; the first answer arrives after the last send is due.
    for n in 0..10 {
        assert!(received(2 + n) + MS >= received(2) + n * 10 * MS, "request {n} is not early");
    }
    let first_answer = log
        .iter()
        .find(|line| line.request == 2 && line.event == Logged::Written(0))
        .expect("answered");
    assert!(received(11) < first_answer.at_ns + 1000 * MS);
    assert_eq!(found.histograms.as_ref().and_then(|all| all.queue_us.as_ref()), None);
    assert_eq!(found.counts.as_ref().and_then(|counts| counts.requests_ok), Some(10));
}

#[test]
fn a_turn_is_sent_when_the_answer_before_it_has_ended() {
    let workspace = Workspace::new();
    let turns: Vec<Value> = (0..4).map(|i| json!({"value": format!("w{i} w{i}")})).collect();
    workspace.write("rows.json", &json!([{"conversations": turns}]).to_string());
    let text = scenario(2, "{ kind = \"all-at-once\" }")
        .replace("sharegpt@lmdeploy", "multi-turn")
        .replace("seed = 1 }", "seed = 1, think_us = 50000 }")
        .replace("requests = 2, from", "requests = 0, from");
    workspace.write("short.toml", &text);
    let exchange = server(Vec::new());
    let (code, found) = workspace.run(&exchange, &[]);
    assert_eq!((code, found.status), (Some(0), Status::Ok));
    let log = exchange.log();
    let last = |request: u64, written: bool| {
        let of = log.iter().filter(|line| line.request == request);
        let kind = of.filter(|line| matches!(line.event, Logged::Written(_)) == written);
        kind.map(|line| line.at_ns).max().expect("logged")
    };
    let received =
        log.iter().find(|line| line.request == 1 && line.event == Logged::Received).expect("sent");
    assert!(received.at_ns + MS >= last(0, true) + 50 * MS, "not before its time to think");
    assert_eq!(found.counts.as_ref().and_then(|counts| counts.input_tokens), Some(2 + 6));
}

fn replay(workspace: &Workspace, url: &str, plan: &str) -> std::process::Output {
    let mut command = workspace.bench();
    command.args(["run", "--url", url, "--progress", "none", "--out", "again.json"]);
    command.args(["--engine", "redline.toml", "--tokenizer", "tiny.json", "--plan", plan]);
    command.output().expect("runs")
}

#[test]
fn a_saved_plan_is_the_same_everywhere_and_is_sent_as_it_is() {
    let workspace = Workspace::new();
    workspace.write("short.toml", &scenario(4, "{ kind = \"poisson\", requests_per_s = 200.0 }"));
    let output = workspace.bench().args(PLAN).output().expect("runs");
    expect![[r#"
        scenario       short@1
        requests       4
        input tokens   32
        output tokens  20
        last send      0.009069 s
        manifest       8578495e430b941c4b9e6e5778b7287649f49d2e5d1bed6fe4c23867074687b6
    "#]]
    .assert_eq(&String::from_utf8_lossy(&output.stdout));
    let first = fs::read(workspace.path("plan.json")).expect("saved");
    let other = Workspace::new();
    other.write("short.toml", &scenario(4, "{ kind = \"poisson\", requests_per_s = 200.0 }"));
    other.bench().args(PLAN).output().expect("runs");
    assert_eq!(fs::read(other.path("plan.json")).expect("saved"), first, "byte for byte");
    let exchange = server(Vec::new());
    let (_, drawn) = workspace.run(&exchange, &[]);
    let output = replay(&workspace, &url(&exchange), "plan.json");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let again = fs::read(workspace.path("again.json")).expect("written");
    let again: Measurement = serde_json::from_slice(&again).expect("a measurement");
    assert_eq!(again.scenario, drawn.scenario, "the record says the same of both");
}

#[test]
fn a_plan_that_was_changed_or_does_not_fit_is_refused() {
    let workspace = Workspace::new();
    workspace.bench().args(PLAN).output().expect("runs");
    let text = fs::read_to_string(workspace.path("plan.json")).expect("saved");
    workspace.write("changed.json", &text.replace("\"output_tokens\":5", "\"output_tokens\":6"));
    workspace.write("other.json", "{}");
    let exchange = server(Vec::new());
    let engine = fs::read_to_string(workspace.path("redline.toml")).expect("readable");
    for (plan, takes_ids, expected) in [
        ("changed.json", "true", "was changed: its requests do not have the hash"),
        ("other.json", "true", "is not a plan that `redline-bench plan` saved"),
        ("missing.json", "true", "cannot read plan `missing.json`"),
        ("plan.json", "false", "has prompts as token ids, which this engine does not accept"),
    ] {
        let takes = format!("token_ids = {takes_ids}");
        workspace.write("redline.toml", &engine.replacen("token_ids = true", &takes, 1));
        let output = replay(&workspace, &url(&exchange), plan);
        assert!(stderr(&output).contains(expected), "{plan}: {}", stderr(&output));
        let code = if plan == "missing.json" { 4 } else { 2 };
        assert_eq!(output.status.code(), Some(code), "{plan}");
    }
}

/// Command with the flags that all measuring commands need, for the subcommand `verb`, plus
/// `extra`.
fn measuring(
    workspace: &Workspace,
    exchange: &Exchange,
    verb: &str,
    extra: &[&str],
) -> std::process::Output {
    let mut command = workspace.bench();
    command.args([verb, "--url", &url(exchange), "--progress", "none", "--out", "points"]);
    command.args(["--engine", "redline.toml", "--scenario", "short.toml"]);
    command.args(["--dataset", "rows.json", "--tokenizer", "tiny.json"]);
    command.args(extra).output().expect("runs")
}

fn point(workspace: &Workspace, name: &str) -> Measurement {
    let text = fs::read(workspace.path("points").join(name)).expect("written");
    serde_json::from_slice(&text).expect("a measurement")
}

#[test]
fn a_sweep_measures_every_point_and_names_it() {
    let workspace = Workspace::new();
    let exchange = server(Vec::new());
    let output = measuring(&workspace, &exchange, "sweep", &["--requests-per-s", "50,400"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let first: Vec<&str> = shown.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(first, ["point", "rate-50", "rate-400"]);
    let (slow, fast) = (point(&workspace, "rate-50.json"), point(&workspace, "rate-400.json"));
    assert_eq!(
        (slow.scenario.id.as_str(), fast.scenario.id.as_str()),
        ("short+rate-50", "short+rate-400")
    );
    assert_ne!(slow.scenario.manifest_sha256, fast.scenario.manifest_sha256);
    assert_eq!(
        serde_json::to_value(&fast.scenario.arrival).expect("JSON"),
        json!({"kind": "poisson", "requests_per_s": 400.0})
    );
    let output = measuring(&workspace, &exchange, "sweep", &["--concurrency", "1,2"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let streams = |name: &str| point(&workspace, name).client.and_then(|client| client.streams_max);
    assert_eq!([streams("c1.json"), streams("c2.json")], [Some(1), Some(2)]);
}

#[test]
fn goodput_counts_what_keeps_its_limits() {
    let (_, found) =
        Workspace::new().run(&slow(30_000), &["--slo", "ttft_ms=20", "--slo", "e2e_ms=100000"]);
    let rates = found.metrics.as_ref().and_then(|metrics| metrics.goodput_per_s.clone());
    let rates = rates.expect("limits were given");
    assert_eq!((rates["ttft_ms=20"], rates["all"]), (0.0, 0.0), "none comes within 20 ms");
    assert!(rates["e2e_ms=100000"] > 0.0);
}

#[test]
fn a_search_says_what_was_found_and_how_sure_it_is() {
    let workspace = Workspace::new();
    let exchange = server(Vec::new());
    let sure = ["--slo", "e2e_ms=60000", "--attainment", "0.7", "--repeats", "3"];
    let range = ["--from-requests-per-s", "200", "--to-requests-per-s", "400"];
    let output = measuring(&workspace, &exchange, "search", &[&sure[..], &range[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    expect![[r#"
               200 requests/s, run 1: 4 of 4 passed
               200 requests/s, run 2: 4 of 4 passed
               200 requests/s, run 3: 4 of 4 passed
               400 requests/s, run 1: 4 of 4 passed
               400 requests/s, run 2: 4 of 4 passed
               400 requests/s, run 3: 4 of 4 passed
        passes 400 requests/s: 12 of 12 requests in 3 runs met e2e_ms=60000; at least 77.91 % do, with 95 % confidence
        the highest rate to try passes
    "#]]
    .assert_eq(&String::from_utf8_lossy(&output.stdout));
    let text = fs::read(workspace.path("points/search.json")).expect("written");
    let found: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(
        (&found["requests_per_s_kept"], &found["requests_per_s_lost"]),
        (&json!(400.0), &Value::Null)
    );
    assert_eq!(found["trials"][1]["runs"][2]["file"], "rate-400-run-3.json");
    assert_eq!(point(&workspace, "rate-400-run-3.json").scenario.id, "short+rate-400");
}

#[test]
fn a_search_that_cannot_succeed_says_so() {
    let workspace = Workspace::new();
    let never = slow(30_000);
    let limit = ["--slo", "ttft_ms=20", "--attainment", "0.7", "--from-requests-per-s", "200"];
    let output = measuring(&workspace, &never, "search", &limit);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(shown.contains("no tested rate passes"), "{shown}");
    assert!(
        shown.contains("fails 200 requests/s: 0 of 4 requests in 1 runs met ttft_ms=20"),
        "{shown}"
    );
    let output = measuring(&workspace, &never, "search", &["--slo", "ttft_ms=20"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(
        said.contains("12 requests at each rate cannot show that 99 % meet the limits"),
        "{said}"
    );
    assert!(said.contains("299 are needed"), "{said}");
}
