//! Heat table: one figure by two names, shaded by how near it comes to the best of its kind.

use super::svg::{Anchor, Svg};
use super::{WIDTH, coordinate_of, fitted};

/// One figure.
#[derive(Debug, Clone)]
pub struct HeatCell {
    /// The figure as shown, or a dash.
    pub text: String,
    /// What shows on hovering: the exact value, or why there is none.
    pub title: String,
    /// Share of the best, 0 to 1. `None` leaves the cell bare: no figure, or a single run.
    pub shade: Option<f64>,
}

/// Figures under one label, one for each head.
#[derive(Debug, Clone)]
pub struct HeatRow {
    pub label: String,
    pub cells: Vec<HeatCell>,
}

/// A heat table.
#[derive(Debug, Clone)]
pub struct Heat {
    pub title: String,
    pub description: String,
    pub heads: Vec<String>,
    pub rows: Vec<HeatRow>,
}

const LABEL: f64 = 18.0;
const CELL: f64 = 22.0;
const GAP: f64 = 6.0;
const HEAD: f64 = 18.0;

/// Steps of shade that an eye tells apart.
const SHADES: [f64; 4] = [0.25, 0.5, 0.75, 0.9];

impl Heat {
    /// Draws the chart. Labels stand above their row, so that they may be long.
    #[must_use]
    pub fn draw(&self) -> String {
        let row_height = LABEL + CELL + GAP;
        let mut svg = Svg::new(WIDTH, HEAD + row_height * coordinate_of(self.rows.len()));
        let width = WIDTH / coordinate_of(self.heads.len().max(1));
        for (index, head) in self.heads.iter().enumerate() {
            let middle = (coordinate_of(index) + 0.5) * width;
            svg.text("axis", (middle, 12.0), Anchor::Middle, &fitted(head, width - 4.0));
        }
        for (index, row) in self.rows.iter().enumerate() {
            let top = HEAD + row_height * coordinate_of(index);
            svg.text("label", (0.0, top + 13.0), Anchor::Start, &fitted(&row.label, WIDTH));
            for (column, cell) in row.cells.iter().take(self.heads.len()).enumerate() {
                let left = coordinate_of(column) * width;
                let corner = (left + 1.0, top + LABEL);
                svg.titled_rect(&shade(cell), corner, (width - 2.0, CELL), &cell.title);
                let middle = (left + width / 2.0, top + LABEL + 15.0);
                svg.text("value", middle, Anchor::Middle, &fitted(&cell.text, width));
            }
        }
        svg.finish(&self.title, &self.description)
    }
}

fn shade(cell: &HeatCell) -> String {
    match cell.shade.filter(|share| share.is_finite()) {
        Some(share) => {
            let step = SHADES.iter().filter(|limit| share >= **limit).count();
            format!("heat h{step}")
        }
        None => "heat bare".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_without_a_figure_is_bare_and_says_why() {
        let cell = |text: &str, shade| HeatCell {
            text: text.into(),
            title: format!("{text} exactly"),
            shade,
        };
        let heat = Heat {
            title: "Share of the best".into(),
            description: "d".into(),
            heads: vec!["balanced".into(), "thinking".into()],
            rows: vec![HeatRow {
                label: "vllm".into(),
                cells: vec![cell("0.93", Some(0.93)), cell("-", None)],
            }],
        };
        expect_test::expect![[r#"
            <svg class="chart" role="img" viewBox="0 0 360 64"><title>Share of the best</title><desc>d</desc>
            <text class="axis" x="90" y="12" text-anchor="middle">balanced</text>
            <text class="axis" x="270" y="12" text-anchor="middle">thinking</text>
            <text class="label" x="0" y="31">vllm</text>
            <rect class="heat h4" x="1" y="36" width="178" height="22"><title>0.93 exactly</title></rect>
            <text class="value" x="90" y="51" text-anchor="middle">0.93</text>
            <rect class="heat bare" x="181" y="36" width="178" height="22"><title>- exactly</title></rect>
            <text class="value" x="270" y="51" text-anchor="middle">-</text>
            </svg>"#]]
        .assert_eq(&heat.draw());
    }

    #[test]
    fn a_wild_share_stays_within_the_shades() {
        for (share, expected) in
            [(f64::NAN, "heat bare"), (1e12, "heat h4"), (-1.0, "heat h0"), (0.5, "heat h2")]
        {
            let cell = HeatCell { text: "x".into(), title: "x".into(), shade: Some(share) };
            assert_eq!(shade(&cell), expected, "{share}");
        }
    }
}
