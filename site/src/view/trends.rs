//! Views of trends: release-blocking metrics over the releases of an engine, for one model on one
//! hardware, and lists of them, one line per cell. Levels and their changes come from `judge`.

use judge::summary::Summary;
use judge::trend;
use minijinja::{Value, context};
use schema::run::RunRecord;
use schema::trend::{Change, Point, Segment, Trend};
use schema::verdict::Cell;

use super::figure::{Figure, Head};
use super::tip;
use crate::catalog::{Catalog, ReleaseKey};
use crate::chart::{
    Break, Chart, Key, Level, Look, Tip, TrendPanel, TrendPoint, range_key, sparkline, trends,
};
use crate::format::{self, Scale};
use crate::link::{self, Link, Target};
use crate::outside;

/// Largest number of trend lines on a page about something else; the page of all trends has the
/// rest.
pub const LINES_MAX: usize = 60;

/// Builds the line of one cell in a list of trends, which links to `page` with the cell's trends
/// and draws the first of them. `None` without trends.
pub fn line(trends: &[&Trend], page: &Target) -> Option<Value> {
    let drawn = trends.first()?;
    let (first, last) = (drawn.points.first()?, drawn.points.last()?);
    let scale = scale(drawn);
    let changes = || trends.iter().flat_map(|trend| &trend.changes);
    let cell = &drawn.cell;
    let metric = format!("{} {}", drawn.title, scale.unit);
    let (from, to) = (outside::name(&first.release), outside::name(&last.release));
    let figure = |value| Figure::single(value, scale);
    let (first, last) = (figure(first.value), figure(last.value));
    let title = format!("{metric}, {} at {from} to {} at {to}", first.text, last.text);
    let values: Vec<f64> = drawn.points.iter().map(|point| point.value).collect();
    Some(context! {
        engine => outside::name(&cell.engine),
        model => Link::model(&cell.model),
        hardware => Link::hardware(&cell.hardware),
        scenario => outside::name(&cell.scenario),
        config => outside::name(&cell.config),
        // Page that shows the cell, and the position on it.
        page => page.clone(),
        anchor => anchor(cell),
        spark => sparkline(&outside::message(&title), Look::of(&cell.engine), &values),
        metric => outside::name(&metric),
        // Number of releases and campaigns that have a point.
        points => drawn.points.len(),
        from,
        first,
        to,
        last,
        changes => changes().count(),
        worse => changes().filter(|change| change.worse).count(),
    })
}

/// Returns the display unit that fits all points of a trend, with its divisor.
fn scale(trend: &Trend) -> Scale {
    let largest = trend.points.iter().map(|point| point.value).fold(0.0, f64::max);
    Scale::fit(trend.unit, largest)
}

/// Trend of one metric in a cell, with the summary of the runs behind each of its points.
struct Series<'a> {
    trend: &'a Trend,
    scale: Scale,
    launches: Vec<Option<Summary>>,
}

/// Builds the view of `trends`, which share engine, hardware and model.
pub fn view(catalog: &Catalog, trends: &[&Trend]) -> Value {
    let cell = trends.first().map(|trend| trend.cell.clone()).unwrap_or_default();
    let cells = trends.chunk_by(|a, b| a.cell == b.cell);
    context! {
        engine => outside::name(&cell.engine),
        hardware => Link::hardware(&cell.hardware),
        model => Link::model(&cell.model),
        cells => cells.map(|trends| cell_view(catalog, trends)).collect::<Value>(),
    }
}

/// Returns the anchor of `cell` on the page of its trends.
fn anchor(cell: &Cell) -> String {
    link::anchor(&format!("{}-{}", cell.config, cell.scenario))
}

/// Builds the view of the trends of one scenario and configuration: a chart with a panel per
/// metric, and a table with a column per metric.
fn cell_view(catalog: &Catalog, trends: &[&Trend]) -> Value {
    let cell = trends.first().map(|trend| trend.cell.clone()).unwrap_or_default();
    let runs = catalog.runs_of_series(&cell);
    let series: Vec<Series> = trends.iter().map(|trend| Series::new(trend, &runs)).collect();
    let points = points(&series);
    let changes = series.iter().flat_map(|Series { trend, .. }| {
        trend.changes.iter().map(move |change| {
            context! {
                metric => outside::name(&trend.title),
                release => outside::name(&change.release),
                after => outside::name(&change.after),
                step => format::change(change.step_pct),
                floor => format!("{} %", trend.floor_pct),
                worse => change.worse,
            }
        })
    });
    let line = |point: &&Point| point_line(catalog, &cell, &series, point);
    context! {
        anchor => anchor(&cell),
        scenario => outside::name(&cell.scenario),
        config => outside::name(&cell.config),
        chart => chart(catalog, &cell, &series, &points),
        heads => series.iter().map(Series::head).collect::<Value>(),
        points => points.iter().map(line).collect::<Value>(),
        changes => changes.collect::<Value>(),
    }
}

impl<'a> Series<'a> {
    fn new(trend: &'a Trend, runs: &[&RunRecord]) -> Self {
        let launches = trend.points.iter().map(|point| trend::launches(trend, point, runs));
        Self { trend, scale: scale(trend), launches: launches.collect() }
    }

    fn head(&self) -> Head {
        Head {
            title: outside::name(&self.trend.title),
            unit: self.scale.unit.into(),
            name: self.trend.metric.clone(),
        }
    }

    /// Returns the figure of the trend point whose first run has the id `run`.
    fn figure(&self, run: &str) -> Figure {
        let Some(index) = self.trend.points.iter().position(|point| point.run == run) else {
            return Figure::missing("no launch of this release knows it");
        };
        let mut figure = match &self.launches[index] {
            Some(found) => Figure::median(found, self.scale),
            None => Figure::single(self.trend.points[index].value, self.scale),
        };
        let covers = |segment: &&Segment| (segment.first..=segment.last).contains(&index);
        if let Some(segment) = self.trend.segments.iter().find(covers) {
            let level = format::rounded(segment.level / self.scale.divisor, None);
            figure.title = format!("{}; level {level} {}", figure.title, self.scale.unit);
        }
        figure
    }
}

/// Returns one point for each release and campaign in which any of `series` has a point.
fn points<'a>(series: &[Series<'a>]) -> Vec<&'a Point> {
    let mut known: Vec<&Point> = Vec::new();
    let longest = series.iter().max_by_key(|series| series.trend.points.len());
    for point in longest.into_iter().chain(series).flat_map(|series| &series.trend.points) {
        if !known.iter().any(|other| other.run == point.run) {
            known.push(point);
        }
    }
    known
}

/// Builds the table line about the runs of one release in one campaign.
fn point_line(catalog: &Catalog, cell: &Cell, series: &[Series], point: &Point) -> Value {
    // Reason for which the series break before this point.
    let epoch = series.iter().find_map(|Series { trend, .. }| {
        let index = trend.points.iter().position(|other| other.run == point.run)?;
        trend.segments.iter().find(|segment| segment.first == index)?.epoch.as_deref()
    });
    let key = ReleaseKey::new(&cell.engine, &point.release, &cell.hardware);
    context! {
        release => Link::new(&point.release, Target::ReleaseOn(key)),
        // Link to the first of the runs.
        run => Link::new(&point.run, run_target(catalog, &point.run)),
        campaign => outside::name(point.campaign.as_deref().unwrap_or("-")),
        launches => point.launches,
        figures => series.iter().map(|series| series.figure(&point.run)).collect::<Value>(),
        epoch => outside::message(epoch.unwrap_or_default()),
    }
}

fn run_target(catalog: &Catalog, id: &str) -> Target {
    // The runs of a catalog are sorted by id.
    let found = catalog.runs.binary_search_by(|run| run.record.id.as_str().cmp(id));
    let record = found.ok().map(|index| catalog.runs[index].path);
    Target::Run { id: id.to_owned(), record: record.unwrap_or_default().to_owned() }
}

/// Draws the panels of `series`, which belong to one cell.
fn chart(catalog: &Catalog, cell: &Cell, series: &[Series], points: &[&Point]) -> Chart {
    let title = "Release-blocking metrics over releases";
    let caption = "Median over the runs of a release in one campaign; each point leads to the first \
                   of them.";
    let panels: Vec<TrendPanel> =
        series.iter().map(|series| panel(catalog, cell, series)).collect();
    let mut heads = vec!["Release".to_owned(), "n".to_owned()];
    heads.extend(series.iter().map(|series| {
        let Head { title, unit, .. } = series.head();
        format!("{title} {unit}")
    }));
    let row = |point: &&Point| {
        let mut row = vec![outside::name(&point.release), point.launches.to_string()];
        row.extend(series.iter().map(|series| series.figure(&point.run).shown()));
        row
    };
    let rows = points.iter().map(row).collect();
    Chart::panels(title, caption, trends(title, &panels), heads, rows).with_legend(legend(&panels))
}

/// Returns the legend of trend panels: what some of them contain.
fn legend(panels: &[TrendPanel]) -> Vec<Key> {
    let mut keys = Vec::new();
    if panels.iter().flat_map(|panel| &panel.points).any(|point| point.range.is_some()) {
        keys.push(range_key());
    }
    if panels.iter().any(|panel| !panel.levels.is_empty()) {
        keys.push(Key::note("level", "", "level between two changes"));
    }
    let breaks = || panels.iter().flat_map(|panel| &panel.breaks);
    if breaks().any(|found| !found.epoch && !found.worse) {
        keys.push(Key::note("break", "", "improvement"));
    }
    if breaks().any(|found| !found.epoch && found.worse) {
        keys.push(Key::note("break worse", "", "regression"));
    }
    if breaks().any(|found| found.epoch) {
        keys.push(Key::note("break epoch", "", "epoch: not comparable across it"));
    }
    keys
}

fn panel(catalog: &Catalog, cell: &Cell, series: &Series) -> TrendPanel {
    let Series { trend, scale, launches } = series;
    let point = |(point, launches): (&Point, &Option<Summary>)| {
        let several = launches.as_ref().filter(|found| found.n > 1);
        TrendPoint {
            label: outside::name(&point.release),
            value: point.value / scale.divisor,
            range: several.map(|found| (found.min / scale.divisor, found.max / scale.divisor)),
            tip: Tip {
                text: outside::message(&format!(
                    "{}: {} {}; n = {}; on {}",
                    point.release,
                    series.figure(&point.run).title,
                    trend.title,
                    point.launches,
                    cell.hardware
                )),
                address: tip::address(Some(run_target(catalog, &point.run))),
            },
        }
    };
    let level = |segment: &Segment| Level {
        first: segment.first,
        last: segment.last,
        level: segment.level / scale.divisor,
    };
    TrendPanel {
        label: outside::name(&format!("{} {}", trend.title, scale.unit)),
        look: Look::of(&cell.engine),
        points: trend.points.iter().zip(launches).map(point).collect(),
        levels: trend.segments.iter().map(level).collect(),
        breaks: breaks(trend),
    }
}

/// Returns the epochs and changes of level of a trend, each with its tooltip.
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
            "{}, {} after {}",
            format::change(change.step_pct),
            change.release,
            change.after
        )),
    };
    trend.segments.iter().filter_map(epoch).chain(trend.changes.iter().map(change)).collect()
}
