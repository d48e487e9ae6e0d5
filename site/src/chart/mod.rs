//! Charts as SVG, drawn by this package so that their bytes are the same everywhere and their
//! colors follow the page. A chart knows shapes and labels, not records.
//!
//! Every chart is 360 units wide: its real size on a phone; on a wide screen several are side by
//! side. Labels are above their marks for the same reason.

mod bars;
mod curves;
mod deviation;
mod heat;
mod pareto;
mod scale;
mod svg;

use serde::Serialize;

pub use bars::{Bar, BarGroup, bars};
pub use curves::{Break, Curve, Level, TrendPanel, TrendPoint, cdf, sparkline, trends};
pub use deviation::{DotRow, ForestMark, ForestRow, dots, forest};
pub use heat::{HeatCell, HeatRow, heat};
pub use pareto::{ParetoPoint, ParetoSeries, pareto};

/// Width of every chart except sparklines, in SVG units.
const WIDTH: f64 = 360.0;

/// Evidence behind a drawn value, which decides how its mark is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Color: repeated runs, or the variant that the chart is about; drawn in color.
    Color,
    /// Gray: at most one run, the variant that the chart compares with, or figures that were not
    /// measured side by side; drawn in gray.
    Gray,
    /// Hollow: published elsewhere and not measured here; drawn as an outline.
    Hollow,
}

impl Mark {
    /// Returns the CSS class by which the style sheet colors the mark.
    fn class(self) -> &'static str {
        match self {
            Self::Color => "color",
            Self::Gray => "gray",
            Self::Hollow => "hollow",
        }
    }
}

/// A drawn chart with its data as a table.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    pub title: String,
    /// Explanation of the chart's content and how to read it, in a few sentences.
    pub caption: String,
    pub svg: String,
    /// Column heads of the chart's data table; the first column names the row.
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Chart {
    /// Finishes `drawing`, whose description for screen readers is the caption, and adds its data
    /// as a table.
    pub fn new(
        title: &str,
        caption: &str,
        drawing: svg::Svg,
        heads: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self {
            title: title.to_owned(),
            caption: caption.to_owned(),
            svg: drawing.finish(title, caption),
            heads: heads.into_iter().map(Into::into).collect(),
            rows,
        }
    }
}

/// Draws a labeled horizontal axis, with grid lines over the height of the plot.
fn x_axis(svg: &mut svg::Svg, scale: &scale::Scale, top: f64, bottom: f64, label: &str) {
    let ticks = scale.ticks(5);
    for tick in &ticks {
        let x = scale.at(tick.value);
        svg.line("grid", (x, top), (x, bottom));
        // Labels at the edges are kept inside the drawing.
        let anchor = if x < 14.0 {
            svg::Anchor::Start
        } else if x > WIDTH - 14.0 {
            svg::Anchor::End
        } else {
            svg::Anchor::Middle
        };
        svg.text("tick", (x, bottom + 14.0), anchor, &tick.label);
    }
    svg.text("axis", (WIDTH, bottom + 29.0), svg::Anchor::End, label);
}

/// Draws the tick labels of a vertical axis, with grid lines from `left` to the right edge.
fn y_axis(svg: &mut svg::Svg, scale: &scale::Scale, left: f64) {
    for tick in &scale.ticks(4) {
        let y = scale.at(tick.value);
        svg.line("grid", (left, y), (WIDTH, y));
        svg.text("tick", (left - 4.0, y + 4.0), svg::Anchor::End, &tick.label);
    }
}

/// Returns the smallest and the largest of `values`; `None` without values.
fn extent(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.fold(None, |found, value| {
        let (low, high) = found.unwrap_or((value, value));
        Some((value.min(low), value.max(high)))
    })
}

/// Converts a number (of rows, points or characters) to a floating-point number, with which
/// coordinates in SVG units are computed.
fn coordinate_of(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Estimates the width of a label with this number of characters, in SVG units.
fn width_of(characters: usize) -> f64 {
    // Mean width of a character over common sans-serif fonts.
    coordinate_of(characters) * 6.4
}

/// Cuts `text` to `width` SVG units at the label's font size; an ellipsis marks the cut.
fn fitted(text: &str, width: f64) -> String {
    let fit = (0..text.chars().count()).take_while(|n| width_of(*n) < width).count();
    if fit >= text.chars().count() {
        return text.to_owned();
    }
    let kept: String = text.chars().take(fit.saturating_sub(1)).collect();
    format!("{kept}…")
}
