//! Engines side by side: the latest release of each engine, for one model on one hardware.

use schema::metric::{Metric, by_name};
use schema::run::Kind;
use serde::Serialize;

use super::badge::{self, Badge, Finding};
use super::config::Shared;
use super::figure::{self, Figure, Head};
use super::release::Related;
use super::{bars, fact, grid};
use crate::catalog::{self, Catalog, Cell, Run};
use crate::chart::Chart;
use crate::format::Scale;
use crate::judged;
use crate::link::Target;
use crate::{order, outside};

/// Metrics that have a table each.
const METRICS: [&str; 4] = ["output_tokens_per_s", "requests_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Engines side by side for one model on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct Beside {
    pub hardware: String,
    pub hardware_page: Target,
    pub device: String,
    /// True when some figures were published elsewhere and not measured.
    pub claimed: bool,
    /// Reports that contain the published figures.
    pub reports: Vec<Related>,
    pub fastest: Vec<Fastest>,
    pub scenarios: Vec<Related>,
    /// Parts of the configuration that all rows share, and which rows therefore omit.
    pub shared: Vec<String>,
    /// True when some row has further parts of a configuration.
    pub distinct: bool,
    /// Badges that all rows share, shown once above the tables.
    pub common: Vec<Badge>,
    pub tables: Vec<Table>,
    pub charts: Vec<Chart>,
    /// Findings of the rules in the runs behind the tables.
    pub findings: Vec<Finding>,
}

/// Table of one metric: engines by scenarios.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    pub head: Head,
    pub rows: Vec<Row>,
}

/// Row of the table: an engine in one configuration.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub engine: Related,
    pub config: String,
    pub claimed: bool,
    pub figures: Vec<Figure>,
    pub badges: Vec<Badge>,
}

/// Engine with the highest output throughput in a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Fastest {
    pub scenario: String,
    pub engine: Related,
    pub config: String,
    pub figure: Figure,
    /// Number of runs behind the figure.
    pub launches: usize,
    pub measured: String,
    pub claimed: bool,
    /// Number of other engines and configurations in the ranking.
    pub others: usize,
}

impl Beside {
    /// Builds the comparison of the engines that served `model` on `hardware`.
    pub fn new(catalog: &Catalog, model: &str, hardware: &str) -> Self {
        let runs = latest(catalog, model, hardware);
        let cells = catalog::cells(&runs);
        let scenarios = grid::scenarios(&cells);
        let rows = laid(&cells, &scenarios);
        let firsts: Vec<&Run> =
            rows.iter().filter_map(|row| row.first.runs.first().copied()).collect();
        let shared = Shared::of(&firsts);
        let (tables, common) = tables(&rows, &shared);
        let scenario = |name: &&str| Related {
            text: outside::name(name),
            target: Target::Scenario { scenario: (*name).to_owned() },
        };
        let series = |row: &grid::Row| {
            let config = own_config(row.first, &shared);
            let parts = [engine(row.first), config];
            outside::name(parts.join(", ").trim_end_matches(", "))
        };
        let named: Vec<(String, &grid::Row)> = rows.iter().map(|row| (series(row), row)).collect();
        Self {
            hardware: outside::name(hardware),
            hardware_page: Target::Hardware { hardware: hardware.to_owned() },
            device: fact::device(&runs),
            claimed: runs.iter().any(|run| run.record.kind == Kind::Imported),
            reports: reports(&runs),
            fastest: fastest(catalog, model, hardware, &shared),
            scenarios: scenarios.iter().map(scenario).collect(),
            distinct: tables.iter().flat_map(|table| &table.rows).any(|row| !row.config.is_empty()),
            shared: shared.shown(),
            common,
            tables,
            charts: bars::charts(&named, &scenarios),
            findings: badge::findings(&runs),
        }
    }
}

/// Returns the reports that contain any of `runs`.
fn reports(runs: &[&Run]) -> Vec<Related> {
    let mut found: Vec<(String, String)> = runs
        .iter()
        .filter(|run| run.record.kind == Kind::Imported)
        .filter_map(|run| super::imports::report_of(run.path))
        .collect();
    found.sort();
    found.dedup();
    let related = |(source, file): (String, String)| Related {
        text: outside::name(&format!("{source} {file}")),
        target: Target::Report { source, file },
    };
    found.into_iter().map(related).collect()
}

/// Returns the runs of each engine's latest release by which engines are compared.
fn latest<'a, 'b>(catalog: &'a Catalog<'b>, model: &str, hardware: &str) -> Vec<&'a Run<'b>> {
    let runs = catalog.runs_where(|record| {
        let here = record.model.id == model && record.hardware.id == hardware;
        here && catalog.is_contender(record)
    });
    catalog::latest_releases(&runs).into_values().flatten().collect()
}

/// Lays cells out as rows of engines and configurations: measured ones first, then those published
/// elsewhere.
fn laid<'a, 'b>(cells: &'a [Cell<'b>], scenarios: &[&str]) -> Vec<grid::Row<'a, 'b>> {
    let name = |cell: &Cell| {
        (cell.key.kind == "imported", engine(cell), cell.key.config.clone(), cell.key.kind)
    };
    let mut rows = grid::rows(cells, scenarios, name);
    rows.sort_by_key(|row| name(row.first));
    rows
}

fn own_config(cell: &Cell, shared: &Shared) -> String {
    cell.runs.first().map(|run| shared.rest(run)).unwrap_or_default()
}

fn engine(cell: &Cell) -> String {
    let engine = cell.runs.first().map(|run| &run.record.engine);
    engine.map(|engine| format!("{} {}", engine.name, engine.release)).unwrap_or_default()
}

/// Link to the page of the release that `cell` belongs to.
fn release_page(cell: &Cell) -> Related {
    let text = outside::name(&engine(cell));
    let target = match cell.runs.first() {
        Some(run) => crate::pages::target(&catalog::ReleaseKey::of(run.record)),
        None => Target::Overview {},
    };
    Related { text, target }
}

/// Builds the tables of [`METRICS`], and the badges that every row has.
fn tables(rows: &[grid::Row], shared: &Shared) -> (Vec<Table>, Vec<Badge>) {
    let mut badges: Vec<Vec<Badge>> = rows.iter().map(grid::Row::badges).collect();
    let common = badge::take_common(badges.iter_mut());
    let every: Vec<&Cell> =
        rows.iter().flat_map(|row| row.cells.iter().flatten().copied()).collect();
    let table = |metric: &'static Metric| {
        let scale = figure::scale(metric, &every);
        let figure = |cell: &Option<&Cell>| {
            cell.map_or_else(|| Figure::missing("not run"), |cell| Figure::of(metric, scale, cell))
        };
        let row = |(row, badges): (&grid::Row, &Vec<Badge>)| Row {
            engine: release_page(row.first),
            config: own_config(row.first, shared),
            claimed: row.first.key.kind == "imported",
            figures: row.cells.iter().map(figure).collect(),
            badges: badges.clone(),
        };
        let rows = rows.iter().zip(&badges).map(row).collect();
        Table { head: Head::of(metric, scale), rows }
    };
    (METRICS.iter().filter_map(|name| by_name(name)).map(table).collect(), common)
}

fn fastest(catalog: &Catalog, model: &str, hardware: &str, shared: &Shared) -> Vec<Fastest> {
    let mut found = Vec::new();
    for ranked in judged::best(catalog, model, hardware) {
        // Fastest means throughput alone; the overview shows the other service levels.
        if ranked.level != "batch" {
            continue;
        }
        let by_scenario =
            ranked.answer.candidates.chunk_by(|a, b| a.cell.scenario == b.cell.scenario);
        for group in by_scenario {
            let first = &group[0];
            let scale = Scale { unit: "/s", divisor: 1.0 };
            let key = catalog::ReleaseKey {
                engine: first.cell.engine.clone(),
                release: first.release.clone(),
                hardware: hardware.to_owned(),
            };
            let run = catalog.runs.iter().find(|run| first.runs.contains(&run.record.id));
            found.push(Fastest {
                scenario: outside::name(&first.cell.scenario),
                engine: Related {
                    text: outside::name(&format!("{} {}", key.engine, key.release)),
                    target: crate::pages::target(&key),
                },
                config: run.map(|run| shared.rest(run)).unwrap_or_default(),
                figure: Figure::median(&first.figure, scale),
                launches: first.figure.n,
                measured: first
                    .measured_at
                    .as_deref()
                    .map_or_else(|| "day unknown".to_owned(), |at| outside::short_hash(at, 10)),
                claimed: ranked.published,
                others: group.len() - 1,
            });
        }
    }
    found
        .sort_by(|a, b| order::scenarios(&a.scenario, &b.scenario).then(a.claimed.cmp(&b.claimed)));
    found
}
