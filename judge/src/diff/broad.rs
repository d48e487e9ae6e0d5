//! What a metric did over all cells of an engine on a hardware: a shift that is too small for any
//! cell to prove. Each cell counts once, however many launches stand behind it.

use std::collections::BTreeMap;

use schema::comparison::{Broad, CellDiff};
use schema::metric::METRICS;
use schema::policy::PolicyFile;

use super::estimate::{log_of, paired};

/// Fewest cells of which a shift is told.
const CELLS_MIN: usize = 3;

/// The shift of each metric that gates, over the cells that were measured side by side. It informs
/// and is no verdict.
#[must_use]
pub fn of(cells: &[CellDiff], policy: &PolicyFile) -> Vec<Broad> {
    let mut groups: BTreeMap<(&str, &str, usize), Vec<f64>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.changed.is_empty()) {
        let gating = cell.rows.iter().filter(|row| row.gates && row.verdict.pairs > 0);
        for verdict in gating.map(|row| &row.verdict) {
            let place = METRICS.iter().position(|metric| metric.name == verdict.metric);
            if let Some((place, effect_pct)) = place.zip(verdict.effect_pct) {
                let key = (cell.cell.engine.as_str(), cell.cell.hardware.as_str(), place);
                groups.entry(key).or_default().push(log_of(effect_pct));
            }
        }
    }
    groups.retain(|_, effects| effects.len() >= CELLS_MIN);
    let shift = |((engine, hardware, place), effects): ((&str, &str, usize), Vec<f64>)| {
        let found = paired(&effects, policy)?;
        Some(Broad {
            engine: engine.to_owned(),
            hardware: hardware.to_owned(),
            metric: METRICS[place].name.to_owned(),
            title: METRICS[place].title.to_owned(),
            cells: found.pairs,
            effect_pct: found.effect_pct,
            interval_pct: found.interval_pct,
            p: found.p,
        })
    };
    groups.into_iter().filter_map(shift).collect()
}
