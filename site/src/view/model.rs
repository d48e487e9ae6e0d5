//! View of one model of a release: charts, every metric, commands, configuration, runs.

use std::collections::BTreeMap;

use judge::newest::{self, Earlier};
use judge::rules::rule_of_reason;
use judge::validity;
use minijinja::Value;
use schema::metric;
use schema::run::{RunRecord, ValidityVerdict};
use serde::Serialize;

use super::fact::{self, Fact};
use super::figure::{self, Column, Figure, Head, failed, launches};
use super::finding::{self, RuleFindings};
use super::{charts, command, printed, words};
use crate::catalog::{Cell, ReleaseKey, Run};
use crate::chart::Chart;
use crate::format::{self, Scale, or_dash};
use crate::link::{self, Link, Target};
use crate::outside;

/// View of one model in one configuration of a release.
#[derive(Debug, Clone, Serialize)]
pub struct ModelView {
    pub model: String,
    pub anchor: String,
    /// Configuration of the model's servers: the slug without hash, or for published results the
    /// tensor-parallel size and flags that the report states.
    pub config: String,
    /// First digits of the hashes of the full server configurations that share the slug; with more
    /// than four, the last entry says how many others there are.
    pub config_hashes: Vec<String>,
    pub facts: Vec<Fact>,
    pub charts: Vec<Chart>,
    pub detail: Detail,
    /// Results published elsewhere in the form of their report, in place of every metric; empty
    /// for measured runs.
    pub printed: Vec<Value>,
    pub commands: Value,
    pub configuration: Vec<Fact>,
    pub findings: Vec<RuleFindings>,
    /// Runs behind the figures, grouped by state and finding, those with a finding first.
    pub groups: Vec<RunGroup>,
    /// Ids of the runs behind the figures of each scenario; empty for published results.
    pub ids: Vec<RunIds>,
    /// Folder of the registry with the records of all runs of the model's release.
    pub folder: Option<Target>,
    /// Earlier campaigns of the same release and hardware, with their output throughput.
    pub history: Vec<HistoryRow>,
}

/// Largest number of runs of a group that a page lists; where there are more, the page counts the
/// others.
const RUNS_MAX: usize = 40;

/// Runs that share their state and their finding.
#[derive(Debug, Clone, Serialize)]
pub struct RunGroup {
    pub state: String,
    /// Finding that the runs share, explained; empty where there is none.
    pub finding: String,
    /// Figures that one of the runs gives for it; empty where they would repeat the finding.
    pub example: String,
    pub count: usize,
    pub runs: Vec<RunRow>,
    /// Number of runs beyond those in `runs`; `data/runs.csv` has all.
    pub more: usize,
}

/// Ids of the runs behind the figures of a scenario, with the folder that has their records.
#[derive(Debug, Clone, Serialize)]
pub struct RunIds {
    pub scenario: String,
    pub folder: Target,
    pub campaign: String,
    pub ids: Vec<String>,
}

/// Figure of a scenario in a campaign before the newest one.
#[derive(Debug, Clone, Serialize)]
pub struct HistoryRow {
    pub scenario: String,
    pub campaign: String,
    pub figure: Figure,
    /// Change from this campaign to the newest one; `-` where it cannot be computed.
    pub drift: String,
}

/// Table of every metric of a model by scenario, with the numbers of runs and of failed requests.
#[derive(Debug, Clone, Serialize)]
pub struct Detail {
    pub scenarios: Vec<String>,
    pub launches: Vec<String>,
    pub rows: Vec<DetailRow>,
    pub failed: Vec<Figure>,
}

/// Row of a metrics table: a metric, and its figure under each scenario.
#[derive(Debug, Clone, Serialize)]
pub struct DetailRow {
    pub head: Head,
    pub figures: Vec<Figure>,
}

/// Line of the list of a model's runs.
#[derive(Debug, Clone, Serialize)]
pub struct RunRow {
    pub id: String,
    pub target: Target,
    pub record: Target,
    pub scenario: String,
    pub started: String,
    pub output: Figure,
    pub retracted: bool,
}

/// Returns the target of the page of one model of a release in one configuration.
pub fn target(key: &ReleaseKey, model: &str, config: &str) -> Target {
    Target::ModelOn { release: key.clone(), model: model.to_owned(), config: config.to_owned() }
}

/// Builds the views of the models of `cells`, which are sorted by model and configuration.
pub fn all(cells: &[Cell]) -> Vec<ModelView> {
    cells
        .chunk_by(|a, b| (&a.key.model, &a.key.config) == (&b.key.model, &b.key.config))
        .map(ModelView::new)
        .collect()
}

impl ModelView {
    /// Builds the view of the model of `cells`, which share model and configuration.
    pub fn new(cells: &[Cell]) -> Self {
        let runs: Vec<&Run> = cells.iter().flat_map(|cell| cell.runs.iter().copied()).collect();
        let key = cells.first().map(|cell| cell.key.clone());
        let (model, config) = key.map(|key| (key.model, key.config)).unwrap_or_default();
        Self {
            anchor: link::anchor(&format!("{model}-{config}")),
            model: outside::name(&model),
            config: outside::line(&config),
            config_hashes: config_hashes(&runs),
            facts: fact::model(&runs),
            charts: charts::of_model(cells),
            detail: Detail::new(cells),
            printed: published(&runs),
            commands: command::of_model(&model, cells, &runs),
            configuration: fact::configuration(&runs),
            findings: finding::by_rule(&runs),
            groups: groups(cells),
            ids: cells.iter().filter_map(run_ids).collect(),
            folder: runs.first().and_then(|run| folder(run)),
            history: cells.iter().flat_map(history).collect(),
        }
    }
}

/// Builds the tables of published results in the form of their reports; empty unless all of `runs`
/// are published results whose rows were kept.
fn published(runs: &[&Run]) -> Vec<Value> {
    let kept = runs.iter().all(|run| printed::printed(run.record).is_some());
    if kept { printed::tables(runs) } else { Vec::new() }
}

fn config_hashes(runs: &[&Run]) -> Vec<String> {
    let fact = fact::fact("", runs, "server.config_sha256", |record| {
        record.server.as_ref()?.config_sha256.as_ref().map(|hash| outside::short_hash(hash, 8))
    });
    fact.values
}

impl Detail {
    /// Builds the table of every metric of `cells`, one column per cell.
    pub fn new(cells: &[Cell]) -> Self {
        let mut runs = cells.iter().flat_map(|cell| &cell.runs);
        let shown = metric::shown(runs.any(|run| run.record.hardware.has_gpu()));
        let rows = shown.filter(|metric| metric.name != "requests_failed").map(|metric| {
            let column = Column::new(metric, cells);
            let figures = cells.iter().map(|cell| column.figure(cell)).collect();
            DetailRow { head: column.head(), figures }
        });
        Self {
            scenarios: cells.iter().map(|cell| outside::name(&cell.key.scenario)).collect(),
            launches: cells.iter().map(launches).collect(),
            rows: rows.collect(),
            failed: cells.iter().map(failed).collect(),
        }
    }
}

/// Groups the current runs of `cells`, and the retracted ones of earlier campaigns, by state and
/// finding.
fn groups(cells: &[Cell]) -> Vec<RunGroup> {
    let mut found: BTreeMap<(bool, String, String), RunGroup> = BTreeMap::new();
    for cell in cells {
        let current = cell.current();
        let is_current = |run: &Run| current.iter().any(|own| own.record.id == run.record.id);
        // A retraction is said on the release's page, however old the campaign is.
        for run in cell.runs.iter().filter(|run| is_current(run) || run.retracted.is_some()) {
            let (state, finding) = (state(run), finding_of(run));
            let key = (finding.is_empty(), state.clone(), finding.clone());
            let group = found.entry(key).or_insert_with(|| RunGroup {
                example: example_of(run),
                state,
                finding,
                count: 0,
                runs: Vec::new(),
                more: 0,
            });
            group.count += 1;
            if group.runs.len() < RUNS_MAX {
                group.runs.push(run_row(cell, run));
            } else {
                group.more += 1;
            }
        }
    }
    found.into_values().collect()
}

/// Returns what a run shares with others of its state: reason of its retraction, class of its
/// failure, and the rules behind its validity, explained by their claims; empty for a run whose
/// release-blocking metrics are VALID.
fn finding_of(run: &Run) -> String {
    let record = run.record;
    let mut parts: Vec<String> = Vec::new();
    let retracted = run.retracted.as_ref();
    parts.extend(retracted.map(|reason| outside::message(&format!("retracted: {reason}"))));
    parts.extend(record.failure.as_ref().map(|found| words::class(found.class).to_owned()));
    if validity::headline(record) != ValidityVerdict::Valid {
        parts.extend(record.validity.reasons.iter().map(|text| explained(text)));
    }
    parts.join("; ")
}

/// Returns what a run says about its finding beyond what its group shares: the message of its
/// failure, and the figures of the reasons for its validity.
fn example_of(run: &Run) -> String {
    let record = run.record;
    let mut parts: Vec<String> = record.failure.as_ref().map(words::failure).into_iter().collect();
    if validity::headline(record) != ValidityVerdict::Valid {
        parts.extend(record.validity.reasons.iter().cloned());
    }
    outside::message(&parts.join("; "))
}

/// Formats a reason of a record's validity without its figures: its id, and the claim of its rule
/// that does not hold.
fn explained(reason: &str) -> String {
    let (id, _) = words::reason(reason);
    let claim =
        rule_of_reason(id).map(|(rule, _)| format!(" (failed check {}: {})", rule.id, rule.title));
    format!("{}{}", outside::name(id), claim.unwrap_or_default())
}

/// Returns the folder of the registry in which the records of a run's release on its hardware lie;
/// `None` where the path is not that of a run of a release.
fn folder(run: &Run) -> Option<Target> {
    let parts: Vec<&str> = run.path.split('/').collect();
    let found = parts.first() == Some(&"runs") && parts.len() > 4;
    found.then(|| Target::Record { path: parts[..4].join("/") })
}

/// Returns the ids of the runs that the figures of a cell come from; `None` for a cell without figures
/// and for published results, which have no campaign.
fn run_ids(cell: &Cell) -> Option<RunIds> {
    let runs: Vec<&Run> = cell.counted().collect();
    let first = runs.first()?;
    let campaign = first.record.campaign.as_ref()?;
    let (folder, _) = first.path.rsplit_once('/')?;
    Some(RunIds {
        scenario: outside::name(&cell.key.scenario),
        folder: Target::Record { path: folder.to_owned() },
        campaign: outside::name(&campaign.id),
        ids: runs.iter().map(|run| outside::name(&run.record.id)).collect(),
    })
}

/// Returns the earlier campaigns that measured a cell, with their output throughput.
fn history(cell: &Cell) -> Vec<HistoryRow> {
    let usable = cell.runs.iter().filter(|run| run.is_usable());
    let records: Vec<&RunRecord> = usable.map(|run| run.record).collect();
    let metric = figure::output();
    let row = |earlier: Earlier| HistoryRow {
        scenario: outside::name(&cell.key.scenario),
        campaign: outside::name(&earlier.campaign),
        figure: Figure::median(&earlier.figure, Scale::PER_SECOND),
        drift: or_dash(earlier.drift_pct, format::change),
    };
    newest::history(metric, &records).into_iter().map(row).collect()
}

fn run_row(cell: &Cell, run: &Run) -> RunRow {
    let alone = Cell { key: cell.key.clone(), runs: vec![run] };
    let time = run.record.time.as_ref();
    let started = time.and_then(|time| time.started_at.as_deref());
    RunRow {
        id: outside::name(&run.record.id),
        target: Link::run(run).target,
        record: Target::Record { path: run.path.to_owned() },
        scenario: outside::name(&cell.key.scenario),
        started: or_dash(started, outside::name),
        output: Column::new(figure::output(), [&alone]).figure(&alone),
        retracted: run.retracted.is_some(),
    }
}

/// Returns status and validity of a run, as words; only the status for a run without figures.
pub fn state(run: &Run) -> String {
    if run.record.metrics.is_none() {
        return run.record.status.name().to_owned();
    }
    let record = run.record;
    format!("{}, {}", record.status.name(), validity::headline(record).name())
}

/// Returns a text on the state of a run: retraction, failure, reasons for its validity,
/// annotations.
pub fn note(run: &Run) -> String {
    let record = run.record;
    let mut parts: Vec<String> = Vec::new();
    parts.extend(run.retracted.as_ref().map(|reason| format!("retracted: {reason}")));
    parts.extend(record.failure.as_ref().map(words::failure));
    parts.extend(record.validity.reasons.iter().cloned());
    parts.extend(run.notes.iter().cloned());
    outside::message(&parts.join("; "))
}
