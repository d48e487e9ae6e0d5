//! Heat table: change of a figure by row and column, shaded by direction and size. A change that
//! is not claimed is not shaded. The page shows it as a table, whose cells are links.

use serde::Serialize;

use crate::link::Target;

/// Cell of a heat table: the change of one metric from one release to the next.
#[derive(Debug, Clone, Serialize)]
pub struct HeatCell {
    /// Text of the heat table's cell: the change, or a dash.
    pub text: String,
    /// Tooltip of the heat table's cell: the verdict with its effect and interval, or the reason
    /// why there is none.
    pub title: String,
    /// CSS classes of the cell's shade, as [`shade`] returns them.
    pub class: String,
    /// Position of the cell's verdict on the row's page; empty for a cell that was not compared.
    pub anchor: String,
}

/// Row of a heat table: changes under one label, one per column.
#[derive(Debug, Clone, Serialize)]
pub struct HeatRow {
    pub label: String,
    /// Page with the verdicts of the row's cells.
    pub page: Target,
    pub cells: Vec<HeatCell>,
}

/// A heat table as its template shows it.
#[derive(Debug, Clone, Serialize)]
pub struct Heat {
    pub title: String,
    pub caption: String,
    pub heads: Vec<String>,
    pub rows: Vec<HeatRow>,
}

/// Sizes of a change, in percent, from which a heat table's cell has the next deeper shade. The
/// steps are large enough to be distinguished by eye.
const SHADES: [f64; 4] = [1.0, 3.0, 10.0, 30.0];

/// Returns the CSS classes of a cell from its improvement in percent, negative for a change for the
/// worse. `None` leaves the cell unshaded, because the verdict is neither better, worse nor
/// unchanged.
pub fn shade(better_pct: Option<f64>) -> String {
    match better_pct.filter(|pct| pct.is_finite()) {
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

    #[test]
    fn a_wild_change_stays_within_the_shades_and_only_worse_is_red() {
        for (pct, expected) in [
            (f64::NAN, "heat bare"),
            (1e12, "heat better h4"),
            (-1e12, "heat worse h4"),
            (0.0, "heat better h0"),
            (-3.5, "heat worse h2"),
        ] {
            assert_eq!(shade(Some(pct)), expected, "{pct}");
        }
        assert_eq!(shade(None), "heat bare");
    }
}
