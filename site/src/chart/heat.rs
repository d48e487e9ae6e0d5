//! Heat table: change of a figure by row and column, shaded by direction and size. A change that
//! is not claimed is not shaded.

use super::svg::{Anchor, Svg};
use super::{WIDTH, coordinate_of, fitted, width_of};

/// Cell of a heat table: the change of one metric from one release to the next.
#[derive(Debug, Clone)]
pub struct HeatCell {
    /// Text of the heat table's cell: the change, or a dash.
    pub text: String,
    /// Tooltip of the heat table's cell: the verdict with its effect and interval, or the reason
    /// why there is none.
    pub title: String,
    /// Improvement in percent, negative for a change for the worse. `None` leaves the cell
    /// unshaded, because the verdict is neither better, worse nor unchanged.
    pub better_pct: Option<f64>,
}

/// Row of a heat table: changes under one label, one per column.
#[derive(Debug, Clone)]
pub struct HeatRow {
    pub label: String,
    pub cells: Vec<HeatCell>,
}

const LABEL: f64 = 18.0;
const CELL: f64 = 22.0;
const GAP: f64 = 6.0;
const HEAD: f64 = 32.0;

/// Largest number of columns that a heat table draws side by side; further columns follow below.
const COLUMNS: usize = 4;

/// Sizes of a change, in percent, from which a heat table's cell has the next deeper shade. The
/// steps are large enough to be distinguished by eye.
const SHADES: [f64; 4] = [1.0, 3.0, 10.0, 30.0];

/// Draws changes as a table of shaded cells. Labels are above their row, so that they may be long.
pub fn heat(heads: &[String], rows: &[HeatRow]) -> Svg {
    let bands = heads.len().div_ceil(COLUMNS);
    let band = HEAD + (LABEL + CELL + GAP) * coordinate_of(rows.len());
    let mut svg = Svg::new(WIDTH, band * coordinate_of(bands.max(1)));
    let width = WIDTH / coordinate_of(heads.len().clamp(1, COLUMNS));
    for (index, heads) in heads.chunks(COLUMNS).enumerate() {
        let top = band * coordinate_of(index);
        draw_heads(&mut svg, heads, top, width);
        for (y, row) in rows.iter().enumerate() {
            let top = top + HEAD + (LABEL + CELL + GAP) * coordinate_of(y);
            let cells = row.cells.iter().skip(index * COLUMNS).take(heads.len());
            svg.text("label", (0.0, top + 13.0), Anchor::Start, &fitted(&row.label, WIDTH));
            draw_cells(&mut svg, cells, top + LABEL, width);
        }
    }
    svg
}

/// Draws the column heads of a heat table. A head that is too wide breaks after the last hyphen
/// that fits.
fn draw_heads(svg: &mut Svg, heads: &[String], top: f64, width: f64) {
    for (column, head) in heads.iter().enumerate() {
        let middle = (coordinate_of(column) + 0.5) * width;
        let fits = |end: &usize| width_of(head[..*end].chars().count()) < width;
        let breaks = head.match_indices('-').map(|(at, _)| at + 1).rfind(fits);
        let whole = fits(&head.len()) || breaks.is_none();
        let (above, below) = match breaks.filter(|_| !whole) {
            Some(at) => head.split_at(at),
            None => ("", head.as_str()),
        };
        for (text, y) in [(above, 11.0), (below, 25.0)] {
            if !text.is_empty() {
                svg.text("axis", (middle, top + y), Anchor::Middle, &fitted(text, width));
            }
        }
    }
}

fn draw_cells<'a>(svg: &mut Svg, cells: impl Iterator<Item = &'a HeatCell>, top: f64, width: f64) {
    for (cell, column) in cells.zip(0_u32..) {
        let left = f64::from(column) * width;
        svg.titled_rect(&shade(cell), (left + 1.0, top), (width - 2.0, CELL), &cell.title);
        let middle = (left + width / 2.0, top + 15.0);
        svg.text("value", middle, Anchor::Middle, &fitted(&cell.text, width));
    }
}

fn shade(cell: &HeatCell) -> String {
    match cell.better_pct.filter(|pct| pct.is_finite()) {
        Some(pct) => {
            let step = SHADES.iter().filter(|limit| pct.abs() >= **limit).count();
            let side = if pct < 0.0 { "worse" } else { "better" };
            format!("heat {side} h{step}")
        }
        None => "heat bare".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(text: &str, better_pct: Option<f64>) -> HeatCell {
        HeatCell { text: text.into(), title: format!("{text} exactly"), better_pct }
    }

    #[test]
    fn what_is_not_claimed_is_bare_and_says_why() {
        let heads = ["balanced-lite@1", "a-scenario-with-a-long-name"].map(str::to_owned);
        let row = HeatRow {
            label: "qwen3-8b".into(),
            cells: vec![cell("+4.0 %", Some(4.0)), cell("−2.0 %", None)],
        };
        expect_test::expect![[r#"
            <svg class="chart" role="img" viewBox="0 0 360 78"><title>Since v1</title><desc>d</desc>
            <text class="axis" x="90" y="25" text-anchor="middle">balanced-lite@1</text>
            <text class="axis" x="270" y="25" text-anchor="middle">a-scenario-with-a-long-name</text>
            <text class="label" x="0" y="45">qwen3-8b</text>
            <rect class="heat better h2" x="1" y="50" width="178" height="22"><title>+4.0 % exactly</title></rect>
            <text class="value" x="90" y="65" text-anchor="middle">+4.0 %</text>
            <rect class="heat bare" x="181" y="50" width="178" height="22"><title>−2.0 % exactly</title></rect>
            <text class="value" x="270" y="65" text-anchor="middle">−2.0 %</text>
            </svg>"#]]
        .assert_eq(&heat(&heads, &[row]).finish("Since v1", "d"));
    }

    #[test]
    fn more_columns_than_fit_follow_below_and_long_heads_break() {
        let heads: Vec<String> = (1..=6).map(|n| format!("long-input-lite@{n}")).collect();
        let cells = heads.iter().map(|head| cell(head, None)).collect();
        let row = HeatRow { label: "m".into(), cells };
        let svg = heat(&heads, &[row]).finish("t", "d");
        assert_eq!(svg.matches(">m</text>").count(), 2, "the label stands in each band: {svg}");
        assert!(svg.contains(">long-input-</text>") && svg.contains(">lite@6</text>"), "{svg}");
    }

    #[test]
    fn a_wild_change_stays_within_the_shades() {
        for (pct, expected) in [
            (f64::NAN, "heat bare"),
            (1e12, "heat better h4"),
            (-1e12, "heat worse h4"),
            (0.0, "heat better h0"),
            (-3.5, "heat worse h2"),
        ] {
            assert_eq!(shade(&cell("x", Some(pct))), expected, "{pct}");
        }
    }
}
