//! Validity of single metrics: the verdict on one metric of one run, the rules behind it, and the
//! truth gate, which decides whether a figure may be ranked, drawn or summarized.

use schema::metric::{METRICS, Metric};
use schema::run::{Check, Level, RunRecord, Status, ValidityVerdict};

use crate::findings_later;
use crate::rule::{Family, Rule};
use crate::rules::rule_of_reason;

/// Name of the metric that counts failures. Rules about lost requests do not make it doubtful,
/// because it is their statement.
const FAILED: &str = "requests_failed";
/// Id of the reason of a run that lost so many requests that the others do not represent it.
const MANY_FAILURES: &str = "many-failures";

/// Reasons that hold a wait of received bytes against a run. A receive time that the kernel stamped
/// is exact however long the bytes waited.
const WAITING: &[&str] = &["kernel-gap", "loop-lag"];

/// Validity of one metric of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MetricValidity {
    /// Verdict on the metric: INVALID where an error rule or identity that affects it fails,
    /// DEGRADED where a reservation applies to it.
    pub verdict: ValidityVerdict,
    /// Bound, in percent of the figure, of the error that the measurement itself may have caused;
    /// `None` where the record does not tell.
    pub error_pct: Option<f64>,
    /// Ids of the failed rules that affect the metric, in order; a reason that the load generator
    /// gave counts under the id of its rule.
    pub rules: Vec<String>,
}

/// Judges `metric` of `record` by the reasons and checks that the record stores, and by rules that
/// are newer than the record.
pub fn of_metric(metric: &Metric, record: &RunRecord) -> MetricValidity {
    let mut found = MetricValidity::default();
    for check in failed(record) {
        let Some(rule) = crate::rule(&check.rule) else { continue };
        if concerns(rule, metric) {
            found.rules.push(check.rule);
            if check.level == Level::Error {
                found.verdict = ValidityVerdict::Invalid;
            }
        }
    }
    for reason in &record.validity.reasons {
        let id = reason.split(':').next().unwrap_or_default();
        if WAITING.contains(&id) && is_stamped(record) {
            continue;
        }
        let Some((rule, verdict)) = rule_of_reason(id) else {
            // A reason of another program, such as a failed run, is about the whole run.
            let whole = record.validity.verdict;
            found.verdict =
                found.verdict.max(if metric.name == FAILED { found.verdict } else { whole });
            continue;
        };
        if concerns(rule, metric) {
            found.verdict = found.verdict.max(verdict);
            found.rules.push(rule.id.to_owned());
        }
    }
    found.rules.sort();
    found.rules.dedup();
    found
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
    let verdicts = blocking(record).map(|metric| of_metric(metric, record).verdict);
    let worst = verdicts.max().unwrap_or(record.validity.verdict);
    if has_figures(record) { worst } else { worst.max(record.validity.verdict) }
}

/// Returns the metrics that the run measured and that block a release in its scenario.
fn blocking(record: &RunRecord) -> impl Iterator<Item = &'static Metric> + '_ {
    let arrival = record.scenario.arrival.as_ref();
    let gates = METRICS.iter().filter(move |metric| metric.gates_under(arrival));
    gates.filter(|metric| metric.value(record).is_some())
}

/// True where the kernel stamped the receive times of the run.
fn is_stamped(record: &RunRecord) -> bool {
    record.client.as_ref().is_some_and(|client| client.kernel_timestamps == Some(true))
}

fn has_figures(record: &RunRecord) -> bool {
    matches!(record.status, Status::Ok | Status::Partial)
}

/// True where a run lost more requests than its other requests can stand for.
fn lost_many(record: &RunRecord) -> bool {
    let conditions = crate::rule(MANY_FAILURES).map(|rule| rule.conditions).unwrap_or_default();
    conditions.iter().any(|one| matches!(one.outcome(record, None), Some(Err(_))))
}

/// Returns the failed checks of a record: those stored, and those of newer rules.
fn failed(record: &RunRecord) -> impl Iterator<Item = Check> + '_ {
    // Pages read thousands of figures, and most checks pass: only failed ones are copied.
    let stored = record.checks.iter().filter(|check| !check.ok).cloned();
    stored.chain(findings_later(record).into_iter().filter(|check| !check.ok))
}

/// True when a failure of `rule` makes `metric` doubtful. A metric without a family, such as peak
/// memory, is doubtful only with all others.
fn concerns(rule: &Rule, metric: &Metric) -> bool {
    if metric.name == FAILED {
        return rule.id == "E05";
    }
    if rule.affects == Family::ALL {
        return true;
    }
    Family::of(metric).is_some_and(|family| rule.affects.contains(&family))
}
