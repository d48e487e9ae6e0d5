//! Prerequisites of a campaign that this machine lacks: GPUs of the target, and programs. A plan for
//! another machine names what would have to be there.

use std::collections::BTreeSet;

use judge::diff::words::plural;
use schema::run::Gpu;
use schema::target::Target;

use crate::build::variants::{Origin, Wanted};
use crate::executor::{LOCAL, SLURM};
use crate::plan::{Cell, target};
use crate::process::is_installed;
use crate::stop::Stop;
use crate::world::World;

/// Program that submits jobs to Slurm.
const SUBMIT: &str = "sbatch";

/// Returns what the campaign needs and this machine lacks, in words: GPUs for the largest of `cells`,
/// unless a scheduler's nodes have them, the container runtime, the tools of the scheduler, and uv.
///
/// # Errors
/// The command is interrupted.
pub fn missing(
    world: &World,
    executor: &str,
    wanted: &[Wanted],
    (target, gpus, cells): (&Target, &[Gpu], &[Cell]),
) -> Result<Vec<String>, Stop> {
    let mut missing = Vec::new();
    if wanted.iter().all(|wanted| matches!(wanted.origin, Origin::Running(_))) {
        return Ok(missing);
    }
    if executor == LOCAL && target::needs_device(target) {
        let needed = cells.iter().map(|cell| cell.tp as usize).max().unwrap_or(1);
        let count = plural(needed, "GPU");
        if !target::is_here(target, gpus) {
            let names = target.matches.device_name.join(" or ");
            missing.push(format!("{count} named like {names}"));
        } else if gpus.len() < needed {
            missing.push(format!("{count} for a server: there are {}", gpus.len()));
        }
    }
    let runtimes: BTreeSet<&str> = wanted
        .iter()
        .filter_map(|wanted| match &wanted.origin {
            Origin::Image { runtime, .. } => Some(runtime.program()),
            _ => None,
        })
        .collect();
    let is_there = |program: &str| world.search_path.iter().any(|dir| dir.join(program).is_file());
    let absent = runtimes.into_iter().filter(|program| !is_there(program));
    missing.extend(absent.map(|program| format!("`{program}`, which runs the image")));
    if executor == SLURM && !is_there(SUBMIT) {
        missing.push(format!("`{SUBMIT}`, which submits the jobs"));
    }
    let is_installed_here =
        |wanted: &Wanted| matches!(wanted.origin, Origin::Venv { .. } | Origin::Wheel { .. });
    if wanted.iter().any(is_installed_here) && !is_installed("uv", &world.interrupt)? {
        missing.push("`uv`: pip installs in its place, and says later how much".to_owned());
    }
    Ok(missing)
}
