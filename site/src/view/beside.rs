//! Engines side by side: the latest release of each, on one hardware, for one model.

use schema::metric::{Metric, by_name};
use schema::run::Kind;
use serde::Serialize;

use super::badge::{self, Badge};
use super::charts::mark_of;
use super::fact;
use super::figure::{self, Figure, Head};
use super::release::Related;
use crate::catalog::{self, Catalog, Cell, Run};
use crate::chart::{Bar, BarGroup, Bars, Chart};
use crate::format::Scale;
use crate::judged;
use crate::link::Target;
use crate::{order, outside};

/// The metrics that are put side by side.
const METRICS: [&str; 4] = ["output_tokens_per_s", "requests_per_s", "ttft_us_p50", "tpot_us_p50"];

/// One model on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct Beside {
    pub hardware: String,
    pub hardware_page: Target,
    pub device: String,
    /// Some of the figures are claimed by others.
    pub claimed: bool,
    pub fastest: Vec<Fastest>,
    pub scenarios: Vec<Related>,
    pub tables: Vec<Table>,
    pub chart: Option<Chart>,
}

/// One metric, engines by scenarios.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    pub head: Head,
    pub rows: Vec<Row>,
}

/// An engine in one configuration.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub engine: Related,
    pub config: String,
    pub claimed: bool,
    pub figures: Vec<Figure>,
    pub badges: Vec<Badge>,
}

/// The engine with the highest output throughput in a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Fastest {
    pub scenario: String,
    pub engine: Related,
    pub config: String,
    pub figure: Figure,
    /// Launches behind the figure.
    pub launches: usize,
    pub measured: String,
    pub claimed: bool,
    /// Other engines and configurations that it was ranked among.
    pub others: usize,
}

/// An engine in one configuration, with a place for each scenario.
struct Line<'a, 'b> {
    first: &'a Cell<'b>,
    cells: Vec<Option<&'a Cell<'b>>>,
}

impl Beside {
    /// The engines that served `model` on `hardware`.
    #[must_use]
    pub fn new(catalog: &Catalog, model: &str, hardware: &str) -> Self {
        let runs = latest(catalog, model, hardware);
        let cells = catalog::cells(&runs);
        let every: Vec<&Cell> = cells.iter().collect();
        let mut scenarios: Vec<&str> =
            cells.iter().map(|cell| cell.key.scenario.as_str()).collect();
        scenarios.sort_by(|a, b| order::scenarios(a, b));
        scenarios.dedup();
        let lines = lines(&cells, &scenarios);
        let scenario = |name: &&str| Related {
            text: outside::name(name),
            target: Target::Scenario { scenario: (*name).to_owned() },
        };
        Self {
            hardware: outside::name(hardware),
            hardware_page: Target::Hardware { hardware: hardware.to_owned() },
            device: fact::device(&runs),
            claimed: runs.iter().any(|run| run.record.kind == Kind::Imported),
            fastest: fastest(catalog, model, hardware),
            scenarios: scenarios.iter().map(scenario).collect(),
            tables: METRICS
                .iter()
                .filter_map(|name| by_name(name))
                .map(|metric| table(metric, &lines, &every))
                .collect(),
            chart: chart(&lines, &scenarios),
        }
    }
}

/// The runs of each engine's latest release; of published blocks, those that repeat no other.
fn latest<'a, 'b>(catalog: &'a Catalog<'b>, model: &str, hardware: &str) -> Vec<&'a Run<'b>> {
    let runs =
        catalog.runs_where(|record| record.model.id == model && record.hardware.id == hardware);
    let mut latest: Vec<&Run> = catalog::latest_releases(&runs).into_values().flatten().collect();
    latest.retain(|run| !catalog.twins.contains_key(run.record.id.as_str()));
    latest
}

fn lines<'a, 'b>(cells: &'a [Cell<'b>], scenarios: &[&str]) -> Vec<Line<'a, 'b>> {
    let mut lines: Vec<Line> = Vec::new();
    for cell in cells {
        let Some(column) = scenarios.iter().position(|name| *name == cell.key.scenario) else {
            continue;
        };
        let name = |cell: &Cell| (engine(cell), cell.key.config.clone(), cell.key.kind);
        let free = |line: &&mut Line<'a, 'b>| {
            line.cells[column].is_none() && name(line.first) == name(cell)
        };
        match lines.iter_mut().find(free) {
            Some(line) => line.cells[column] = Some(cell),
            None => {
                let mut places = vec![None; scenarios.len()];
                places[column] = Some(cell);
                lines.push(Line { first: cell, cells: places });
            }
        }
    }
    lines.sort_by(|a, b| {
        // What was measured here comes before what others claim.
        (a.first.key.kind == "imported", engine(a.first), &a.first.key.config).cmp(&(
            b.first.key.kind == "imported",
            engine(b.first),
            &b.first.key.config,
        ))
    });
    lines
}

fn engine(cell: &Cell) -> String {
    let engine = cell.runs.first().map(|run| &run.record.engine);
    engine.map(|engine| format!("{} {}", engine.name, engine.release)).unwrap_or_default()
}

/// The page of the release that the runs of `cell` are of.
fn release_page(cell: &Cell) -> Related {
    let text = outside::name(&engine(cell));
    let target = match cell.runs.first() {
        Some(run) => crate::pages::target(&catalog::ReleaseKey::of(run.record)),
        None => Target::Overview {},
    };
    Related { text, target }
}

fn table(metric: &'static Metric, lines: &[Line], every: &[&Cell]) -> Table {
    let scale = figure::scale(metric, every);
    let figure = |cell: &Option<&Cell>| {
        cell.map_or_else(|| Figure::missing("not run"), |cell| Figure::of(metric, scale, cell))
    };
    let row = |line: &Line| {
        let mut badges: Vec<Badge> = Vec::new();
        for badge in line.cells.iter().flatten().flat_map(|cell| badge::of_cell(cell)) {
            if !badges.iter().any(|known| known.text == badge.text) {
                badges.push(badge);
            }
        }
        Row {
            engine: release_page(line.first),
            config: outside::name(&line.first.key.config),
            claimed: line.first.key.kind == "imported",
            figures: line.cells.iter().map(figure).collect(),
            badges,
        }
    };
    Table { head: Head::of(metric, scale), rows: lines.iter().map(row).collect() }
}

fn fastest(catalog: &Catalog, model: &str, hardware: &str) -> Vec<Fastest> {
    let mut found = Vec::new();
    for ranked in judged::best(catalog, model, hardware) {
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
                config: run
                    .map(|run| outside::name(&catalog::config(run.record)))
                    .unwrap_or_default(),
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

fn chart(lines: &[Line], scenarios: &[&str]) -> Option<Chart> {
    let metric = by_name(METRICS[0])?;
    let scale = Scale::fit(metric.unit, 0.0);
    let mut groups = Vec::new();
    let mut rows = Vec::new();
    for (column, scenario) in scenarios.iter().enumerate() {
        let mut bars = Vec::new();
        for line in lines {
            let Some(cell) = line.cells[column] else { continue };
            let figure = Figure::of(metric, scale, cell);
            let spread = figure::summary(metric, cell);
            let series = outside::name(&format!("{}, {}", engine(cell), cell.key.config));
            rows.push(vec![
                outside::name(scenario),
                series.clone(),
                figure.shown(),
                figure.title.clone(),
            ]);
            bars.push(Bar {
                series,
                value: spread.map(|spread| spread.median),
                range: spread.filter(|spread| spread.n > 1).map(|s| (s.min, s.max)),
                text: if spread.is_some() { figure.shown() } else { "no figure".to_owned() },
                mark: mark_of(cell),
            });
        }
        groups.push(BarGroup { label: outside::name(scenario), bars });
    }
    if rows.is_empty() || rows.len() > BARS_MAX {
        return None;
    }
    let title = "Output tokens per second".to_owned();
    let caption =
        "Median over launches, whiskers span them. Gray: a single run. Hollow: claimed by others."
            .to_owned();
    let unit = "tokens/s".to_owned();
    let bars = Bars { title: title.clone(), description: caption.clone(), unit, groups };
    let heads = ["Scenario", "Engine", "Output tokens/s", "Exactly"].map(str::to_owned).to_vec();
    Some(Chart { title, caption, svg: bars.draw(), heads, rows })
}

/// A chart of more bars than this is no longer read; the tables have them all.
const BARS_MAX: usize = 40;
