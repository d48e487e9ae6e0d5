//! Forest plot: effects with their intervals around zero, and the minimum effect below which
//! nothing is called a change.

use super::scale::{Scale, round_up};
use super::svg::{Anchor, Svg};
use super::{WIDTH, fitted, x_axis};

/// Certainty of an effect, which decides how it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForestMark {
    /// Confirmed regression, the only effect in color.
    Worse,
    /// Confirmed effect that is not a regression.
    Solid,
    /// Effect that no verdict claims, drawn hollow.
    Hollow,
}

/// Row of a forest plot: one effect.
#[derive(Debug, Clone)]
pub struct ForestRow {
    pub label: String,
    /// Effect and verdict, as they are shown.
    pub text: String,
    pub effect_pct: f64,
    pub interval_pct: Option<(f64, f64)>,
    pub floor_pct: f64,
    pub mark: ForestMark,
}

/// Forest plot of effects with intervals, one per row.
#[derive(Debug, Clone)]
pub struct Forest {
    pub title: String,
    pub description: String,
    pub rows: Vec<ForestRow>,
}

const ROW: f64 = 42.0;
const TOP: f64 = 4.0;

/// Largest range of the axis in percent. A wider interval is cut off and ends in an arrow, so that
/// one extreme row does not flatten the others.
const WIDEST_PCT: f64 = 50.0;

impl Forest {
    /// Draws the forest plot as SVG.
    pub fn draw(&self) -> String {
        let rows = f64::from(u32::try_from(self.rows.len()).unwrap_or(u32::MAX));
        let bottom = TOP + rows * ROW;
        let mut svg = Svg::new(WIDTH, bottom + 34.0);
        let ends = self.rows.iter().flat_map(|row| {
            let (low, high) = row.interval_pct.unwrap_or((row.effect_pct, row.effect_pct));
            [low.abs(), high.abs(), row.effect_pct.abs(), row.floor_pct]
        });
        let reach = round_up(ends.fold(1.0, f64::max).min(WIDEST_PCT));
        let scale = Scale::linear((-reach, reach), (8.0, WIDTH - 8.0));
        for (row, index) in self.rows.iter().zip(0_u32..) {
            let top = TOP + f64::from(index) * ROW;
            let (left, right) = (scale.at(-row.floor_pct), scale.at(row.floor_pct));
            svg.rect("floor", (left, top + 19.0), (right - left, ROW - 19.0));
        }
        x_axis(&mut svg, &scale, TOP, bottom, "% change");
        svg.line("zero", (scale.at(0.0), TOP), (scale.at(0.0), bottom));
        for (row, index) in self.rows.iter().zip(0_u32..) {
            draw_row(&mut svg, &scale, row, TOP + f64::from(index) * ROW);
        }
        svg.finish(&self.title, &self.description)
    }
}

fn draw_row(svg: &mut Svg, scale: &Scale, row: &ForestRow, top: f64) {
    svg.rect("halo", (0.0, top + 1.0), (WIDTH, 17.0));
    svg.text("label", (0.0, top + 13.0), Anchor::Start, &fitted(&row.label, 230.0));
    svg.text("value", (WIDTH, top + 13.0), Anchor::End, &row.text);
    let middle = top + 30.0;
    if let Some((low, high)) = row.interval_pct {
        svg.line("whisker", (scale.at(low), middle), (scale.at(high), middle));
        for (end, lean) in [(low, 1.0), (high, -1.0)] {
            let x = scale.at(end);
            let lean = if scale.holds(end) { 0.0 } else { lean * 4.0 };
            svg.path("whisker", &[(x + lean, middle - 4.0), (x, middle), (x + lean, middle + 4.0)]);
        }
    }
    let class = match row.mark {
        ForestMark::Worse => "dot color",
        ForestMark::Solid => "dot plain",
        ForestMark::Hollow => "dot hollow",
    };
    svg.dot(class, (scale.at(row.effect_pct), middle), 4.0, &row.text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wild_interval_is_cut_and_ends_in_an_arrow() {
        let row = |high| ForestRow {
            label: "a".into(),
            text: "inconclusive".into(),
            effect_pct: 1.0,
            interval_pct: Some((-2.0, high)),
            floor_pct: 2.0,
            mark: ForestMark::Hollow,
        };
        let forest =
            |high| Forest { title: "t".into(), description: "d".into(), rows: vec![row(high)] };
        assert!(forest(1e6).draw().contains("L352 34"), "the arrow points at the edge");
        assert!(!forest(1e6).draw().contains("NaN"));
        assert_eq!(forest(3.0).draw().matches("class=\"dot hollow\"").count(), 1);
    }
}
