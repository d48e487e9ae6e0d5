//! View of the overview: the best engines, open regressions, progress of each hardware's latest
//! releases, and links to every page.

use std::collections::{BTreeMap, BTreeSet};

use judge::best::{Candidate, LEVELS};
use schema::metric::by_name;
use schema::run::Status;
use serde::Serialize;
use store::spread;

use super::badge::{self, Badge};
use super::diff::{self, DiffRow, Pair};
use super::figure::{self, Figure, Head};
use super::grid;
use super::lab::{self, LabLine};
use super::release::{self, Related};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::format::Scale;
use crate::judged::{self, Judged};
use crate::link::Target;
use crate::{order, outside, pages};

/// Metric that the overview's matrices show: output throughput.
const METRIC: &str = "output_tokens_per_s";

/// View of the overview, the site's first page.
#[derive(Debug, Clone, Serialize)]
pub struct OverviewView {
    pub runs: usize,
    pub best: Best,
    /// Regressions in the latest release of an engine.
    pub open: Vec<OpenLine>,
    pub more_open: usize,
    pub hardware: Vec<HardwareView>,
    pub releases: Vec<ReleaseLine>,
    pub diffs: Vec<Related>,
    pub labs: Vec<LabLine>,
    pub models: Vec<Related>,
    pub scenarios: Vec<Related>,
    pub kernels: Vec<Related>,
}

/// Table of the best engine for each model on each hardware, at each service level.
#[derive(Debug, Clone, Serialize)]
pub struct Best {
    /// Name and meaning of each service level.
    pub levels: Vec<(&'static str, &'static str)>,
    pub rows: Vec<BestRow>,
}

/// Row of the table: one model on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct BestRow {
    pub model: Related,
    pub hardware: Related,
    /// True when the row's figures were published elsewhere and not measured.
    pub claimed: bool,
    pub measured: String,
    pub levels: Vec<Option<BestAt>>,
}

/// Engine with the highest throughput among those that meet a service level's limits.
#[derive(Debug, Clone, Serialize)]
pub struct BestAt {
    pub engine: Related,
    pub scenario: String,
    pub figure: Figure,
}

/// Line about a figure that got worse.
#[derive(Debug, Clone, Serialize)]
pub struct OpenLine {
    pub diff: Related,
    pub model: String,
    pub hardware: String,
    pub row: DiffRow,
}

/// Hardware with the latest release of each engine on it.
#[derive(Debug, Clone, Serialize)]
pub struct HardwareView {
    pub hardware: String,
    pub page: Target,
    /// CPU or GPU, as people call it.
    pub device: String,
    pub engines: Vec<Latest>,
}

/// Latest release of an engine on a hardware.
#[derive(Debug, Clone, Serialize)]
pub struct Latest {
    pub engine: String,
    pub release: String,
    pub target: Target,
    pub extent: String,
    pub progress: Progress,
    pub matrix: Matrix,
}

/// Progress of a release: number of runs that succeeded, that failed, and that were planned but
/// have no record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Progress {
    pub done: usize,
    pub failed: usize,
    pub missing: usize,
}

/// Matrix of output throughput: models by scenarios.
#[derive(Debug, Clone, Serialize)]
pub struct Matrix {
    pub head: Head,
    pub scenarios: Vec<String>,
    /// Badges that all rows of the matrix share.
    pub common: Vec<Badge>,
    pub rows: Vec<MatrixRow>,
}

/// Row of the matrix: a model in one configuration, and its figure under each scenario.
#[derive(Debug, Clone, Serialize)]
pub struct MatrixRow {
    pub model: String,
    pub config: String,
    pub figures: Vec<Figure>,
    /// Badges of the row's cells that not every row has, each text once.
    pub badges: Vec<Badge>,
}

/// Line of the list of releases.
#[derive(Debug, Clone, Serialize)]
pub struct ReleaseLine {
    pub release: Related,
    pub hardware: Vec<Related>,
    pub extent: String,
}

/// Largest number of regressions that are listed; each comparison lists its own.
const OPEN_MAX: usize = 60;

impl OverviewView {
    /// Builds the overview of `catalog`. `kernels` are links to the pages of kernel benchmarks.
    pub fn new(catalog: &Catalog, judged: &Judged, kernels: Vec<Related>) -> Self {
        let mut open: Vec<OpenLine> = judged.open().map(|(pair, row)| open(pair, row)).collect();
        let more_open = open.len().saturating_sub(OPEN_MAX);
        open.truncate(OPEN_MAX);
        let model = |name: String| Related {
            text: outside::name(&name),
            target: Target::Model { model: name },
        };
        let scenario = |name: String| Related {
            text: outside::name(&name),
            target: Target::Scenario { scenario: name },
        };
        let mut scenarios = catalog.names(catalog::scenario);
        scenarios.sort_by(|a, b| order::scenarios(a, b));
        let hardware = catalog.names(|record| record.hardware.id.clone());
        Self {
            runs: catalog.runs.len(),
            best: best(catalog),
            open,
            more_open,
            hardware: hardware.iter().map(|name| latest_on(catalog, name)).collect(),
            releases: release_lines(catalog),
            diffs: judged.diffs.iter().rev().map(|(pair, _)| pair.related()).collect(),
            labs: lab::all(catalog, judged).iter().map(lab::Lab::line).collect(),
            models: catalog
                .names(|record| record.model.id.clone())
                .into_iter()
                .map(model)
                .collect(),
            scenarios: scenarios.into_iter().map(scenario).collect(),
            kernels,
        }
    }
}

fn open(pair: &Pair, row: &judge::diff::Row) -> OpenLine {
    OpenLine {
        diff: pair.related(),
        model: outside::name(&row.verdict.cell.model),
        hardware: outside::name(&pair.hardware),
        row: diff::line(row),
    }
}

fn best(catalog: &Catalog) -> Best {
    let mut places: Vec<(&str, &str)> = catalog
        .runs
        .iter()
        .map(|run| (run.record.model.id.as_str(), run.record.hardware.id.as_str()))
        .collect();
    places.sort_by(|a, b| order::natural(a.0, b.0).then_with(|| order::natural(a.1, b.1)));
    places.dedup();
    // Each ranking reads every run of the registry, so they are made in parallel.
    let rows = spread::map(&places, |(model, hardware)| {
        let ranked = judged::best(catalog, model, hardware);
        let row = |published| best_row(model, hardware, &ranked, published);
        [row(false), row(true)]
    });
    Best {
        levels: LEVELS.iter().map(|level| (level.name, level.meaning)).collect(),
        rows: rows.into_iter().flatten().flatten().collect(),
    }
}

/// Returns the best engines of one model on one hardware; `None` where there are no figures.
fn best_row(
    model: &str,
    hardware: &str,
    ranked: &[judged::Ranked],
    published: bool,
) -> Option<BestRow> {
    let levels: Vec<Option<&Candidate>> = ranked
        .iter()
        .filter(|ranked| ranked.published == published)
        .map(|ranked| foremost(&ranked.answer.candidates))
        .collect();
    let measured = levels.iter().flatten().filter_map(|found| found.measured_at.as_deref()).max();
    let at = |found: &Candidate| BestAt {
        engine: Related {
            text: outside::name(&format!("{} {}", found.cell.engine, found.release)),
            target: Target::ReleaseOn {
                engine: found.cell.engine.clone(),
                release: found.release.clone(),
                hardware: hardware.to_owned(),
            },
        },
        scenario: outside::name(&found.cell.scenario),
        figure: Figure::median(&found.figure, Scale { unit: "/s", divisor: 1.0 }),
    };
    levels.iter().any(Option::is_some).then(|| BestRow {
        model: Related {
            text: outside::name(model),
            target: Target::Model { model: model.to_owned() },
        },
        hardware: Related {
            text: outside::name(hardware),
            target: Target::Hardware { hardware: hardware.to_owned() },
        },
        claimed: published,
        measured: measured.map_or_else(|| "-".to_owned(), |at| outside::short_hash(at, 10)),
        levels: levels.into_iter().map(|found| found.map(at)).collect(),
    })
}

/// Chooses the candidate to show. If a concurrency sweep was measured, it is the best over all its
/// concurrency levels. Otherwise it is the best of the scenario that most engines ran (the first
/// in page order if several), because an engine that ran alone is best among nobody.
fn foremost(candidates: &[Candidate]) -> Option<&Candidate> {
    let on_ladder = candidates.iter().filter(|found| found.cell.scenario.starts_with("ladder"));
    let ladder = on_ladder.max_by(|a, b| a.figure.median.total_cmp(&b.figure.median));
    let widest = || {
        let mut engines: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for Candidate { cell, .. } in candidates {
            engines.entry(&cell.scenario).or_default().insert(&cell.engine);
        }
        // `min_by` returns the first of equal elements: within a scenario the best comes first.
        candidates.iter().min_by(|a, b| {
            let count = |found: &Candidate| engines[found.cell.scenario.as_str()].len();
            let in_order = || order::scenarios(&a.cell.scenario, &b.cell.scenario);
            count(b).cmp(&count(a)).then_with(in_order)
        })
    };
    ladder.or_else(widest)
}

/// Returns a line for each release, by engine, latest first.
pub fn release_lines(catalog: &Catalog) -> Vec<ReleaseLine> {
    let releases = catalog.releases();
    let keys = latest_first(releases.keys());
    let same =
        |a: &&ReleaseKey, b: &&ReleaseKey| (&a.engine, &a.release) == (&b.engine, &b.release);
    let line = |group: &[&ReleaseKey]| {
        let runs: Vec<&Run> = group.iter().flat_map(|key| releases[*key].iter().copied()).collect();
        let first = group[0];
        let hardware = |key: &&ReleaseKey| Related {
            text: outside::name(&key.hardware),
            target: pages::target(key),
        };
        ReleaseLine {
            release: Related {
                text: outside::name(&format!("{} {}", first.engine, first.release)),
                target: Target::Release {
                    engine: first.engine.clone(),
                    release: first.release.clone(),
                },
            },
            hardware: group.iter().map(hardware).collect(),
            extent: extent(&runs),
        }
    };
    keys.chunk_by(same).map(line).collect()
}

fn latest_first<'a>(keys: impl Iterator<Item = &'a ReleaseKey>) -> Vec<&'a ReleaseKey> {
    let mut keys: Vec<&ReleaseKey> = keys.collect();
    keys.sort_by(|a, b| {
        a.engine
            .cmp(&b.engine)
            .then_with(|| order::releases(&b.release, &a.release))
            .then_with(|| order::natural(&a.hardware, &b.hardware))
    });
    keys
}

fn extent(runs: &[&Run]) -> String {
    release::extent(runs, &catalog::cells(runs))
}

/// Builds the view of the latest release of each engine on `hardware`.
pub fn latest_on(catalog: &Catalog, hardware: &str) -> HardwareView {
    let here = catalog.releases().into_iter().filter(|(key, _)| key.hardware == hardware);
    let runs: Vec<&Run> = here.flat_map(|(_, runs)| runs).collect();
    let latest = catalog::latest_releases(&runs);
    let shown: Vec<&Run> = latest.values().flatten().copied().collect();
    let engine = |(key, runs): (&ReleaseKey, &Vec<&Run>)| Latest {
        engine: outside::name(&key.engine),
        release: outside::name(&key.release),
        target: pages::target(key),
        extent: extent(runs),
        progress: Progress::of(catalog, key, runs),
        matrix: Matrix::new(&catalog::cells(runs)),
    };
    HardwareView {
        hardware: outside::name(hardware),
        page: Target::Hardware { hardware: hardware.to_owned() },
        device: super::fact::device(&shown),
        engines: latest.iter().map(engine).collect(),
    }
}

impl Progress {
    /// Counts the progress of `runs`, which belong to `key`.
    fn of(catalog: &Catalog, key: &ReleaseKey, runs: &[&Run]) -> Self {
        let known = |id: &str| runs.iter().any(|run| run.record.id == id);
        let campaigns = catalog.registry.campaigns.iter().map(|stored| &stored.record);
        let missing = campaigns
            .filter(|campaign| campaign.hardware == key.hardware)
            .flat_map(|campaign| &campaign.plan)
            .filter(|plan| plan.engine == key.engine && plan.release == key.release)
            .filter(|plan| !known(&plan.run))
            .count();
        let done = runs.iter().filter(|run| run.record.status == Status::Ok).count();
        Self { done, failed: runs.len() - done, missing }
    }
}

impl Matrix {
    /// Builds the matrix of output throughput from `cells`.
    pub fn new(cells: &[Cell]) -> Self {
        let every: Vec<&Cell> = cells.iter().collect();
        let metric = by_name(METRIC);
        let scale = metric.map(|metric| figure::scale(metric, &every));
        let scenarios = grid::scenarios(cells);
        let figure = |cell: &Option<&Cell>| match (cell, metric, scale) {
            (Some(cell), Some(metric), Some(scale)) => Figure::of(metric, scale, cell),
            _ => Figure::missing("not run"),
        };
        let laid =
            grid::rows(cells, &scenarios, |cell| (cell.key.model.clone(), cell.key.config.clone()));
        let mut rows: Vec<MatrixRow> = laid
            .iter()
            .map(|row| MatrixRow {
                model: outside::name(&row.first.key.model),
                config: outside::name(&row.first.key.config),
                figures: row.cells.iter().map(figure).collect(),
                badges: row.badges(),
            })
            .collect();
        let head = metric.zip(scale).map(|(metric, scale)| Head::of(metric, scale));
        let none = || Head { title: String::new(), unit: String::new(), name: METRIC.into() };
        Self {
            head: head.unwrap_or_else(none),
            scenarios: scenarios.into_iter().map(outside::name).collect(),
            common: badge::take_common(rows.iter_mut().map(|row| &mut row.badges)),
            rows,
        }
    }
}
