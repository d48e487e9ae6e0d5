//! Tests of run records that are built from sample facts, some of them with facts missing.

use std::path::Path;

use samples::Sample;
use schema::measurement::Measurement;
use schema::run::{FailureClass, Gpu, Phase};
use schema::telemetry::{GpuTelemetry, Telemetry};
use serde_json::json;

use super::*;
use crate::catalog::Catalog;

fn scenario() -> ScenarioEntry {
    let suite = Path::new(env!("CARGO_MANIFEST_DIR")).join("../suite");
    Catalog::new(&suite).scenario("balanced-lite").unwrap()
}

/// Returns measurement and probe of a successful run, and the sample record that they are taken
/// from.
fn reported() -> (Measurement, Probe, RunRecord) {
    let sample = Sample::default().record();
    let measurement = Measurement {
        status: sample.status,
        time: sample.time.clone(),
        scenario: sample.scenario.clone(),
        client: sample.client.clone(),
        cache: sample.cache.clone(),
        counts: sample.counts.clone(),
        histograms: sample.histograms.clone(),
        metrics: sample.metrics.clone(),
        correctness: sample.correctness.clone(),
        ..Measurement::default()
    };
    let probe = Probe {
        server: sample.server.clone().unwrap(),
        model: sample.model.clone(),
        ..Probe::default()
    };
    (measurement, probe, sample)
}

fn parts<'a>(scenario: &'a ScenarioEntry, identity: &'a Identity) -> Parts<'a> {
    let sample = Sample::default().record();
    Parts {
        id: "01JD5XQ0000000000000000000",
        campaign: sample.campaign.unwrap(),
        engine: sample.engine,
        scenario,
        dataset_sha256: Some("d0"),
        hardware: sample.hardware,
        started: ServerFacts {
            argv: Some(vec!["redline".into(), "serve".into()]),
            env: Some(Default::default()),
            variant: None,
            tp: Some(1),
            startup_us: Some(7),
            ..ServerFacts::default()
        },
        model: ModelFacts { id: sample.model.id, ..ModelFacts::default() },
        probe: None,
        measurement: None,
        failure: None,
        rss_bytes_max: None,
        started_at: "2026-01-01T00:00:00Z".into(),
        finished_at: "2026-01-01T00:01:00Z".into(),
        identity,
    }
}

fn crash(phase: Phase) -> Failure {
    Failure { class: FailureClass::Crash, phase, message: "it died\nlast lines: x".into() }
}

#[test]
fn a_good_run_satisfies_every_rule() {
    let (measurement, probe, sample) = reported();
    let (scenario, identity) = (scenario(), Identity::default());
    let mut record = assemble(Parts {
        measurement: Some(measurement),
        probe: Some(probe),
        rss_bytes_max: Some(1 << 20),
        ..parts(&scenario, &identity)
    });
    assert_eq!(record.scenario.dataset, scenario.scenario.workload.dataset);
    judge::seal(&mut record).unwrap();
    let broken: Vec<_> = record.checks.iter().filter(|check| !check.ok).collect();
    assert!(broken.is_empty(), "{broken:?}");
    assert!(!record.checks.is_empty() && !is_bad(&record));
    assert_eq!(record.metrics, sample.metrics);
    let server = record.server.unwrap();
    assert_eq!(server.startup_us, sample.server.unwrap().startup_us, "the server's own is finer");
}

#[test]
fn a_server_that_never_became_ready_leaves_reasons() {
    let (scenario, identity) = (scenario(), Identity::default());
    let mut record =
        assemble(Parts { failure: Some(crash(Phase::Load)), ..parts(&scenario, &identity) });
    judge::seal(&mut record).unwrap();
    assert_eq!(record.status, Status::Failed);
    assert_eq!(record.validity.reasons, ["the run failed: it died"]);
    assert_eq!(record.scenario.requests, Some(scenario.scenario.workload.requests));
    assert!(schema::path::of_run(&record).unwrap().contains("/unknown-unknown-tp1-unread/"));
}

#[test]
fn gpus_that_worked_are_counted_and_not_guessed() {
    let gpu = |worked| GpuTelemetry { worked, ..GpuTelemetry::default() };
    let looked =
        Telemetry { gpus: Some(vec![gpu(true), gpu(false), gpu(true)]), ..Telemetry::default() };
    let used = |gpus: usize, telemetry: Option<Telemetry>| {
        let (mut measurement, probe, _) = reported();
        measurement.telemetry = telemetry;
        let (scenario, identity) = (scenario(), Identity::default());
        let mut parts = parts(&scenario, &identity);
        parts.hardware.gpu = Some(vec![Gpu::default(); gpus]);
        let parts = Parts { measurement: Some(measurement), probe: Some(probe), ..parts };
        assemble(parts).server.unwrap().parallel.map(|parallel| parallel.gpus_used)
    };
    assert_eq!(used(0, None), Some(Some(0)), "a machine without any");
    assert_eq!(used(3, Some(looked)), Some(Some(2)));
    assert_eq!(used(3, None), None, "nobody looked");
}

#[test]
fn a_run_that_was_cut_short_keeps_what_was_measured() {
    let (mut measurement, probe, _) = reported();
    measurement.validity.reasons.push("the client was busy".into());
    let (scenario, identity) = (scenario(), Identity::default());
    let record = assemble(Parts {
        measurement: Some(measurement),
        probe: Some(probe),
        failure: Some(crash(Phase::Measure)),
        ..parts(&scenario, &identity)
    });
    assert_eq!(record.status, Status::Partial);
    assert!(record.counts.is_some());
    assert_eq!(record.validity.reasons, ["the client was busy", "the run failed: it died"]);
    assert!(is_bad(&record));
}

#[test]
fn neither_port_nor_path_of_the_configuration_is_kept() {
    let (_, mut probe, _) = reported();
    let config = [
        ("port", json!(4711)),
        ("host", json!("127.0.0.1")),
        ("threads", json!(2)),
        ("spill-dir", json!("/srv/ada/spill")),
        ("note", json!("ada")),
    ];
    probe.server.config = Some(config.map(|(flag, value)| (flag.to_owned(), value)).into());
    let (scenario, identity) = (scenario(), Identity { user: Some("ada".into()), host: None });
    let record = assemble(Parts { probe: Some(probe), ..parts(&scenario, &identity) });
    let config = serde_json::to_string(&record.server.unwrap().config).unwrap();
    assert_eq!(config, r#"{"note":"{user}","spill-dir":"{path}/spill","threads":2}"#);
}

#[test]
fn memory_of_the_gpus_is_what_the_load_generator_saw() {
    let (mut measurement, probe, _) = reported();
    let gpu =
        GpuTelemetry { worked: true, memory_used_bytes_max: Some(70 << 30), ..Default::default() };
    let telemetry = Telemetry { gpus: Some(vec![gpu]), ..Default::default() };
    measurement.telemetry = Some(telemetry);
    let (scenario, identity) = (scenario(), Identity::default());
    let record = assemble(Parts {
        measurement: Some(measurement),
        probe: Some(probe),
        ..parts(&scenario, &identity)
    });
    assert_eq!(record.memory.and_then(|memory| memory.gpu_bytes_max), Some(70 << 30));
}
