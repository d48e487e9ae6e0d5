//! Charts of deviations from zero, one row each: repeats around their median, and effects with
//! their intervals (forest plot).

use super::scale::{Scale, round_up};
use super::svg::{Anchor, Svg};
use super::{Mark, WIDTH, coordinate_of, extent, fitted, x_axis};

/// Row of a dot-and-whisker chart: the repeats of one scenario.
#[derive(Debug, Clone)]
pub struct DotRow {
    pub label: String,
    /// Median of the row's repeats as it is shown, with half of their range in percent.
    pub value: String,
    /// Deviation of each repeat from the median in percent, and its tooltip, in the order of the
    /// runs' ids.
    pub repeats: Vec<(f64, String)>,
    pub mark: Mark,
}

/// Certainty of an effect, which decides how it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForestMark {
    /// Worse: an effect whose verdict is a regression, the only one that is drawn in color.
    Worse,
    /// Solid: a confirmed improvement, or a gain that a lab found; drawn filled.
    Solid,
    /// Hollow: any other effect, drawn as an outline.
    Hollow,
}

/// Row of a forest plot: one effect.
#[derive(Debug, Clone)]
pub struct ForestRow {
    pub label: String,
    /// Text of a forest plot's row: the effect, followed by its verdict where it has one.
    pub text: String,
    pub effect_pct: f64,
    pub interval_pct: Option<(f64, f64)>,
    /// Minimum effect of the metric in percent, below which nothing is called a change.
    pub min_effect_pct: f64,
    pub mark: ForestMark,
}

const ROW: f64 = 42.0;
const TOP: f64 = 4.0;

/// Smallest extent of a dot-and-whisker chart's axis to each side of zero, in percent, so that
/// noise of a tenth of a percent looks small.
const NARROWEST_PCT: f64 = 2.0;

/// Largest extent of a forest plot's axis to each side of zero, in percent. A wider interval is cut
/// off and ends in an arrow, so that one extreme row does not flatten the others.
const WIDEST_PCT: f64 = 50.0;

/// Draws a dot-and-whisker chart of repeats around their median.
pub fn dots(rows: &[DotRow]) -> Svg {
    let bottom = TOP + coordinate_of(rows.len()) * ROW;
    let mut svg = Svg::new(WIDTH, bottom + 34.0);
    let reach = rows.iter().flat_map(|row| &row.repeats).map(|(pct, _)| pct.abs());
    let scale = around_zero(round_up(reach.fold(NARROWEST_PCT, f64::max)));
    x_axis(&mut svg, &scale, TOP, bottom, "% from the median");
    svg.line("zero", (scale.at(0.0), TOP), (scale.at(0.0), bottom));
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + coordinate_of(index) * ROW;
        draw_head(&mut svg, top, &fitted(&row.label, 220.0), &row.value);
        let middle = top + 29.0;
        let ends = extent(row.repeats.iter().map(|(pct, _)| *pct));
        if let Some((low, high)) = ends.filter(|(low, high)| low < high) {
            svg.line("whisker", (scale.at(low), middle), (scale.at(high), middle));
        }
        for (pct, title) in &row.repeats {
            svg.dot(&format!("dot {}", row.mark.class()), (scale.at(*pct), middle), 4.0, title);
        }
    }
    svg
}

/// Draws a forest plot: effects with their intervals around zero, and the minimum effect below
/// which nothing is called a change.
pub fn forest(rows: &[ForestRow]) -> Svg {
    let bottom = TOP + coordinate_of(rows.len()) * ROW;
    let mut svg = Svg::new(WIDTH, bottom + 34.0);
    let ends = rows.iter().flat_map(|row| {
        let (low, high) = row.interval_pct.unwrap_or((row.effect_pct, row.effect_pct));
        [low.abs(), high.abs(), row.effect_pct.abs(), row.min_effect_pct]
    });
    let scale = around_zero(round_up(ends.fold(1.0, f64::max).min(WIDEST_PCT)));
    let top = |index| TOP + coordinate_of(index) * ROW;
    for (index, row) in rows.iter().enumerate() {
        let (left, right) = (scale.at(-row.min_effect_pct), scale.at(row.min_effect_pct));
        svg.rect("floor", (left, top(index) + 19.0), (right - left, ROW - 19.0));
    }
    x_axis(&mut svg, &scale, TOP, bottom, "% change");
    svg.line("zero", (scale.at(0.0), TOP), (scale.at(0.0), bottom));
    for (index, row) in rows.iter().enumerate() {
        draw_effect(&mut svg, &scale, row, top(index));
    }
    svg
}

/// Returns the scale of an axis from `-reach` to `reach` percent.
fn around_zero(reach: f64) -> Scale {
    Scale::linear((-reach, reach), (8.0, WIDTH - 8.0))
}

fn draw_head(svg: &mut Svg, top: f64, label: &str, value: &str) {
    svg.rect("halo", (0.0, top + 1.0), (WIDTH, 17.0));
    svg.text("label", (0.0, top + 13.0), Anchor::Start, label);
    svg.text("value", (WIDTH, top + 13.0), Anchor::End, value);
}

fn draw_effect(svg: &mut Svg, scale: &Scale, row: &ForestRow, top: f64) {
    draw_head(svg, top, &fitted(&row.label, 230.0), &row.text);
    let middle = top + 30.0;
    if let Some((low, high)) = row.interval_pct {
        svg.line("whisker", (scale.at(low), middle), (scale.at(high), middle));
        for (end, lean) in [(low, 1.0), (high, -1.0)] {
            let x = scale.at(end);
            let lean = if scale.contains(end) { 0.0 } else { lean * 4.0 };
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

    fn row(label: &str, repeats: &[f64]) -> DotRow {
        let repeats: Vec<_> = repeats.iter().map(|pct| (*pct, format!("{pct} %"))).collect();
        let mark = if repeats.len() > 1 { Mark::Color } else { Mark::Gray };
        DotRow { label: label.into(), value: "1,234 /s".into(), repeats, mark }
    }

    #[test]
    fn a_single_run_has_neither_color_nor_whisker() {
        let svg = dots(&[row("a", &[0.0])]).finish("t", "d");
        assert!(svg.contains("dot gray") && !svg.contains("whisker"), "{svg}");
    }

    #[test]
    fn repeats_are_drawn_in_order() {
        let rows = [row("sharegpt-lite@1", &[-0.5, 0.0, 1.5])];
        expect_test::expect![[r#"
            <svg class="chart" role="img" viewBox="0 0 360 80"><title>Repeats</title><desc>d</desc>
            <line class="grid" x1="8" y1="4" x2="8" y2="46"/>
            <text class="tick" x="8" y="60">−2</text>
            <line class="grid" x1="94" y1="4" x2="94" y2="46"/>
            <text class="tick" x="94" y="60" text-anchor="middle">−1</text>
            <line class="grid" x1="180" y1="4" x2="180" y2="46"/>
            <text class="tick" x="180" y="60" text-anchor="middle">0</text>
            <line class="grid" x1="266" y1="4" x2="266" y2="46"/>
            <text class="tick" x="266" y="60" text-anchor="middle">1</text>
            <line class="grid" x1="352" y1="4" x2="352" y2="46"/>
            <text class="tick" x="352" y="60" text-anchor="end">2</text>
            <text class="axis" x="360" y="75" text-anchor="end">% from the median</text>
            <line class="zero" x1="180" y1="4" x2="180" y2="46"/>
            <rect class="halo" x="0" y="5" width="360" height="17"/>
            <text class="label" x="0" y="17">sharegpt-lite@1</text>
            <text class="value" x="360" y="17" text-anchor="end">1,234 /s</text>
            <line class="whisker" x1="137" y1="33" x2="309" y2="33"/>
            <circle class="dot color" cx="137" cy="33" r="4"><title>-0.5 %</title></circle>
            <circle class="dot color" cx="180" cy="33" r="4"><title>0 %</title></circle>
            <circle class="dot color" cx="309" cy="33" r="4"><title>1.5 %</title></circle>
            </svg>"#]]
        .assert_eq(&dots(&rows).finish("Repeats", "d"));
    }

    #[test]
    fn a_wild_interval_is_cut_and_ends_in_an_arrow() {
        let row = |high| ForestRow {
            label: "a".into(),
            text: "inconclusive".into(),
            effect_pct: 1.0,
            interval_pct: Some((-2.0, high)),
            min_effect_pct: 2.0,
            mark: ForestMark::Hollow,
        };
        let drawn = |high| forest(&[row(high)]).finish("t", "d");
        assert!(drawn(1e6).contains("L352 34"), "the arrow points at the edge");
        assert!(!drawn(1e6).contains("NaN"));
        assert_eq!(drawn(3.0).matches("class=\"dot hollow\"").count(), 1);
    }
}
