//! How what gates went over the releases of an engine, for one model on one hardware. Series,
//! levels and their changes come from `registry`.

use schema::trend::{Change, Trend};
use serde::Serialize;

use super::figure::{Figure, Head};
use super::release::Related;
use crate::chart::{Break, Chart, Level, Mark, TrendPanel, TrendPoint, Trends};
use crate::format::{self, Scale};
use crate::link::Target;
use crate::outside;

/// The series of one engine, hardware and model.
#[derive(Debug, Clone, Serialize)]
pub struct TrendView {
    pub engine: String,
    pub hardware: Related,
    pub model: Related,
    /// One chart a scenario and configuration, a panel a metric.
    pub charts: Vec<Chart>,
    pub series: Vec<Series>,
    pub pager: Vec<super::pager::PartLink>,
}

/// One metric of one cell.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    pub anchor: String,
    pub scenario: String,
    pub config: String,
    pub head: Head,
    pub floor: String,
    pub points: Vec<PointLine>,
    pub changes: Vec<ChangeLine>,
}

/// The launches of one release in one campaign.
#[derive(Debug, Clone, Serialize)]
pub struct PointLine {
    pub release: Related,
    pub campaign: String,
    pub launches: usize,
    pub figure: Figure,
    /// Level of the stretch that the point lies in.
    pub level: String,
    /// Why the series breaks before this point.
    pub epoch: String,
}

/// A change of level.
#[derive(Debug, Clone, Serialize)]
pub struct ChangeLine {
    pub release: String,
    pub after: String,
    pub step: String,
    pub worse: bool,
}

/// The line of a list of trends.
#[derive(Debug, Clone, Serialize)]
pub struct TrendsView {
    pub lines: Vec<TrendLine>,
    pub pager: Vec<super::pager::PartLink>,
}

/// An engine, hardware and model that have series.
#[derive(Debug, Clone, Serialize)]
pub struct TrendLine {
    pub page: Related,
    pub series: usize,
    pub changes: usize,
    pub worse: usize,
}

impl TrendView {
    /// The view of `trends`, which share engine, hardware and model.
    #[must_use]
    pub fn new(trends: &[&Trend]) -> Self {
        let cell = trends.first().map(|trend| trend.cell.clone()).unwrap_or_default();
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
            charts: trends.chunk_by(|a, b| a.cell == b.cell).map(chart).collect(),
            series: trends.iter().map(|trend| Series::new(trend)).collect(),
            pager: Vec::new(),
        }
    }
}

impl TrendLine {
    /// The line of `trends`, whose page is `target`.
    #[must_use]
    pub fn new(trends: &[&Trend], target: Target) -> Self {
        let changes = || trends.iter().flat_map(|trend| &trend.changes);
        let cell = trends.first().map(|trend| &trend.cell);
        let text = cell.map(|c| format!("{} serving {} on {}", c.engine, c.model, c.hardware));
        Self {
            page: Related { text: outside::name(&text.unwrap_or_default()), target },
            series: trends.len(),
            changes: changes().count(),
            worse: changes().filter(|change| change.worse).count(),
        }
    }
}

/// The panels of `trends`, which are those of one cell.
fn chart(trends: &[&Trend]) -> Chart {
    let cell = trends.first().map(|trend| trend.cell.clone()).unwrap_or_default();
    let title = outside::name(&format!("{}, {}", cell.scenario, cell.config));
    let caption = "Median over the launches of each release and campaign. Lines are levels; a \
                   dashed line is an epoch or a change of level. Gray: a single launch."
        .to_owned();
    let mut rows = Vec::new();
    for trend in trends {
        for line in Series::new(trend).points {
            rows.push(vec![
                outside::name(&trend.title),
                line.release.text,
                line.figure.text,
                line.figure.title,
            ]);
        }
    }
    let drawn = Trends {
        title: title.clone(),
        description: caption.clone(),
        panels: trends.iter().map(|trend| panel(trend)).collect(),
    };
    let heads = ["Metric", "Release", "Median", "Exactly"].map(str::to_owned).to_vec();
    Chart { title, caption, svg: drawn.draw(), heads, rows }
}

fn panel(trend: &Trend) -> TrendPanel {
    let largest = trend.points.iter().map(|point| point.value).fold(0.0, f64::max);
    let scale = Scale::fit(trend.unit, largest);
    let point = |point: &schema::trend::Point| TrendPoint {
        label: outside::name(&point.release),
        value: point.value / scale.divisor,
        range: None,
        mark: if point.launches > 1 { Mark::Color } else { Mark::Gray },
        text: outside::name(&format!(
            "{}: {} {}, {} launches",
            point.release,
            format::rounded(point.value / scale.divisor, None),
            scale.unit,
            point.launches
        )),
    };
    let epoch = |segment: &schema::trend::Segment| {
        let reason = segment.epoch.as_deref()?;
        let text = outside::message(reason);
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
    let level = |segment: &schema::trend::Segment| Level {
        first: segment.first,
        last: segment.last,
        level: segment.level / scale.divisor,
    };
    TrendPanel {
        label: outside::name(&format!("{} {}", trend.title, scale.unit)),
        points: trend.points.iter().map(point).collect(),
        levels: trend.segments.iter().map(level).collect(),
        breaks: trend
            .segments
            .iter()
            .filter_map(epoch)
            .chain(trend.changes.iter().map(change))
            .collect(),
    }
}

impl Series {
    fn new(trend: &Trend) -> Self {
        let largest = trend.points.iter().map(|point| point.value).fold(0.0, f64::max);
        let scale = Scale::fit(trend.unit, largest);
        let cell = &trend.cell;
        let point = |(index, point): (usize, &schema::trend::Point)| {
            let segment = trend.segments.iter().find(|s| (s.first..=s.last).contains(&index));
            let level = segment.map(|s| format::rounded(s.level / scale.divisor, None));
            let epoch = segment.filter(|s| s.first == index).and_then(|s| s.epoch.as_deref());
            PointLine {
                release: Related {
                    text: outside::name(&point.release),
                    target: Target::ReleaseOn {
                        engine: cell.engine.clone(),
                        release: point.release.clone(),
                        hardware: cell.hardware.clone(),
                    },
                },
                campaign: outside::name(point.campaign.as_deref().unwrap_or("-")),
                launches: point.launches,
                figure: Figure::single(point.value, scale),
                level: level.unwrap_or_default(),
                epoch: outside::message(epoch.unwrap_or_default()),
            }
        };
        let change = |change: &Change| ChangeLine {
            release: outside::name(&change.release),
            after: outside::name(&change.after),
            step: format!("{} %", format::percent(change.step_pct)),
            worse: change.worse,
        };
        Self {
            anchor: crate::link::anchor(&format!(
                "{}-{}-{}",
                cell.config, cell.scenario, trend.metric
            )),
            scenario: outside::name(&cell.scenario),
            config: outside::name(&cell.config),
            head: Head {
                title: outside::name(&trend.title),
                unit: scale.unit.into(),
                name: trend.metric.clone(),
            },
            floor: format!("{} %", trend.floor_pct),
            points: trend.points.iter().enumerate().map(point).collect(),
            changes: trend.changes.iter().map(change).collect(),
        }
    }
}
