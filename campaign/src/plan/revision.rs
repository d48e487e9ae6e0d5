//! Revision of a scenario that a campaign measures: the newest one whose dataset is at hand.

use std::collections::BTreeMap;

use schema::scenario::id_of;

use crate::catalog::ScenarioEntry;
use crate::inputs::Input;
use crate::plan::Cell;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Reads the scenario of each cell, in the order of the cells, as [`at_hand`] chooses its revision.
/// Afterwards the cells name their scenarios by the id alone.
///
/// # Errors
/// Those of [`at_hand`].
pub fn choose(world: &World, cells: &mut [Cell]) -> Result<Vec<ScenarioEntry>, Stop> {
    let mut chosen: BTreeMap<String, ScenarioEntry> = BTreeMap::new();
    let mut entries = Vec::new();
    for cell in cells {
        let entry = match chosen.get(&cell.scenario) {
            Some(entry) => entry.clone(),
            None => at_hand(world, &cell.scenario)?,
        };
        chosen.insert(cell.scenario.clone(), entry.clone());
        cell.scenario.clone_from(&entry.id);
        entries.push(entry);
    }
    Ok(entries)
}

/// Reads the scenario `named`: as `id@rev` this revision, as `id` the newest one whose dataset
/// needs no download, or the oldest one where all of them need one.
///
/// # Errors
/// No such scenario or revision, a file of the suite cannot be read or is invalid, or a file of the
/// caches cannot be read or removed.
pub fn at_hand(world: &World, named: &str) -> Result<ScenarioEntry, Stop> {
    let id = id_of(named);
    let mut revisions = world.catalog.revisions(id)?;
    if named != id {
        let known: Vec<String> = revisions.iter().map(ScenarioEntry::cited).collect();
        let of_name = revisions.into_iter().find(|entry| entry.cited() == named);
        return of_name.ok_or_else(|| {
            wrong_use!("the suite has no scenario `{named}`; known are {}", known.join(", "))
                .with_hint("an older commit of this clone may have it")
        });
    }
    while let [newest, older, ..] = &revisions[..] {
        let Some(dataset) = missing_dataset(world, newest)? else { break };
        world.console.note(&format!(
            "{} instead of {}: dataset `{dataset}` is not at hand (`cargo xtask fetch {dataset}`)",
            older.cited(),
            newest.cited()
        ));
        revisions.remove(0);
    }
    Ok(revisions.remove(0))
}

/// Returns the newest revision of the scenario `entry`, as `id@rev`, and the dataset that it needs, if
/// `entry` is older because that dataset is not at hand.
///
/// # Errors
/// A file of the suite cannot be read or is invalid, or a file of the caches cannot be read or removed.
pub fn newer(world: &World, entry: &ScenarioEntry) -> Result<Option<(String, String)>, Stop> {
    let revisions = world.catalog.revisions(&entry.id)?;
    let newest = revisions.first().filter(|newest| newest.scenario.rev > entry.scenario.rev);
    let Some(newest) = newest else { return Ok(None) };
    Ok(missing_dataset(world, newest)?.map(|dataset| (newest.cited(), dataset)))
}

/// Returns the id of the scenario's dataset if it needs a download.
fn missing_dataset(world: &World, entry: &ScenarioEntry) -> Result<Option<String>, Stop> {
    let Some(id) = &entry.scenario.workload.dataset else { return Ok(None) };
    let has = world.has(&Input::dataset(id, &world.catalog.dataset(id)?))?;
    Ok((!has).then(|| id.clone()))
}
