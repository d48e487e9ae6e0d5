//! The record of a planned run that no node could measure.

use std::path::Path;

use schema::run::{CampaignSlot, Failure, FailureClass, Phase};

use crate::executor::prepared::PreparedCampaign;
use crate::node::record::{LaunchFacts, Parts, assemble, seal};
use crate::node::run::model_facts;
use crate::plan::PlannedRun;
use crate::publish::write_run;
use crate::stop::Stop;
use crate::world::World;

/// Writes the record of a failed run, with the failure's class and message, to the staged results
/// `overlay`.
///
/// # Errors
/// The folder is not writable.
pub fn record(
    world: &World,
    ready: &PreparedCampaign,
    slot: &PlannedRun,
    (class, said): (FailureClass, &str),
    staged: &Path,
) -> Result<(), Stop> {
    let (variant, cell) = (&ready.variants[slot.variant], &ready.cells[slot.cell]);
    let now = world.clock.rfc3339();
    let launch = LaunchFacts {
        argv: None,
        variant: variant.built.variant.name.clone(),
        tp: Some(cell.cell.tp),
        ..LaunchFacts::default()
    };
    let mut record = assemble(Parts {
        id: &slot.run,
        slot: CampaignSlot {
            id: ready.plan.campaign.clone(),
            block: slot.block,
            position: slot.position,
            repeat: slot.repeat,
            executor: ready.executor.clone(),
            stage: slot.stage,
        },
        engine: variant.built.facts.clone(),
        scenario: &cell.scenario,
        dataset_sha256: cell.dataset.as_ref().map(|dataset| dataset.sha256.as_str()),
        hardware: ready.hardware.0.clone(),
        launch,
        model: model_facts(cell, ready.url.is_none()),
        probe: None,
        measurement: None,
        failure: Some(Failure { class, phase: Phase::Load, message: world.identity.redact(said) }),
        rss_bytes_max: None,
        started_at: now.clone(),
        finished_at: now,
        identity: &world.identity,
    });
    seal(&mut record)?;
    write_run(staged, &record)?;
    Ok(())
}
