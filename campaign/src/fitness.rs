//! Whether a node is fit to measure a job: a look at it before the first launch costs a second, and
//! saves hours whose figures nobody could use.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

use crate::gpu;
use crate::hardware::{self, Machine};
use crate::job::Job;
use crate::process::{self, ProcessError};
use crate::tools::BENCH;
use crate::world::World;

/// What logs, measurements and records of a job may take.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// The files that a job's launches read, as the controller sees them: path and size. A folder has
/// the size 0.
#[must_use]
pub fn inputs(job: &Job) -> Vec<(PathBuf, u64)> {
    let cell = &job.cell;
    let mut paths = vec![&cell.scenario.path, &cell.model.path, &cell.tokenizer];
    paths.extend(cell.dataset.as_ref().map(|dataset| &dataset.path));
    paths.extend(cell.plan.as_ref());
    for side in &job.sides {
        paths.push(&side.engine.path);
        paths.extend(side.built.binary.as_ref().filter(|path| path.is_absolute()));
    }
    let mut sized: Vec<(PathBuf, u64)> =
        paths.into_iter().filter_map(|path| Some((path.clone(), size(path)?))).collect();
    sized.sort();
    sized.dedup();
    sized
}

fn size(path: &Path) -> Option<u64> {
    let meta = fs::metadata(path).ok()?;
    Some(if meta.is_file() { meta.len() } else { 0 })
}

/// What keeps this node from measuring the job; none where nothing does.
///
/// # Errors
/// Interrupted.
pub fn unfit(
    world: &World,
    job: &Job,
    dir: &Path,
    machine: &Machine,
) -> Result<Option<String>, ProcessError> {
    for (path, bytes) in &job.inputs {
        let shown = path.display();
        match size(path) {
            None => return Ok(Some(format!("`{shown}` is not on this node"))),
            Some(found) if found != *bytes => {
                let said = format!("`{shown}` has {found} bytes on this node, expected {bytes}");
                return Ok(Some(said));
            }
            Some(_) => {}
        }
    }
    if let Ok(disk) = statvfs(dir) {
        let free = disk.blocks_available() * disk.fragment_size();
        if free < FREE_BYTES_MIN {
            let (free, wanted) = (free >> 20, FREE_BYTES_MIN >> 20);
            let said = format!("{free} MiB are free where the job's folder lies, of {wanted} MiB");
            return Ok(Some(said));
        }
    }
    let mut version = world.tools.bench("--version");
    let answer = process::capture(&mut version, &world.interrupt);
    match answer {
        Ok(answer) if answer.status.success() => {}
        Err(ProcessError::Interrupted) => return Err(ProcessError::Interrupted),
        _ => return Ok(Some(format!("`{BENCH}` does not run on this node"))),
    }
    if let Some(expected) = &job.hardware_id
        && job.url.is_none()
    {
        let found = machine.id(job.on_gpu);
        if found != *expected {
            return Ok(Some(format!("this node is `{found}`, the campaign is of `{expected}`")));
        }
    }
    if job.on_gpu { unfit_gpus(world, job, machine) } else { Ok(None) }
}

/// The same of the GPUs: enough of them, nobody else's, whole, and without lost bits.
fn unfit_gpus(world: &World, job: &Job, machine: &Machine) -> Result<Option<String>, ProcessError> {
    let (wanted, found) = (job.gpus(), machine.gpus.len());
    if found < wanted as usize {
        return Ok(Some(format!("the job needs {wanted} GPUs, and this node has {found}")));
    }
    if let Some(count) = machine.gpu_processes.filter(|count| *count > 0) {
        return Ok(Some(format!("{count} other processes are on the GPUs of this node")));
    }
    let shared = |gpu: &hardware::GpuSeen| gpu.state.as_ref().is_some_and(|s| s.mig == Some(true));
    if machine.gpus.iter().any(shared) {
        return Ok(Some("a GPU of this node is divided (MIG is on)".to_owned()));
    }
    let errors = hardware::ask_driver(&world.programs, gpu::ECC_ERRORS, &world.interrupt);
    Ok(match errors {
        Ok(text) => gpu::count_errors(&text)
            .filter(|count| *count > 0)
            .map(|count| format!("{count} uncorrected memory errors on the GPUs of this node")),
        Err(ProcessError::Interrupted) => return Err(ProcessError::Interrupted),
        // An older driver that does not tell.
        Err(_) => None,
    })
}
