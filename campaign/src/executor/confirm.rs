//! Confirmation stage of a comparison: plans more runs of the cells in which the screening stage
//! found a difference. It computes no statistics: the registry's comparison says which figures
//! differ.

use std::collections::BTreeSet;

use schema::comparison::{CellDiff, Diff};
use schema::verdict::Stage;

use crate::plan::{Plan, PlannedRun, Round, interleave};
use crate::world::Ids;

/// Baseline and candidate; variants are never confirmed.
const COMPARED: usize = 2;

/// Plans `pairs` pairs of runs in every cell of the plan that has a suspected change of a
/// release-blocking metric.
pub fn slots(plan: &Plan, compared: &Diff, pairs: u32, ids: &mut Ids) -> Vec<PlannedRun> {
    let differs: BTreeSet<(&str, &str)> = compared
        .cells
        .iter()
        // A cell judged from an older campaign's runs is not this campaign's to confirm.
        .filter(|cell| cell.judged.as_ref() == Some(&plan.campaign) && is_open(cell))
        .map(|cell| (cell.cell.model.as_str(), scenario_id(&cell.cell.scenario)))
        .collect();
    let cells = plan.cells.iter().enumerate();
    let cells = cells.filter(|(_, cell)| differs.contains(&(&cell.model, &cell.scenario)));
    let round = Round {
        cells: cells.map(|(index, _)| index).collect(),
        variants: COMPARED,
        repeats: pairs,
        // Block numbers continue after the screening stage, since a block is unique in its
        // campaign.
        block: plan.slots.iter().map(|slot| slot.block + 1).max().unwrap_or(0),
        stage: Some(Stage::Confirm),
    };
    interleave(&round, || ids.next_id())
}

/// True when the screening stage suspects a change of a release-blocking metric that is neither
/// confirmed nor refuted yet.
fn is_open(cell: &CellDiff) -> bool {
    let mut verdicts = cell.rows.iter().filter(|row| row.gates).map(|row| &row.verdict);
    verdicts.any(|verdict| verdict.suspected && verdict.stage == Stage::Screen)
}

/// Returns the scenario's id from `id@rev`.
fn scenario_id(named: &str) -> &str {
    named.split('@').next().unwrap_or_default()
}
