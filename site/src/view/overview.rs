//! The overview: the latest release by hardware, and every page there is.

use schema::metric::by_name;
use serde::Serialize;

use super::badge::{self, Badge};
use super::figure::{self, Figure, Head};
use super::release::{self, Related};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::link::Target;
use crate::{order, outside, pages};

/// The metric of the overview's matrices.
const METRIC: &str = "output_tokens_per_s";

/// The overview.
#[derive(Debug, Clone, Serialize)]
pub struct OverviewView {
    pub runs: usize,
    pub hardware: Vec<HardwareView>,
    pub pages: Vec<PageLine>,
    pub diffs: Vec<Related>,
    pub kernels: Vec<Related>,
}

/// A hardware with the latest release of each engine on it.
#[derive(Debug, Clone, Serialize)]
pub struct HardwareView {
    pub hardware: String,
    /// CPU or GPU as people call it.
    pub device: String,
    pub engines: Vec<Latest>,
}

/// The latest release of an engine.
#[derive(Debug, Clone, Serialize)]
pub struct Latest {
    pub engine: String,
    pub release: String,
    pub target: Target,
    pub extent: String,
    pub matrix: Matrix,
}

/// Output throughput, model x scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Matrix {
    pub head: Head,
    pub scenarios: Vec<String>,
    pub rows: Vec<MatrixRow>,
}

#[derive(Debug, Clone, Serialize)]
pub struct MatrixRow {
    pub model: String,
    pub config: String,
    pub figures: Vec<Figure>,
    /// Badges over the row's cells, each text once.
    pub badges: Vec<Badge>,
}

/// A line of the list of pages.
#[derive(Debug, Clone, Serialize)]
pub struct PageLine {
    pub engine: String,
    pub release: String,
    pub hardware: String,
    pub extent: String,
    pub target: Target,
}

impl OverviewView {
    /// The overview of `catalog`; `diffs` and `kernels` are the pages that the site has of them.
    #[must_use]
    pub fn new(catalog: &Catalog, diffs: Vec<Related>, kernels: Vec<Related>) -> Self {
        let releases = catalog.releases();
        let keys = latest_first(releases.keys());
        let mut names: Vec<&str> = keys.iter().map(|key| key.hardware.as_str()).collect();
        names.sort_by(|a, b| order::natural(a, b));
        names.dedup();
        let hardware = names.into_iter().map(|name| {
            // Keys come latest first, so the first of each engine is the one to show.
            let mut latest: Vec<&ReleaseKey> = Vec::new();
            for key in keys.iter().filter(|key| key.hardware == name) {
                if latest.last().is_none_or(|last| last.engine != key.engine) {
                    latest.push(key);
                }
            }
            HardwareView::new(name, latest.into_iter().map(|key| (key, &releases[key])))
        });
        Self {
            runs: catalog.runs.len(),
            hardware: hardware.collect(),
            pages: page_lines(catalog),
            diffs,
            kernels,
        }
    }
}

/// A line for each release page, by engine, the latest release first.
#[must_use]
pub fn page_lines(catalog: &Catalog) -> Vec<PageLine> {
    let releases = catalog.releases();
    let line = |key: &ReleaseKey| PageLine {
        engine: outside::name(&key.engine),
        release: outside::name(&key.release),
        hardware: outside::name(&key.hardware),
        extent: extent(&releases[key]),
        target: pages::target(key),
    };
    latest_first(releases.keys()).into_iter().map(line).collect()
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

impl HardwareView {
    fn new<'a>(
        name: &str,
        latest: impl Iterator<Item = (&'a ReleaseKey, &'a Vec<&'a Run<'a>>)>,
    ) -> Self {
        let latest: Vec<(&ReleaseKey, &Vec<&Run>)> = latest.collect();
        let runs: Vec<&Run> = latest.iter().flat_map(|(_, runs)| runs.iter().copied()).collect();
        let engine = |(key, runs): &(&ReleaseKey, &Vec<&Run>)| Latest {
            engine: outside::name(&key.engine),
            release: outside::name(&key.release),
            target: pages::target(key),
            extent: extent(runs),
            matrix: Matrix::new(&catalog::cells(runs)),
        };
        Self {
            hardware: outside::name(name),
            device: super::fact::device(&runs),
            engines: latest.iter().map(engine).collect(),
        }
    }
}

impl Matrix {
    fn new(cells: &[Cell]) -> Self {
        let every: Vec<&Cell> = cells.iter().collect();
        let metric = by_name(METRIC);
        let scale = metric.map(|metric| figure::scale(metric, &every));
        let mut scenarios: Vec<&str> =
            cells.iter().map(|cell| cell.key.scenario.as_str()).collect();
        scenarios.sort_by(|a, b| order::scenarios(a, b));
        scenarios.dedup();
        let figure = |cell: Option<&Cell>| match (cell, metric, scale) {
            (Some(cell), Some(metric), Some(scale)) => Figure::of(metric, scale, cell),
            _ => Figure::missing("not run"),
        };
        let rows = cells
            .chunk_by(|a, b| (&a.key.model, &a.key.config) == (&b.key.model, &b.key.config))
            .map(|group| {
                let cell = |name: &&str| group.iter().find(|cell| cell.key.scenario == *name);
                let mut badges: Vec<Badge> = Vec::new();
                for badge in group.iter().flat_map(badge::of_cell) {
                    if !badges.iter().any(|known| known.text == badge.text) {
                        badges.push(badge);
                    }
                }
                MatrixRow {
                    model: outside::name(&group[0].key.model),
                    config: outside::name(&group[0].key.config),
                    figures: scenarios.iter().map(|name| figure(cell(name))).collect(),
                    badges,
                }
            })
            .collect();
        let head = metric.zip(scale).map(|(metric, scale)| Head::of(metric, scale));
        let none = || Head { title: String::new(), unit: String::new(), name: METRIC.into() };
        Self {
            head: head.unwrap_or_else(none),
            scenarios: scenarios.into_iter().map(outside::name).collect(),
            rows,
        }
    }
}
