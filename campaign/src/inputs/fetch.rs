//! The command `fetch`: downloads models and datasets into the cache.

use schema::exit::Exit;

use crate::catalog::CatalogError;
use crate::cli::Fetch;
use crate::inputs::Input;
use crate::node::hardware;
use crate::plan;
use crate::plan::decide::inputs_of;
use crate::plan::target;
use crate::stop::Stop;
use crate::world::World;

/// Downloads the named inputs, or all that the target matching this machine needs, and prints their
/// paths.
///
/// # Errors
/// An id is unknown, or an input cannot be obtained.
pub fn run(world: &World, flags: &Fetch) -> Result<Exit, Stop> {
    let inputs = match flags.ids.is_empty() {
        true => of_target(world)?,
        false => flags.ids.iter().map(|id| named(world, id)).collect::<Result<_, _>>()?,
    };
    for input in inputs {
        world.console.step(world.clock.elapsed(), &format!("Fetch {}", input.id));
        let obtained = world.fetcher().obtain(&input)?;
        world.console.answer(&format!("{}  {}", input.id, obtained.path.display()));
    }
    Ok(Exit::Well)
}

fn of_target(world: &World) -> Result<Vec<Input>, Stop> {
    let machine = hardware::detect(&world.programs, world.cores, &world.interrupt)?;
    let targets = world.catalog.targets()?;
    let (_, target) = target::choose(&targets, None, &machine.gpus)?;
    // Includes the concurrency sweep, so that a later comparison needs no download.
    let cells = plan::cells(target, &[], &plan::scenarios(target, true))?;
    let scenario = |cell: &plan::Cell| world.catalog.scenario(&cell.scenario);
    let scenarios = cells.iter().map(scenario).collect::<Result<Vec<_>, _>>()?;
    inputs_of(world, &cells, &scenarios)
}

/// Returns the model named `id`, else the dataset.
fn named(world: &World, id: &str) -> Result<Input, Stop> {
    match world.catalog.model(id) {
        Ok(file) => return Ok(Input::model(id, &file)),
        Err(CatalogError::Unknown { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    match world.catalog.dataset(id) {
        Ok(file) => Ok(Input::dataset(id, &file)),
        Err(CatalogError::Unknown { kind: _, id, mut known }) => {
            known.extend(world.catalog.ids("model")?);
            Err(CatalogError::Unknown { kind: "input", id, known }.into())
        }
        Err(error) => Err(error.into()),
    }
}
