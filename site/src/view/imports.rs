//! Views of figures published elsewhere: the imported reports, their results, and the findings of
//! the rules in them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Value, context};
use schema::run::{Check, Kind, Level, RunRecord};

use super::figure::Column;
use super::release::{counted, extent};
use super::{fact, finding};
use crate::catalog::{self, Catalog, ReleaseKey, Run};
use crate::link::{Link, Target, block_number};
use crate::outside;

/// Names of the metrics that are columns in the list of a report's results.
const COLUMNS: [&str; 4] = ["output_tokens_per_s", "requests_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Imported report with its results, in the order of the report.
#[derive(Debug)]
pub struct Report<'a, 'b> {
    pub source: String,
    /// First digits of the hash of the report's file.
    pub file: String,
    pub runs: Vec<&'a Run<'b>>,
}

impl Report<'_, '_> {
    /// Returns a link to the page of the imported report.
    pub fn link(&self) -> Link {
        let (source, file) = (self.source.clone(), self.file.clone());
        Link::new(&format!("{source} {file}"), Target::Report { source, file })
    }
}

/// Returns source and file of the imported record at `path`, which is
/// `imports/<source>/<hash>/<block>.json`; `None` for a shorter path.
pub fn report_of(path: &str) -> Option<(String, String)> {
    let mut parts = path.split('/').skip(1).map(str::to_owned);
    Some((parts.next()?, parts.next()?))
}

/// Groups the imported records of `catalog` into reports, by source and file.
pub fn reports<'a, 'b>(catalog: &'a Catalog<'b>) -> Vec<Report<'a, 'b>> {
    let mut reports: BTreeMap<(String, String), Vec<&Run>> = BTreeMap::new();
    for run in catalog.runs.iter().filter(|run| run.record.kind == Kind::Imported) {
        reports.entry(report_of(run.path).unwrap_or_default()).or_default().push(run);
    }
    let report = |((source, file), runs)| Report { source, file, runs };
    reports.into_iter().map(report).collect()
}

/// Builds the view of the list of imported `reports`. `options` are links to the pages of reports
/// that try options of a server as a lab does.
pub fn view(catalog: &Catalog, reports: &[Report], options: Vec<Link>) -> Value {
    let runs: Vec<&Run> = reports.iter().flat_map(|report| report.runs.clone()).collect();
    let mut findings = finding::by_rule(&runs);
    findings.sort_by_key(|finding| Reverse(finding.count));
    let models = catalog::names(&runs, |record| &record.model.id);
    context! {
        extent => extent(&runs, &catalog::cells(&runs)).replace(" run", " block"),
        reports => reports.iter().map(line).collect::<Value>(),
        // Findings over all results, most frequent first.
        findings,
        models => models.into_iter().map(Link::model).collect::<Value>(),
        options,
        // Number of results whose figures repeat those of another digit by digit.
        repeated => catalog.twins.len(),
    }
}

/// Builds the line about one imported report: source, number of results, engines, hardware.
fn line(report: &Report) -> Value {
    let names = |read: fn(&RunRecord) -> String| {
        let names: BTreeSet<String> = report.runs.iter().map(|run| read(run.record)).collect();
        outside::name(&Vec::from_iter(names).join(", "))
    };
    let spoiled =
        report.runs.iter().filter(|run| run.broken().any(|check| check.level == Level::Error));
    context! {
        source => report.link(),
        file => names(|r| r.source.as_ref().map(|s| s.file.clone()).unwrap_or_default()),
        extent => counted(report.runs.len(), "block"),
        engines => names(|r| format!("{} {}", r.engine.name, r.engine.release)),
        hardware => names(|r| r.hardware.id.clone()),
        found => format!("{} of {}", spoiled.count(), report.runs.len()),
    }
}

/// Builds the view of the page of `report` without its results, and separately the results, because
/// they are split into pages. `options` is a link to the report's options, where it tries some as a
/// lab does.
pub fn report(catalog: &Catalog, report: &Report, options: Option<Link>) -> (Value, Vec<Value>) {
    let runs = &report.runs;
    let cells = catalog::cells(runs);
    let columns = Column::all(&COLUMNS, &cells);
    let source = runs.first().and_then(|run| run.record.source.clone()).unwrap_or_default();
    let tool = match &source.tool_version {
        _ if source.tool.is_empty() => String::new(),
        Some(version) => format!("{} {version}", source.tool),
        None => format!("{} of unknown version", source.tool),
    };
    let mut evidence: Vec<String> = runs
        .iter()
        .filter_map(|run| run.record.hardware.evidence.as_deref())
        .map(outside::message)
        .collect();
    evidence.dedup();
    let definition = |(name, value): (&String, &serde_json::Value)| {
        (outside::name(name), outside::message(&fact::plain(value)))
    };
    let view = context! {
        source => outside::name(&report.source),
        options,
        file => outside::name(&source.file),
        sha256 => outside::name(&source.sha256),
        tool => outside::name(&tool),
        definitions => source.definitions.iter().map(definition).collect::<Value>(),
        // Evidence for the hardware, as its importer stated it.
        evidence,
        extent => extent(runs, &cells).replace(" run", " block"),
        findings => finding::by_rule(runs),
        heads => columns.iter().map(Column::head).collect::<Value>(),
    };
    (view, runs.iter().map(|run| block(catalog, run, &columns)).collect())
}

/// Builds the row about one result of a published report.
fn block(catalog: &Catalog, run: &Run, columns: &[Column]) -> Value {
    let record = run.record;
    let cells = catalog::cells(&[run]);
    let figures = columns.iter().flat_map(|column| cells.iter().map(|cell| column.figure(cell)));
    let source = record.source.as_ref();
    // Broken rules: id, true when the method page describes it, and detail.
    let finding = |check: &Check| {
        let detail = outside::message(check.detail.as_deref().unwrap_or_default());
        (outside::name(&check.rule), judge::rule(&check.rule).is_some(), detail)
    };
    context! {
        block => Link::block(run),
        lines => source
            .map(|source| format!("{}\u{2013}{}", source.line_first, source.line_last))
            .unwrap_or_default(),
        engine => Link::release(&ReleaseKey::of(record)),
        hardware => outside::name(&record.hardware.id),
        model => Link::model(&record.model.id),
        scenario => outside::name(&catalog::scenario(record)),
        config => outside::name(&catalog::config(record)),
        figures => figures.collect::<Value>(),
        findings => run.broken().map(finding).collect::<Value>(),
        // Earlier result whose figures this one repeats digit by digit; empty if there is none.
        twin => catalog.twin_of(record).map(block_number).unwrap_or_default(),
        partial => answered(record).map_or_else(String::new, |(ok, planned)| {
            format!("{ok} of {planned} requests answered")
        }),
    }
}

/// Returns the numbers of answered and of planned requests of a published result; `None` where all
/// were answered, or the report does not say.
pub fn answered(record: &RunRecord) -> Option<(u64, u64)> {
    let counts = record.counts.as_ref()?;
    counts.requests_ok.zip(counts.requests_planned).filter(|(ok, planned)| ok < planned)
}
