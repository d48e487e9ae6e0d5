//! The command `gate`: says within a budget of minutes whether the working tree, or any candidate,
//! is slower than a baseline. Both are built or installed and compared in turns; nothing is committed.

use schema::exit::Exit;

use crate::build::variants::REDLINE;
use crate::campaign::{begin, check_executor, executor_of, latest_unfinished, resume};
use crate::cli::{Gate, GateCandidate, GateRequest, ReleaseBench};
use crate::lock::Lock;
use crate::plan::decide::decide;
use crate::stop::Stop;
use crate::tools::BENCH;
use crate::world::World;

/// Runs the command `gate`, from the beginning or with `--resume` from the latest unfinished one.
/// Exit code 0 says that nothing release-blocking became worse, 1 that something did, 3 that
/// something is undecided.
///
/// # Errors
/// Wrong use, a machine or clone that is unfit or in use by another campaign, two servers that do
/// not fit into memory, a build, download, tool or file operation that fails, or an interruption.
pub fn run(world: &World, flags: &Gate) -> Result<Exit, Stop> {
    let asked = bench(world, flags);
    check_executor(&asked)?;
    world.tools.check_for(&[BENCH])?;
    let lock = || Lock::take(&world.places.lock(), world.pid);
    let _lock = (!flags.dry_run).then(lock).transpose()?;
    if flags.resume {
        let latest = latest_unfinished(world, |ready| ready.gate.is_some())?;
        let id = latest.ok_or_else(|| Stop::wrong_use("no unfinished gate"))?;
        return resume(world, (&id, &format!("gate {id}")), None);
    }
    let decided = decide(world, &asked)?;
    let plan = decided.brief.render();
    if flags.dry_run {
        world.console.answer(plan.trim_end())?;
        return Ok(Exit::Well);
    }
    // Standard output begins with the verdict.
    plan.lines().for_each(|line| world.console.note(line));
    let executor = executor_of(world, &asked, &decided.plan.campaign)?;
    executor.preflight()?;
    begin(world, &asked, (decided, None), &*executor)
}

/// Returns the campaign that a gate carries out.
fn bench(world: &World, flags: &Gate) -> ReleaseBench {
    let out = flags.out.clone().unwrap_or_else(|| world.places.root.join("target/gate"));
    // The command line takes one of them at most.
    let candidate = match (&flags.candidate, &flags.candidate_wheel, &flags.candidate_image) {
        (Some(name), ..) => GateCandidate::Named(name.clone()),
        (None, Some(path), _) => GateCandidate::Wheel(path.clone()),
        (None, None, Some(name)) => GateCandidate::Image(name.clone()),
        (None, None, None) => GateCandidate::Tree,
    };
    ReleaseBench {
        engine: REDLINE.to_owned(),
        target: flags.target.clone(),
        models: flags.models.clone(),
        scenarios: flags.scenarios.clone(),
        packages: flags.packages,
        execution: flags.execution.clone(),
        dry_run: flags.dry_run,
        uncommitted: true,
        gate: Some(GateRequest {
            baseline: flags.baseline.clone(),
            candidate,
            variant: flags.variant.clone(),
            budget_us: flags.budget_us,
            out,
        }),
        ..ReleaseBench::default()
    }
}
