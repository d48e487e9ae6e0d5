//! The second stage of a comparison: which cells are launched again to confirm or refute what the
//! first launches found. It knows no statistics: the registry has said which figures differ.

use std::collections::BTreeSet;

use schema::comparison::{CellDiff, Diff};
use schema::verdict::Stage;

use crate::plan::{Plan, PlannedRun, Round, interleave};
use crate::world::Ids;

/// Baseline and candidate; variants are confirmed by nobody.
const COMPARED: usize = 2;

/// `pairs` launches of both releases in every cell of the plan where something that gates differs.
#[must_use]
pub fn slots(plan: &Plan, compared: &Diff, pairs: u32, ids: &mut Ids) -> Vec<PlannedRun> {
    let differs: BTreeSet<(&str, &str)> = compared
        .cells
        .iter()
        .filter(|cell| cell.judged.as_ref() == Some(&plan.campaign) && is_open(cell))
        .map(|cell| (cell.cell.model.as_str(), scenario_id(&cell.cell.scenario)))
        .collect();
    let cells = plan.cells.iter().enumerate();
    let cells = cells.filter(|(_, cell)| differs.contains(&(&cell.model, &cell.scenario)));
    let round = Round {
        cells: cells.map(|(index, _)| index).collect(),
        variants: COMPARED,
        repeats: pairs,
        block: plan.slots.iter().map(|slot| slot.block + 1).max().unwrap_or(0),
        stage: Some(Stage::Confirm),
    };
    interleave(&round, || ids.next_id())
}

/// True where the screen found a change that nothing has confirmed or refuted yet.
fn is_open(cell: &CellDiff) -> bool {
    let mut verdicts = cell.rows.iter().filter(|row| row.gates).map(|row| &row.verdict);
    verdicts.any(|verdict| verdict.suspected && verdict.stage == Stage::Screen)
}

/// The id in `id@rev`.
fn scenario_id(named: &str) -> &str {
    named.split('@').next().unwrap_or_default()
}
