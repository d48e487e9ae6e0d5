//! View of the method page: every metric with its definition (TTFT, TPOT, ITL, E2E, throughput),
//! every rule with its reason, every verdict with its meaning. Built from the constants that the
//! programs themselves use. Also the limitations of the figures of any page.

use std::collections::BTreeMap;

use judge::Rule;
use judge::best::LEVELS;
use judge::finding::STORAGE_RULES;
use judge::groups::{GROUP_RULES, GroupRule};
use minijinja::{Value, context};
use schema::metric::{Better, Gates, METRICS, Metric, Unit};
use schema::run::{Kind, Level, RunRecord};
use schema::scenario::{Arrival, Tier};
use schema::verdict::VerdictKind;

use super::words;
use crate::catalog::Run;

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

/// View of the method page, from the constants of this build.
pub fn view() -> Value {
    let of_record = |Rule { id, title, why, level: on_gpu, level_on_cpu, scope, .. }: &Rule| {
        let (level, scope) = (level(*on_gpu, *level_on_cpu), scope.words());
        (*id, context! { id => *id, title => *title, why => *why, level, scope })
    };
    let of_group = |GroupRule { id, title, why, level: always, scope, .. }: &GroupRule| {
        let level = level(*always, *always);
        (*id, context! { id => *id, title => *title, why => *why, level, scope => *scope })
    };
    let mut rules: BTreeMap<&str, Value> = judge::RULES.iter().map(of_record).collect();
    rules.extend(GROUP_RULES.iter().map(of_group));
    let verdict = |(kind, meaning): &(VerdictKind, &'static str)| {
        context! { verdict => words::verdict(*kind), meaning => *meaning }
    };
    context! {
        metrics => FAMILIES.iter().map(family).collect::<Value>(),
        rules => rules.into_values().collect::<Value>(),
        checks_rev => judge::CHECKS_REV,
        storage => STORAGE_RULES
            .iter()
            .map(|rule| context! { id => rule.id, title => rule.title })
            .collect::<Value>(),
        verdicts => VERDICTS.iter().map(verdict).collect::<Value>(),
        // Name and meaning of each service level.
        levels => LEVELS.map(|level| (level.name, level.meaning)),
    }
}

/// Metrics of a family, by the prefix of their names.
fn members(prefix: &str) -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(move |metric| metric.name.starts_with(prefix))
}

/// Line about a family of metrics that share a definition.
fn family((prefix, title, definition): &(&'static str, &'static str, &'static str)) -> Value {
    let gating: Vec<String> = members(prefix).filter_map(gate).collect();
    let first = members(prefix).next();
    context! {
        title => *title,
        definition => *definition,
        names => members(prefix).map(|metric| metric.name).collect::<Value>(),
        unit => first.map_or("", |metric| unit(metric.unit)),
        better => first.map_or("", |metric| match metric.better {
            Better::Higher => "higher",
            Better::Lower => "lower",
        }),
        gates => if gating.is_empty() { "no".to_owned() } else { gating.join(", ") },
        floor => first.map_or_else(String::new, |metric| format!("{} %", metric.floor_pct)),
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

/// A limitation: the test for records that it applies to, and its sentence.
type Limit = (fn(&RunRecord) -> bool, &'static str);

const LIMITS: &[Limit] = &[
    (
        |_| true,
        "How fast the engine is on another machine, driver or day. Stored figures are shown side \
         by side, but only runs that were interleaved on one machine are compared.",
    ),
    (
        |_| true,
        "How fast your traffic would be. A scenario is one fixed list of requests, sent once, \
         greedily decoded to a fixed length.",
    ),
    (
        |record| matches!(record.scenario.arrival, Some(Arrival::AllAtOnce)),
        "How long a user waits for a first token. Where all requests arrive at once, TTFT and E2E \
         are mostly time in the queue; the ladder scenarios measure latency.",
    ),
    (
        |record| record.scenario.tier == Tier::Lite,
        "How the engine behaves under long load. Lite scenarios last seconds, so start and end \
         weigh more than in the full ones.",
    ),
    (
        |record| judge::rule::on_cpu(record),
        "What a load generator on a machine of its own would see: on a CPU, client and server \
         share the cores.",
    ),
    (
        |record| record.model.weights.as_deref() == Some("random"),
        "Whether the answers are right. Random weights have the shape and the speed of the model \
         and none of its sense.",
    ),
    (
        |record| record.kind == Kind::Imported,
        "Whether an imported figure is true: its hardware, its configuration and its client are \
         what the report says they were.",
    ),
    (
        |record| record.kind == Kind::Simulated,
        "Anything about a real server: simulated records exist to test the suite itself.",
    ),
    (
        |_| true,
        "Whether one answer is better than another. Outputs are checked for being the right \
         tokens, not for being good.",
    ),
];

/// Returns the limitations of a page made from `runs`.
pub fn limits(runs: &[&Run]) -> Vec<String> {
    let default = RunRecord::default();
    let calls = |test: fn(&RunRecord) -> bool| {
        // Constant limitations also apply to a page that is made from no runs.
        runs.iter().any(|run| test(run.record)) || (runs.is_empty() && test(&default))
    };
    LIMITS.iter().filter(|(test, _)| calls(*test)).map(|(_, text)| (*text).to_owned()).collect()
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
        assert!(FAMILIES.iter().all(|(prefix, ..)| members(prefix).next().is_some()));
    }
}
