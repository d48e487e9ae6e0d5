//! Charts as SVG, drawn by this package so that their bytes are the same everywhere and their
//! colors follow the page. A chart knows shapes and labels, not records.
//!
//! Every chart is as wide as its column, on a phone as on a desktop, and its text is never scaled.
//! Labels are above their marks, so that they fit a phone.

mod bars;
mod color;
mod curves;
mod deviation;
mod forest;
mod heat;
mod pareto;
mod scale;
mod svg;

use serde::Serialize;

pub use bars::{Bar, BarGroup, bars};
pub use color::variable;
pub use curves::{Break, Curve, Level, TrendPanel, TrendPoint, cdf, sparkline, trends};
pub use deviation::{DotRow, dots};
pub use forest::{Forest, ForestMark, ForestRow};
pub use heat::{Heat, HeatCell, HeatRow, shade};
pub use pareto::{ParetoPoint, ParetoSeries, legend as pareto_legend, pareto, with_variants};

/// Smallest width of a chart, in pixels: that of a column on a phone. Labels are cut to it.
const NARROW: f64 = 340.0;

/// Appearance of the marks of one series: the engine's color, and what tells series of one engine
/// apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    color: usize,
    /// Index of the series among those of its engine: it decides shape, dashes and lightness.
    variant: usize,
    /// True for figures that were published elsewhere and not measured here, drawn as outlines.
    hollow: bool,
}

impl Look {
    /// Returns the look of the first series of `engine`, with measured figures.
    pub fn of(engine: &str) -> Self {
        Self { color: color::of_engine(engine), variant: 0, hollow: false }
    }

    /// Returns the look of the series of the same engine with this index.
    pub fn variant(self, variant: usize) -> Self {
        Self { variant, ..self }
    }

    /// Returns the same look for figures that were published elsewhere, or measured here.
    pub fn hollow(self, hollow: bool) -> Self {
        Self { hollow, ..self }
    }

    /// Returns the CSS classes of an element of the kind `kind`.
    fn class(self, kind: &str) -> String {
        let variant = match self.variant % svg::SERIES {
            0 => String::new(),
            variant => format!(" v{variant}"),
        };
        let hollow = if self.hollow { " hollow" } else { "" };
        format!("{kind} s{}{variant}{hollow}", self.color)
    }
}

/// Tooltip of a mark, and the page that the mark links to.
#[derive(Debug, Clone, Default)]
pub struct Tip {
    pub text: String,
    /// Address from the root of the site, percent-encoded; `None` for a mark without a link.
    pub address: Option<String>,
}

impl Tip {
    /// Returns a tooltip without a link.
    pub fn plain(text: &str) -> Self {
        Self { text: text.to_owned(), address: None }
    }
}

/// Entry of a chart's legend: a sample of what is drawn, and its meaning.
#[derive(Debug, Clone, Serialize)]
pub struct Key {
    pub swatch: String,
    pub text: String,
}

impl Key {
    /// Returns the entry of a series of marks, or of bars.
    pub fn series(look: Look, kind: &str, text: &str) -> Self {
        // Bars have no line between them, and are square.
        let (line, shape) = match kind {
            "bar" => (String::new(), 1),
            _ => (look.class("step"), look.variant),
        };
        Self { swatch: svg::swatch(&line, &look.class(kind), shape), text: text.to_owned() }
    }

    /// Returns the entry of an element that is drawn under the CSS classes `line` and `mark`, each
    /// empty for none.
    pub fn note(line: &str, mark: &str, text: &str) -> Self {
        Self { swatch: svg::swatch(line, mark, 0), text: text.to_owned() }
    }
}

/// Entry of legends about figures published elsewhere.
pub fn hollow_key() -> Key {
    Key::note("", "mark hollow", "hollow: published elsewhere, not verified")
}

/// Entry of legends about the interval of a point.
pub fn range_key() -> Key {
    let text = "thin line: smallest to largest run; none for a single run";
    Key::note("whisker", "", text)
}

/// A drawn chart with its data as a table.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    pub title: String,
    /// Explanation of the chart's content and how to read it, in a few sentences.
    pub caption: String,
    pub legend: Vec<Key>,
    /// SVG text; links in it are addresses from the root of the site.
    pub svg: String,
    /// Column heads of the chart's data table; the first column names the row.
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Chart {
    /// Finishes `drawing` and adds its data as a table.
    pub fn new(
        title: &str,
        caption: &str,
        drawing: svg::Svg,
        heads: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self::panels(title, caption, drawing.finish(title), heads, rows)
    }

    /// Builds a chart of several drawings that are finished already.
    pub fn panels(
        title: &str,
        caption: &str,
        svg: String,
        heads: impl IntoIterator<Item = impl Into<String>>,
        rows: Vec<Vec<String>>,
    ) -> Self {
        Self {
            title: title.to_owned(),
            caption: caption.to_owned(),
            legend: Vec::new(),
            svg,
            heads: heads.into_iter().map(Into::into).collect(),
            rows,
        }
    }

    /// Adds entries to the chart's legend.
    pub fn with_legend(mut self, keys: impl IntoIterator<Item = Key>) -> Self {
        self.legend.extend(keys);
        self
    }
}

/// Draws a labeled horizontal axis, with grid lines over the height of the plot.
fn x_axis(svg: &mut svg::Svg, scale: &scale::Scale, (top, bottom): (f64, f64), label: &str) {
    for tick in &scale.ticks(5) {
        let x = scale.at(tick.value);
        svg.line("grid", (x, top), (x, bottom));
        svg.text("tick", (x, bottom + 14.0), 0.0, (anchor_at(x), &tick.label));
    }
    svg.text("axis", (100.0, bottom + 30.0), 0.0, (svg::Anchor::End, label));
}

/// Height of a horizontal axis with its labels, in pixels.
const AXIS: f64 = 36.0;

/// Returns the alignment of a label at `x`, which keeps labels at the edges inside the drawing.
fn anchor_at(x: f64) -> svg::Anchor {
    match x {
        x if x < 1.0 => svg::Anchor::Start,
        x if x > 99.0 => svg::Anchor::End,
        _ => svg::Anchor::Middle,
    }
}

/// Draws the tick labels of a vertical axis left of the plot, with grid lines over its width.
fn y_axis(svg: &mut svg::Svg, scale: &scale::Scale, wanted: u32) {
    for tick in &scale.ticks(wanted) {
        let y = scale.at(tick.value);
        svg.line("grid", (0.0, y), (100.0, y));
        svg.text("tick", (0.0, y + 4.0), -6.0, (svg::Anchor::End, &tick.label));
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
/// coordinates are computed.
fn coordinate_of(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Estimates the width of a label with this number of characters, in pixels.
fn width_of(characters: usize) -> f64 {
    // Mean width of a character over common sans-serif fonts.
    coordinate_of(characters) * 6.4
}

/// Cuts `text` to `width` pixels at the label's font size; an ellipsis marks the cut.
fn fitted(text: &str, width: f64) -> String {
    let fit = (0..text.chars().count()).take_while(|n| width_of(*n) < width).count();
    if fit >= text.chars().count() {
        return text.to_owned();
    }
    let kept: String = text.chars().take(fit.saturating_sub(1)).collect();
    format!("{kept}…")
}
