//! View of the method page: every metric with its definition (TTFT, TPOT, ITL, E2E, throughput),
//! every rule with its reason, every verdict with its meaning. Built from the constants that the
//! programs themselves use, and the words in `method.toml`. Also the limitations of the figures of
//! any page.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use judge::Rule;
use judge::finding::{STORAGE_RULES, StorageRule};
use judge::groups::{GROUP_RULES, GroupRule};
use minijinja::{Value, context};
use schema::metric::{Better, Gates, METRICS, Metric, Unit};
use schema::run::{Kind, Level, RunRecord};
use schema::scenario::{Arrival, Tier};
use schema::verdict::VerdictKind;
use serde::Deserialize;

use super::{pick, words};
use crate::catalog::Run;

/// Text of the method page that is not in the code: metric families, verdicts and limitations.
#[derive(Debug, Deserialize)]
struct Words {
    families: Vec<Family>,
    verdicts: Vec<Meaning>,
    limits: Vec<Limit>,
}

/// Family of metrics that share a definition; the metrics' names begin with the family's prefix.
#[derive(Debug, Deserialize)]
struct Family {
    prefix: String,
    title: String,
    definition: String,
}

/// Meaning of a kind of verdict, as a sentence for the method page.
#[derive(Debug, Deserialize)]
struct Meaning {
    verdict: VerdictKind,
    meaning: String,
}

/// Limitation of the figures of a page, with its id and its sentence.
#[derive(Debug, Deserialize)]
struct Limit {
    id: String,
    text: String,
}

static WORDS: LazyLock<Words> =
    LazyLock::new(|| toml::from_str(include_str!("method.toml")).expect("tests read the words"));

/// Builds the view of the method page, from the constants of this build and the words in
/// `method.toml`.
pub fn view() -> Value {
    let of_record = |rule: &Rule| {
        let Rule { id, title, why, level: on_gpu, level_on_cpu, .. } = rule;
        let (level, scope) = (level(*on_gpu, *level_on_cpu), rule.applies_to());
        (*id, context! { id => *id, title => *title, why => *why, level, scope })
    };
    let of_group = |GroupRule { id, title, why, level: always, scope, .. }: &GroupRule| {
        let level = level(*always, *always);
        (*id, context! { id => *id, title => *title, why => *why, level, scope => *scope })
    };
    let mut rules: BTreeMap<&str, Value> = judge::RULES.iter().map(of_record).collect();
    rules.extend(GROUP_RULES.iter().map(of_group));
    let verdict = |Meaning { verdict, meaning }: &Meaning| {
        context! { verdict => words::verdict(*verdict), meaning }
    };
    let storage = |rule: &StorageRule| context! { id => rule.id, title => rule.title };
    context! {
        metrics => WORDS.families.iter().map(family).collect::<Value>(),
        rules => rules.into_values().collect::<Value>(),
        checks_rev => judge::CHECKS_REV,
        storage => STORAGE_RULES.iter().map(storage).collect::<Value>(),
        verdicts => WORDS.verdicts.iter().map(verdict).collect::<Value>(),
        // Limits that a pick of a configuration must meet.
        limits => pick::limits(),
    }
}

/// Returns the metrics of a family, by the prefix of their names.
fn members(prefix: &str) -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(move |metric| metric.name.starts_with(prefix))
}

/// Builds the line about a family of metrics.
fn family(Family { prefix, title, definition }: &Family) -> Value {
    let gating: Vec<String> = members(prefix).filter_map(gate).collect();
    let first = members(prefix).next();
    context! {
        title,
        definition,
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

/// Returns the title of a release-blocking metric, followed by the scenarios in which it blocks a
/// release if it does not in all; `None` for other metrics.
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

type Test = fn(&RunRecord) -> bool;

/// Limitations of pages: the id in the method page's text, and the test for the records that the
/// limitation applies to.
const LIMITS: [(&str, Test); 9] = [
    ("machine", |_| true),
    ("traffic", |_| true),
    ("queue", |record| matches!(record.scenario.arrival, Some(Arrival::AllAtOnce))),
    ("short", |record| record.scenario.tier == Tier::Lite),
    ("shared-cores", |record| judge::rule::on_cpu(record)),
    ("random-weights", |record| record.model.weights.as_deref() == Some("random")),
    ("published", |record| record.kind == Kind::Imported),
    ("simulated", |record| record.kind == Kind::Simulated),
    ("quality", |_| true),
];

/// Returns the limitations, as sentences, of a page made from `runs`; without runs, those that
/// apply to every page.
pub fn limits(runs: &[&Run]) -> Vec<String> {
    let default = RunRecord::default();
    let calls = |test: fn(&RunRecord) -> bool| {
        // Constant limitations also apply to a page that is made from no runs.
        runs.iter().any(|run| test(run.record)) || (runs.is_empty() && test(&default))
    };
    let applies = |limit: &&Limit| LIMITS.iter().any(|(id, test)| limit.id == *id && calls(*test));
    WORDS.limits.iter().filter(applies).map(|limit| limit.text.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_belongs_to_one_family() {
        for metric in METRICS {
            let families = WORDS.families.iter();
            let own = families.filter(|family| metric.name.starts_with(&family.prefix));
            assert_eq!(own.count(), 1, "`{}`", metric.name);
        }
        assert!(WORDS.families.iter().all(|family| members(&family.prefix).next().is_some()));
    }

    #[test]
    fn every_limitation_and_every_verdict_has_its_words() {
        let ids: Vec<&str> = WORDS.limits.iter().map(|limit| limit.id.as_str()).collect();
        assert_eq!(ids, LIMITS.map(|(id, _)| id));
        let kinds = judge::diff::words::WORST_FIRST;
        assert!(kinds.iter().all(|kind| WORDS.verdicts.iter().any(|own| own.verdict == *kind)));
    }
}
