//! Trends: how a metric of a cell develops over releases and days, and where its level changes. A
//! series is cut at an epoch event, and levels before and after it are not compared.
//!
//! A trend is not a verdict: its points come from different campaigns, which were not measured
//! side by side. A change of level says where to look.

pub mod potts;
pub mod text;

use std::collections::BTreeMap;

use schema::id::ulid_unix_ms;
use schema::metric::{Better, METRICS, Metric, by_name};
use schema::run::{Kind, RunRecord};
use schema::trend::{Change, Point, SCHEMA, Segment, Trend};
use schema::verdict::Cell;

use crate::diff::cells::{Cells, Side};
use crate::diff::estimate::percent;
use crate::events::Epoch;
use crate::order::ReleaseKey;
use crate::records::{QueryError, Registry};
use crate::summary::{self, Summary};
use crate::validity::value;

/// Filter of a trend query. Without any field set, it selects all cells and all release-blocking
/// metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Id of the engine whose trends are selected; `None` for all engines.
    pub engine: Option<String>,
    /// Id of the hardware whose trends are selected; `None` for all hardware.
    pub hardware: Option<String>,
    /// Id of the model whose trends are selected; `None` for all models.
    pub model: Option<String>,
    /// Scenario whose trends are selected, as `id` or `id@rev`; `None` for all scenarios.
    pub scenario: Option<String>,
    /// Name of the one metric whose trends are selected; `None` for all release-blocking metrics.
    pub metric: Option<String>,
}

impl Filter {
    fn covers(&self, run: &RunRecord) -> bool {
        let fits = |wanted: &Option<String>, found: &str| {
            wanted.as_ref().is_none_or(|wanted| wanted == found)
        };
        fits(&self.engine, &run.engine.name)
            && fits(&self.hardware, &run.hardware.id)
            && fits(&self.model, &run.model.id)
            && (fits(&self.scenario, &run.scenario.id)
                || fits(&self.scenario, &format!("{}@{}", run.scenario.id, run.scenario.rev)))
    }
}

/// Returns every series of the registry that `filter` selects, ordered by cell and metric. Imported
/// records, retracted runs, runs of labs, and runs that have another status than `ok`, failed
/// requests or the verdict INVALID are left out, as are series with fewer than two points.
///
/// # Errors
///
/// The filter names an unknown metric.
pub fn trends(registry: &Registry, filter: &Filter) -> Result<Vec<Trend>, QueryError> {
    let only = match &filter.metric {
        None => None,
        Some(name) => Some(by_name(name).ok_or_else(|| {
            let known = METRICS.iter().map(|metric| metric.name).collect::<Vec<_>>().join(", ");
            QueryError(format!("no metric is called `{name}`\nhint: there are {known}"))
        })?),
    };
    let named = cells(registry);
    let mut cells: BTreeMap<Cell, Side<'_>> = BTreeMap::new();
    for run in measured(registry).filter(|run| filter.covers(run)) {
        cells.entry(named.cell(run)).or_default().all.push(run);
    }
    let mut found = Vec::new();
    for (cell, side) in cells {
        let runs = side.usable();
        let arrival = runs.first().and_then(|run| run.scenario.arrival.as_ref());
        let wanted = METRICS.iter().filter(|metric| match only {
            Some(only) => only.name == metric.name,
            None => metric.gates_under(arrival),
        });
        let epochs = registry.epochs(&cell);
        found.extend(wanted.filter_map(|metric| trend(&cell, metric, &runs, &epochs)));
    }
    Ok(found)
}

/// Returns the assignment of the registry's runs to cells that its trends use.
pub fn cells(registry: &Registry) -> Cells<'_> {
    Cells::of(measured(registry))
}

/// Returns the runs that trends are made of: not imported, not retracted, and not part of a lab.
fn measured(registry: &Registry) -> impl Iterator<Item = &RunRecord> {
    let runs = registry.of_releases().map(|run| &run.record);
    runs.filter(|run| run.kind != Kind::Imported)
}

/// Builds the trend of one metric in one cell; `None` where it has fewer than two points.
fn trend(
    cell: &Cell,
    metric: &'static Metric,
    runs: &[&RunRecord],
    epochs: &[Epoch<'_>],
) -> Option<Trend> {
    let mut trend = Trend {
        schema: SCHEMA.to_owned(),
        cell: cell.clone(),
        metric: metric.name.to_owned(),
        title: metric.title.to_owned(),
        unit: metric.unit,
        better: metric.better,
        floor_pct: metric.floor_pct,
        points: Vec::new(),
        segments: Vec::new(),
        changes: Vec::new(),
    };
    for (epoch, points) in points(metric, runs, epochs) {
        let reason = epoch.and_then(|index| epochs.get(index)).map(|e| e.event.reason.clone());
        stretch(&mut trend, metric, points, reason);
    }
    (trend.points.len() > 1).then_some(trend)
}

/// Groups runs into trend points, one per release and campaign, by the index of the epoch that they
/// lie in (`None` before the first epoch). Runs without a value above zero of the metric are left
/// out.
fn points(
    metric: &Metric,
    runs: &[&RunRecord],
    epochs: &[Epoch<'_>],
) -> BTreeMap<Option<usize>, Vec<Point>> {
    type Key<'a> = (Option<usize>, ReleaseKey, Option<&'a str>);
    let mut groups: BTreeMap<Key<'_>, Vec<&RunRecord>> = BTreeMap::new();
    // Levels are compared as logarithms, which zero does not have.
    for run in runs.iter().filter(|run| value(metric, run).is_some_and(|value| value > 0.0)) {
        // A run belongs to the epoch that was current when it was planned: its ULID holds that
        // time.
        let planned_s = ulid_unix_ms(&run.id).and_then(|ms| i64::try_from(ms / 1000).ok());
        let epoch = epochs.iter().rposition(|epoch| Some(epoch.since_unix_s) <= planned_s);
        let campaign = run.campaign.as_ref().map(|slot| slot.id.as_str());
        let key = (epoch, ReleaseKey::of(&run.engine.release), campaign);
        groups.entry(key).or_default().push(run);
    }
    let mut points: BTreeMap<Option<usize>, Vec<Point>> = BTreeMap::new();
    for ((epoch, release, campaign), mut runs) in groups {
        runs.sort_by(|a, b| a.id.cmp(&b.id));
        let first = runs.first().map(|run| run.id.clone()).unwrap_or_default();
        let Some(spread) = summary::of_metric(metric, runs.iter().copied()) else { continue };
        points.entry(epoch).or_default().push(Point {
            release: release.name().to_owned(),
            campaign: campaign.map(str::to_owned),
            run: first,
            launches: spread.n,
            value: spread.median,
        });
    }
    points
}

/// Summarizes the trend's metric over the runs that `point` was computed from. `runs` are the
/// usable runs of the trend's cell, ordered by id. `None` if none of them belongs to the point.
pub fn launches(trend: &Trend, point: &Point, runs: &[&RunRecord]) -> Option<Summary> {
    let metric = by_name(&trend.metric)?;
    let values = runs
        .iter()
        // An epoch can split a release into several points: this one begins at its first run.
        .filter(|run| run.engine.release == point.release && run.id >= point.run)
        .filter(|run| run.campaign.as_ref().map(|slot| &slot.id) == point.campaign.as_ref())
        .filter_map(|run| value(metric, run).filter(|value| *value > 0.0));
    summary::of(&values.take(point.launches).collect::<Vec<_>>())
}

/// Appends the points of one epoch to `trend`, with segments cut where their level changes by at
/// least the metric's minimum effect. `epoch` is the reason for the epoch; `None` before the first.
fn stretch(trend: &mut Trend, metric: &Metric, points: Vec<Point>, epoch: Option<String>) {
    // In logs a step of 5 % has the same size at any level and for any unit.
    let logs: Vec<f64> = points.iter().map(|point| point.value.ln()).collect();
    let level = |range: std::ops::Range<usize>| {
        let values: Vec<f64> = points[range].iter().map(|point| point.value).collect();
        summary::of(&values).map_or(f64::NAN, |spread| spread.median)
    };
    // Steps below the metric's minimum effect are no change of level, so their pieces are merged.
    let mut firsts: Vec<usize> = Vec::new();
    let cuts = potts::pieces(&logs);
    for (index, &first) in cuts.iter().enumerate() {
        let end = cuts.get(index + 1).copied().unwrap_or(points.len());
        let step = firsts.last().map(|&before| level(first..end) / level(before..first) - 1.0);
        if step.is_none_or(|step| step.abs() * 100.0 >= metric.floor_pct) {
            firsts.push(first);
        }
    }
    let offset = trend.points.len();
    let mut before: Option<f64> = None;
    for (index, &first) in firsts.iter().enumerate() {
        let end = firsts.get(index + 1).copied().unwrap_or(points.len());
        let level = level(first..end);
        if let Some(before) = before {
            let step_pct = percent((level / before).ln());
            trend.changes.push(Change {
                point: offset + first,
                release: points[first].release.clone(),
                after: points[first - 1].release.clone(),
                step_pct,
                worse: (step_pct < 0.0) == (metric.better == Better::Higher),
            });
        }
        let epoch = if index == 0 { epoch.clone() } else { None };
        let (first, last) = (offset + first, offset + end - 1);
        trend.segments.push(Segment { first, last, level, epoch });
        before = Some(level);
    }
    trend.points.extend(points);
}

#[cfg(test)]
mod tests;
