//! The load generator in a run: the arguments that name its requests, its time limit, and the
//! measurement that it leaves.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::scenario::Tier;
use schema::untrusted;

use crate::files;
use crate::process::show;
use crate::server_spec::ReadyCell;
use crate::stop::Stop;
use crate::tools::{self, BENCH};
use crate::world::World;

/// Returns the arguments by which the load generator samples the requests of a cell.
pub fn workload_arguments(cell: &ReadyCell) -> Vec<&OsStr> {
    let mut words = vec![OsStr::new("--scenario"), cell.scenario.path.as_os_str()];
    if let Some(dataset) = &cell.dataset {
        words.extend([OsStr::new("--dataset"), dataset.path.as_os_str()]);
    }
    words.extend([OsStr::new("--tokenizer"), cell.tokenizer.as_os_str()]);
    words
}

/// Has the load generator sample the requests of a cell and save them as the workload manifest
/// `to`, unless the file exists, so that several runs send the same requests.
///
/// # Errors
/// The load generator cannot be run or fails, the folder cannot be created, or the command is
/// interrupted.
pub fn save_workload(world: &World, cell: &ReadyCell, to: &Path) -> Result<(), Stop> {
    // Models with the same tokenizer share the file, and a resumed campaign has it already.
    if to.exists() {
        return Ok(());
    }
    world.console.note(&cell.scenario.id);
    files::make_dir(to.parent().unwrap_or(Path::new(".")))?;
    let mut command = world.tools.bench("plan");
    command.args(workload_arguments(cell)).arg("--out").arg(to).stdout(Stdio::null());
    let status = show(&mut command, &world.interrupt)?;
    if status.success() { Ok(()) } else { Err(tools::ended(BENCH, "plan", status)) }
}

/// Reads the load generator's measurement from `path`. If there is no valid one, returns `None`
/// when `excused` (the server is to blame), else an error, which ends the job; the load generator
/// has then printed the cause on standard error.
///
/// # Errors
/// There is no valid measurement, and the server is not to blame.
pub fn read_measurement(
    path: &Path,
    ended: Option<ExitStatus>,
    excused: bool,
) -> Result<Option<Measurement>, Stop> {
    match (fs::read_to_string(path), ended) {
        (Ok(text), _) => match serde_json::from_str(&text) {
            Ok(measurement) => Ok(Some(measurement)),
            Err(_) if excused => Ok(None),
            Err(error) => Err(tools::unreadable(BENCH, "run", &error)),
        },
        (Err(_), _) if excused => Ok(None),
        (Err(_), Some(status)) if !status.success() => Err(unwritten(path, status)),
        (Err(error), _) => Err(tools::unreadable(BENCH, "run", &error)),
    }
}

/// Builds the error of a load generator that ended with `status` and left no measurement at `path`.
fn unwritten(path: &Path, status: ExitStatus) -> Stop {
    let stop = tools::ended(BENCH, "run", status);
    if status.code() != Some(Exit::Environment.code().into()) {
        return stop;
    }
    let folder = untrusted::path(path.parent().unwrap_or(path));
    stop.with_hint(format!(
        "its own message says why; if it could not write, the disk of `{folder}` needs free space"
    ))
}

/// Returns the time limit of a measurement by the scenario's tier. A backstop only: the load
/// generator has its own limits for requests that hang.
pub fn time_limit(tier: Tier) -> Duration {
    Duration::from_secs(match tier {
        Tier::Lite => 20 * 60,
        Tier::Quarter => 2 * 3600,
        Tier::Full => 8 * 3600,
    })
}
