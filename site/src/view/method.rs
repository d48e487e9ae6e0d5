//! View of the method page: every metric with its definition (TTFT, TPOT, ITL, E2E, throughput),
//! every rule with its reason, every verdict with its meaning. Built from the constants that the
//! programs themselves use.

use judge::best::LEVELS;
use judge::finding::StorageRule;
use judge::groups::{GROUP_RULES, GroupRule};
use schema::metric::{Better, Gates, METRICS, Metric, Unit};
use schema::run::Level;
use schema::verdict::VerdictKind;
use serde::Serialize;

use super::words;

/// View of the method page: metrics, rules, verdicts, service levels.
#[derive(Debug, Clone, Serialize)]
pub struct MethodView {
    pub metrics: Vec<MetricFamily>,
    pub rules: Vec<RuleLine>,
    pub checks_rev: u32,
    pub storage: Vec<StorageLine>,
    pub verdicts: Vec<VerdictLine>,
    /// Name and meaning of each service level.
    pub levels: Vec<(&'static str, &'static str)>,
}

/// Family of metrics that share a definition.
#[derive(Debug, Clone, Serialize)]
pub struct MetricFamily {
    pub title: &'static str,
    pub definition: &'static str,
    pub names: Vec<&'static str>,
    pub unit: &'static str,
    pub better: &'static str,
    pub gates: String,
    pub floor: String,
}

/// Line about a quality rule on the method page.
#[derive(Debug, Clone, Serialize)]
pub struct RuleLine {
    pub id: &'static str,
    pub title: &'static str,
    pub why: &'static str,
    pub level: &'static str,
    pub scope: String,
}

/// Line about a storage rule on the method page.
#[derive(Debug, Clone, Serialize)]
pub struct StorageLine {
    pub id: &'static str,
    pub title: &'static str,
}

/// Line about a verdict of a comparison, and when it is given.
#[derive(Debug, Clone, Serialize)]
pub struct VerdictLine {
    pub verdict: &'static str,
    pub meaning: &'static str,
}

/// Families of metrics: prefix of the metrics' names, title, definition.
const FAMILIES: &[(&str, &str, &str)] = &[
    (
        "requests_per_s",
        "Request throughput",
        "Answered requests over the wall time, which runs from the first scheduled send to the \
         last token. Requests that failed are not answered ones.",
    ),
    (
        "input_tokens_per_s",
        "Input throughput",
        "Prompt tokens of the answered requests over the wall time.",
    ),
    (
        "output_tokens_per_s",
        "Output throughput",
        "Tokens of the answers over the wall time, ramp and tail included. Counted from the \
         server's usage, and checked against what was asked for and against the text tokenized \
         again.",
    ),
    ("total_tokens_per_s", "Total throughput", "Input and output tokens over the wall time."),
    (
        "ttft_us",
        "TTFT, time to first token",
        "From the actual send of a request to the first chunk that carries a token, reasoning \
         included. Where all requests arrive at once this is mostly time in the queue.",
    ),
    (
        "tpot_us",
        "TPOT, time per output token",
        "(E2E - TTFT) / (n - 1) of each answer of n > 1 tokens.",
    ),
    (
        "itl_token_us",
        "ITL, inter-token latency",
        "The gap between two chunks, divided by the tokens of the later one and counted once for \
         each of them. The gaps between chunks themselves are a metric of their own, since one \
         chunk is not one token.",
    ),
    (
        "e2e_us",
        "E2E, end to end",
        "From the actual send to the last chunk that carries a token. The end of the stream is \
         kept apart.",
    ),
    ("startup_us", "Start-up", "From the start of the server's process to ready."),
    ("rss_bytes_max", "Peak memory", "The largest resident set of the server's process."),
    (
        "requests_failed",
        "Failed requests",
        "Requests without a whole answer, by class. They are in no latency and no throughput, and \
         a run that has some says so.",
    ),
];

const VERDICTS: &[(VerdictKind, &str)] = &[
    (
        VerdictKind::Regressed,
        "worse, found by the screen and confirmed on fresh launches; a release fails on it",
    ),
    (VerdictKind::Improved, "better, found by the screen and confirmed on fresh launches"),
    (VerdictKind::Unchanged, "the 90 % interval lies inside the floor: a change would have shown"),
    (
        VerdictKind::Inconclusive,
        "nothing can be said; the smallest effect that could have been seen stands beside it. \
         Runs of different days or machines are always this",
    ),
    (
        VerdictKind::ChangedConfig,
        "the effective configuration differs beyond the release, so that the figures compare \
         settings and not releases",
    ),
    (VerdictKind::NewFailure, "the baseline ran and the candidate did not; a release fails on it"),
    (VerdictKind::FixedFailure, "the candidate ran where the baseline did not"),
];

impl MethodView {
    /// Builds the view from the constants of this build.
    pub fn new() -> Self {
        let rule = |rule: &judge::Rule| RuleLine {
            id: rule.id,
            title: rule.title,
            why: rule.why,
            level: level(rule.level, rule.level_on_cpu),
            scope: rule.scope.words(),
        };
        let over_several = |rule: &GroupRule| RuleLine {
            id: rule.id,
            title: rule.title,
            why: rule.why,
            level: level(rule.level, rule.level),
            scope: rule.scope.to_owned(),
        };
        let mut rules: Vec<RuleLine> =
            judge::RULES.iter().map(rule).chain(GROUP_RULES.iter().map(over_several)).collect();
        rules.sort_by_key(|rule| rule.id);
        let storage = |rule: &StorageRule| StorageLine { id: rule.id, title: rule.title };
        let verdict = |(kind, meaning): &(VerdictKind, &'static str)| VerdictLine {
            verdict: words::verdict(*kind),
            meaning,
        };
        Self {
            metrics: FAMILIES.iter().map(family).collect(),
            rules,
            checks_rev: judge::CHECKS_REV,
            storage: judge::finding::STORAGE_RULES.iter().map(storage).collect(),
            verdicts: VERDICTS.iter().map(verdict).collect(),
            levels: LEVELS.iter().map(|level| (level.name, level.meaning)).collect(),
        }
    }
}

impl Default for MethodView {
    fn default() -> Self {
        Self::new()
    }
}

fn family(
    (prefix, title, definition): &(&'static str, &'static str, &'static str),
) -> MetricFamily {
    let members: Vec<&Metric> =
        METRICS.iter().filter(|metric| metric.name.starts_with(prefix)).collect();
    let gating: Vec<String> = members.iter().filter_map(|metric| gate(metric)).collect();
    let first = members.first();
    MetricFamily {
        title,
        definition,
        names: members.iter().map(|metric| metric.name).collect(),
        unit: first.map_or("", |metric| unit(metric.unit)),
        better: first.map_or("", |metric| match metric.better {
            Better::Higher => "higher",
            Better::Lower => "lower",
        }),
        gates: if gating.is_empty() { "no".to_owned() } else { gating.join(", ") },
        floor: first.map_or_else(String::new, |metric| format!("{} %", metric.floor_pct)),
    }
}

/// Title of a metric that is release-blocking, with the condition; `None` for other metrics.
fn gate(metric: &Metric) -> Option<String> {
    match metric.gates {
        Gates::Never => None,
        Gates::Always => Some(metric.title.to_owned()),
        Gates::ClosedLoop => Some(format!("{} on the ladder", metric.title)),
    }
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::PerSecond => "per second",
        Unit::Microseconds => "microseconds",
        Unit::Bytes => "bytes",
        Unit::Count => "count",
    }
}

fn level(level: Level, on_cpu: Level) -> &'static str {
    match (level, on_cpu) {
        (Level::Error, Level::Error) => "error",
        (Level::Error, Level::Warning) => "error; warning on a CPU",
        (Level::Warning, Level::Warning) => "warning",
        (Level::Warning, Level::Error) => "warning; error on a CPU",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_belongs_to_one_family() {
        for metric in METRICS {
            let families = FAMILIES.iter().filter(|(prefix, ..)| metric.name.starts_with(prefix));
            assert_eq!(families.count(), 1, "`{}`", metric.name);
        }
        assert!(MethodView::new().metrics.iter().all(|family| !family.names.is_empty()));
    }
}
