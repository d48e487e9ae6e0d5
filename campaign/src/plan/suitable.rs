//! Whether the engines of a campaign suit its scenarios and its target: refusals before anything is
//! built, and the choice of images for the target's GPUs.

use schema::target::{Accelerator, Target};

use crate::build::variants::Wanted;
use crate::catalog::{Engine, ScenarioEntry};
use crate::plan::Cell;
use crate::plan::target;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Has each variant run on the target's devices.
///
/// # Errors
/// An engine cannot serve a cell's model there, nothing of a variant runs there, or a file of the
/// suite is missing or invalid.
pub fn fit(
    world: &World,
    wanted: &mut [Wanted],
    cells: &[Cell],
    target: &Target,
) -> Result<(), Stop> {
    let on = target::accelerator(target);
    for variant in wanted {
        refuse_unservable(world, &variant.engine, cells, on)?;
        variant.fit(on)?;
    }
    Ok(())
}

/// Refuses an engine whose prefix cache cannot be emptied: on a shared server a run would find the
/// prompts of the runs before it.
///
/// # Errors
/// The engine's file names no route for that.
pub fn refuse_without_reset(engine: &Engine) -> Result<(), Stop> {
    if engine.file.cache.reset_route.is_some() {
        return Ok(());
    }
    let id = &engine.id;
    Err(wrong_use!("engine `{id}` has no route that empties its prefix cache, which runs on a shared server need")
        .with_hint(format!("leave `--servers` out, or name the route in `suite/engines/{id}.toml`: `cache.reset_route`")))
}

/// Refuses scenarios that ask for chat if the engine file of a variant names no chat route.
///
/// # Errors
/// An engine has no chat route, and a scenario needs it.
pub fn refuse_without_chat(wanted: &[Wanted], scenarios: &[ScenarioEntry]) -> Result<(), Stop> {
    let engines = wanted.iter().map(|wanted| &wanted.engine);
    for (engine, entry) in engines.flat_map(|engine| scenarios.iter().map(move |it| (engine, it))) {
        if engine.file.for_scenario(&entry.scenario).is_err() {
            let (engine, scenario) = (&engine.id, &entry.id);
            return Err(wrong_use!(
                "scenario `{scenario}` sends chat requests, and engine `{engine}` has no route for them"
            )
            .with_hint(format!("`request.chat_route` in `suite/engines/{engine}.toml` names it")));
        }
    }
    Ok(())
}

/// Refuses cells whose model the engine cannot serve on the target's device.
fn refuse_unservable(
    world: &World,
    engine: &Engine,
    cells: &[Cell],
    on: Option<Accelerator>,
) -> Result<(), Stop> {
    for cell in cells {
        let model = world.catalog.model(&cell.model)?;
        if let Some(found) = engine.cannot_serve(&cell.model, &model, on) {
            let (engine, field) = (&engine.id, found.field);
            let mut hint = format!("`{field}` in `suite/engines/{engine}.toml` says so");
            match on {
                Some(Accelerator::Rocm) => hint.push_str("; target `cpu` measures without a GPU"),
                None if field == "launch.devices" => hint.push_str(
                    "; `--target ID` names a class of GPUs, such as a100-80g: the default is `cpu` \
                     where this machine has no GPU of a target",
                ),
                _ => {}
            }
            return Err(wrong_use!("{}", found.why).with_hint(hint));
        }
    }
    Ok(())
}
