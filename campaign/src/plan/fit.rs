//! Second look at a campaign's plan, once its models are fetched.

use crate::executor::LOCAL;
use crate::executor::journal::PreparedCampaign;
use crate::node::hardware;
use crate::plan::decide::POLICY;
use crate::plan::room::{self, Room};
use crate::stop::Stop;
use crate::world::World;

/// Changes the plan of the second stage where the fetched models turn out to leave no room for two
/// servers: pairs of runs then confirm what the first stage suspects.
///
/// # Errors
/// A gate has no room, or the policy's file is missing or invalid.
pub fn fit(world: &World, ready: &mut PreparedCampaign) -> Result<(), Stop> {
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
                world.console.note(&format!("{said}: pairs of runs decide instead"));
                ready.alternation = None;
                ready.confirm_pairs = Some(world.catalog.policy(POLICY)?.confirm_pairs);
                return Ok(());
            }
        }
    }
    Ok(())
}
