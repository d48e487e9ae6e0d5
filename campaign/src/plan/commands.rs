//! Lines of a plan about how its servers will be started: the command line of each variant, with its
//! own flags and those by which the server is watched. Nothing is built or started for it.

use std::path::Path;

use schema::shell;

use crate::build::variants::{Origin, Wanted};
use crate::plan::Cell;
use crate::server_spec::{Contained, Filling, recorded_line};
use crate::stop::Stop;
use crate::world::World;

/// Returns the command lines that start the servers of `wanted` for `cells`, as records show them, one
/// for each variant and each number of ranks or other settings. `memory_percent` is the share of a
/// GPU's memory in alternating comparisons, which are all that runs if `only_in_turns`.
///
/// # Errors
/// A model's file cannot be read, or an engine's file lacks an image or a flag that the plan needs.
pub fn lines(
    world: &World,
    (wanted, cells): (&[Wanted], &[Cell]),
    (memory_percent, only_in_turns): (Option<u32>, bool),
    on_gpu: bool,
) -> Result<Vec<String>, Stop> {
    let mut lines = Vec::new();
    for wanted in wanted.iter().filter(|one| !matches!(one.origin, Origin::Running(_))) {
        for cell in cells {
            let mut cell = cell.clone();
            if only_in_turns && memory_percent.is_some() {
                cell.settings.memory_percent = memory_percent;
            }
            let argv = recorded(world, wanted, &cell, on_gpu)?;
            let (engine, title) = (&wanted.engine.id, wanted.variant.title());
            let line = format!("{engine} {title}: {}", shell::line(&argv));
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
        let share = memory_percent.filter(|_| !only_in_turns);
        let memory = &wanted.engine.file.launch.settings.memory;
        if let (Some(percent), Some(setting)) = (share, memory) {
            let words = setting.words(&(f64::from(percent) / 100.0).to_string());
            lines.push(format!("in turns, each server has `{}`", shell::line(&words)));
        }
    }
    Ok(lines)
}

/// Returns the command line of a variant's server for the model of `cell`, as a record will have it.
fn recorded(
    world: &World,
    wanted: &Wanted,
    cell: &Cell,
    on_gpu: bool,
) -> Result<Vec<String>, Stop> {
    let (engine, variant) = (&wanted.engine, &wanted.variant);
    let filling = Filling {
        random_weights: world.catalog.model(&cell.model)?.config.is_some(),
        tp: cell.tp,
        settings: &cell.settings,
        flags: &variant.flags,
        // The recorded form has placeholders for program, model and port.
        ..Filling::measured(&engine.id, Path::new(&engine.id), "", 0)
    };
    let contained = match &wanted.origin {
        Origin::Image { of, runtime, accelerator } => {
            let image = of.name(engine, &variant.release, *accelerator)?;
            let (runtime, accelerator) = (*runtime, *accelerator);
            Some(Contained { runtime, image, file: None, accelerator })
        }
        _ => None,
    };
    recorded_line(&engine.file, filling, contained.as_ref(), on_gpu)
}
