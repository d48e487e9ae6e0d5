//! Tests of the verdicts on single metrics and of the truth gate.

use samples::Sample;
use schema::metric::by_name;
use schema::run::Kind;
use schema::scenario::Arrival;

use super::*;

fn sound() -> RunRecord {
    RunRecord { kind: Kind::Measured, checks_rev: crate::CHECKS_REV, ..Sample::default().record() }
}

fn verdict(name: &str, record: &RunRecord) -> ValidityVerdict {
    of_metric(by_name(name).unwrap(), record).verdict
}

fn shown(name: &str, record: &RunRecord) -> bool {
    value(by_name(name).unwrap(), record).is_some()
}

/// Returns the names of the metrics of `record` whose verdict is not VALID.
fn doubtful(record: &RunRecord) -> Vec<String> {
    let all = verdicts(record).into_iter();
    all.filter(|(_, verdict)| *verdict != ValidityVerdict::Valid).map(|(name, _)| name).collect()
}

/// Returns a run as a suite before v0.11 stored it: degraded by `reason`, without error bounds.
fn old(reason: &str, coalesced_read_share: f64, stamped: bool) -> RunRecord {
    let mut record = sound();
    record.checks_rev = 6;
    let client = record.client.as_mut().unwrap();
    client.coalesced_read_share = Some(coalesced_read_share);
    client.kernel_timestamps = Some(stamped);
    let verdict = ValidityVerdict::Degraded;
    record.validity = Validity { verdict, reasons: vec![reason.to_owned()], ..Validity::default() };
    record
}

const WAITED: &str = "kernel-gap: arrived bytes waited 4846 us for the client";

fn with_bound(name: &str, error: f64) -> RunRecord {
    let mut record = sound();
    record.client.as_mut().unwrap().error_pct = Some([(name.to_owned(), error)].into());
    record.validity.reasons = vec!["client-error: as a rule says".to_owned()];
    record
}

#[test]
fn waiting_alone_degrades_nothing_where_the_kernel_stamped_every_read() {
    let record = old(WAITED, 0.0, true);
    assert_eq!(doubtful(&record), Vec::<String>::new());
    assert_eq!(headline(&record), ValidityVerdict::Valid);
    let bound = of_metric(by_name("itl_token_us_p99").unwrap(), &record);
    assert_eq!((bound.error_pct, bound.rules.len()), (Some(0.0), 0));
}

#[test]
fn a_wait_counts_where_no_bound_can_be_derived() {
    let record = old(WAITED, 0.0, false);
    let doubted = doubtful(&record);
    assert!(doubted.iter().all(|name| name.starts_with("ttft_") || name.starts_with("itl_")));
    assert_eq!(doubted.len(), 8, "{doubted:?}");
    let mut busy = old("cpu-share: the client used 99 % of a core (p95)", 0.0, true);
    assert_eq!(verdict("ttft_us_p50", &busy), ValidityVerdict::Degraded, "no bound covers it");
    busy.validity.reasons.clear();
    assert_eq!(verdict("ttft_us_p50", &busy), ValidityVerdict::Valid);
}

#[test]
fn an_old_record_with_chunks_read_together_is_judged_metric_by_metric() {
    let mut record = old(WAITED, 0.5, true);
    // Half of the gaps are zero: the chunks before them may have come at any time.
    let gaps = [0, 40_000].into_iter().cycle().take(4_000);
    let gaps = schema::histogram::HdrHistogram::from_samples(gaps).unwrap();
    record.histograms.as_mut().unwrap().itl_chunk_us = Some(gaps);
    assert_eq!(verdict("itl_token_us_p50", &record), ValidityVerdict::Degraded);
    assert_eq!(verdict("ttft_us_p50", &record), ValidityVerdict::Degraded);
    for exact in ["e2e_us_p50", "output_tokens_per_s"] {
        assert_eq!(verdict(exact, &record), ValidityVerdict::Valid, "{exact}");
    }
    assert_eq!(headline(&record), ValidityVerdict::Valid, "all at once: no latency blocks");
    record.scenario.arrival = Some(Arrival::Closed { concurrency: 32 });
    assert_eq!(headline(&record), ValidityVerdict::Degraded, "TTFT blocks in a closed loop");
}

#[test]
fn a_stated_bound_degrades_its_own_metric_alone() {
    let record = with_bound("ttft_us_p99", 9.0);
    assert_eq!(doubtful(&record), ["ttft_us_p99"]);
    assert_eq!(headline(&record), ValidityVerdict::Valid, "it blocks no release");
    let found = of_metric(by_name("ttft_us_p99").unwrap(), &record);
    assert_eq!((found.error_pct, found.rules), (Some(9.0), vec!["W18".to_owned()]));
    assert!(shown("ttft_us_p99", &record), "DEGRADED is shown");
    let record = with_bound("output_tokens_per_s", 2.1);
    assert_eq!(headline(&record), ValidityVerdict::Degraded);
    assert_eq!(doubtful(&with_bound("output_tokens_per_s", 1.9)), Vec::<String>::new());
}

#[test]
fn a_run_without_output_tokens_is_judged_by_its_rate_of_requests() {
    let mut record = with_bound("requests_per_s", 2.1);
    assert_eq!(headline(&record), ValidityVerdict::Valid, "output tokens block in its place");
    record.metrics.as_mut().unwrap().output_tokens_per_s = None;
    assert_eq!(headline(&record), ValidityVerdict::Degraded);
}

#[test]
fn an_error_hides_the_metrics_that_it_affects() {
    let mut record = sound();
    record.kind = Kind::Imported;
    let check = |rule: &str| Check {
        rule: rule.to_owned(),
        level: Level::Error,
        ok: false,
        detail: Some("test".to_owned()),
    };
    record.checks = vec![check("E23")];
    assert!(!shown("tpot_us_mean", &record) && shown("output_tokens_per_s", &record));
    assert!(shown("ttft_us_mean", &record) && is_presentable(&record));
    record.checks = vec![check("E06")];
    assert!(!shown("output_tokens_per_s", &record) && !is_presentable(&record));
    assert_eq!(headline(&record), ValidityVerdict::Invalid);
}

#[test]
fn a_newer_error_rule_hides_a_figure_that_was_stored_before_it() {
    let mut record = sound();
    record.checks.clear();
    record.checks_rev = 1;
    assert!(shown("e2e_us_p50", &record));
    // Rule E32 came with revision 3.
    record.client.as_mut().unwrap().streams_max = Some(33);
    record.scenario.arrival = Some(Arrival::Closed { concurrency: 32 });
    assert!(!shown("e2e_us_p50", &record));
}

#[test]
fn a_run_that_lost_half_of_its_requests_has_a_number_of_failures_and_no_figure() {
    let mut record = sound();
    record.status = Status::Partial;
    let counts = record.counts.as_mut().unwrap();
    (counts.requests_planned, counts.requests_ok) = (Some(1_000), Some(514));
    counts.requests_failed = Some(486);
    for metric in METRICS.iter().filter(|metric| metric.value(&record).is_some()) {
        assert_eq!(value(metric, &record).is_some(), metric.name == FAILED, "{}", metric.name);
    }
    assert!(!is_presentable(&record));
}

#[test]
fn a_failed_run_has_no_figure_and_is_no_better_than_stored() {
    let record = Sample::default().failed_record();
    assert!(METRICS.iter().all(|metric| metric.name == FAILED || value(metric, &record).is_none()));
    assert_eq!(headline(&record), record.validity.verdict);
    assert!(verdicts(&record).is_empty());
}

#[test]
fn a_run_that_was_worse_on_its_day_names_the_rules_that_are_retired_since() {
    let causes = |record: &RunRecord| -> Vec<&str> {
        stored_causes(record).into_iter().map(|rule| rule.id).collect()
    };
    let mut short = sound();
    let (rule, level) = ("E16".to_owned(), Level::Error);
    short.checks.push(Check { rule, level, ok: false, detail: None });
    short.validity.metrics = [("output_tokens_per_s".to_owned(), ValidityVerdict::Invalid)].into();
    assert_eq!(headline(&short), ValidityVerdict::Valid);
    assert_eq!(stored_headline(&short), ValidityVerdict::Invalid);
    assert_eq!(causes(&short), ["E16"]);
    let waited = old(WAITED, 0.0, true);
    assert_eq!(stored_headline(&waited), ValidityVerdict::Degraded);
    assert_eq!(causes(&waited), ["W14"]);
    // Where the verdict is no better today, no rule is named.
    let mut still = old(WAITED, 0.0, false);
    still.scenario.arrival = Some(Arrival::Closed { concurrency: 32 });
    assert_eq!(headline(&still), ValidityVerdict::Degraded);
    assert_eq!(causes(&still), [""; 0]);
}

#[test]
fn a_verdict_follows_from_errors_and_reasons_and_never_from_a_warning() {
    let check = |rule: &str, level| Check { rule: rule.to_owned(), level, ok: false, detail: None };
    let mut record = with_bound("output_tokens_per_s", 2.1);
    record.checks = vec![check("W19", Level::Warning)];
    assert_eq!(headline(&record), ValidityVerdict::Degraded);
    assert_eq!(causes(&record).into_iter().collect::<Vec<_>>(), ["W18"]);
    record.checks.push(check("E06", Level::Error));
    assert_eq!(causes(&record).into_iter().collect::<Vec<_>>(), ["E06"], "the worst verdict");
    let mut noted = sound();
    noted.checks = vec![check("W19", Level::Warning)];
    assert_eq!(headline(&noted), ValidityVerdict::Valid);
    assert!(causes(&noted).is_empty());
    assert!(of_metric(by_name("output_tokens_per_s").unwrap(), &noted).rules.is_empty());
}
