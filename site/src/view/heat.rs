//! Heat table of a release: output throughput of each model and scenario relative to the release
//! before. Verdicts come from `judge`.

use std::collections::BTreeMap;

use judge::diff::{Diff, Row};
use schema::verdict::VerdictKind;

use super::diff::{self, DiffRow, Pair};
use crate::chart::{Chart, Heat, HeatCell, HeatRow};
use crate::{order, outside};

/// Metric of the heat table: more is better, and every scenario has it.
const METRIC: &str = "output_tokens_per_s";

/// Smallest number of cells for which a heat table is drawn; fewer are read faster in the table of
/// verdicts.
const CELLS_MIN: usize = 3;

/// Draws the heat table of `found`, which compares the releases of `pair`; `None` where it has too
/// few cells.
pub fn of(pair: &Pair, found: &Diff) -> Option<Chart> {
    let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, &Row>> = BTreeMap::new();
    for row in found.rows().filter(|row| row.verdict.metric == METRIC) {
        let cell = &row.verdict.cell;
        rows.entry((&cell.model, &cell.config)).or_default().insert(&cell.scenario, row);
    }
    let mut scenarios: Vec<&str> = rows.values().flat_map(BTreeMap::keys).copied().collect();
    if scenarios.len() < CELLS_MIN {
        return None;
    }
    scenarios.sort_by(|a, b| order::scenarios(a, b));
    scenarios.dedup();
    let mut rows: Vec<_> = rows.into_iter().collect();
    rows.sort_by(|(a, _), (b, _)| order::natural(a.0, b.0).then_with(|| a.1.cmp(b.1)));
    let heads: Vec<String> = scenarios.iter().map(|name| outside::name(name)).collect();
    let mut table = Vec::new();
    let mut drawn = Vec::new();
    for ((model, config), found) in &rows {
        let label = outside::name(&format!("{model} {config}"));
        let cells: Vec<HeatCell> = scenarios.iter().map(|name| cell(found.get(name))).collect();
        let texts = cells.iter().map(|cell| cell.text.clone());
        table.push(std::iter::once(label.clone()).chain(texts).collect());
        drawn.push(HeatRow { label, cells });
    }
    let title = format!("Output tokens per second since {}", outside::name(&pair.baseline));
    let caption =
        "Shaded where a verdict claims a change: the deeper, the larger. Bare: nothing is \
                   claimed, and the figure is an estimate."
            .to_owned();
    let heat = Heat {
        title: title.clone(),
        description: caption.clone(),
        heads: heads.clone(),
        rows: drawn,
    };
    let heads = std::iter::once("Model".to_owned()).chain(heads).collect();
    Some(Chart { title, caption, svg: heat.draw(), heads, rows: table })
}

fn cell(row: Option<&&Row>) -> HeatCell {
    let Some(row) = row else {
        return HeatCell { text: "-".into(), title: "not compared".into(), better_pct: None };
    };
    let DiffRow { effect, interval, verdict, .. } = diff::line(row);
    let claims = matches!(
        row.verdict.verdict,
        VerdictKind::Regressed | VerdictKind::Improved | VerdictKind::Unchanged
    );
    HeatCell {
        title: format!("{verdict}: {effect}, from {interval}"),
        text: effect,
        // An estimate without a claim gets no shade, which would look like a verdict.
        better_pct: row.verdict.effect_pct.filter(|_| claims),
    }
}
