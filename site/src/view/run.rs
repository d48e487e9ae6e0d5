//! View of a single run: its figures, why they may be trusted, and how to reproduce them.

use schema::metric::METRICS;
use schema::run::{Check, Level, RunRecord, Summary};
use serde::Serialize;
use serde_json::Value;

use super::badge::{self, Badge};
use super::charts;
use super::citation::{self, Citation};
use super::fact::{self, Fact, FactGroup};
use super::figure::{self, Figure, Head};
use super::model::{Commands, note, state};
use super::telemetry;
use crate::catalog::{self, ReleaseKey, Run};
use crate::chart::Chart;
use crate::link::Target;
use crate::{format, outside, pages};

/// View of the page of one run.
#[derive(Debug, Clone, Serialize)]
pub struct RunView {
    pub id: String,
    pub state: String,
    pub note: String,
    pub badges: Vec<Badge>,
    pub release: String,
    pub hardware: String,
    pub model: String,
    pub config: String,
    pub scenario: String,
    pub release_page: Target,
    pub record: Target,
    /// Id of the run that replaces this one, if it was retracted.
    pub replaced_by: Option<String>,
    pub metrics: Vec<MetricLine>,
    pub latencies: Vec<LatencyLine>,
    pub chart: Option<Chart>,
    pub groups: Vec<FactGroup>,
    pub checks: Vec<CheckLine>,
    pub commands: Commands,
    pub configuration: Vec<Fact>,
    /// Fields that the record does not know, with the reasons.
    pub absent: Vec<(String, String)>,
    pub record_sha256: String,
    /// Citation of the run in a text and in a bibliography.
    pub citation: Citation,
    /// Place in a report that an imported record was read from.
    pub published: Option<Published>,
    /// The record as JSON, without its long texts.
    pub json: String,
}

/// Lines of a report that an imported record was read from.
#[derive(Debug, Clone, Serialize)]
pub struct Published {
    pub report: Target,
    pub file: String,
    pub lines: String,
}

/// A metric that is not a latency.
#[derive(Debug, Clone, Serialize)]
pub struct MetricLine {
    pub head: Head,
    pub figure: Figure,
    /// Value as it is stored in the record.
    pub stored: String,
}

/// One latency: mean, standard deviation, p50, p90, p95, p99 and maximum, in this order.
#[derive(Debug, Clone, Serialize)]
pub struct LatencyLine {
    pub name: String,
    pub figures: Vec<Figure>,
}

/// Finding of one quality rule about the run.
#[derive(Debug, Clone, Serialize)]
pub struct CheckLine {
    pub rule: String,
    /// True when the method page describes the rule.
    pub known: bool,
    pub title: String,
    pub level: &'static str,
    pub ok: bool,
    pub detail: String,
    /// True when the rule is newer than the record, so that its finding is not stored.
    pub later: bool,
}

impl RunView {
    /// Builds the view of the page of `run`.
    pub fn new(run: &Run) -> Self {
        let record = run.record;
        let runs = [run];
        let cells = catalog::cells(&runs);
        let key = ReleaseKey {
            engine: record.engine.name.clone(),
            release: record.engine.release.clone(),
            hardware: record.hardware.id.clone(),
        };
        let mut groups = fact::environment(&runs);
        groups.insert(0, FactGroup { title: "Run".into(), facts: fact::run(&runs) });
        groups.push(FactGroup { title: "Model".into(), facts: fact::model(&runs) });
        groups.push(FactGroup { title: "Evidence".into(), facts: fact::evidence(&runs) });
        groups.extend(telemetry::group(&runs));
        Self {
            id: outside::name(&record.id),
            state: state(run),
            note: note(run),
            badges: badge::of_runs(&runs),
            release: outside::name(&format!("{} {}", key.engine, key.release)),
            hardware: outside::name(&key.hardware),
            model: outside::name(&record.model.id),
            config: outside::name(&schema::path::config_name(record)),
            scenario: outside::name(&format!("{}@{}", record.scenario.id, record.scenario.rev)),
            release_page: pages::target(&key),
            record: Target::Record { path: run.path.to_owned() },
            replaced_by: run.replaced_by.as_deref().map(outside::name),
            metrics: metrics(run),
            latencies: latencies(record),
            chart: cells.first().and_then(charts::latencies),
            groups,
            checks: checks(run),
            commands: Commands::new(&record.model.id, &cells, &runs),
            configuration: fact::configuration(&runs),
            absent: record
                .absent
                .iter()
                .take(MAP_MAX)
                .map(|(path, reason)| (outside::name(path), outside::message(reason)))
                .collect(),
            record_sha256: outside::name(&record.record_sha256),
            citation: citation::of(run),
            published: published(run),
            json: json(record),
        }
    }
}

fn published(run: &Run) -> Option<Published> {
    let source = run.record.source.as_ref()?;
    let report = super::imports::report_of(run.path);
    Some(Published {
        report: report.map_or(Target::Imports {}, |(source, file)| Target::Report { source, file }),
        file: outside::name(&source.file),
        lines: format!("{} to {}", source.line_first, source.line_last),
    })
}

/// Metrics of a single run, as its record has them, even where the run does not count.
fn metrics(run: &Run) -> Vec<MetricLine> {
    let plain =
        METRICS.iter().filter(|metric| !metric.title.contains(' ') || !is_latency(metric.name));
    let line = |metric: &schema::metric::Metric| {
        let value = metric.value(run.record).filter(|value| value.is_finite());
        let scale = format::Scale::fit(metric.unit, value.unwrap_or(0.0));
        let figure = match value {
            Some(value) => Figure::single(value, scale),
            None => {
                let path = figure::path_of(metric);
                Figure::missing(figure::absent(run.record, &path).unwrap_or("not recorded"))
            }
        };
        let stored = value.map_or_else(|| "null".to_owned(), |value| format!("{value}"));
        MetricLine { head: Head::of(metric, scale), figure, stored }
    };
    plain.map(line).collect()
}

fn is_latency(name: &str) -> bool {
    ["ttft_us", "tpot_us", "itl_", "e2e_us"].iter().any(|prefix| name.starts_with(prefix))
}

fn latencies(record: &RunRecord) -> Vec<LatencyLine> {
    let line = |(name, summary): (&'static str, Option<&Summary>)| {
        let reason = figure::absent(record, &format!("metrics.{name}")).unwrap_or("not recorded");
        let figure = |value: Option<u64>| {
            value.map_or_else(|| Figure::missing(reason), Figure::milliseconds)
        };
        let all = summary.map_or([None; 7], |s| [s.mean, s.std, s.p50, s.p90, s.p95, s.p99, s.max]);
        LatencyLine { name: latency_title(name).to_owned(), figures: all.map(figure).to_vec() }
    };
    let Some(metrics) = &record.metrics else { return Vec::new() };
    metrics.summaries().into_iter().map(line).collect()
}

/// Name of a latency on pages.
pub fn latency_title(name: &str) -> &str {
    match name {
        "ttft_us" => "TTFT",
        "tpot_us" => "TPOT",
        "itl_chunk_us" => "ITL per chunk",
        "itl_token_us" => "ITL per token",
        "e2e_us" => "E2E",
        other => other,
    }
}

fn checks(run: &Run) -> Vec<CheckLine> {
    let stored = run.record.checks.iter().map(|check| check_line(check, false));
    stored.chain(run.later.iter().map(|check| check_line(check, true))).collect()
}

fn check_line(check: &Check, later: bool) -> CheckLine {
    let rule = judge::rule(&check.rule);
    let title = rule.map_or("a rule that this version does not know", |rule| rule.title);
    CheckLine {
        rule: outside::name(&check.rule),
        known: rule.is_some(),
        title: title.to_owned(),
        level: if check.level == Level::Error { "error" } else { "warning" },
        ok: check.ok,
        detail: outside::message(check.detail.as_deref().unwrap_or_default()),
        later,
    }
}

/// Largest length in bytes of a text that a run's page shows; longer ones are only in the file.
const TEXT_MAX: usize = 400;
/// Largest number of entries of a list that a run's page shows.
const LIST_MAX: usize = 64;
/// Largest number of keys of a map that a run's page shows.
const MAP_MAX: usize = 120;

/// Formats the record for reading. Long texts, such as histograms, and long lists are replaced by
/// their size.
fn json(record: &RunRecord) -> String {
    let mut value = serde_json::to_value(record).unwrap_or(Value::Null);
    shorten(&mut value);
    // Pages must not depend on the order of fields in the program.
    value.sort_all_objects();
    let text = serde_json::to_string_pretty(&value).unwrap_or_default();
    outside::block(&text)
}

fn shorten(value: &mut Value) {
    let size = match value {
        Value::String(text) if text.len() > TEXT_MAX => Some((text.len(), "bytes")),
        Value::Array(list) if list.len() > LIST_MAX => Some((list.len(), "entries")),
        Value::Object(map) if map.len() > MAP_MAX => Some((map.len(), "keys")),
        _ => None,
    };
    match (size, value) {
        (Some((size, what)), value) => *value = format!("({size} {what}, in the file)").into(),
        (None, Value::Array(list)) => list.iter_mut().for_each(shorten),
        (None, Value::Object(map)) => {
            map.values_mut().for_each(shorten);
            map.retain(|key, _| key.len() <= TEXT_MAX);
        }
        (None, _) => {}
    }
}
