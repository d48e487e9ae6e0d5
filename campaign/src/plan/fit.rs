//! Second look at a campaign's plan, once its models are fetched.

use crate::executor::LOCAL;
use crate::executor::journal::PreparedCampaign;
use crate::node::hardware;
use crate::plan::brief::PAIRS_SHOW;
use crate::plan::decide::POLICY;
use crate::plan::room::{self, Room};
use crate::plan::{Round, interleave};
use crate::stop::Stop;
use crate::world::{Ids, World};

/// Changes the plan where the fetched models turn out to leave no room for two servers: pairs of runs
/// then decide what changed. `repeats` is the number of runs of each release that the user gave, if
/// any; `ids` numbers the new runs.
///
/// # Errors
/// A gate has no room, or the policy's file is missing or invalid.
pub fn fit(
    world: &World,
    repeats: Option<u32>,
    ready: &mut PreparedCampaign,
    ids: &mut Ids,
) -> Result<(), Stop> {
    let Some(planned) = &mut ready.alternation else { return Ok(()) };
    // The nodes of a cluster have other memory than this machine.
    if ready.executor != LOCAL {
        return Ok(());
    }
    let machine = hardware::detect(world)?;
    for cell in &ready.cells {
        match room::of(&cell.model, cell.cell.tp, &machine, ready.on_gpu) {
            Room::Both { memory_percent } => planned.memory_percent = memory_percent,
            Room::One { said } if ready.gate.is_some() => return Err(room::none(&said)),
            Room::One { said } => {
                let pairs = decide_in_pairs(world, repeats, ready, ids)?;
                world.console.note(&format!(
                    "{said}: pairs of runs decide instead, {pairs} in each cell; {PAIRS_SHOW}"
                ));
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Plans pairs of runs in place of the alternating comparisons, and returns their number in a cell.
/// It is part of the statistics, so the policy sets it where the user gives none.
fn decide_in_pairs(
    world: &World,
    repeats: Option<u32>,
    ready: &mut PreparedCampaign,
    ids: &mut Ids,
) -> Result<u32, Stop> {
    let policy = world.catalog.policy(POLICY)?;
    let pairs = repeats.unwrap_or(policy.screen_pairs);
    ready.alternation = None;
    ready.confirm_pairs = Some(policy.confirm_pairs);
    let round = Round::first(ready.plan.cells.len(), ready.plan.variants.len(), pairs);
    ready.plan.runs = interleave(&round, || ids.next_id());
    ready.expected_us =
        ready.plan.runs.iter().map(|run| ready.each_us[run.cell][run.variant]).sum();
    Ok(pairs)
}
