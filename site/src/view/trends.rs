//! Lists of series, one line a cell: where it stands, how it came there, and the way to its page.

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

/// Lines on a page about something else; the page of all trends has the others.
pub const LINES_MAX: usize = 60;

/// Every cell that has a series.
#[derive(Debug, Clone, Serialize)]
pub struct TrendsView {
    pub trends: Vec<TrendLine>,
    pub pager: Vec<PartLink>,
}

/// The series of a cell, drawn by the first of them.
#[derive(Debug, Clone, Serialize)]
pub struct TrendLine {
    pub engine: String,
    pub model: Related,
    pub hardware: Related,
    pub scenario: String,
    pub config: String,
    /// The page that shows the cell, and where on it.
    pub page: Target,
    pub anchor: String,
    /// `Output tokens /s`: what is drawn.
    pub metric: String,
    pub spark: String,
    /// Releases and campaigns that have a point.
    pub points: usize,
    pub from: String,
    pub first: Figure,
    pub to: String,
    pub last: Figure,
    pub changes: usize,
    pub worse: usize,
}

impl TrendLine {
    /// The line of `trends`, which are those of one cell; `page` shows it. None of none.
    #[must_use]
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
