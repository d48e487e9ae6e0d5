//! Tests of the load generator's verdict: every reason is provoked alone, and a clean run has none.

use std::collections::BTreeSet;

use schema::run::{
    CacheFacts, CacheState, ClientFacts, Counts, Metrics, RunRecord, ScenarioFacts, Summary,
    Telemetry, Time, Validity, ValidityVerdict,
};
use schema::scenario::{Arrival, CacheProtocol};
use schema::telemetry::{GpuTelemetry, HostTelemetry, ServerTelemetry, Throttled};

use crate::rule::Evidence;
use crate::rules::reasons;
use crate::validity::of_fresh;

/// Fresh run of a test: its record, as far as the load generator knows it, and the evidence that no
/// record holds.
struct Run {
    record: RunRecord,
    evidence: Evidence,
}

impl Run {
    fn counts(&mut self) -> &mut Counts {
        self.record.counts.as_mut().unwrap()
    }

    fn metrics(&mut self) -> &mut Metrics {
        self.record.metrics.as_mut().unwrap()
    }

    fn client(&mut self) -> &mut ClientFacts {
        self.record.client.as_mut().unwrap()
    }

    fn cache(&mut self) -> &mut CacheFacts {
        self.record.cache.as_mut().unwrap()
    }

    fn telemetry(&mut self) -> &mut Telemetry {
        self.record.telemetry.as_mut().unwrap()
    }
}

/// Test case: id of the reason that must be given alone, the figures in its sentence, and the
/// change to a clean run that gives rise to it.
type Case = (&'static str, &'static str, fn(&mut Run));

fn summary(p50: u64) -> Option<Summary> {
    Some(Summary { mean: Some(p50), p50: Some(p50), ..Summary::default() })
}

fn gpu(worked: bool, throttled: Throttled) -> GpuTelemetry {
    GpuTelemetry { worked, throttled: Some(throttled), ..GpuTelemetry::default() }
}

fn clean() -> Run {
    let record = RunRecord {
        scenario: ScenarioFacts {
            ignore_eos: Some(true),
            output_tokens: Some(10),
            arrival: Some(Arrival::Closed { concurrency: 32 }),
            ..ScenarioFacts::default()
        },
        time: Some(Time { wall_us: Some(10_000_000), ..Time::default() }),
        counts: Some(Counts {
            requests_planned: Some(1000),
            requests_ok: Some(1000),
            requests_failed: Some(0),
            output_tokens_requested: Some(10_000),
            output_tokens_reported: Some(10_000),
            output_tokens_retokenized: Some(9_950),
            ..Counts::default()
        }),
        metrics: Some(Metrics {
            output_tokens_per_s: Some(1000.0),
            output_tokens_per_s_peak: Some(1400.0),
            concurrency_mean: Some(28.0),
            ttft_us: summary(100_000),
            tpot_us: summary(20_000),
            itl_token_us: summary(20_000),
            e2e_us: summary(280_000),
            ..Metrics::default()
        }),
        client: Some(ClientFacts {
            cpu_share_p95: Some(0.2),
            loop_lag_us_p99: Some(150),
            kernel_to_user_us_p99: Some(90),
            schedule_lag_us_p99: Some(900),
            coalesced_read_share: Some(0.01),
            late_read_share: Some(0.0),
            ..ClientFacts::default()
        }),
        cache: Some(CacheFacts {
            state: CacheState::Cold,
            query_tokens: Some(5000),
            hit_tokens: Some(16),
            expected_hit_tokens: Some(16),
            ..CacheFacts::default()
        }),
        telemetry: Some(Telemetry {
            server: Some(ServerTelemetry { output_tokens: Some(10_000), ..Default::default() }),
            host: Some(HostTelemetry { cpu_steal_share: Some(0.02), ..Default::default() }),
            gpus: Some(vec![gpu(true, Throttled::default())]),
            ..Telemetry::default()
        }),
        ..RunRecord::default()
    };
    let evidence = Evidence {
        prompt_tokens_planned: 50.0,
        prompt_tokens_answered: 50.0,
        decode_ns: Some((180_000_000_000, 180_000_000_000)),
        ..Evidence::default()
    };
    Run { record, evidence }
}

fn judged(change: impl FnOnce(&mut Run)) -> Validity {
    let mut run = clean();
    change(&mut run);
    of_fresh(&run.record, &run.evidence)
}

/// Asserts that a run is VALID with all its metrics, and has no notes.
#[track_caller]
fn assert_clean(validity: &Validity) {
    assert_eq!((validity.verdict, validity.reasons.as_slice()), (ValidityVerdict::Valid, &[][..]));
    assert!(validity.metrics.len() > 4, "{:?}", validity.metrics);
    assert!(validity.metrics.values().all(|verdict| *verdict == ValidityVerdict::Valid));
}

fn primed(run: &mut Run, hits: u64) {
    run.record.scenario.cache = Some(CacheProtocol { state: CacheState::Primed, share: Some(0.5) });
    run.cache().state = CacheState::Primed;
    run.cache().primed_tokens = Some(2500);
    (run.cache().hit_tokens, run.cache().expected_hit_tokens) = (Some(hits), Some(2500));
}

/// Changes a run to one whose cache was not emptied although the scenario asks for `intended`, with
/// `hits` of 5000 prompt tokens in the cache, of which the run's own prompts share 2000.
fn warm(run: &mut Run, intended: CacheState, hits: u64) {
    run.record.scenario.cache = Some(CacheProtocol { state: intended, share: None });
    run.cache().state = CacheState::Unknown;
    (run.cache().hit_tokens, run.cache().expected_hit_tokens) = (Some(hits), None);
    run.evidence.prompt_tokens_shared = Some(2000);
}

#[test]
fn a_clean_run_is_valid() {
    assert_clean(&judged(|_| ()));
    assert_clean(&judged(|run| primed(run, 2480)));
    assert_clean(&judged(|run| warm(run, CacheState::Unknown, 2250)));
    assert_clean(&judged(|run| {
        warm(run, CacheState::Unknown, 5000);
        run.evidence.prompt_tokens_shared = None;
    }));
    let stamped = judged(|run| {
        run.client().kernel_timestamps = Some(true);
        run.client().loop_lag_us_p99 = Some(450);
    });
    assert_clean(&stamped);
    assert_clean(&judged(|run| run.evidence.prompt_tokens_as_text = Some((1000, 1020))));
    let kept = judged(|run| {
        run.record.scenario.ignore_eos = Some(false);
        run.record.scenario.output_tokens = None;
        run.counts().output_tokens_requested = Some(20_000);
    });
    assert_clean(&kept);
}

#[test]
fn a_run_of_no_whole_seconds_may_have_a_mean_above_its_best_second() {
    // Two seconds have ten tokens each at their start, and the run ends within the second one.
    let validity = judged(|run| {
        run.counts().output_tokens_reported = Some(20);
        run.counts().output_tokens_requested = Some(20);
        run.counts().output_tokens_retokenized = Some(20);
        run.metrics().output_tokens_per_s = Some(20.0 / 1.1);
        run.metrics().output_tokens_per_s_peak = Some(10.0);
        run.record.time.as_mut().unwrap().wall_us = Some(1_100_000);
        run.telemetry().server = None;
    });
    assert_clean(&validity);
}

#[test]
fn every_reason_is_given_by_what_it_says_and_by_nothing_less() {
    let cases: Vec<Case> =
        [client_cases(), answer_cases(), identity_cases(), telemetry_cases()].concat();
    for (id, figures, change) in &cases {
        let validity = judged(change);
        let reason = reasons().into_iter().find(|reason| reason.id == *id).unwrap();
        let worst = validity.metrics.values().max().copied();
        assert_eq!(worst, Some(reason.verdict), "{id}");
        assert!(validity.verdict <= reason.verdict, "{id}");
        let [sentence] = validity.reasons.as_slice() else { panic!("{:?}", validity.reasons) };
        assert!(sentence.starts_with(&format!("{id}: ")), "{sentence}");
        assert!(sentence.contains(figures), "{sentence}");
    }
    for reason in reasons() {
        // A reason that needs two changes of the run has a test of its own.
        let tested = reason.id == "survivors" || cases.iter().any(|case| case.0 == reason.id);
        assert!(tested, "no case for {}", reason.id);
        assert!(!reason.when.is_empty());
    }
    let ids: BTreeSet<&str> = reasons().iter().map(|reason| reason.id).collect();
    assert_eq!(ids.len(), reasons().len());
}

fn client_cases() -> Vec<Case> {
    vec![
        ("client-error", "TTFT p50 ±5.1 %", |run| {
            run.client().error_pct = Some([("ttft_us_p50".to_owned(), 5.1)].into());
        }),
        (
            "client-error",
            "effect: ITL p50 over 100 % (minimum effect 3 %), E2E p99 ±4.0 % (",
            |run| {
                let bounds =
                    [("itl_token_us_p50", 8e5), ("itl_token_us_p99", 7.0), ("e2e_us_p99", 4.0)];
                let bounds = bounds.map(|(name, pct)| (name.to_owned(), pct));
                run.client().error_pct = Some(bounds.into());
            },
        ),
        ("client-error", "Output tokens ±2.1 %", |run| {
            run.client().error_pct = Some([("output_tokens_per_s".to_owned(), 2.1)].into());
        }),
    ]
}

fn answer_cases() -> Vec<Case> {
    vec![
        ("output-length", "9980 reported", |run| {
            run.counts().output_tokens_reported = Some(9_980);
            run.metrics().output_tokens_per_s = Some(998.0);
        }),
        ("retokenized", "makes 9000", |run| {
            run.counts().output_tokens_retokenized = Some(9_000);
        }),
        ("prompt-length", "for 1 requests", |run| run.evidence.prompts_miscounted = 1),
        ("prompt-tokens", "counts 1000 prompt tokens and the server 900: is `--tok", |run| {
            run.metrics().input_tokens_per_s = Some(100.0);
            run.evidence.prompt_tokens_as_text = Some((1000, 900));
        }),
        ("chunk-count", "of 1 requests", |run| run.evidence.chunks_miscounted = 1),
        ("failures", "10 of 1000", |run| {
            (run.counts().requests_ok, run.counts().requests_failed) = (Some(990), Some(10));
        }),
        ("many-failures", "60 of 1000", |run| {
            (run.counts().requests_ok, run.counts().requests_failed) = (Some(940), Some(60));
        }),
        ("cache-mismatch", "100 prompt tokens", |run| run.cache().hit_tokens = Some(100)),
        ("cache-mismatch", "2500 should have", |run| primed(run, 2000)),
        ("cache-not-empty", "still found", |run| run.cache().state = CacheState::Primed),
        ("cache-warm", "2251 of 5000", |run| warm(run, CacheState::Unknown, 2251)),
        ("cache-warm", "share 2000", |run| warm(run, CacheState::Cold, 5000)),
        ("few-samples", "500 answers: p99 needs 662", |run| {
            run.metrics().e2e_us.as_mut().unwrap().p99 = Some(300_000);
            (run.counts().requests_planned, run.counts().requests_ok) = (Some(500), Some(500));
        }),
    ]
}

#[test]
fn survivors_of_another_kind_are_named_beside_the_failures() {
    let validity = judged(|run| {
        (run.counts().requests_ok, run.counts().requests_failed) = (Some(990), Some(10));
        run.evidence.prompt_tokens_answered = 45.0;
    });
    let ids: Vec<_> = validity.reasons.iter().filter_map(|text| text.split(':').next()).collect();
    assert_eq!(ids, ["survivors", "failures"], "the worst comes first");
}

fn identity_cases() -> Vec<Case> {
    vec![
        ("accounted", "planned", |run| run.counts().requests_planned = Some(1001)),
        ("tpot-identity", "3000 us", |run| run.metrics().tpot_us = summary(3000)),
        ("gap-identity", "E2E - TTFT", |run| {
            run.evidence.decode_ns = Some((170_000_000_000, 180_000_000_000));
        }),
        ("rate-identity", "is 1002.00", |run| run.metrics().output_tokens_per_s = Some(1002.0)),
        ("first-token", "zero", |run| {
            (run.metrics().ttft_us, run.record.scenario.output_tokens) = (summary(0), None);
        }),
        ("percentiles", "`e2e_us`", |run| {
            let e2e = run.metrics().e2e_us.as_mut().unwrap();
            e2e.max = Some(1);
        }),
        ("peak", "989.6", |run| run.metrics().output_tokens_per_s_peak = Some(989.6)),
        ("concurrency", "40.00", |run| run.metrics().concurrency_mean = Some(40.0)),
    ]
}

fn telemetry_cases() -> Vec<Case> {
    vec![
        ("server-count", "counted 10101 output", |run| count(run, 10_101)),
        ("server-count", "counted 9899 output", |run| count(run, 9_899)),
        ("steal", "2.1 %", |run| {
            let host = run.telemetry().host.as_mut();
            host.unwrap().cpu_steal_share = Some(0.021);
        }),
        ("throttled", "2 %", |run| {
            held(run, Throttled { thermal_share: 0.015, ..Throttled::default() });
        }),
        ("throttled", "40 %", |run| {
            held(run, Throttled { hardware_share: 0.4, ..Throttled::default() });
        }),
        ("power-limited", "90 %", |run| {
            held(run, Throttled { power_share: 0.9, ..Throttled::default() });
        }),
    ]
}

fn count(run: &mut Run, tokens: u64) {
    run.telemetry().server =
        Some(ServerTelemetry { output_tokens: Some(tokens), ..Default::default() });
}

fn held(run: &mut Run, throttled: Throttled) {
    run.telemetry().gpus = Some(vec![gpu(true, Throttled::default()), gpu(true, throttled)]);
}

#[test]
fn what_says_nothing_of_the_run_is_no_reason() {
    let idle = judged(|run| {
        let hot = Throttled { thermal_share: 1.0, power_share: 1.0, ..Throttled::default() };
        run.telemetry().gpus = Some(vec![gpu(false, hot)]);
    });
    assert_clean(&idle);
    let few = judged(|run| {
        run.counts().output_tokens_reported = Some(10);
        run.counts().output_tokens_requested = Some(10);
        run.counts().output_tokens_retokenized = Some(10);
        count(run, 26);
        run.metrics().output_tokens_per_s = Some(1.0);
    });
    assert_clean(&few);
    let failed = judged(|run| {
        (run.counts().requests_ok, run.counts().requests_failed) = (Some(990), Some(10));
        count(run, 20_000);
    });
    let ids: Vec<_> = failed.reasons.iter().filter_map(|text| text.split(':').next()).collect();
    assert_eq!(ids, ["failures"], "what failed requests produced is not known");
    let short = judged(|run| {
        run.telemetry().host =
            Some(HostTelemetry { cpu_steal_share: Some(0.5), ..Default::default() });
        run.record.time.as_mut().unwrap().wall_us = Some(999_999);
        run.counts().output_tokens_reported = Some(1000);
        run.counts().output_tokens_requested = Some(1000);
        run.counts().output_tokens_retokenized = Some(1000);
        run.metrics().output_tokens_per_s = Some(1000.0 / 0.999_999);
        count(run, 1000);
    });
    assert_clean(&short);
}
