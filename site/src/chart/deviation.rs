//! Dot-and-whisker chart: repeats around their median, one row each.

use super::scale::{Scale, round_up};
use super::svg::{Anchor, Svg};
use super::{AXIS, Look, Tip, coordinate_of, extent, fitted, x_axis};

/// Row of a dot-and-whisker chart: the repeats of one scenario.
#[derive(Debug, Clone)]
pub struct DotRow {
    pub label: String,
    /// Median of the row's repeats as it is shown, with half of their range in percent.
    pub value: String,
    /// Deviation of each repeat from the median in percent, and its tooltip, in the order of the
    /// runs' ids.
    pub repeats: Vec<(f64, Tip)>,
    pub look: Look,
}

const ROW: f64 = 42.0;
const TOP: f64 = 4.0;

/// Smallest extent of a dot-and-whisker chart's axis to each side of zero, in percent, so that
/// noise of a tenth of a percent looks small.
const NARROWEST_PCT: f64 = 2.0;

/// Draws a dot-and-whisker chart of repeats around their median.
pub fn dots(rows: &[DotRow]) -> Svg {
    let bottom = TOP + coordinate_of(rows.len()) * ROW;
    let mut svg = Svg::new("", bottom + AXIS);
    let reach = rows.iter().flat_map(|row| &row.repeats).map(|(pct, _)| pct.abs());
    let reach = round_up(reach.fold(NARROWEST_PCT, f64::max));
    let scale = Scale::linear((-reach, reach), (0.0, 100.0));
    x_axis(&mut svg, &scale, (TOP, bottom), "% from the median");
    svg.line("zero", (scale.at(0.0), TOP), (scale.at(0.0), bottom));
    for (index, row) in rows.iter().enumerate() {
        let top = TOP + coordinate_of(index) * ROW;
        svg.rect("halo", (0.0, top + 1.0), (100.0, 17.0));
        svg.text("label", (0.0, top + 13.0), 0.0, (Anchor::Start, &fitted(&row.label, 220.0)));
        svg.text("value", (100.0, top + 13.0), 0.0, (Anchor::End, &row.value));
        let middle = top + 29.0;
        let ends = extent(row.repeats.iter().map(|(pct, _)| *pct));
        if let Some((low, high)) = ends.filter(|(low, high)| low < high) {
            svg.line("whisker", (scale.at(low), middle), (scale.at(high), middle));
        }
        for (pct, tip) in &row.repeats {
            svg.dot(&row.look.class("mark"), (scale.at(*pct), middle), 4.5, tip);
        }
    }
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(label: &str, repeats: &[f64]) -> DotRow {
        let repeats = repeats.iter().map(|pct| (*pct, Tip::plain(&format!("{pct} %")))).collect();
        let look = Look::of("redline");
        DotRow { label: label.into(), value: "1,234 /s".into(), repeats, look }
    }

    #[test]
    fn a_single_run_has_no_whisker() {
        let svg = dots(&[row("a", &[0.0])]).finish("t");
        assert!(svg.contains("mark s0") && !svg.contains("whisker"), "{svg}");
    }

    #[test]
    fn repeats_are_drawn_in_order() {
        let rows = [row("sharegpt-lite@1", &[-0.5, 0.0, 1.5])];
        expect_test::expect![[r#"
            <svg class="chart" role="img" height="82"><title>Repeats</title>
            <line class="grid" x1="0%" y1="4" x2="0%" y2="46"/>
            <text class="tick" x="0%" y="60">−2</text>
            <line class="grid" x1="25%" y1="4" x2="25%" y2="46"/>
            <text class="tick" x="25%" y="60" text-anchor="middle">−1</text>
            <line class="grid" x1="50%" y1="4" x2="50%" y2="46"/>
            <text class="tick" x="50%" y="60" text-anchor="middle">0</text>
            <line class="grid" x1="75%" y1="4" x2="75%" y2="46"/>
            <text class="tick" x="75%" y="60" text-anchor="middle">1</text>
            <line class="grid" x1="100%" y1="4" x2="100%" y2="46"/>
            <text class="tick" x="100%" y="60" text-anchor="end">2</text>
            <text class="axis" x="100%" y="76" text-anchor="end">% from the median</text>
            <line class="zero" x1="50%" y1="4" x2="50%" y2="46"/>
            <rect class="halo" x="0%" y="5" width="100%" height="17"/>
            <text class="label" x="0%" y="17">sharegpt-lite@1</text>
            <text class="value" x="100%" y="17" text-anchor="end">1,234 /s</text>
            <line class="whisker" x1="37.5%" y1="33" x2="87.5%" y2="33"/>
            <circle class="mark s0" cx="37.5%" cy="33" r="4.5"><title>-0.5 %</title></circle>
            <circle class="mark s0" cx="50%" cy="33" r="4.5"><title>0 %</title></circle>
            <circle class="mark s0" cx="87.5%" cy="33" r="4.5"><title>1.5 %</title></circle>
            </svg>"#]]
        .assert_eq(&dots(&rows).finish("Repeats"));
    }
}
