//! View of a release on a hardware: environment, summary table, and each model.

use std::collections::BTreeSet;

use minijinja::{Value, context};
use schema::run::{Kind, RunRecord, Status};

use super::figure::{Column, failed, launches};
use super::finding::{self, Finding};
use super::{fact, model};
use crate::catalog::{self, Cell, CellKey, ReleaseKey, Run};
use crate::link::{self, Link, Target};
use crate::outside;

/// Names of the metrics that are columns of a release's summary table.
pub const SUMMARY: [&str; 6] = [
    "requests_per_s",
    "output_tokens_per_s",
    "total_tokens_per_s",
    "ttft_us_p50",
    "tpot_us_p50",
    "e2e_us_p50",
];

/// Builds the view of a release on a hardware from `runs`, which all belong to `key`. `related` are
/// links to other pages about the release.
pub fn view(key: &ReleaseKey, runs: &[&Run], related: Vec<Link>) -> Value {
    let cells = catalog::cells(runs);
    let ReleaseKey { engine, release, hardware } = key;
    context! {
        engine => outside::name(engine),
        release => outside::name(release),
        hardware => outside::name(hardware),
        extent => extent(runs, &cells),
        // Sentences that a reader must see before any figure.
        notices => notices(runs),
        environment => fact::environment(runs),
        table => table(&cells, key),
        // True where the page has room for its models; otherwise each has a page of its own.
        inline => is_inline(&cells),
        models => model::all(&cells),
        release_page => Target::Release { engine: engine.clone(), release: release.clone() },
        related,
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

/// Builds the summary table of a release: one row per model and scenario.
fn table(cells: &[Cell], key: &ReleaseKey) -> Value {
    let columns = Column::all(&SUMMARY, cells);
    let mut findings: Vec<Vec<Finding>> = cells.iter().map(finding::of_cell).collect();
    let common = finding::take_common(&mut findings);
    let mut findings = findings.into_iter();
    let mut rows = Vec::new();
    for group in cells.chunk_by(|a, b| a.key.model == b.key.model) {
        let configs: Vec<String> =
            group.iter().map(|cell| outside::name(&cell.key.config)).collect();
        for (index, cell) in group.iter().enumerate() {
            let CellKey { model, config, scenario, .. } = &cell.key;
            rows.push(context! {
                model => outside::name(model),
                anchor => link::anchor(&format!("{model}-{config}")),
                model_page => model::target(key, model, config),
                config => &configs[index],
                // A model's name spans all of its rows, so only the first row has a span.
                span => if index == 0 { group.len() } else { 0 },
                first => index == 0 || configs[index] != configs[index - 1],
                // True where the model was served in more than one configuration.
                variant => configs.iter().any(|other| *other != configs[0]),
                scenario => outside::name(scenario),
                n => launches(cell),
                figures => columns.iter().map(|column| column.figure(cell)).collect::<Value>(),
                failed => failed(cell),
                badges => findings.next(),
            });
        }
    }
    context! { heads => columns.iter().map(Column::head).collect::<Value>(), common, rows }
}

/// Formats the numbers of runs, models and scenarios, and the days on which the runs were started.
pub fn extent(runs: &[&Run], cells: &[Cell]) -> String {
    let models: BTreeSet<&str> = cells.iter().map(|cell| cell.key.model.as_str()).collect();
    let scenarios: BTreeSet<&str> = cells.iter().map(|cell| cell.key.scenario.as_str()).collect();
    let text = format!(
        "{} of {} in {}",
        counted(runs.len(), "run"),
        counted(models.len(), "model"),
        counted(scenarios.len(), "scenario")
    );
    dates(runs).into_iter().fold(text, |text, dates| format!("{text}, {dates}"))
}

/// Returns the day of an RFC 3339 time, such as `2026-01-31`.
pub fn day(at: &str) -> String {
    outside::short_hash(at, 10)
}

/// Formats the first and the last day (UTC) on which `runs` were started; `None` where no start is
/// known.
pub fn dates(runs: &[&Run]) -> Option<String> {
    let starts = runs.iter().filter_map(|run| run.record.time.as_ref()?.started_at.as_deref());
    let mut days: Vec<String> = starts.map(day).collect();
    days.sort();
    let (first, last) = (days.first()?, days.last()?);
    Some(if first == last { first.clone() } else { format!("{first} to {last}") })
}

/// Formats a count with its noun: `1 run`, `2 runs`.
pub fn counted(count: usize, word: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {word}{plural}")
}

/// Returns the sentences that a reader must see before any figure of `runs`.
pub fn notices(runs: &[&Run]) -> Vec<String> {
    let mut notices = Vec::new();
    let any = |test: fn(&RunRecord) -> bool| runs.iter().any(|run| test(run.record));
    if any(|record| record.kind == Kind::Imported) {
        notices.push(
            "These figures were read from a published report. The hardware is as claimed there, \
             and nobody here saw them run."
                .to_owned(),
        );
    }
    if any(|record| record.kind == Kind::Simulated) {
        notices.push("Simulated: no server ran. These records test the suite itself.".to_owned());
    }
    if any(|record| record.engine.dirty == Some(true) || record.engine.release.ends_with("-dev")) {
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
