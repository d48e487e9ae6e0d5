//! Model benchmark of a kernels record: runs a release's own `redline bench`, which compares a
//! model's speed with the machine's limits.

use std::process::Command;

use schema::kernel::ModelBench;

use crate::build::origin::Wanted;
use crate::build::variants;
use crate::inputs::Input;
use crate::plan::decide::default_cell;
use crate::process::{capture, describe};
use crate::stop::Stop;
use crate::world::World;

/// Prompt lengths, batch sizes and context that are measured: a short and a long prompt, one user
/// and many.
const ARGUMENTS: [&str; 8] = ["-p", "64,512", "-n", "64", "-b", "1,8,32", "--context", "128"];

/// Builds the release and has it benchmark `model`, by default the first model of the target `cpu`.
///
/// # Errors
/// The model does not exist or cannot be obtained, or the release cannot benchmark it.
pub fn measure(world: &World, wanted: &Wanted, model: Option<&str>) -> Result<ModelBench, Stop> {
    let id = default_cell(world, model)?.model;
    let file = world.catalog.model(&id)?;
    let spec = variants::build_one(world, wanted)?;
    let binary =
        spec.built.binary.ok_or_else(|| Stop::environment("the release has no program"))?;
    let weights = world.fetcher().obtain(&Input::model(&id, &file))?;
    world
        .console
        .step(world.clock.elapsed(), &format!("Benchmark {id} against the machine's limits"));
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
    // `redline bench` prints the path of the file; the record names the model.
    Ok(ModelBench { model: id, ..printed })
}
