//! Shift of a metric over all cells of an engine on a hardware, which may be too small for any
//! single cell to prove. Each cell counts once, however many runs it has.

use std::collections::BTreeMap;

use schema::comparison::{Broad, CellDiff};
use schema::metric::METRICS;
use schema::policy::PolicyFile;

use super::estimate::{log_of, paired};

/// Smallest number of cells for which the shift of a metric over all cells is reported.
const CELLS_MIN: usize = 3;

/// Computes, for each engine on each hardware, the shift of every release-blocking metric over the
/// cells that have pairs of runs and no differing flag that a command sets. A metric that fewer than 3
/// such cells have is left out. The shift is information, not a verdict.
pub fn of(cells: &[CellDiff], policy: &PolicyFile) -> Vec<Broad> {
    let mut groups: BTreeMap<(&str, &str, usize), Vec<f64>> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.changed.is_empty()) {
        let gating = cell.rows.iter().filter(|row| row.gates).map(|row| &row.verdict);
        // What was compared in turns is judged over all scenarios.
        let of_runs = gating.filter(|verdict| verdict.pairs > 0 && verdict.alternation.is_none());
        for verdict in of_runs {
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
