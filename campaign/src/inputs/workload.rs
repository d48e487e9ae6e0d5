//! Workload manifest of a scenario: the load generator draws the requests once and saves them, so
//! that every run of a lab sends the same ones.

use std::path::Path;
use std::process::Stdio;

use crate::files;
use crate::launch::ReadyCell;
use crate::process;
use crate::stop::Stop;
use crate::tools::{BENCH, ToolError};
use crate::world::World;

/// Has the load generator draw and save the workload manifest of a cell, unless the file exists.
///
/// # Errors
/// The load generator cannot draw the requests.
pub fn draw(world: &World, cell: &ReadyCell, to: &Path) -> Result<(), Stop> {
    // Models with the same tokenizer share the file, and a resumed campaign has it already.
    if to.exists() {
        return Ok(());
    }
    world.console.note(&cell.scenario.id);
    files::make_dir(to.parent().unwrap_or(Path::new(".")))?;
    let mut command = world.tools.bench("plan");
    command.arg("--scenario").arg(&cell.scenario.path);
    if let Some(dataset) = &cell.dataset {
        command.arg("--dataset").arg(&dataset.path);
    }
    command.arg("--tokenizer").arg(&cell.tokenizer).arg("--out").arg(to).stdout(Stdio::null());
    let status = process::show(&mut command, &world.interrupt)?;
    if status.success() {
        return Ok(());
    }
    Err(ToolError::Ended { name: BENCH, verb: "plan", status }.into())
}
