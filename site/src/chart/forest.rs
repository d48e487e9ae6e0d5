//! Forest plot: effects with their intervals on an axis of ratios, one row each. Rows are those of a
//! table on the page, so that their labels are links and break on a phone.

use judge::diff::estimate::log_of;
use serde::Serialize;

use super::svg::{Anchor, Svg};
use super::{NARROW, Tip, width_of};
use crate::link::Target;

/// Certainty of an effect, which decides how it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ForestMark {
    /// Worse: an effect whose verdict is a regression, the only one that is drawn in red.
    Worse,
    /// Solid: a confirmed improvement, or a gain that a lab found; drawn filled.
    Solid,
    /// Hollow: any other effect, drawn as an outline.
    Hollow,
}

/// Effect of one row of a forest plot.
#[derive(Debug, Clone)]
pub struct ForestRow {
    /// Heading above the row, for rows with the same heading as the row before only once.
    pub group: String,
    pub label: String,
    /// Text of a forest plot's row: the effect, followed by its verdict where it has one.
    pub text: String,
    /// Tooltip: effect, interval, number of pairs and verdict.
    pub tip: String,
    /// Improvement in percent of the baseline: above zero where the candidate is better.
    pub better_pct: f64,
    /// Two-sided interval of the improvement, in percent.
    pub interval_pct: Option<(f64, f64)>,
    /// Minimum effect of the metric in percent, below which nothing is called a change.
    pub min_effect_pct: f64,
    pub mark: ForestMark,
    /// Page that the row links to; `None` for a position on the same page.
    pub page: Option<Target>,
    /// Position on the page that the row links to.
    pub anchor: String,
}

/// A forest plot, row by row, as its template shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Forest {
    pub title: String,
    pub caption: String,
    /// SVG of the axis, which stands above the rows.
    pub axis: String,
    pub rows: Vec<ForestLine>,
}

/// Drawn row of a forest plot.
#[derive(Debug, Clone, Serialize)]
pub struct ForestLine {
    /// Heading above the row; empty where it is that of the row before.
    pub group: String,
    pub label: String,
    pub text: String,
    pub mark: ForestMark,
    pub svg: String,
    pub page: Option<Target>,
    pub anchor: String,
}

/// Ticks of the axis, from the ends inward: change in percent, and label. Beyond a quarter, factors
/// are read more easily than percentages.
const TICKS: [(f64, &str); 18] = [
    (900.0, "×10"),
    (-90.0, "÷10"),
    (400.0, "×5"),
    (-80.0, "÷5"),
    (100.0, "×2"),
    (-50.0, "÷2"),
    (25.0, "+25 %"),
    (-20.0, "−20 %"),
    (10.0, "+10 %"),
    (-10.0, "−10 %"),
    (5.0, "+5 %"),
    (-5.0, "−5 %"),
    (2.0, "+2 %"),
    (-2.0, "−2 %"),
    (1.0, "+1 %"),
    (-1.0, "−1 %"),
    (0.5, "+0.5 %"),
    (-0.5, "−0.5 %"),
];

/// Smallest and largest extent of the axis to each side of zero, as changes in percent. A wider
/// interval is cut off and ends in an arrow, so that one extreme row does not flatten the others.
const NARROWEST_PCT: f64 = 2.0;
const WIDEST_PCT: f64 = 900.0;

const ROW: f64 = 22.0;
const HEAD: f64 = 30.0;

/// Logarithmic axis of ratios around 1, given as changes in percent.
#[derive(Debug, Clone, Copy)]
struct Axis {
    /// Logarithm of the ratio at the right end.
    reach: f64,
}

impl Axis {
    /// Creates the axis that contains the effects, intervals and minimum effects of `rows`.
    fn of(rows: &[ForestRow]) -> Self {
        let ends = rows.iter().flat_map(|row| {
            let (low, high) = row.interval_pct.unwrap_or((row.better_pct, row.better_pct));
            [low, high, row.better_pct, row.min_effect_pct]
        });
        let reach = ends.map(|pct| log(pct).abs()).filter(|log| log.is_finite());
        let reach = reach.fold(log(NARROWEST_PCT), f64::max).min(log(WIDEST_PCT));
        // A little more than the largest, which then does not touch the edge.
        Self { reach: reach * 1.04 }
    }

    /// Returns the coordinate of a change, in percent of the axis' width, clamped to the axis.
    fn at(self, pct: f64) -> f64 {
        50.0 + 50.0 * (log(pct) / self.reach).clamp(-1.0, 1.0)
    }

    fn contains(self, pct: f64) -> bool {
        log(pct).abs() <= self.reach
    }

    /// Returns the ticks whose labels have room, with their coordinates: zero, and others from the
    /// ends inward.
    fn ticks(self) -> Vec<(f64, &'static str)> {
        let mut kept = vec![(50.0, "0")];
        for (pct, label) in TICKS.iter().filter(|(pct, _)| self.contains(*pct)) {
            let x = self.at(*pct);
            let is_apart = |(other, text): &(f64, &str)| {
                let characters = text.chars().count() + label.chars().count();
                (other - x).abs() >= apart(characters)
            };
            if kept.iter().all(is_apart) {
                kept.push((x, label));
            }
        }
        kept
    }
}

/// Returns the smallest distance between the middles of two tick labels with this number of
/// characters together, in percent of an axis on a phone.
fn apart(characters: usize) -> f64 {
    (width_of(characters) / 2.0 + 5.0) / NARROW * 100.0
}

/// Returns the logarithm of the ratio that a change in percent is; a change to nothing or below is
/// infinitely far.
fn log(pct: f64) -> f64 {
    log_of(pct.max(-100.0))
}

impl Forest {
    /// Draws a forest plot; `None` without rows.
    pub fn of(title: &str, caption: &str, rows: Vec<ForestRow>) -> Option<Self> {
        let axis = Axis::of(&rows);
        let ticks = axis.ticks();
        let mut last = String::new();
        let mut lines = Vec::new();
        for row in rows {
            let group = if row.group == last { String::new() } else { row.group.clone() };
            last.clone_from(&row.group);
            let svg = draw(axis, &ticks, &row);
            let ForestRow { label, text, mark, page, anchor, .. } = row;
            lines.push(ForestLine { group, label, text, mark, svg, page, anchor });
        }
        (!lines.is_empty()).then(|| Self {
            title: title.to_owned(),
            caption: caption.to_owned(),
            axis: draw_axis(&ticks),
            rows: lines,
        })
    }
}

fn draw_axis(ticks: &[(f64, &str)]) -> String {
    let mut svg = Svg::new("", HEAD);
    svg.text("worse", (0.0, 11.0), 0.0, (Anchor::Start, "◂ worse"));
    svg.text("axis", (100.0, 11.0), 0.0, (Anchor::End, "better ▸"));
    for (x, label) in ticks {
        let anchor = match *x {
            x if x < 5.0 => Anchor::Start,
            x if x > 95.0 => Anchor::End,
            _ => Anchor::Middle,
        };
        svg.text("tick", (*x, 27.0), 0.0, (anchor, label));
    }
    svg.finish("Axis: ratio to the baseline, logarithmic; better to the right")
}

fn draw(axis: Axis, ticks: &[(f64, &str)], row: &ForestRow) -> String {
    let mut svg = Svg::new("", ROW);
    let middle = ROW / 2.0;
    // As wide to both sides as the logarithm is, by which verdicts are reached.
    let right = axis.at(row.min_effect_pct);
    svg.rect("floor", (100.0 - right, 0.0), (2.0 * right - 100.0, ROW));
    // The first tick is zero.
    let others: Vec<f64> = ticks.iter().skip(1).map(|(x, _)| *x).collect();
    svg.rules("grid", &others);
    svg.line("zero", (50.0, 0.0), (50.0, ROW));
    let (class, whisker) = match row.mark {
        ForestMark::Worse => ("dot worse", "whisker worse"),
        ForestMark::Solid => ("dot plain", "whisker"),
        ForestMark::Hollow => ("dot hollow", "whisker"),
    };
    if let Some((low, high)) = row.interval_pct {
        svg.line(whisker, (axis.at(low), middle), (axis.at(high), middle));
        for (end, side) in [(low, -8.0), (high, 8.0)] {
            if !axis.contains(end) {
                svg.arrow(whisker, (axis.at(end), middle), side);
            }
        }
    }
    svg.dot(class, (axis.at(row.better_pct), middle), 4.5, &Tip::default());
    svg.finish(&format!("{}: {}", row.label, row.tip))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(better_pct: f64, interval_pct: (f64, f64), mark: ForestMark) -> ForestRow {
        ForestRow {
            group: "Output tokens".into(),
            label: "balanced-lite@1".into(),
            text: "+1 %".into(),
            tip: "from a to b".into(),
            better_pct,
            interval_pct: Some(interval_pct),
            min_effect_pct: 2.0,
            mark,
            page: None,
            anchor: "row".into(),
        }
    }

    fn forest(rows: Vec<ForestRow>) -> Forest {
        Forest::of("t", "c", rows).expect("rows")
    }

    #[test]
    fn twice_and_half_are_equally_far_from_zero() {
        let axis = Axis { reach: 4.0_f64.ln() };
        assert!((axis.at(100.0) - 75.0).abs() < 1e-9 && (axis.at(-50.0) - 25.0).abs() < 1e-9);
        assert!((axis.at(0.0) - 50.0).abs() < 1e-9 && (axis.at(-100.0)).abs() < 1e-9);
    }

    #[test]
    fn ticks_are_round_and_their_labels_have_room() {
        let labels = |reach_pct: f64| {
            let ticks = Axis { reach: log(reach_pct) * 1.04 }.ticks();
            ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(labels(166.0), "0 ×2 ÷2 +25 % −20 %");
        assert_eq!(labels(6.0), "0 +5 % −5 % +2 % −2 %");
        assert_eq!(labels(900.0), "0 ×10 ÷10 ×5 ÷5 ×2 ÷2");
    }

    #[test]
    fn only_a_regression_is_red_and_a_heading_stands_once() {
        let plot = forest(vec![
            row(120.0, (106.0, 137.0), ForestMark::Solid),
            row(-5.0, (-6.0, -4.0), ForestMark::Worse),
            row(0.1, (-3.0, 3.0), ForestMark::Hollow),
        ]);
        let red: Vec<bool> = plot.rows.iter().map(|row| row.svg.contains("worse")).collect();
        assert_eq!(red, [false, true, false]);
        assert_eq!(plot.rows[0].group, "Output tokens");
        assert!(plot.rows[1].group.is_empty());
        assert!(plot.axis.contains("◂ worse") && plot.axis.contains("better ▸"), "{}", plot.axis);
        assert!(plot.rows[0].svg.contains("balanced-lite@1: from a to b"));
    }

    #[test]
    fn a_wild_interval_is_cut_and_ends_in_an_arrow() {
        let drawn =
            |high| forest(vec![row(1.0, (-2.0, high), ForestMark::Hollow)]).rows[0].svg.clone();
        assert!(
            drawn(1e6).contains(r#"<svg x="100%" y="11"><path class="whisker""#),
            "{}",
            drawn(1e6)
        );
        assert!(!drawn(1e6).contains("NaN") && !drawn(f64::INFINITY).contains("NaN"));
        assert!(!drawn(3.0).contains(r#"<path class="whisker""#), "{}", drawn(3.0));
        assert!(Forest::of("t", "c", Vec::new()).is_none());
    }
}
