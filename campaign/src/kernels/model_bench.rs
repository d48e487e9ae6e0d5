//! A release's own `redline bench` of a model: the part of a kernels record that stands beside limits
//! of the machine. It knows no criterion.

use std::process::Command;

use schema::kernel::ModelBench;

use crate::build::origin::Wanted;
use crate::build::variants;
use crate::inputs::Input;
use crate::plan::decide::default_cell;
use crate::process::{capture, describe};
use crate::stop::Stop;
use crate::world::World;

/// Prompts and batches that are measured: those of a short prompt and of a long one, of one user and
/// of many.
const ARGUMENTS: [&str; 8] = ["-p", "64,512", "-n", "64", "-b", "1,8,32", "--context", "128"];

/// Builds the release and has it measure `model`, else the first model of the target `cpu`.
///
/// # Errors
/// There is no such model, it cannot be had, or the release does not measure it.
pub fn measure(world: &World, wanted: &Wanted, model: Option<&str>) -> Result<ModelBench, Stop> {
    let id = default_cell(world, model)?.model;
    let file = world.catalog.model(&id)?;
    let spec = variants::build_one(world, wanted)?;
    let binary =
        spec.built.binary.ok_or_else(|| Stop::environment("the release has no program"))?;
    let weights = world.fetcher().obtain(&Input::model(&id, &file))?;
    world.console.step(world.clock.elapsed(), &format!("Bench {id} beside the machine's limits"));
    let mut bench = Command::new(binary);
    bench.arg("bench").arg(weights.served()).args(ARGUMENTS).arg("--json");
    let written = capture(&mut bench, &world.interrupt)?;
    if !written.status.success() {
        let (how, last) = (describe(written.status), written.last_said().unwrap_or("silent"));
        return Err(Stop::environment(format!("`redline bench` ended with {how}: {last}")));
    }
    let printed: ModelBench = serde_json::from_str(&written.stdout).map_err(|error| {
        Stop::environment(format!("`redline bench` printed no bench of a model: {error}"))
    })?;
    // It names the file that it was given; records name the model.
    Ok(ModelBench { model: id, ..printed })
}
