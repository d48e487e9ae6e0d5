//! Telemetry of a run: the server's counters, this machine, and scripted GPUs.

use std::collections::VecDeque;
use std::fs;
use std::sync::Mutex;

use schema::measurement::Measurement;
use schema::run::RunRecord;
use schema::telemetry::EnergySource;
use serde_json::{Value, json};
use suite::client::control::{Server, Trust};
use suite::mock_server::script::{Answer, Route, Script, Steady, When};
use suite::telemetry::gpu::{GpuReading, Gpus, Meter};
use suite::telemetry::{Ranks, Watch, joules_per_token};

use crate::harness::Exchange;
use crate::workspace::{Workspace, stderr, url};

/// Metrics page in the engine's format.
fn page(output_tokens: u64, running: u64) -> Value {
    json!(format!(
        "# HELP redline_requests_running Sequences.\n# TYPE redline_requests_running gauge\n\
         redline_requests_running {running}\nredline_requests_waiting 1\n\
         redline_kv_pages 64\nredline_kv_pages_used 12\n\
         redline_prompt_tokens_total 32\nredline_generation_tokens_total {output_tokens}\n\
         redline_prefix_cache_query_tokens_total 32\nredline_prefix_cache_hit_tokens_total 0\n\
         redline_preemptions_total 0\n"
    ))
}

/// Mock server whose metrics page changes with every request, and whose measured streams are as
/// given.
fn counting(pages: Vec<Value>, stream: Steady) -> Exchange {
    let mut script = Script::steady();
    let info = json!({"body": {
        "engine": "redline", "version": "0.9.1", "device": "cpu", "config": {},
        "kv": {"pages": 64, "page_tokens": 4, "bytes": 4096, "dtype": "f32"},
        "model": {"id": "emitter", "weights": "random"},
    }});
    script.routes.insert("/server_info".into(), serde_json::from_value(info).expect("a route"));
    let mut pages = VecDeque::from(pages);
    let body = pages.pop_front().expect("a page");
    script.routes.insert("/metrics".into(), Route { status: 200, body, later: pages.into() });
    let when = When { body_contains: Some("\"max_tokens\":5,".into()), ..When::default() };
    script.requests = vec![
        Answer { when, times: 0, ..Answer::steady(stream) },
        Answer { times: 0, ..Answer::steady(Steady::default()) },
    ];
    Exchange::playing(script)
}

fn quick() -> Steady {
    Steady { first_us: 10_000, gap_us: 2_000, ..Steady::default() }
}

fn ids(found: &Measurement) -> Vec<&str> {
    found.validity.reasons.iter().filter_map(|text| text.split(':').next()).collect()
}

#[test]
fn what_the_server_counted_stands_in_the_record_over_time() {
    let slow = Steady { first_us: 600_000, gap_us: 350_000, ..Steady::default() };
    // One page for the probe, one for the sample before the clock, and the last for all later
    // samples.
    let exchange = counting(vec![page(7, 0), page(7, 0), page(27, 3)], slow);
    let (code, found) = Workspace::new().run(&exchange, &["--telemetry-s", "0.1"]);
    assert_eq!(code, Some(0));
    let telemetry = found.telemetry.clone().expect("telemetry");
    assert_eq!(telemetry.interval_us, Some(100_000));
    assert!(telemetry.cost.looks > 2 && telemetry.cost.server_looks_failed == 0);
    let server = telemetry.server.expect("the server tells");
    let running = server.requests_running.expect("a gauge");
    assert_eq!((running.p5, running.max, server.kv_pages), (3, 3, Some(64)));
    assert_eq!((server.output_tokens, server.prompt_tokens), (Some(20), Some(0)));
    let series = server.series.expect("a series");
    assert_eq!(series.columns["output_tokens"].iter().sum::<u64>(), 20, "growth adds up");
    assert!(series.columns["kv_pages_used"].iter().all(|pages| *pages == 12));
    let host = telemetry.host.expect("a machine");
    assert!(host.has_server && host.memory_used_bytes_max > Some(0));
    let steal = host.cpu_steal_share.expect("a share");
    assert!((0.0..=1.0).contains(&steal));
    assert!(!ids(&found).contains(&"server-count"), "{:?}", found.validity);
}

#[test]
fn before_and_after_suffice_for_what_was_counted() {
    let exchange = counting(vec![page(0, 0), page(0, 0), page(20, 0)], quick());
    let (code, found) = Workspace::new().run(&exchange, &["--telemetry-s", "0"]);
    assert_eq!(code, Some(0));
    let telemetry = found.telemetry.clone().expect("telemetry");
    assert_eq!((telemetry.interval_us, telemetry.cost.looks, telemetry.cost.cpu_us), (None, 2, 0));
    let server = telemetry.server.expect("the server tells");
    assert_eq!((server.output_tokens, server.requests_running), (Some(20), None));
    assert_eq!(server.series, None);
}

#[test]
fn a_run_of_a_server_without_metrics_is_as_good() {
    let exchange = counting(vec![Value::Null], quick());
    let mut script = Script::steady();
    let none = Route { status: 404, body: json!("none"), later: Vec::new() };
    script.routes.insert("/metrics".into(), none);
    script.requests = vec![Answer { times: 0, ..Answer::steady(quick()) }];
    let (code, found) = Workspace::new().run(&Exchange::playing(script), &[]);
    assert_eq!(code, Some(0));
    let telemetry = found.telemetry.expect("telemetry");
    assert!(telemetry.server.is_none() && telemetry.host.is_some());
    // A page that lacks all of the engine's metrics counts as no report.
    let (_, found) = Workspace::new().run(&exchange, &[]);
    assert_eq!(found.telemetry.expect("telemetry").server, None);
}

#[test]
fn a_server_that_counts_otherwise_than_it_answers_degrades_the_run() {
    let exchange = counting(vec![page(0, 0), page(0, 0), page(200, 0)], quick());
    let (code, found) = Workspace::new().run(&exchange, &["--telemetry-s", "0"]);
    assert_eq!(code, Some(0));
    let reason = found.validity.reasons.iter().find(|text| text.starts_with("server-count"));
    let expected = "server-count: the server counted 200 output tokens, and its answers hold 20";
    assert_eq!(reason.map(String::as_str), Some(expected));
}

#[test]
fn a_server_may_count_a_moment_after_it_answered() {
    // Two requests after the run still get the old counters.
    let pages = vec![page(0, 0), page(0, 0), page(0, 0), page(0, 0), page(20, 0)];
    let (_, found) = Workspace::new().run(&counting(pages, quick()), &["--telemetry-s", "0"]);
    let server = found.telemetry.and_then(|telemetry| telemetry.server).expect("it tells");
    assert_eq!(server.output_tokens, Some(20));
}

#[test]
fn no_record_holds_where_the_server_is() {
    let workspace = Workspace::new();
    let exchange = counting(vec![page(0, 0), page(20, 0)], quick());
    let (_, measurement) = workspace.run(&exchange, &[]);
    // The measurement, which is the user's own, says it.
    let address = exchange.address.to_string();
    assert!(measurement.url.as_ref().is_some_and(|url| url.contains(&address)));
    let mut record = RunRecord::default();
    measurement.fill(&mut record);
    let text = serde_json::to_string(&record).expect("JSON");
    assert!(!text.contains(&address), "{text}");
}

#[test]
fn a_pause_that_is_none_is_refused() {
    let exchange = counting(vec![page(0, 0)], quick());
    for wrong in ["0.05", "-1", "often", "4000"] {
        let flag = format!("--telemetry-s={wrong}");
        let output = Workspace::new().run_flags(&url(&exchange)).arg(flag).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

/// GPUs that return scripted readings, one entry per sample, then none.
#[derive(Debug)]
struct Scripted(Mutex<VecDeque<Vec<GpuReading>>>);

impl Gpus for Scripted {
    fn poll(&self) -> Vec<GpuReading> {
        self.0.lock().expect("no poll panicked").pop_front().unwrap_or_default()
    }
}

fn meter(polls: &[GpuReading]) -> Meter {
    let polls = polls.iter().map(|reading| vec![*reading]).collect();
    Some(Box::new(Scripted(Mutex::new(polls))))
}

#[test]
fn energy_is_read_before_the_clock_and_after_it() {
    let workspace = Workspace::new();
    let exchange = counting(vec![page(0, 0)], quick());
    let server = Server::at(&url(&exchange), &Trust::default()).expect("an address");
    let text = fs::read_to_string(workspace.path("redline.toml")).expect("readable");
    let engine = schema::engine::parse(&text).expect("an engine file");
    let reading = |energy_mj| GpuReading {
        energy_mj: Some(energy_mj),
        util_percent: Some(90),
        ..GpuReading::default()
    };
    let meter = meter(&[reading(1_000_000), reading(31_000_000)]);
    let mut watch = Watch::new(&server, &engine, &meter, None);
    assert_eq!(watch.around(|| "done"), "done");
    let found = watch.facts(0);
    let gpu = &found.gpus.as_ref().expect("GPUs")[0];
    assert_eq!(
        (gpu.worked, gpu.energy_mj, gpu.energy_source),
        (true, Some(30_000_000), Some(EnergySource::Counter))
    );
    let ranks = Ranks { device: Some("cuda"), gpus: Some(1) };
    assert_eq!(joules_per_token(&found, ranks, 10_000), Some(3.0));
}

#[test]
fn without_a_driver_nothing_fails() {
    let exchange = counting(vec![page(0, 0), page(20, 0)], quick());
    let (code, found) = Workspace::new().run(&exchange, &[]);
    if found.telemetry.as_ref().is_some_and(|telemetry| telemetry.gpus.is_some()) {
        return fixtures::skip("a machine without an NVIDIA driver", "run it elsewhere");
    }
    assert_eq!(code, Some(0));
    assert_eq!(found.metrics.expect("metrics").joules_per_output_token, None);
}
