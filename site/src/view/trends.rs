//! Lists of trends, one line per cell: latest figure, history, and a link to its page.

use schema::trend::Trend;
use serde::Serialize;

use super::figure::Figure;
use super::pager::PartLink;
use super::release::Related;
use super::trend::anchor;
use crate::chart::Sparkline;
use crate::format::Scale;
use crate::link::Target;
use crate::outside;

/// Largest number of lines on a page about something else; the page of all trends has the rest.
pub const LINES_MAX: usize = 60;

/// View of the list of all trends.
#[derive(Debug, Clone, Serialize)]
pub struct TrendsView {
    pub trends: Vec<TrendLine>,
    pub pager: Vec<PartLink>,
}

/// Line about the trends of a cell; a sparkline draws the first of them.
#[derive(Debug, Clone, Serialize)]
pub struct TrendLine {
    pub engine: String,
    pub model: Related,
    pub hardware: Related,
    pub scenario: String,
    pub config: String,
    /// Target of the page that shows the cell; `anchor` is the position on it.
    pub page: Target,
    pub anchor: String,
    /// Metric that is drawn: `Output tokens /s`.
    pub metric: String,
    pub spark: String,
    /// Number of releases and campaigns that have a point.
    pub points: usize,
    pub from: String,
    pub first: Figure,
    pub to: String,
    pub last: Figure,
    pub changes: usize,
    pub worse: usize,
}

impl TrendLine {
    /// Builds the line of `trends`, which belong to one cell and are shown on `page`. `None`
    /// without trends.
    pub fn new(trends: &[&Trend], page: Target) -> Option<Self> {
        let drawn = trends.first()?;
        let (first, last) = (drawn.points.first()?, drawn.points.last()?);
        let largest = drawn.points.iter().map(|point| point.value).fold(0.0, f64::max);
        let scale = Scale::fit(drawn.unit, largest);
        let changes = || trends.iter().flat_map(|trend| &trend.changes);
        let cell = &drawn.cell;
        let metric = format!("{} {}", drawn.title, scale.unit);
        let (from, to) = (outside::name(&first.release), outside::name(&last.release));
        let figure = |value| Figure::single(value, scale);
        let (first, last) = (figure(first.value), figure(last.value));
        let title = format!("{metric}, {} at {from} to {} at {to}", first.text, last.text);
        let values = drawn.points.iter().map(|point| Some(point.value)).collect();
        Some(Self {
            engine: outside::name(&cell.engine),
            model: Related {
                text: outside::name(&cell.model),
                target: Target::Model { model: cell.model.clone() },
            },
            hardware: Related {
                text: outside::name(&cell.hardware),
                target: Target::Hardware { hardware: cell.hardware.clone() },
            },
            scenario: outside::name(&cell.scenario),
            config: outside::name(&cell.config),
            page,
            anchor: anchor(cell),
            spark: Sparkline { title: outside::message(&title), values }.draw(),
            metric: outside::name(&metric),
            points: drawn.points.len(),
            from,
            first,
            to,
            last,
            changes: changes().count(),
            worse: changes().filter(|change| change.worse).count(),
        })
    }
}
