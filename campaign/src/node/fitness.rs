//! Check of a node before its first run: inputs, disk space, tools, hardware and idle GPUs. It
//! takes a second and saves hours of unusable measurements.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use schema::run::Gpu;

use crate::executor::job::Job;
use crate::node::hardware::{self, Machine};
use crate::process::{self, ProcessError, attempted};
use crate::server_spec::{ReadyCell, ServerSpec};
use crate::tools::BENCH;
use crate::world::World;

/// Free disk space, in bytes, that the logs, measurements and records of a job need.
const FREE_BYTES_MIN: u64 = 256 << 20;

/// Lists the files that a cell's runs read, each with its current size in bytes; a folder has size
/// 0.
pub fn inputs(cell: &ReadyCell, variants: &[ServerSpec]) -> Vec<(PathBuf, u64)> {
    let mut paths = vec![&cell.scenario.path, &cell.model.path, &cell.tokenizer];
    paths.extend(cell.dataset.as_ref().map(|dataset| &dataset.path));
    paths.extend(cell.plan.as_ref());
    for variant in variants {
        paths.push(&variant.engine.path);
        paths.extend(variant.built.binary.as_ref().filter(|path| path.is_absolute()));
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

/// Returns the reason why this node cannot measure the job; `None` if it can.
///
/// # Errors
/// The wait for a tool was interrupted.
pub fn unfit(
    world: &World,
    job: &Job,
    dir: &Path,
    machine: &Machine,
) -> Result<Option<String>, ProcessError> {
    for (path, bytes) in &job.inputs {
        let shown = path.display();
        match size(path) {
            // Typically a path that is not on the cluster's shared file system.
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
            let said = format!("{free} MiB of disk are free for the job, which needs {wanted} MiB");
            return Ok(Some(said));
        }
    }
    let mut version = world.tools.bench("--version");
    let answer = attempted(process::capture(&mut version, &world.interrupt))?;
    if !answer.is_some_and(|answer| answer.status.success()) {
        return Ok(Some(format!("`{BENCH}` does not run on this node")));
    }
    if let Some(expected) = &job.hardware_id
        && job.url.is_none()
    {
        let found = machine.id(job.on_gpu);
        if found != *expected {
            return Ok(Some(format!("this node is `{found}`, the campaign measures `{expected}`")));
        }
    }
    if !job.on_gpu {
        return Ok(None);
    }
    // An older driver may not support the query.
    let answer = attempted(hardware::ask_driver(hardware::ECC_ERRORS, &world.interrupt))?;
    let errors = answer.and_then(|text| hardware::count_errors(&text));
    Ok(unfit_gpus(job.gpus(), machine, errors))
}

/// Returns the reason why the node's GPUs cannot be measured: too few, in use by others, divided by
/// MIG, or with uncorrected memory errors.
fn unfit_gpus(wanted: u32, machine: &Machine, errors: Option<u64>) -> Option<String> {
    let found = machine.gpus.len();
    if found < wanted as usize {
        return Some(format!("the job needs {wanted} GPUs, and this node has {found}"));
    }
    if let Some(count) = machine.gpu_processes.filter(|count| *count > 0) {
        return Some(format!("{count} other processes are on the GPUs of this node"));
    }
    let shared = |gpu: &Gpu| gpu.state.as_ref().is_some_and(|state| state.mig == Some(true));
    if machine.gpus.iter().any(shared) {
        return Some("a GPU of this node is divided (MIG is on)".to_owned());
    }
    let errors = errors.filter(|count| *count > 0);
    errors.map(|count| format!("{count} uncorrected memory errors on the GPUs of this node"))
}

#[cfg(test)]
mod tests {
    use schema::run::GpuState;

    use super::*;

    #[test]
    fn gpus_have_to_be_enough_idle_whole_and_sound() {
        let gpu = Gpu::default();
        let state = GpuState { mig: Some(true), ..GpuState::default() };
        let divided = Gpu { state: Some(state), ..gpu.clone() };
        let machine = |gpus: &[&Gpu], processes| Machine {
            gpus: gpus.iter().map(|gpu| (*gpu).clone()).collect(),
            gpu_processes: processes,
            ..Machine::default()
        };
        for (machine, errors, said) in [
            (machine(&[&gpu], Some(0)), None, Some("the job needs 2 GPUs, and this node has 1")),
            (machine(&[&gpu, &gpu], Some(3)), None, Some("3 other processes are on the GPUs")),
            (machine(&[&gpu, &divided], None), None, Some("a GPU of this node is divided")),
            (machine(&[&gpu, &gpu], Some(0)), Some(7), Some("7 uncorrected memory errors")),
            (machine(&[&gpu, &gpu], Some(0)), Some(0), None),
            (machine(&[&gpu, &gpu], None), None, None),
        ] {
            let found = unfit_gpus(2, &machine, errors);
            match said {
                Some(said) => {
                    assert!(found.as_deref().is_some_and(|f| f.starts_with(said)), "{found:?}")
                }
                None => assert_eq!(found, None),
            }
        }
    }

    #[test]
    fn errors_of_several_gpus_are_added() {
        assert_eq!(hardware::count_errors("0\n3\n[N/A]\n1\n"), Some(4));
        assert_eq!(hardware::count_errors("[N/A]\n"), None);
    }
}
