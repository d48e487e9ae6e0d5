//! View of engines side by side: the latest release of each engine, for one model on one hardware.

use std::collections::BTreeSet;

use minijinja::{Value, context};
use schema::metric::{Metric, of_memory};
use schema::run::Kind;

use super::figure::{self, Column};
use super::finding::{self, Finding};
use super::table::{self, Shared};
use super::{charts, fact, measured};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::link::{Link, Target};
use crate::outside;

/// Names of the metrics by which the page compares engines, one table for each. Peak memory has one
/// too where a run knows it.
const METRICS: [&str; 4] = ["output_tokens_per_s", "requests_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Builds the view of the engines that served `model` on `hardware`, side by side.
pub fn view(catalog: &Catalog, model: &str, hardware: &str) -> Value {
    let runs = latest(catalog, model, hardware);
    let cells = catalog::cells(&runs);
    let scenarios = table::scenarios(&cells);
    let rows = rows(&cells, &scenarios);
    let shared = Shared::of(rows.iter().map(|row| row.first));
    let (findings, common) = table::findings(&rows);
    let series = |row: &table::Row| {
        let parts = [engine(row.first), shared.rest_of(row.first)];
        outside::name(parts.join(", ").trim_end_matches(", "))
    };
    let named: Vec<(String, &table::Row)> = rows.iter().map(|row| (series(row), row)).collect();
    let has_gpu = runs.iter().any(|run| run.record.hardware.has_gpu());
    let is_known = |metric: &&Metric| runs.iter().any(|run| metric.value(run.record).is_some());
    let memory = of_memory(has_gpu).iter().copied().filter(is_known);
    let metrics = METRICS.map(figure::metric).into_iter().chain(memory);
    let [model_name, hardware_name] = [model, hardware].map(str::to_owned);
    context! {
        model => Link::model(model),
        // Page with this comparison alone; none where it compares one engine with nothing.
        page => has_several(catalog, (model, hardware))
            .then_some(Target::SideBySide { model: model_name, hardware: hardware_name }),
        hardware => outside::name(hardware),
        hardware_page => Target::Hardware { hardware: hardware.to_owned() },
        device => fact::device(&runs),
        // Some figures were published elsewhere and not measured.
        claimed => runs.iter().any(|run| run.record.kind == Kind::Imported),
        reports => reports(&runs),
        scenarios => scenarios.iter().map(|name| Link::scenario(name)).collect::<Value>(),
        shared => shared.shown(),
        // Some row has parts of a configuration that are not shared.
        distinct => rows.iter().any(|row| !shared.rest_of(row.first).is_empty()),
        common,
        tables => metrics
            .map(|metric| of_metric(&Column::new(metric, &cells), &rows, &findings, &shared))
            .collect::<Value>(),
        charts => charts::side_by_side(&named, &scenarios),
        turns => measured::of_place(catalog, model, hardware),
        findings => finding::by_rule(&runs),
    }
}

/// True where the latest releases of several engines served a model on a hardware, given by their
/// names.
pub fn has_several(catalog: &Catalog, (model, hardware): (&str, &str)) -> bool {
    let runs = latest(catalog, model, hardware);
    let engines: BTreeSet<&str> = runs.iter().map(|run| run.record.engine.name.as_str()).collect();
    engines.len() > 1
}

/// Returns links to the imported reports that contain any of `runs`.
fn reports(runs: &[&Run]) -> Vec<Link> {
    let imported = runs.iter().filter(|run| run.record.kind == Kind::Imported);
    let mut found: Vec<(String, String)> =
        imported.filter_map(|run| catalog::report_of(run.path)).collect();
    found.sort();
    found.dedup();
    found.into_iter().map(Link::report).collect()
}

/// Returns the runs of each engine's latest release with `model` on `hardware`. Duplicates of
/// published results, and runs of labs, are left out.
fn latest<'a, 'b>(catalog: &'a Catalog<'b>, model: &str, hardware: &str) -> Vec<&'a Run<'b>> {
    let runs = catalog.runs_where(|record| {
        let here = record.model.id == model && record.hardware.id == hardware;
        here && catalog.is_contender(record)
    });
    catalog::latest_releases(&runs).into_values().flatten().collect()
}

/// Arranges cells as table rows of engines and configurations: measured ones first, then those
/// published elsewhere.
fn rows<'a, 'b>(cells: &'a [Cell<'b>], scenarios: &[&str]) -> Vec<table::Row<'a, 'b>> {
    let name = |cell: &Cell| {
        (cell.key.kind == "imported", engine(cell), cell.key.config.clone(), cell.key.kind)
    };
    let mut rows = table::rows(cells, scenarios, name);
    rows.sort_by_key(|row| name(row.first));
    rows
}

fn engine(cell: &Cell) -> String {
    let engine = cell.runs.first().map(|run| &run.record.engine);
    engine.map(|engine| format!("{} {}", engine.name, engine.release)).unwrap_or_default()
}

/// Builds the table of one metric: engines by scenarios.
fn of_metric(
    column: &Column,
    rows: &[table::Row],
    findings: &[Vec<Finding>],
    shared: &Shared,
) -> Value {
    let row = |(row, badges): (&table::Row, &Vec<Finding>)| {
        let key = row.first.runs.first().map(|run| ReleaseKey::of(run.record));
        context! {
            engine => key.as_ref().map(Link::release),
            config => shared.rest_of(row.first),
            claimed => row.first.key.kind == "imported",
            figures => row.figures(column),
            badges => badges.clone(),
        }
    };
    context! {
        head => column.head(),
        rows => rows.iter().zip(findings).map(row).collect::<Value>(),
    }
}
