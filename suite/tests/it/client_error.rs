//! The stated error bounds hold: a client that is stopped while answers arrive, against servers
//! whose own logs tell when every token was written.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use judge::quantile::quantile;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::emitted::Emitted;
use schema::manifest::ManifestRequest;
use schema::measurement::Measurement;
use schema::metric::{METRICS, by_name};
use schema::plan::PlanFile;
use schema::run::{RunRecord, ValidityVerdict};
use schema::samples::Line;
use serde_json::{Value, json};
use suite::measure::summary::mean;
use suite::mock_server::script::{Answer, Scripted, When};
use suite::mock_server::server::Logged;

use crate::harness::{Exchange, ready_url, wait_until};
use crate::kept::lines;
use crate::workspace::{PLAN, REQUESTS, Workspace, server, url};

/// Error of relating the kernel's clock to the monotonic one, and of the log's own, in nanoseconds.
const CLOCK_NS: u64 = 50_000;

/// Times within which one token of an answer was really passed to the kernel, in nanoseconds of the
/// monotonic clock.
type Written = (u64, u64);

/// Answer as the server's log has it: its tokens in order.
type Truth = Vec<Written>;

/// Samples of one latency, at the lower and the upper ends of what the log tells.
#[derive(Default)]
struct Range {
    low: Vec<u64>,
    high: Vec<u64>,
}

impl Range {
    fn push(&mut self, low: u64, high: u64) {
        self.low.push(low.saturating_sub(CLOCK_NS));
        self.high.push(high + CLOCK_NS);
    }

    /// Ends, in microseconds, between which the figure `ending` of the latency really is.
    fn figure(&self, ending: &str) -> (f64, f64) {
        let of = |samples: &[u64]| {
            let mut sorted = samples.to_vec();
            sorted.sort_unstable();
            let at = |share| quantile(&sorted, share).expect("samples");
            let ns = match ending {
                "p50" => at(0.50),
                "p95" => at(0.95),
                "p99" => at(0.99),
                _ => mean(&sorted),
            };
            ns / 1000.0
        };
        (of(&self.low), of(&self.high))
    }
}

/// Latencies that the server's log and the client's times of sending give; each request was sent
/// within a span of time.
fn truths(sent_ns: &[(u64, u64)], answers: &[Truth]) -> BTreeMap<&'static str, Range> {
    let mut found: BTreeMap<&'static str, Range> = BTreeMap::new();
    for (sent, tokens) in sent_ns.iter().zip(answers) {
        let (first, last) = (tokens[0], tokens[tokens.len() - 1]);
        let count = tokens.len() as u64 - 1;
        let since = |at: Written| (at.0.saturating_sub(sent.1), at.1 - sent.0);
        let [(ttft_low, ttft_high), (e2e_low, e2e_high)] = [since(first), since(last)];
        found.entry("ttft_us").or_default().push(ttft_low, ttft_high);
        found.entry("e2e_us").or_default().push(e2e_low, e2e_high);
        let tpot = found.entry("tpot_us").or_default();
        tpot.push(last.0.saturating_sub(first.1) / count, (last.1 - first.0) / count);
        for pair in tokens.windows(2) {
            let (low, high) = (pair[1].0.saturating_sub(pair[0].1), pair[1].1 - pair[0].0);
            found.entry("itl_token_us").or_default().push(low, high);
        }
    }
    found
}

/// Asserts that what each latency really was lies within its error bound, and that exactly the
/// metrics whose bound is above their minimum effect are DEGRADED. Returns those.
fn assert_bounded(
    found: &Measurement,
    truths: &BTreeMap<&'static str, Range>,
    claim: &str,
) -> Vec<String> {
    let mut record = RunRecord::default();
    found.clone().fill(&mut record);
    let client = found.client.as_ref().expect("client");
    let bounds = client.error_pct.as_ref().expect("bounds");
    for (latency, range) in truths {
        for ending in ["mean", "p50", "p95", "p99"] {
            let name = format!("{latency}_{ending}");
            let figure = by_name(&name).and_then(|metric| metric.value(&record)).expect("measured");
            let slack = figure * bounds[&name] / 100.0 + 1.0;
            let (low, high) = range.figure(ending);
            assert!(
                figure - slack <= high && low <= figure + slack,
                "{claim}: `{name}` is {figure} ±{} %, really {low} to {high}",
                bounds[&name]
            );
        }
    }
    let above = METRICS
        .iter()
        .filter(|metric| bounds.get(metric.name).is_some_and(|error| *error > metric.floor_pct));
    let above: Vec<String> = above.map(|metric| metric.name.to_owned()).collect();
    for (name, verdict) in found.validity.metrics.iter().filter(|_| is_judged_alone(found)) {
        let is_degraded = *verdict == ValidityVerdict::Degraded;
        assert_eq!(is_degraded, above.contains(name), "{claim}: `{name}` {verdict:?}");
    }
    above
}

/// True when nothing but the error bounds was held against a run. The host of the test machine may
/// have given its cores to others (`steal`), which degrades all metrics.
fn is_judged_alone(found: &Measurement) -> bool {
    found.validity.reasons.iter().all(|text| text.starts_with("client-error: "))
}

/// Times of sending of the requests in nanoseconds of the monotonic clock, in the order of the plan.
fn sent_ns(workspace: &Workspace) -> Vec<u64> {
    let (mut origin_ns, mut sent) = (0, BTreeMap::new());
    for line in lines(workspace) {
        match line {
            Line::Head(head) => origin_ns = head.origin_ns.expect("said"),
            Line::Sample(sample) => {
                sent.insert(sample.request, origin_ns + sample.sent_at_ns.expect("sent"));
            }
            Line::End(_) => {}
        }
    }
    sent.into_values().collect()
}

fn measurement(workspace: &Workspace) -> Measurement {
    let text = fs::read(workspace.path("out.json")).expect("a file");
    serde_json::from_slice(&text).expect("a measurement")
}

/// Dataset of twenty conversations whose answers have `tokens` tokens, and a scenario that sends
/// them without warm-up.
fn prepare(workspace: &Workspace, requests: u64, tokens: usize, arrival: &str) {
    let row = |i: usize| {
        let prompt: Vec<String> = (0..8).map(|j| format!("w{}", i * 8 + j)).collect();
        json!({"conversations": [{"from": "human", "value": prompt.join(" ")},
                                 {"from": "gpt", "value": vec!["t"; tokens].join(" ")}]})
    };
    let rows: Value = (0..20).map(row).collect();
    workspace.write("rows.json", &rows.to_string());
    let scenario = crate::workspace::scenario(requests, arrival);
    workspace.write("short.toml", &scenario.replace("requests = 2,", "requests = 0,"));
}

/// Times in milliseconds at which the scripted server writes the tokens of an answer, no more than
/// 100 ms apart: while the client is stopped it writes three.
fn script_ms(stop_ms: u64) -> Vec<u64> {
    let burst = (0..3).map(|i| 600 + i * stop_ms / 2);
    let before = (0..4).map(|i| 200 + i * 100);
    let after = (0..4).map(|i| 700 + i * 100);
    before.chain(burst).chain(after).collect()
}

/// Starts a server that plays [`script_ms`] to every measured request.
fn scripted(stop_ms: u64) -> Exchange {
    let times = script_ms(stop_ms);
    let token = r#"data: {"choices":[{"index":0,"text":" t","token_ids":[1]}]}"#;
    let mut events: Vec<Scripted> =
        times.iter().map(|ms| Scripted::text(ms * 1000, format!("{token}\n\n"))).collect();
    let (tokens, end_us) = (times.len(), times[times.len() - 1] * 1000);
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens}});
    events.push(Scripted::text(end_us, format!("data: {usage}\n\ndata: [DONE]\n\n")));
    let asked = format!("\"max_tokens\":{tokens},");
    let when = When { body_contains: Some(asked), ..When::default() };
    server(vec![Answer { when, times: 0, ..Answer::events(events) }])
}

/// Runs the client against [`scripted`], stopped for `stop_ms` while three tokens of every answer
/// arrive, or not at all, and returns the measurement and the truth of the server's log.
fn stopped_once(stop_ms: u64, is_stopped: bool) -> (Measurement, BTreeMap<&'static str, Range>) {
    let (workspace, exchange) = (Workspace::new(), scripted(stop_ms));
    let tokens = script_ms(stop_ms).len();
    prepare(&workspace, REQUESTS, tokens, "{ kind = \"all-at-once\" }");
    let mut command = workspace.run_flags(&url(&exchange));
    let mut child =
        command.args(["--no-output-check", "--telemetry-s", "0"]).spawn().expect("runs");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process"));
    let have_written = |token: u64| {
        let event = Logged::Written(token);
        exchange.log().iter().filter(|line| line.event == event).count() as u64 == REQUESTS
    };
    if is_stopped {
        wait_until(|| have_written(3));
        // The client has read the fourth token long before the fifth is due.
        sleep(Duration::from_millis(40));
        kill(pid, Signal::SIGSTOP).expect("still running");
        wait_until(|| have_written(6));
        kill(pid, Signal::SIGCONT).expect("stopped");
    }
    assert!(child.wait().expect("ends").success());
    let mut written: BTreeMap<u64, Truth> = BTreeMap::new();
    for line in exchange.log() {
        let Logged::Written(event) = line.event else { continue };
        let answer = written.entry(line.request).or_default();
        match answer.last_mut() {
            // The events that end an answer are read with its last token.
            Some(last) if event == tokens as u64 => last.1 = line.at_ns,
            _ => answer.push((line.planned_ns, line.at_ns)),
        }
    }
    // The log does not say which request an answer belongs to.
    let sent = sent_ns(&workspace);
    let span = (*sent.iter().min().expect("requests"), *sent.iter().max().expect("requests"));
    let answers: Vec<Truth> = written.into_values().collect();
    assert_eq!(answers.len() as u64, REQUESTS);
    (measurement(&workspace), truths(&vec![span; answers.len()], &answers))
}

#[test]
fn a_stop_of_the_client_degrades_exactly_the_metrics_that_it_touches() {
    for stop_ms in [2, 10, 50] {
        let claim = format!("stopped for {stop_ms} ms");
        let (found, truths) = stopped_once(stop_ms, true);
        let degraded = assert_bounded(&found, &truths, &claim);
        // Three tokens of a read have one stamp, and the first two may be as old as the read
        // before: the longest gap is not known, the time from first to last token is. Of a gap of
        // 100 ms, 2 ms may be less than the minimum effect.
        let longest = "itl_token_us_p99".to_owned();
        assert!(stop_ms == 2 || degraded.contains(&longest), "{claim}: {degraded:?}");
        assert!(degraded.iter().all(|name| name.starts_with("itl_")), "{claim}: {degraded:?}");
        assert!(!degraded.contains(&"itl_token_us_mean".to_owned()), "{claim}: {degraded:?}");
        let is_valid = found.validity.verdict == ValidityVerdict::Valid;
        assert!(is_valid || !is_judged_alone(&found), "{claim}: ITL blocks nothing");
        let says = found.validity.reasons.iter().any(|text| text.starts_with("client-error: "));
        assert_eq!(says, !degraded.is_empty(), "{claim}: {:?}", found.validity.reasons);
    }
}

#[test]
fn a_client_that_is_left_alone_is_valid_with_all_its_metrics() {
    let (found, truths) = stopped_once(50, false);
    assert_eq!(assert_bounded(&found, &truths, "left alone"), Vec::<String>::new());
    let is_valid = found.validity.verdict == ValidityVerdict::Valid;
    assert!(is_valid || !is_judged_alone(&found), "{:?}", found.validity.reasons);
    let bounds = found.client.and_then(|client| client.error_pct).expect("bounds");
    assert_eq!(bounds.len(), 20, "{bounds:?}");
}

/// The client is stopped again and again, wherever it happens to be, so that sends, first and last
/// tokens are hit too.
#[test]
fn stops_at_any_moment_lie_within_the_stated_bounds() {
    const TOKENS: usize = 60;
    for stop_ms in [2, 10, 50] {
        let workspace = Workspace::new();
        prepare(&workspace, 12, TOKENS, "{ kind = \"closed\", concurrency = 2 }");
        let log = workspace.path("emitted.jsonl");
        let mut emitter = Command::new(env!("CARGO_BIN_EXE_redline-emitter"));
        emitter.args(["--pace", "30000:4000", "--log"]).arg(&log);
        let mut emitter =
            emitter.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut command = workspace.run_flags(&ready_url(&mut emitter));
        let mut child = command.arg("--no-output-check").spawn().expect("runs");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process"));
        while child.try_wait().expect("a process").is_none() {
            kill(pid, Signal::SIGSTOP).expect("not waited for");
            sleep(Duration::from_millis(stop_ms));
            kill(pid, Signal::SIGCONT).expect("not waited for");
            // A time that shares no period with the pace.
            sleep(Duration::from_millis(stop_ms + 37));
        }
        assert!(child.wait().expect("ended").success(), "stopped for {stop_ms} ms");
        drop(emitter.stdin.take());
        assert!(emitter.wait().expect("ends").success());
        let found = measurement(&workspace);
        let sent = sent_ns(&workspace);
        let answers = emitted(&workspace, &fs::read_to_string(log).expect("a log"));
        let claim = format!("stopped for {stop_ms} ms at any moment");
        let spans: Vec<(u64, u64)> = sent.iter().map(|at_ns| (*at_ns, *at_ns)).collect();
        assert_bounded(&found, &truths(&spans, &answers), &claim);
        assert_throughput(&found, &sent, &answers, &claim);
    }
}

/// Answers of the emitter's log in the order of the plan, found by the first token of each prompt.
fn emitted(workspace: &Workspace, log: &str) -> Vec<Truth> {
    assert!(workspace.bench().args(PLAN).status().expect("runs").success());
    let plan = fs::read(workspace.path("plan.json")).expect("a plan");
    let plan: PlanFile = serde_json::from_slice(&plan).expect("a plan");
    let requests = &plan.manifest.requests;
    let read = |line| -> Emitted { serde_json::from_str(line).expect("a line") };
    let tagged = log.lines().map(read).map(|answer| (answer.tag, answer));
    let answers: BTreeMap<Option<u64>, Emitted> = tagged.collect();
    assert_eq!(answers.len(), requests.len(), "every prompt begins with another token");
    let of = |request: &ManifestRequest| {
        let answer = &answers[&Some(u64::from(request.prompt[0]))];
        assert!(answer.is_whole());
        let ends = answer.written_ns().zip(&answer.write_ns);
        ends.map(|(at_ns, took_ns)| (at_ns, at_ns + took_ns)).collect()
    };
    requests.iter().map(of).collect()
}

/// Asserts that the rate which the run would have had if the client had sent every next request at
/// once lies within the error bound of its throughput.
fn assert_throughput(found: &Measurement, sent_ns: &[u64], answers: &[Truth], claim: &str) {
    let bounds = found.client.as_ref().and_then(|client| client.error_pct.as_ref());
    let error = bounds.expect("bounds")["output_tokens_per_s"];
    let rate = found.metrics.as_ref().and_then(|all| all.output_tokens_per_s).expect("a rate");
    let last = |tokens: &Truth| tokens[tokens.len() - 1].1;
    let busy: u64 = sent_ns.iter().zip(answers).map(|(sent, tokens)| last(tokens) - sent).sum();
    let tokens: usize = answers.iter().map(Vec::len).sum();
    // At the end of the run one of the two streams may have nothing left to do, which is no delay.
    let ends = ends(answers);
    let left = ends[ends.len() - 1] - ends[ends.len() - 2];
    let best = 2.0 * tokens as f64 * 1e9 / (busy + left) as f64;
    // Work of a few microseconds between two requests is no delay either.
    let most = rate * (1.0 + error / 100.0) * 1.001;
    assert!(most >= best, "{claim}: {rate} ±{error} %, without delays {best}");
}

/// Times at which the answers ended, in order, in nanoseconds of the monotonic clock.
fn ends(answers: &[Truth]) -> Vec<u64> {
    let mut ends: Vec<u64> = answers.iter().map(|tokens| tokens[tokens.len() - 1].1).collect();
    ends.sort_unstable();
    ends
}
