//! Views of figures published elsewhere: the imported reports, their results, and the findings of
//! the rules in them.

use std::collections::BTreeMap;

use schema::metric::{Metric, by_name};
use schema::run::{Kind, RunRecord};
use serde::Serialize;

use super::badge::{self, Finding};
use super::claims;
use super::figure::{self, Figure, Head};
use super::pager::PartLink;
use super::release::{Related, counted, extent};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::format::Scale;
use crate::link::Target;
use crate::{order, outside};

/// Metrics of the list of results.
const COLUMNS: [&str; 4] = ["output_tokens_per_s", "requests_per_s", "ttft_us_p50", "tpot_us_p50"];

/// View of the list of imported reports.
#[derive(Debug, Clone, Serialize)]
pub struct ImportsView {
    pub extent: String,
    pub reports: Vec<ReportLine>,
    /// Findings over all results, most frequent first.
    pub findings: Vec<Finding>,
    /// Links to the models of the results, whose pages put engines side by side.
    pub models: Vec<Related>,
    /// Links to reports that explore options as a lab does.
    pub options: Vec<Related>,
    /// Number of results whose figures repeat those of another digit by digit.
    pub repeated: usize,
}

/// Line about one imported file: source, extent, engines, hardware.
#[derive(Debug, Clone, Serialize)]
pub struct ReportLine {
    pub source: Related,
    pub file: String,
    pub extent: String,
    pub engines: String,
    pub hardware: String,
    pub found: String,
}

/// View of the page of one imported report.
#[derive(Debug, Clone, Serialize)]
pub struct ReportView {
    pub source: String,
    /// Link to the page of the report's options, where it explores options as a lab does.
    pub options: Option<Related>,
    pub file: String,
    pub sha256: String,
    pub tool: String,
    pub definitions: Vec<(String, String)>,
    /// Evidence for the hardware, as its importer stated it.
    pub evidence: Vec<String>,
    pub extent: String,
    pub findings: Vec<Finding>,
    pub heads: Vec<Head>,
    pub blocks: Vec<BlockRow>,
    pub pager: Vec<PartLink>,
}

/// Row about one result of a report.
#[derive(Debug, Clone, Serialize)]
pub struct BlockRow {
    pub block: Related,
    pub lines: String,
    pub engine: Related,
    pub hardware: String,
    pub model: Related,
    pub scenario: String,
    pub config: String,
    pub figures: Vec<Figure>,
    /// Broken rules: id, true when the method page describes it, and detail.
    pub findings: Vec<(String, bool, String)>,
    /// Earlier result whose figures this one repeats digit by digit; empty if there is none.
    pub twin: String,
    pub partial: String,
}

/// Imported report: its results, in the order of the report.
#[derive(Debug)]
pub struct Report<'a, 'b> {
    pub source: String,
    /// First digits of the file's hash.
    pub file: String,
    pub runs: Vec<&'a Run<'b>>,
}

impl Report<'_, '_> {
    /// Target of the page of the imported report.
    pub fn target(&self) -> Target {
        Target::Report { source: self.source.clone(), file: self.file.clone() }
    }
}

/// Source and file of the imported record at `path`, which is
/// `imports/<source>/<hash>/<block>.json`.
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

impl ImportsView {
    /// Builds the view of the list of `reports`.
    pub fn new(catalog: &Catalog, reports: &[Report]) -> Self {
        let runs: Vec<&Run> = reports.iter().flat_map(|report| report.runs.clone()).collect();
        let mut findings = badge::findings(&runs);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.count));
        let mut models: Vec<&str> = runs.iter().map(|run| run.record.model.id.as_str()).collect();
        models.sort_by(|a, b| order::natural(a, b));
        models.dedup();
        let model = |name: &&str| Related {
            text: outside::name(name),
            target: Target::Model { model: (*name).to_owned() },
        };
        Self {
            extent: extent(&runs, &catalog::cells(&runs)).replace(" run", " block"),
            reports: reports.iter().map(ReportLine::new).collect(),
            findings,
            models: models.iter().map(model).collect(),
            options: reports.iter().filter(|r| claims::is_lab(r)).map(claims::related).collect(),
            repeated: catalog.twins.len(),
        }
    }
}

impl ReportLine {
    fn new(report: &Report) -> Self {
        let names = |read: fn(&RunRecord) -> String| {
            let mut names: Vec<String> = report.runs.iter().map(|run| read(run.record)).collect();
            names.sort();
            names.dedup();
            outside::name(&names.join(", "))
        };
        let spoiled = report.runs.iter().filter(|run| {
            run.checks().any(|check| !check.ok && check.level == schema::run::Level::Error)
        });
        Self {
            source: Related {
                text: outside::name(&format!("{} {}", report.source, report.file)),
                target: report.target(),
            },
            file: names(|r| r.source.as_ref().map(|s| s.file.clone()).unwrap_or_default()),
            extent: counted(report.runs.len(), "block"),
            engines: names(|r| format!("{} {}", r.engine.name, r.engine.release)),
            hardware: names(|r| r.hardware.id.clone()),
            found: format!("{} of {}", spoiled.count(), report.runs.len()),
        }
    }
}

impl ReportView {
    /// Builds the view of `report` without its results, and the results separately, because they
    /// are split into pages.
    pub fn new(catalog: &Catalog, report: &Report) -> (Self, Vec<BlockRow>) {
        let runs = &report.runs;
        let cells = catalog::cells(runs);
        let every: Vec<&Cell> = cells.iter().collect();
        let columns: Vec<(&Metric, Scale)> = COLUMNS
            .iter()
            .filter_map(|name| by_name(name))
            .map(|metric| (metric, figure::scale(metric, &every)))
            .collect();
        let first = runs.first().and_then(|run| run.record.source.as_ref());
        let mut evidence: Vec<String> = runs
            .iter()
            .filter_map(|run| run.record.hardware.evidence.as_deref())
            .map(outside::message)
            .collect();
        evidence.dedup();
        let definitions = first.into_iter().flat_map(|source| &source.definitions);
        let version = first.and_then(|source| source.tool_version.as_deref());
        let view = Self {
            source: outside::name(&report.source),
            options: claims::is_lab(report).then(|| claims::related(report)),
            file: first.map(|source| outside::name(&source.file)).unwrap_or_default(),
            sha256: first.map(|source| outside::name(&source.sha256)).unwrap_or_default(),
            tool: first
                .map(|source| {
                    format!("{} {}", source.tool, version.unwrap_or("of unknown version"))
                })
                .map(|tool| outside::name(&tool))
                .unwrap_or_default(),
            definitions: definitions
                .map(|(name, value)| {
                    (outside::name(name), outside::message(&super::fact::plain(value)))
                })
                .collect(),
            evidence,
            extent: extent(runs, &cells).replace(" run", " block"),
            findings: badge::findings(runs),
            heads: columns.iter().map(|(metric, scale)| Head::of(metric, *scale)).collect(),
            blocks: Vec::new(),
            pager: Vec::new(),
        };
        (view, runs.iter().map(|run| BlockRow::new(catalog, run, &columns)).collect())
    }
}

impl BlockRow {
    fn new(catalog: &Catalog, run: &Run, columns: &[(&Metric, Scale)]) -> Self {
        let record = run.record;
        let cells = catalog::cells(&[run]);
        let figure = |(metric, scale): &(&Metric, Scale)| match cells.first() {
            Some(cell) => Figure::of(metric, *scale, cell),
            None => Figure::missing("no figures"),
        };
        let key = ReleaseKey::of(record);
        let source = record.source.as_ref();
        let name = |id: &str| outside::name(id.rsplit('-').next().unwrap_or(id));
        let broken = run.checks().filter(|check| !check.ok);
        Self {
            block: Related {
                text: name(&record.id),
                target: Target::Run { id: record.id.clone(), record: run.path.to_owned() },
            },
            lines: source
                .map(|source| format!("{}\u{2013}{}", source.line_first, source.line_last))
                .unwrap_or_default(),
            engine: Related {
                text: outside::name(&format!("{} {}", key.engine, key.release)),
                target: crate::pages::target(&key),
            },
            hardware: outside::name(&key.hardware),
            model: Related {
                text: outside::name(&record.model.id),
                target: Target::Model { model: record.model.id.clone() },
            },
            scenario: outside::name(&catalog::scenario(record)),
            config: outside::name(&catalog::config(record)),
            figures: columns.iter().map(figure).collect(),
            findings: broken
                .map(|check| {
                    let detail = outside::message(check.detail.as_deref().unwrap_or_default());
                    (outside::name(&check.rule), judge::rule(&check.rule).is_some(), detail)
                })
                .collect(),
            twin: catalog.twins.get(record.id.as_str()).map(|id| name(id)).unwrap_or_default(),
            partial: partial(record),
        }
    }
}

fn partial(record: &RunRecord) -> String {
    let Some(counts) = &record.counts else { return String::new() };
    match (counts.requests_ok, counts.requests_planned) {
        (Some(ok), Some(planned)) if ok < planned => format!("{ok} of {planned} requests answered"),
        _ => String::new(),
    }
}
