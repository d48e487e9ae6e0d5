//! View of trends: release-blocking metrics over the releases of an engine, for one model on one
//! hardware. Levels and their changes come from `judge`.

use judge::summary::{self, Summary};
use schema::metric::by_name;
use schema::run::RunRecord;
use schema::trend::{Change, Point, Segment, Trend};
use schema::verdict::Cell;
use serde::Serialize;

use super::figure::{Figure, Head};
use super::pager::PartLink;
use super::release::Related;
use crate::catalog::Catalog;
use crate::chart::{Break, Chart, Level, Mark, TrendPanel, TrendPoint, Trends};
use crate::format::{self, Scale};
use crate::link::{self, Place, Target};
use crate::outside;

/// View of the trends of one engine, hardware and model.
#[derive(Debug, Clone, Serialize)]
pub struct TrendView {
    pub engine: String,
    pub hardware: Related,
    pub model: Related,
    pub cells: Vec<CellView>,
    pub pager: Vec<PartLink>,
}

/// Trends of one scenario and configuration: a chart with a panel per metric, and a table with a
/// column per metric.
#[derive(Debug, Clone, Serialize)]
pub struct CellView {
    pub anchor: String,
    pub scenario: String,
    pub config: String,
    pub chart: Chart,
    pub heads: Vec<Head>,
    pub points: Vec<PointLine>,
    pub changes: Vec<ChangeLine>,
}

/// Line about the runs of one release in one campaign.
#[derive(Debug, Clone, Serialize)]
pub struct PointLine {
    pub release: Related,
    /// Link to the first of the runs.
    pub run: Related,
    pub campaign: String,
    pub launches: usize,
    pub figures: Vec<Figure>,
    /// Reason for which the series break before this point; empty where they do not.
    pub epoch: String,
}

/// Line about a change of level.
#[derive(Debug, Clone, Serialize)]
pub struct ChangeLine {
    pub metric: String,
    pub release: String,
    pub after: String,
    pub step: String,
    pub floor: String,
    pub worse: bool,
}

/// Trend of one metric in a cell, with the summary of the runs behind each point.
struct Series<'a> {
    trend: &'a Trend,
    scale: Scale,
    launches: Vec<Option<Summary>>,
}

impl TrendView {
    /// Builds the view of `trends`, which share engine, hardware and model, for a page at
    /// `target`.
    pub fn new(catalog: &Catalog, trends: &[&Trend], target: &Target) -> Self {
        let cell = trends.first().map(|trend| trend.cell.clone()).unwrap_or_default();
        let path = target.path(Place::Html).unwrap_or_default();
        let depth = path.matches('/').count();
        let cells = trends.chunk_by(|a, b| a.cell == b.cell);
        Self {
            engine: outside::name(&cell.engine),
            hardware: Related {
                text: outside::name(&cell.hardware),
                target: Target::Hardware { hardware: cell.hardware.clone() },
            },
            model: Related {
                text: outside::name(&cell.model),
                target: Target::Model { model: cell.model.clone() },
            },
            cells: cells.map(|trends| CellView::new(catalog, trends, depth)).collect(),
            pager: Vec::new(),
        }
    }
}

/// Anchor of `cell` on the page of its trends.
pub fn anchor(cell: &Cell) -> String {
    link::anchor(&format!("{}-{}", cell.config, cell.scenario))
}

impl CellView {
    fn new(catalog: &Catalog, trends: &[&Trend], depth: usize) -> Self {
        let cell = trends.first().map(|trend| trend.cell.clone()).unwrap_or_default();
        let runs = catalog.runs_of_series(&cell);
        let series: Vec<Series> = trends.iter().map(|trend| Series::new(trend, &runs)).collect();
        let points = point_lines(catalog, &cell, &series);
        let changes = |series: &Series| {
            let line = |change: &Change| ChangeLine {
                metric: outside::name(&series.trend.title),
                release: outside::name(&change.release),
                after: outside::name(&change.after),
                step: format!("{} %", format::percent(change.step_pct)),
                floor: format!("{} %", series.trend.floor_pct),
                worse: change.worse,
            };
            series.trend.changes.iter().map(line).collect::<Vec<_>>()
        };
        Self {
            anchor: anchor(&cell),
            scenario: outside::name(&cell.scenario),
            config: outside::name(&cell.config),
            chart: chart(catalog, &cell, &series, &points, depth),
            heads: series.iter().map(Series::head).collect(),
            changes: series.iter().flat_map(changes).collect(),
            points,
        }
    }
}

impl<'a> Series<'a> {
    fn new(trend: &'a Trend, runs: &[&RunRecord]) -> Self {
        let largest = trend.points.iter().map(|point| point.value).fold(0.0, f64::max);
        Self {
            trend,
            scale: Scale::fit(trend.unit, largest),
            launches: trend.points.iter().map(|point| launches(trend, point, runs)).collect(),
        }
    }

    fn head(&self) -> Head {
        Head {
            title: outside::name(&self.trend.title),
            unit: self.scale.unit.into(),
            name: self.trend.metric.clone(),
        }
    }

    /// Figure of the point whose first run is `run`.
    fn figure(&self, run: &str) -> Figure {
        let Some(index) = self.trend.points.iter().position(|point| point.run == run) else {
            return Figure::missing("no launch of this release knows it");
        };
        let mut figure = match &self.launches[index] {
            Some(found) => Figure::median(found, self.scale),
            None => Figure::single(self.trend.points[index].value, self.scale),
        };
        let holds = |segment: &&Segment| (segment.first..=segment.last).contains(&index);
        if let Some(segment) = self.trend.segments.iter().find(holds) {
            let level = format::rounded(segment.level / self.scale.divisor, None);
            figure.title = format!("{}; level {level} {}", figure.title, self.scale.unit);
        }
        figure
    }
}

/// Summary of the runs behind `point`: as many of its release and campaign as it counts, from its
/// first run on.
fn launches(trend: &Trend, point: &Point, runs: &[&RunRecord]) -> Option<Summary> {
    let metric = by_name(&trend.metric)?;
    let values = runs
        .iter()
        // An epoch can split a release into several points: this one begins at its first run.
        .filter(|run| run.engine.release == point.release && run.id >= point.run)
        .filter(|run| run.campaign.as_ref().map(|slot| &slot.id) == point.campaign.as_ref())
        .filter_map(|run| metric.value(run).filter(|value| *value > 0.0));
    summary::of(&values.take(point.launches).collect::<Vec<_>>())
}

/// Returns a line for each release and campaign in which any of `series` has a point.
fn point_lines(catalog: &Catalog, cell: &Cell, series: &[Series]) -> Vec<PointLine> {
    let mut known: Vec<&Point> = Vec::new();
    let longest = series.iter().max_by_key(|series| series.trend.points.len());
    for point in longest.into_iter().chain(series).flat_map(|series| &series.trend.points) {
        if !known.iter().any(|other| other.run == point.run) {
            known.push(point);
        }
    }
    let epoch = |point: &Point| {
        series.iter().find_map(|Series { trend, .. }| {
            let index = trend.points.iter().position(|other| other.run == point.run)?;
            trend.segments.iter().find(|segment| segment.first == index)?.epoch.clone()
        })
    };
    let line = |point: &&Point| PointLine {
        release: Related {
            text: outside::name(&point.release),
            target: Target::ReleaseOn {
                engine: cell.engine.clone(),
                release: point.release.clone(),
                hardware: cell.hardware.clone(),
            },
        },
        run: Related { text: outside::name(&point.run), target: run_target(catalog, &point.run) },
        campaign: outside::name(point.campaign.as_deref().unwrap_or("-")),
        launches: point.launches,
        figures: series.iter().map(|series| series.figure(&point.run)).collect(),
        epoch: outside::message(&epoch(point).unwrap_or_default()),
    };
    known.iter().map(line).collect()
}

fn run_target(catalog: &Catalog, id: &str) -> Target {
    // The runs of a catalog are sorted by id.
    let found = catalog.runs.binary_search_by(|run| run.record.id.as_str().cmp(id));
    let record = found.ok().map(|index| catalog.runs[index].path);
    Target::Run { id: id.to_owned(), record: record.unwrap_or_default().to_owned() }
}

/// Draws the panels of `series`, which belong to one cell, for a page that lies `depth` folders
/// deep.
fn chart(
    catalog: &Catalog,
    cell: &Cell,
    series: &[Series],
    points: &[PointLine],
    depth: usize,
) -> Chart {
    let title = outside::name(&format!("{}, {}", cell.scenario, cell.config));
    let caption = "Median over launches, in a ribbon that spans them.".to_owned();
    let drawn = Trends {
        title: title.clone(),
        description: caption.clone(),
        panels: series.iter().map(|series| panel(catalog, series, depth)).collect(),
    };
    let mut heads = vec!["Release".to_owned(), "n".to_owned()];
    heads.extend(series.iter().map(|series| {
        let Head { title, unit, .. } = series.head();
        format!("{title} {unit}")
    }));
    let row = |line: &PointLine| {
        let mut row = vec![line.release.text.clone(), line.launches.to_string()];
        row.extend(line.figures.iter().map(Figure::shown));
        row
    };
    Chart { title, caption, svg: drawn.draw(), heads, rows: points.iter().map(row).collect() }
}

fn panel(catalog: &Catalog, series: &Series, depth: usize) -> TrendPanel {
    let Series { trend, scale, launches } = series;
    let point = |(point, launches): (&Point, &Option<Summary>)| {
        let target = run_target(catalog, &point.run).to_string();
        let several = launches.as_ref().filter(|found| found.n > 1);
        TrendPoint {
            label: outside::name(&point.release),
            value: point.value / scale.divisor,
            range: several.map(|found| (found.min / scale.divisor, found.max / scale.divisor)),
            mark: if point.launches > 1 { Mark::Color } else { Mark::Gray },
            text: outside::name(&format!(
                "{}: {} {}, {}",
                point.release,
                format::rounded(point.value / scale.divisor, None),
                scale.unit,
                if point.launches == 1 {
                    "a single launch".to_owned()
                } else {
                    format!("{} launches", point.launches)
                }
            )),
            address: link::resolve(&target, Place::Html, depth).ok().flatten(),
        }
    };
    let level = |segment: &Segment| Level {
        first: segment.first,
        last: segment.last,
        level: segment.level / scale.divisor,
    };
    TrendPanel {
        label: outside::name(&format!("{} {}", trend.title, scale.unit)),
        points: trend.points.iter().zip(launches).map(point).collect(),
        levels: trend.segments.iter().map(level).collect(),
        breaks: breaks(trend),
    }
}

/// Returns the epochs and changes of level of a trend, each with its text.
fn breaks(trend: &Trend) -> Vec<Break> {
    let epoch = |segment: &Segment| {
        let text = outside::message(segment.epoch.as_deref()?);
        Some(Break { point: segment.first, epoch: true, worse: false, text })
    };
    let change = |change: &Change| Break {
        point: change.point,
        epoch: false,
        worse: change.worse,
        text: outside::name(&format!(
            "{} %, {} after {}",
            format::percent(change.step_pct),
            change.release,
            change.after
        )),
    };
    trend.segments.iter().filter_map(epoch).chain(trend.changes.iter().map(change)).collect()
}
