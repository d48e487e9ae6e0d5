//! Every reason is provoked alone, and a clean run has none.

use super::*;
use schema::run::Summary;
use schema::telemetry::{GpuTelemetry, HostTelemetry, ServerTelemetry, Throttled};

struct Run {
    counts: Counts,
    metrics: Metrics,
    client: ClientFacts,
    cache: CacheFacts,
    telemetry: Telemetry,
    evidence: Evidence,
}

/// The reason that must be given alone, the figures in its sentence, and the change that gives rise
/// to it.
type Case = (&'static Reason, &'static str, fn(&mut Run));

fn summary(p50: u64) -> Option<Summary> {
    Some(Summary { mean: Some(p50), p50: Some(p50), ..Summary::default() })
}

fn gpu(worked: bool, throttled: Throttled) -> GpuTelemetry {
    GpuTelemetry { worked, throttled: Some(throttled), ..GpuTelemetry::default() }
}

fn clean() -> Run {
    Run {
        counts: Counts {
            requests_planned: Some(1000),
            requests_ok: Some(1000),
            requests_failed: Some(0),
            output_tokens_requested: Some(10_000),
            output_tokens_reported: Some(10_000),
            output_tokens_retokenized: Some(9_950),
            ..Counts::default()
        },
        metrics: Metrics {
            output_tokens_per_s: Some(1000.0),
            output_tokens_per_s_peak: Some(1400.0),
            concurrency_mean: Some(28.0),
            ttft_us: summary(100_000),
            tpot_us: summary(20_000),
            e2e_us: summary(280_000),
            ..Metrics::default()
        },
        client: ClientFacts {
            cpu_share_p95: Some(0.2),
            loop_lag_us_p99: Some(150),
            kernel_to_user_us_p99: Some(90),
            schedule_lag_us_p99: Some(900),
            coalesced_read_share: Some(0.01),
            late_read_share: Some(0.0),
            ..ClientFacts::default()
        },
        cache: CacheFacts {
            state: CacheState::Cold,
            query_tokens: Some(5000),
            hit_tokens: Some(16),
            expected_hit_tokens: Some(16),
            ..CacheFacts::default()
        },
        telemetry: Telemetry {
            server: Some(ServerTelemetry { output_tokens: Some(10_000), ..Default::default() }),
            host: Some(HostTelemetry { cpu_steal_share: Some(0.02), ..Default::default() }),
            gpus: Some(vec![gpu(true, Throttled::default())]),
            ..Telemetry::default()
        },
        evidence: Evidence {
            prompt_tokens_mean: (50.0, 50.0),
            length_forced: true,
            fixed_output: Some(10),
            wall_us: 10_000_000,
            decode_ns: Some((180_000_000_000, 180_000_000_000)),
            concurrency_max: Some(32),
            cache_asked: CacheState::Cold,
            ..Evidence::default()
        },
    }
}

fn judged(change: impl FnOnce(&mut Run)) -> Validity {
    let mut run = clean();
    change(&mut run);
    verdict(&Judged {
        counts: &run.counts,
        metrics: Some(&run.metrics),
        client: &run.client,
        cache: &run.cache,
        telemetry: Some(&run.telemetry),
        evidence: &run.evidence,
    })
}

fn primed(run: &mut Run, hits: u64) {
    run.evidence.cache_asked = CacheState::Primed;
    run.cache.state = CacheState::Primed;
    run.cache.primed_tokens = Some(2500);
    (run.cache.hit_tokens, run.cache.expected_hit_tokens) = (Some(hits), Some(2500));
}

#[test]
fn a_clean_run_is_valid() {
    assert_eq!(judged(|_| ()), Validity::default());
    assert_eq!(judged(|run| primed(run, 2480)), Validity::default());
    let stamped = judged(|run| {
        run.client.kernel_timestamps = Some(true);
        run.client.loop_lag_us_p99 = Some(450);
    });
    assert_eq!(stamped, Validity::default(), "the kernel's stamps do not wait for the loop");
    let kept = judged(|run| {
        run.evidence.length_forced = false;
        run.evidence.fixed_output = None;
        run.counts.output_tokens_requested = Some(20_000);
    });
    assert_eq!(kept, Validity::default(), "an answer may end early where that is not ignored");
}

#[test]
fn a_run_of_no_whole_seconds_may_have_a_mean_above_its_best_second() {
    // Ten tokens at the start of each of two seconds, the second of which is cut short.
    let validity = judged(|run| {
        run.counts.output_tokens_reported = Some(20);
        run.counts.output_tokens_requested = Some(20);
        run.counts.output_tokens_retokenized = Some(20);
        run.metrics.output_tokens_per_s = Some(20.0 / 1.1);
        run.metrics.output_tokens_per_s_peak = Some(10.0);
        run.evidence.wall_us = 1_100_000;
        run.telemetry.server = None;
    });
    assert_eq!(validity, Validity::default());
}

#[test]
fn every_reason_is_given_by_what_it_says_and_by_nothing_less() {
    let cases: Vec<Case> =
        [client_cases(), answer_cases(), identity_cases(), telemetry_cases()].concat();
    for (reason, figures, change) in &cases {
        let validity = judged(change);
        assert_eq!(validity.verdict, reason.verdict, "{}", reason.id);
        let [sentence] = validity.reasons.as_slice() else { panic!("{:?}", validity.reasons) };
        assert!(sentence.starts_with(&format!("{}: ", reason.id)), "{sentence}");
        assert!(sentence.contains(figures), "{sentence}");
    }
    for reason in REASONS {
        // What needs two changes has a test of its own.
        let tested = **reason == answers::SURVIVORS || cases.iter().any(|case| case.0 == *reason);
        assert!(tested, "no case for {}", reason.id);
        assert!(!reason.when.is_empty());
    }
}

fn client_cases() -> Vec<Case> {
    vec![
        (&client::CPU_SHARE, "85 %", |run| run.client.cpu_share_p95 = Some(0.85)),
        (&client::LOOP_LAG, "5001 us", |run| run.client.loop_lag_us_p99 = Some(5001)),
        (&client::LOOP_LAG, "450 us", |run| run.client.loop_lag_us_p99 = Some(450)),
        (&client::KERNEL_GAP, "2001 us", |run| run.client.kernel_to_user_us_p99 = Some(2001)),
        (&client::SCHEDULE_LAG, "6000 us", |run| run.client.schedule_lag_us_p99 = Some(6000)),
        (&client::COALESCED_READS, "60 %", |run| run.client.coalesced_read_share = Some(0.6)),
        (&client::LATE_READS, "3 %", |run| run.client.late_read_share = Some(0.03)),
        (&client::STAMPS_LOST, "51 %", |run| run.client.late_read_share = Some(0.51)),
    ]
}

fn answer_cases() -> Vec<Case> {
    vec![
        (&answers::OUTPUT_LENGTH, "9980 reported", |run| {
            run.counts.output_tokens_reported = Some(9_980);
            run.metrics.output_tokens_per_s = Some(998.0);
        }),
        (&answers::RETOKENIZED, "makes 9000", |run| {
            run.counts.output_tokens_retokenized = Some(9_000);
        }),
        (&answers::PROMPT_LENGTH, "for 1 requests", |run| run.evidence.prompts_miscounted = 1),
        (&answers::CHUNK_COUNT, "of 1 requests", |run| run.evidence.chunks_miscounted = 1),
        (&answers::FAILURES, "10 of 1000", |run| {
            (run.counts.requests_ok, run.counts.requests_failed) = (Some(990), Some(10));
        }),
        (&answers::MANY_FAILURES, "60 of 1000", |run| {
            (run.counts.requests_ok, run.counts.requests_failed) = (Some(940), Some(60));
        }),
        (&answers::CACHE_MISMATCH, "100 prompt tokens", |run| run.cache.hit_tokens = Some(100)),
        (&answers::CACHE_MISMATCH, "2500 should have", |run| primed(run, 2000)),
        (&answers::CACHE_NOT_EMPTY, "still found", |run| run.cache.state = CacheState::Primed),
        (&answers::FEW_SAMPLES, "500 answers", |run| {
            (run.counts.requests_planned, run.counts.requests_ok) = (Some(500), Some(500));
        }),
    ]
}

#[test]
fn survivors_of_another_kind_are_named_beside_the_failures() {
    let validity = judged(|run| {
        (run.counts.requests_ok, run.counts.requests_failed) = (Some(990), Some(10));
        run.evidence.prompt_tokens_mean = (50.0, 45.0);
    });
    let ids: Vec<_> = validity.reasons.iter().filter_map(|text| text.split(':').next()).collect();
    assert_eq!(ids, [answers::SURVIVORS.id, answers::FAILURES.id], "the worst comes first");
}

fn identity_cases() -> Vec<Case> {
    vec![
        (&identities::ACCOUNTED, "planned", |run| run.counts.requests_planned = Some(1001)),
        (&identities::TPOT, "3000 us", |run| run.metrics.tpot_us = summary(3000)),
        (&identities::GAPS, "E2E less TTFT", |run| {
            run.evidence.decode_ns = Some((170_000_000_000, 180_000_000_000));
        }),
        (&identities::RATES, "not 1002.0", |run| run.metrics.output_tokens_per_s = Some(1002.0)),
        (&identities::FIRST_TOKEN, "zero", |run| {
            (run.metrics.ttft_us, run.evidence.fixed_output) = (summary(0), None);
        }),
        (&identities::PERCENTILES, "`e2e_us`", |run| {
            let e2e = run.metrics.e2e_us.as_mut().unwrap();
            e2e.max = Some(1);
        }),
        (&identities::PEAK, "990", |run| run.metrics.output_tokens_per_s_peak = Some(989.6)),
        (&identities::CONCURRENCY, "40.00", |run| run.metrics.concurrency_mean = Some(40.0)),
    ]
}

fn telemetry_cases() -> Vec<Case> {
    vec![
        (&telemetry::SERVER_COUNT, "counted 10101 output", |run| count(run, 10_101)),
        (&telemetry::SERVER_COUNT, "counted 9899 output", |run| count(run, 9_899)),
        (&telemetry::STEAL, "2.1 %", |run| {
            let host = run.telemetry.host.as_mut();
            host.unwrap().cpu_steal_share = Some(0.021);
        }),
        (&telemetry::THROTTLED, "2 %", |run| {
            held(run, Throttled { thermal_share: 0.015, ..Throttled::default() });
        }),
        (&telemetry::THROTTLED, "40 %", |run| {
            held(run, Throttled { hardware_share: 0.4, ..Throttled::default() });
        }),
        (&telemetry::POWER_LIMITED, "90 %", |run| {
            held(run, Throttled { power_share: 0.9, ..Throttled::default() });
        }),
    ]
}

fn count(run: &mut Run, tokens: u64) {
    run.telemetry.server =
        Some(ServerTelemetry { output_tokens: Some(tokens), ..Default::default() });
}

fn held(run: &mut Run, throttled: Throttled) {
    run.telemetry.gpus = Some(vec![gpu(true, Throttled::default()), gpu(true, throttled)]);
}

#[test]
fn what_says_nothing_of_the_run_is_no_reason() {
    let idle = judged(|run| {
        let hot = Throttled { thermal_share: 1.0, power_share: 1.0, ..Throttled::default() };
        run.telemetry.gpus = Some(vec![gpu(false, hot)]);
    });
    assert_eq!(idle, Validity::default(), "a GPU that did not work");
    let few = judged(|run| {
        run.counts.output_tokens_reported = Some(10);
        run.counts.output_tokens_requested = Some(10);
        run.counts.output_tokens_retokenized = Some(10);
        count(run, 26);
        run.metrics.output_tokens_per_s = Some(1.0);
    });
    assert_eq!(few, Validity::default(), "sixteen tokens more");
    let failed = judged(|run| {
        (run.counts.requests_ok, run.counts.requests_failed) = (Some(990), Some(10));
        count(run, 20_000);
    });
    let ids: Vec<_> = failed.reasons.iter().filter_map(|text| text.split(':').next()).collect();
    assert_eq!(ids, [answers::FAILURES.id], "what failed requests produced is not known");
    let short = judged(|run| {
        run.telemetry.host =
            Some(HostTelemetry { cpu_steal_share: Some(0.5), ..Default::default() });
        run.evidence.wall_us = 999_999;
        run.counts.output_tokens_reported = Some(1000);
        run.counts.output_tokens_requested = Some(1000);
        run.counts.output_tokens_retokenized = Some(1000);
        run.metrics.output_tokens_per_s = Some(1000.0 / 0.999_999);
        count(run, 1000);
    });
    assert_eq!(short, Validity::default(), "too few ticks");
}
