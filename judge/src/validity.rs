//! Validity of single metrics: the verdict on one metric of one run, the rules behind it, and the
//! truth gate, which decides whether a figure may be ranked, drawn or summarized.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use schema::metric::{METRICS, Metric};
use schema::run::{Check, Level, RunRecord, Status, Validity, ValidityVerdict};

use crate::client_error;
use crate::failed;
use crate::rule::{Evidence, Family, Reason, Rule};
use crate::rules::{RULES, rule_of_reason};

/// Name of the metric that counts failures. Rules about lost requests do not make it doubtful,
/// because it is their statement.
const FAILED: &str = "requests_failed";
/// Name of the metric that counts answered requests per second.
const REQUESTS: &str = "requests_per_s";
/// Rule over the client's error bounds, which counts for the metrics that it names alone.
const CLIENT_ERROR_RULE: &str = "W18";
/// Id of the reason of a run that lost so many requests that the others do not represent it.
const MANY_FAILURES: &str = "many-failures";

/// Reason of a run whose client had no processor time left, which no error bound covers where the
/// record does not state one.
const CPU_SHARE: &str = "cpu-share";

/// Validity of one metric of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricValidity {
    /// Verdict on the metric: INVALID where an error rule or identity that affects it fails,
    /// DEGRADED where a reservation applies to it.
    pub verdict: ValidityVerdict,
    /// Bound, in percent of the figure, of the error that the measurement itself may have caused;
    /// `None` where the record does not tell.
    pub error_pct: Option<f64>,
    /// Ids of the failed rules that the verdict follows from, in order; a reason that the load
    /// generator gave counts under the id of its rule. Empty where the metric is VALID.
    pub rules: Vec<String>,
}

/// Judges `metric` of `record` by the reasons and checks that the record stores, and by rules that
/// are newer than the record. A retired rule about waits of the client does not count where the
/// record shows that the client's error is below the minimum effect of the metric.
pub fn of_metric(metric: &Metric, record: &RunRecord) -> MetricValidity {
    judged(metric, record, &failed(record))
}

/// Judges `metric` of `record`, whose failed checks are `failed`.
fn judged(metric: &Metric, record: &RunRecord, failed: &[Check]) -> MetricValidity {
    let error_pct = client_error::of(metric, record);
    let is_exact = error_pct.is_some_and(|error| error <= metric.floor_pct);
    let is_above = error_pct.is_some_and(|error| error > metric.floor_pct);
    let counts = |rule: &Rule, reason: &str| {
        let is_answered = rule.until.is_some() && is_exact && reason != CPU_SHARE;
        let is_below = rule.id == CLIENT_ERROR_RULE && !is_above;
        concerns(rule, metric) && !is_answered && !is_below
    };
    // A failed warning is a note: only an error and the reasons of the load generator give a verdict.
    let errors = failed.iter().filter(|check| check.level == Level::Error);
    let errors = errors.filter_map(|check| crate::rule(&check.rule));
    let mut causes: Vec<(ValidityVerdict, &str)> = errors
        .filter(|rule| counts(rule, ""))
        .map(|rule| (ValidityVerdict::Invalid, rule.id))
        .collect();
    let mut of_others = ValidityVerdict::Valid;
    for reason in &record.validity.reasons {
        let id = reason.split(':').next().unwrap_or_default();
        match rule_of_reason(id) {
            Some((rule, verdict)) if counts(rule, id) => causes.push((verdict, rule.id)),
            Some(_) => {}
            // A reason of another program, such as a failed run, is about the whole run.
            None if metric.name == FAILED => {}
            None => of_others = record.validity.verdict,
        }
    }
    let verdict = causes.iter().map(|(verdict, _)| *verdict).fold(of_others, Ord::max);
    let is_cause = |of: ValidityVerdict| of == verdict && verdict != ValidityVerdict::Valid;
    let rules: BTreeSet<&str> =
        causes.into_iter().filter(|(of, _)| is_cause(*of)).map(|(_, rule)| rule).collect();
    let rules = rules.into_iter().map(str::to_owned).collect();
    MetricValidity { verdict, error_pct, rules }
}

/// Returns the verdict on each metric that the run measured, by the metric's name; empty for a run
/// without figures.
pub fn verdicts(record: &RunRecord) -> BTreeMap<String, ValidityVerdict> {
    let measured = METRICS.iter().filter(|metric| metric.value(record).is_some());
    let failed = failed(record);
    let verdict = |metric: &Metric| judged(metric, record, &failed).verdict;
    let named = measured.map(|metric| (metric.name.to_owned(), verdict(metric)));
    if record.metrics.is_some() { named.collect() } else { BTreeMap::new() }
}

/// Returns the verdict of the load generator on a fresh run and on each of its metrics, with a
/// sentence for each reason, the worst first. The verdict on the run is that of its
/// release-blocking metrics. `record` needs only the sections (top-level fields) that a measurement
/// has.
pub fn of_fresh(record: &RunRecord, evidence: &Evidence) -> Validity {
    let mut found: Vec<(&Reason, String)> = Vec::new();
    let current = RULES.iter().filter(|rule| rule.until.is_none());
    for condition in current.flat_map(|rule| rule.conditions) {
        let Some(reason) = &condition.reason else { continue };
        if let Some(Err(figures)) = condition.outcome(record, Some(evidence)) {
            found.push((reason, format!("{}: {figures}", reason.id)));
        }
    }
    found.sort_by_key(|(reason, _)| Reverse(reason.verdict));
    let verdict = found.first().map_or(ValidityVerdict::Valid, |(worst, _)| worst.verdict);
    let reasons = found.into_iter().map(|(_, sentence)| sentence).collect();
    let mut fresh = RunRecord { checks_rev: crate::CHECKS_REV, ..record.clone() };
    fresh.validity = Validity { verdict, reasons, ..Validity::default() };
    let (verdict, metrics) = (headline(&fresh), verdicts(&fresh));
    Validity { verdict, metrics, ..fresh.validity }
}

/// Returns the value of `metric` in `record` if it may be ranked, drawn and summarized; `None`
/// where the run did not measure the metric, the metric is INVALID, the run lost too many requests,
/// or it has no figures. The number of failed requests is returned whenever it is known.
pub fn value(metric: &Metric, record: &RunRecord) -> Option<f64> {
    let may = || metric.name == FAILED || has_figures(record) && !lost_many(record);
    let valid = || of_metric(metric, record).verdict != ValidityVerdict::Invalid;
    metric.value(record).filter(|_| may() && valid())
}

/// True when every release-blocking metric that the run measured may be shown, and it measured its
/// output throughput.
pub fn is_presentable(record: &RunRecord) -> bool {
    let throughput = record.metrics.as_ref().and_then(|metrics| metrics.output_tokens_per_s);
    let mut blocking = blocking(record);
    throughput.is_some() && blocking.all(|metric| value(metric, record).is_some())
}

/// Returns the headline verdict on a run: the worst verdict on the release-blocking metrics that it
/// measured; the stored verdict where it measured none.
pub fn headline(record: &RunRecord) -> ValidityVerdict {
    let failed = failed(record);
    let verdicts = blocking(record).map(|metric| judged(metric, record, &failed).verdict);
    let worst = verdicts.max().unwrap_or(record.validity.verdict);
    if has_figures(record) { worst } else { worst.max(record.validity.verdict) }
}

/// Returns the ids of the failed rules that the headline verdict on a run follows from; none for a
/// run that is VALID.
pub fn causes(record: &RunRecord) -> BTreeSet<String> {
    let failed = failed(record);
    let found: Vec<MetricValidity> =
        blocking(record).map(|metric| judged(metric, record, &failed)).collect();
    let worst = found.iter().map(|found| found.verdict).max().unwrap_or_default();
    found.into_iter().filter(|found| found.verdict == worst).flat_map(|found| found.rules).collect()
}

/// Returns the headline verdict on a run by the rules of the day on which it was stored: the worst
/// of the stored verdicts on its release-blocking metrics; the stored verdict on the run where its
/// record has none, as records of suites before v0.11.
pub fn stored_headline(record: &RunRecord) -> ValidityVerdict {
    let stored = blocking(record).filter_map(|metric| record.validity.metrics.get(metric.name));
    stored.copied().max().unwrap_or(record.validity.verdict)
}

/// Returns the rules that are retired since and that made a run worse, on the day on which it was
/// stored, than it is today; none for a run whose verdict is not better today.
pub fn stored_causes(record: &RunRecord) -> Vec<&'static Rule> {
    let stored = stored_headline(record);
    if stored <= headline(record) {
        return Vec::new();
    }
    let errors = record.checks.iter().filter(|check| !check.ok && check.level == Level::Error);
    let errors = errors.filter_map(|check| crate::rule(&check.rule));
    let errors = errors.map(|rule| (rule, ValidityVerdict::Invalid));
    let ids = record.validity.reasons.iter().filter_map(|reason| reason.split(':').next());
    let all = errors.chain(ids.filter_map(rule_of_reason));
    let retired = all.filter(|(rule, verdict)| rule.until.is_some() && *verdict == stored);
    retired.map(|(rule, _)| rule).collect()
}

/// Returns the metrics that the run measured and that block a release in its scenario. A run without
/// output tokens, as of embeddings, has the throughput of requests in place of that of tokens.
fn blocking(record: &RunRecord) -> impl Iterator<Item = &'static Metric> + '_ {
    let arrival = record.scenario.arrival.as_ref();
    let output = record.metrics.as_ref().and_then(|metrics| metrics.output_tokens_per_s);
    let replaces = move |metric: &Metric| output.is_none() && metric.name == REQUESTS;
    let gates =
        METRICS.iter().filter(move |metric| metric.gates_under(arrival) || replaces(metric));
    gates.filter(|metric| metric.value(record).is_some())
}

fn has_figures(record: &RunRecord) -> bool {
    matches!(record.status, Status::Ok | Status::Partial)
}

/// True where a run lost more requests than its other requests can stand for.
fn lost_many(record: &RunRecord) -> bool {
    let conditions = crate::rule(MANY_FAILURES).map(|rule| rule.conditions).unwrap_or_default();
    conditions.iter().any(|one| matches!(one.outcome(record, None), Some(Err(_))))
}

/// True when a failure of `rule` makes `metric` doubtful. A metric without a family, such as peak
/// memory, is doubtful only with all others.
fn concerns(rule: &Rule, metric: &Metric) -> bool {
    if metric.name == FAILED {
        return rule.id == "E05";
    }
    if !rule.only.is_empty() {
        return rule.only.contains(&metric.name);
    }
    if rule.affects == Family::ALL {
        return true;
    }
    Family::of(metric).is_some_and(|family| rule.affects.contains(&family))
}

#[cfg(test)]
mod tests;
