//! View of a release on a hardware: environment, summary table, and each model.

use schema::metric::{Metric, by_name};
use schema::run::{Kind, Status};
use serde::Serialize;

use super::badge::{self, Badge};
use super::fact::{self, FactGroup};
use super::figure::{self, Figure, Head};
use super::model::{self, ModelView};
use crate::catalog::{self, Cell, ReleaseKey, Run};
use crate::format::Scale;
use crate::link::{self, Target};
use crate::outside;

/// Metrics that are columns of a release's summary table.
pub const SUMMARY: [&str; 6] = [
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "ttft_us_p50",
    "tpot_us_p50",
    "e2e_us_p50",
];

/// View of a release on a hardware.
#[derive(Debug, Clone, Serialize)]
pub struct ReleaseView {
    pub engine: String,
    pub release: String,
    pub hardware: String,
    /// Number of runs, models and scenarios, and the days: `12 runs of 2 models in 4 scenarios,
    /// 2026-08-20 to 2026-08-21`.
    pub extent: String,
    /// Sentences that a reader must see before any figure.
    pub notices: Vec<String>,
    pub environment: Vec<FactGroup>,
    pub table: Table,
    /// True where the page has room for its models; otherwise each has a page of its own.
    pub inline: bool,
    pub models: Vec<ModelView>,
    pub release_page: Target,
    /// Links to other pages about this release.
    pub related: Vec<Related>,
}

/// Summary table: one row per model and scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    pub heads: Vec<Head>,
    /// Badges that all rows of the table share.
    pub common: Vec<Badge>,
    pub rows: Vec<Row>,
}

/// Row of the summary table: one cell.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub model: String,
    pub anchor: String,
    /// Target of the model's own page, where this page has no room for it.
    pub model_page: Target,
    pub config: String,
    /// Number of rows of the same model from this one on; zero where the row above has the same
    /// model.
    pub span: usize,
    /// True for the first row of a model in a configuration.
    pub first: bool,
    /// True where the model was served in more than one configuration.
    pub variant: bool,
    pub scenario: String,
    /// Number of runs: `3`, or `2 of 3` where some do not count.
    pub n: String,
    pub figures: Vec<Figure>,
    pub failed: Figure,
    pub badges: Vec<Badge>,
}

/// Link to another page, with its text.
#[derive(Debug, Clone, Serialize)]
pub struct Related {
    pub text: String,
    pub target: Target,
}

impl ReleaseView {
    /// Builds the view of `runs`, which all belong to `key`.
    pub fn new(key: &ReleaseKey, runs: &[&Run], related: Vec<Related>) -> Self {
        let cells = catalog::cells(runs);
        Self {
            engine: outside::name(&key.engine),
            release: outside::name(&key.release),
            hardware: outside::name(&key.hardware),
            extent: extent(runs, &cells),
            notices: notices(runs),
            environment: fact::environment(runs),
            table: Table::new(&cells, key),
            inline: is_inline(&cells),
            models: model::all(&cells),
            release_page: Target::Release {
                engine: key.engine.clone(),
                release: key.release.clone(),
            },
            related,
        }
    }
}

/// Largest number of cells on a release's page; more make it too long for a phone.
const CELLS_INLINE: usize = 8;
/// Largest number of runs on a release's page; more make it too long for a phone.
const RUNS_INLINE: usize = 60;

/// True where a page has room for the charts and lists of `cells`.
pub fn is_inline(cells: &[Cell]) -> bool {
    cells.len() <= CELLS_INLINE
        && cells.iter().map(|cell| cell.runs.len()).sum::<usize>() <= RUNS_INLINE
}

impl Table {
    /// Builds the summary table of `cells`.
    pub fn new(cells: &[Cell], key: &ReleaseKey) -> Self {
        let every: Vec<&Cell> = cells.iter().collect();
        let columns: Vec<(&Metric, Scale)> = SUMMARY
            .iter()
            .filter_map(|name| by_name(name))
            .map(|metric| (metric, figure::scale(metric, &every)))
            .collect();
        let heads = columns.iter().map(|(metric, scale)| Head::of(metric, *scale)).collect();
        let mut rows: Vec<Row> = cells.iter().map(|cell| Row::new(cell, key, &columns)).collect();
        let mut start = 0;
        // A model's name spans all of its rows, so only the first row has a span.
        while start < rows.len() {
            let same = rows[start..].iter().take_while(|row| row.model == rows[start].model);
            let span = same.count();
            rows[start].span = span;
            let group = &mut rows[start..start + span];
            let several = group.iter().any(|row| row.config != group[0].config);
            group.iter_mut().for_each(|row| row.variant = several);
            start += span;
        }
        for index in 0..rows.len() {
            let of = |row: &Row| (row.model.clone(), row.config.clone());
            rows[index].first = index == 0 || of(&rows[index]) != of(&rows[index - 1]);
        }
        let common = badge::take_common(rows.iter_mut().map(|row| &mut row.badges));
        Self { heads, common, rows }
    }
}

impl Row {
    fn new(cell: &Cell, key: &ReleaseKey, columns: &[(&Metric, Scale)]) -> Self {
        let figure = |(metric, scale): &(&Metric, Scale)| Figure::of(metric, *scale, cell);
        Self {
            model: outside::name(&cell.key.model),
            anchor: link::anchor(&format!("{}-{}", cell.key.model, cell.key.config)),
            model_page: model::target(key, &cell.key.model, &cell.key.config),
            config: outside::name(&cell.key.config),
            span: 0,
            first: false,
            variant: false,
            scenario: outside::name(&cell.key.scenario),
            n: launches(cell),
            figures: columns.iter().map(figure).collect(),
            failed: failed(cell),
            badges: badge::of_cell(cell),
        }
    }
}

/// Number of runs that the figures of `cell` come from, as text.
pub fn launches(cell: &Cell) -> String {
    let (counted, all) = (cell.counted().count(), cell.runs.len());
    if counted == all { all.to_string() } else { format!("{counted} of {all}") }
}

/// Number of failed requests over all runs of the cell, including runs that do not count.
pub fn failed(cell: &Cell) -> Figure {
    let counts: Vec<_> = cell.runs.iter().filter_map(|run| run.record.counts.as_ref()).collect();
    let failed: Vec<u64> = counts.iter().filter_map(|counts| counts.requests_failed).collect();
    if failed.is_empty() {
        let reason = cell.runs.iter().find_map(|run| figure::absent(run.record, "counts"));
        return Figure::missing(reason.unwrap_or("no run counted its requests"));
    }
    let planned: u64 = counts.iter().filter_map(|counts| counts.requests_planned).sum();
    let total = failed.iter().sum();
    Figure::count(total, format!("of {planned} requests in {} runs", failed.len()))
}

/// Number of runs, models and scenarios, and the days, as text.
pub fn extent(runs: &[&Run], cells: &[Cell]) -> String {
    let distinct = |read: for<'a> fn(&'a Cell) -> &'a str| {
        let mut names: Vec<&str> = cells.iter().map(read).collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    };
    let (models, scenarios) =
        (distinct(|cell| &cell.key.model), distinct(|cell| &cell.key.scenario));
    let mut text = format!(
        "{} of {} in {}",
        counted(runs.len(), "run"),
        counted(models, "model"),
        counted(scenarios, "scenario")
    );
    if let Some(dates) = dates(runs) {
        text.push_str(", ");
        text.push_str(&dates);
    }
    text
}

/// First and last day (UTC) on which `runs` were started.
pub fn dates(runs: &[&Run]) -> Option<String> {
    let starts = runs.iter().filter_map(|run| run.record.time.as_ref()?.started_at.as_deref());
    let mut days: Vec<String> = starts.map(|start| outside::short_hash(start, 10)).collect();
    days.sort();
    let (first, last) = (days.first()?, days.last()?);
    Some(if first == last { first.clone() } else { format!("{first} to {last}") })
}

/// Formats a count with its noun: `1 run`, `2 runs`.
pub fn counted(count: usize, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

/// Sentences that a reader must see before any figure of `runs`.
pub fn notices(runs: &[&Run]) -> Vec<String> {
    let mut notices = Vec::new();
    let has = |test: fn(&Run) -> bool| runs.iter().any(|run| test(run));
    if has(|run| run.record.kind == Kind::Imported) {
        notices.push(
            "These figures were read from a published report. The hardware is as claimed there, \
             and nobody here saw them run."
                .to_owned(),
        );
    }
    if has(|run| run.record.kind == Kind::Simulated) {
        notices.push("Simulated: no server ran. These records test the suite itself.".to_owned());
    }
    if has(|run| {
        run.record.engine.dirty == Some(true) || run.record.engine.release.ends_with("-dev")
    }) {
        notices.push(
            "A working tree was measured, not a release: nobody else can build this binary."
                .to_owned(),
        );
    }
    let failed = runs.iter().filter(|run| run.record.status == Status::Failed).count();
    if failed > 0 {
        notices.push(format!(
            "{failed} of {} failed: listed with the reason, in no figure.",
            counted(runs.len(), "run")
        ));
    }
    notices
}
