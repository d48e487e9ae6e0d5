//! Dot-and-whisker chart: deviation of the repeats of each row from their median.

use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{Mark, WIDTH, fitted, x_axis};

/// Row of a dot-and-whisker chart: the repeats of one scenario.
#[derive(Debug, Clone)]
pub struct DotRow {
    pub label: String,
    /// Median as it is shown, with its unit.
    pub value: String,
    /// Deviation of each repeat from the median in percent, and its tooltip, in the order in which
    /// the repeats ran.
    pub repeats: Vec<(f64, String)>,
    pub mark: Mark,
}

/// Dot-and-whisker chart of repeats around their median.
#[derive(Debug, Clone)]
pub struct Dots {
    pub title: String,
    pub description: String,
    pub rows: Vec<DotRow>,
}

const ROW: f64 = 42.0;
const TOP: f64 = 4.0;

/// Smallest range of the axis in percent, so that noise of a tenth of a percent looks small.
const NARROWEST_PCT: f64 = 2.0;

impl Dots {
    /// Draws the dot-and-whisker chart as SVG.
    pub fn draw(&self) -> String {
        let rows = f64::from(u32::try_from(self.rows.len()).unwrap_or(u32::MAX));
        let bottom = TOP + rows * ROW;
        let mut svg = Svg::new(WIDTH, bottom + 34.0);
        let reach = self.rows.iter().flat_map(|row| &row.repeats).map(|(pct, _)| pct.abs());
        let reach = super::scale::round_up(reach.fold(NARROWEST_PCT, f64::max));
        let scale = Scale::linear((-reach, reach), (8.0, WIDTH - 8.0));
        x_axis(&mut svg, &scale, TOP, bottom, "% from the median");
        svg.line("zero", (scale.at(0.0), TOP), (scale.at(0.0), bottom));
        let mut top = TOP;
        for row in &self.rows {
            draw_row(&mut svg, &scale, row, top);
            top += ROW;
        }
        svg.finish(&self.title, &self.description)
    }
}

fn draw_row(svg: &mut Svg, scale: &Scale, row: &DotRow, top: f64) {
    svg.rect("halo", (0.0, top + 1.0), (WIDTH, 17.0));
    svg.text("label", (0.0, top + 13.0), Anchor::Start, &fitted(&row.label, 220.0));
    svg.text("value", (WIDTH, top + 13.0), Anchor::End, &row.value);
    let middle = top + 29.0;
    let low = row.repeats.iter().map(|(pct, _)| *pct).fold(f64::INFINITY, f64::min);
    let high = row.repeats.iter().map(|(pct, _)| *pct).fold(f64::NEG_INFINITY, f64::max);
    if low < high {
        svg.line("whisker", (scale.at(low), middle), (scale.at(high), middle));
    }
    for (pct, title) in &row.repeats {
        svg.dot(&format!("dot {}", row.mark.class()), (scale.at(*pct), middle), 4.0, title);
    }
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
        let dots =
            Dots { title: "t".into(), description: "d".into(), rows: vec![row("a", &[0.0])] };
        let svg = dots.draw();
        assert!(svg.contains("dot gray") && !svg.contains("whisker"), "{svg}");
    }

    #[test]
    fn repeats_are_drawn_in_order() {
        let dots = Dots {
            title: "Repeats".into(),
            description: "d".into(),
            rows: vec![row("sharegpt-lite@1", &[-0.5, 0.0, 1.5])],
        };
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
        .assert_eq(&dots.draw());
    }
}
