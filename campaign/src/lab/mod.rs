//! The command `lab`: one campaign whose runs are planned round by round until the registry can
//! recommend a server configuration. It judges no figures: the registry decides the next round and
//! the conclusion.

mod check;
pub(crate) mod explore;
mod plan;
pub(crate) mod spec;

use std::time::Duration;

use judge::diff::policy::{Standard, standard};
use schema::exit::Exit;

use crate::campaign::{self, ASK_BEYOND, consent};
use crate::cli::Lab;
use crate::console::about;
use crate::executor;
use crate::lock::Lock;
use crate::plan::decide::decide;
use crate::release_bench::check_executor;
use crate::stop::Stop;
use crate::world::World;

/// Runs `lab`.
///
/// # Errors
/// Wrong use, an unfit machine, or an interruption. A failing engine is no error: its failure
/// becomes a record.
pub fn run(world: &World, flags: &Lab) -> Result<Exit, Stop> {
    world.tools.check()?;
    let lock = || Lock::take(&world.places.lock(), world.pid);
    let _lock = (!flags.dry_run).then(lock).transpose()?;
    if flags.resume {
        return resume(world, flags);
    }
    let executor = |campaign: &str| {
        let execution = &flags.execution;
        executor::named(world, (&execution.executor, &execution.slurm_options), campaign)
    };
    executor("")?;
    let source = plan::read(world, &flags.name)?;
    let bench = source.campaign(flags);
    check_executor(&bench)?;
    let mut decided = decide(world, &bench)?;
    check::refuse(world, &source.lab, &decided)?;
    let Standard { file: policy, quoted } = standard();
    let outline = judge::lab::outline(&source.lab, &policy, &quoted);
    let lab = source.prepared(flags, outline, &mut decided)?;
    world.console.answer(plan::render(&lab, &decided, source.budget(flags)).trim_end());
    if flags.dry_run {
        return Ok(Exit::Well);
    }
    let executor = executor(&decided.plan.campaign)?;
    executor.preflight()?;
    let most = u64::from(lab.runs_most()).saturating_mul(lab.each_us);
    // The largest possible duration counts, since the lab may need all of its rounds.
    if !flags.yes && Duration::from_micros(most) > ASK_BEYOND {
        consent(&about(most), "fewer `--max-runs` or `--max-hours`", &world.interrupt)?;
    }
    campaign::begin(world, &bench, (decided, Some(lab)), &*executor)
}

/// Resumes the latest unfinished campaign of the lab.
fn resume(world: &World, flags: &Lab) -> Result<Exit, Stop> {
    let id = plan::id(&flags.name);
    let latest = campaign::latest_unfinished(world, |ready| {
        ready.lab.as_ref().is_some_and(|lab| lab.asked.id == id)
    })?;
    let campaign = latest.ok_or_else(|| {
        Stop::wrong_use(format!("lab `{id}` has no unfinished campaign"))
            .with_hint("leave `--resume` out to start one")
    })?;
    campaign::resume(world, (&campaign, &format!("lab {id}, campaign {campaign}")), None)
}
