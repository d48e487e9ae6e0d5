//! Charts as SVG, drawn here so that their bytes are the same everywhere and their colors follow
//! the page. A chart knows shapes and labels, not records.
//!
//! Every chart is drawn 360 units wide: on a phone that is its real size, on a desk several
//! stand side by side. Labels stand above their marks for the same reason.

mod bars;
mod cdf;
mod dots;
mod forest;
mod heat;
mod pareto;
mod scale;
mod sparkline;
mod svg;
mod trends;

use serde::Serialize;

pub use bars::{Bar, BarGroup, Bars};
pub use cdf::{Cdf, Curve};
pub use dots::{DotRow, Dots};
pub use forest::{Forest, ForestMark, ForestRow};
pub use heat::{Heat, HeatCell, HeatRow};
pub use pareto::{Pareto, ParetoPoint, ParetoSeries};
pub use sparkline::Sparkline;
pub use trends::{Break, Level, TrendPanel, TrendPoint, Trends};

/// Width of every chart.
const WIDTH: f64 = 360.0;

/// What a figure rests on, which decides how its mark is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// Repeated launches, or the side that the eye should follow: in color.
    Color,
    /// A single run, or the other side: gray.
    Gray,
    /// Claimed by others and not measured here: hollow.
    Hollow,
}

impl Mark {
    /// The class that the style sheet knows it by.
    fn class(self) -> &'static str {
        match self {
            Self::Color => "color",
            Self::Gray => "gray",
            Self::Hollow => "hollow",
        }
    }
}

/// A drawn chart with the same data as a table.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    pub title: String,
    /// What is drawn and how to read it, in a sentence or two.
    pub caption: String,
    pub svg: String,
    /// Heads of the table; the first column names the row.
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Draws a labelled horizontal axis with light lines over the height of the plot.
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

/// Draws the labels of a horizontal scale's heights with light lines from `left` to the edge.
fn y_axis(svg: &mut svg::Svg, scale: &scale::Scale, left: f64) {
    for tick in &scale.ticks(4) {
        let y = scale.at(tick.value);
        svg.line("grid", (left, y), (WIDTH, y));
        svg.text("tick", (left - 4.0, y + 4.0), svg::Anchor::End, &tick.label);
    }
}

/// A count as a coordinate.
fn coordinate_of(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Width of so many characters at the label's size.
fn width_of(characters: usize) -> f64 {
    // The mean over common sans-serif fonts.
    coordinate_of(characters) * 6.4
}

/// `text` cut to what fits into `width` units at the label's size.
fn fitted(text: &str, width: f64) -> String {
    let fit = (0..text.chars().count()).take_while(|n| width_of(*n) < width).count();
    if fit >= text.chars().count() {
        return text.to_owned();
    }
    let kept: String = text.chars().take(fit.saturating_sub(1)).collect();
    format!("{kept}…")
}
