//! A lab: one campaign whose runs are planned round by round until the registry can recommend a
//! server configuration. It judges no figures: the registry decides the next round and the
//! conclusion.

mod brief;
mod budget;
mod check;
mod conclude;
mod explore;
mod file;
mod question;
mod spec;

use std::time::Duration;

use schema::exit::Exit;

pub use conclude::finish;
pub use spec::PreparedLab;

use crate::build::variants;
use crate::cli::Lab;
use crate::console::about;
use crate::executor::Executor;
use crate::executor::journal::{Journal, Line};
use crate::executor::prepared::PreparedCampaign;
use crate::executor::resume;
use crate::inputs::workload::draw;
use crate::lock::Lock;
use crate::plan::decide::{Decided, decide, ready_cells};
use crate::publish::Registry;
use crate::release_bench::{ASK_BEYOND, check_executor, consent, executor};
use crate::stop::Stop;
use crate::world::{Ids, World};
use explore::Explore;

/// Runs `lab`.
///
/// # Errors
/// Wrong use, an unfit machine, or an interruption. A failing engine is no error: its failure
/// becomes a record.
pub fn run(world: &World, flags: &Lab) -> Result<Exit, Stop> {
    world.tools.check()?;
    let _lock = match flags.dry_run {
        true => None,
        false => Some(Lock::take(&world.places.lock(), world.pid)?),
    };
    if flags.resume {
        return go_on(world, flags);
    }
    let executor = |campaign: &str| {
        executor(world, (&flags.execution.executor, &flags.execution.slurm_options), campaign)
    };
    executor("")?;
    let file = file::read(world, &flags.name)?;
    let bench = file.campaign(flags);
    check_executor(&bench)?;
    let mut decided = decide(world, &bench)?;
    check::refuse(world, &file.lab, &decided)?;
    let outline = question::outline(&file.lab);
    let lab = file.ready(flags, outline, &mut decided)?;
    world.console.answer(brief::render(&lab, &decided, file.budget(flags)).trim_end());
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
    let mut journal = Journal::new(world.places.campaign(&decided.plan.campaign));
    prepare(world, &bench, (&decided, lab), &mut journal)
        .and_then(|()| carry_out(world, &*executor, decided.ids, &mut journal))
        .map_err(|stop| journal.ended_early(stop, &world.places, &world.interrupt))
}

/// Resumes the latest unfinished campaign of the lab.
fn go_on(world: &World, flags: &Lab) -> Result<Exit, Stop> {
    let id = file::id(&flags.name);
    let is_requested =
        |ready: &PreparedCampaign| ready.lab.as_ref().is_some_and(|lab| lab.asked.id == id);
    let campaign = resume::latest(world, is_requested)?.ok_or_else(|| {
        Stop::wrong_use(format!("lab `{id}` has no unfinished campaign"))
            .with_hint("leave `--resume` out to start one")
    })?;
    let title = format!("lab {id}, campaign {campaign}");
    let mut journal = resume::reopen(world, &campaign, &title)?;
    let ready = explore::ready(&journal);
    let executor = executor(world, (&ready.executor, &ready.slurm_options), &campaign)?;
    executor.preflight()?;
    let ids = Ids::new(world.clock.unix_ms(), world.random);
    carry_out(world, &*executor, ids, &mut journal)
        .map_err(|stop| journal.ended_early(stop, &world.places, &world.interrupt))
}

/// Builds the engines, fetches inputs, draws the requests once for all runs, and writes the ready
/// campaign to the journal.
fn prepare(
    world: &World,
    bench: &crate::cli::ReleaseBench,
    (decided, lab): (&Decided, PreparedLab),
    journal: &mut Journal,
) -> Result<(), Stop> {
    let step = |heading: &str| world.console.step(world.clock.elapsed(), heading);
    step("Check that the registry can take records");
    Registry::new(world, &decided.registry).preflight()?;
    let built = variants::build_all(world, &decided.wanted)?;
    step("Fetch inputs");
    let mut cells = ready_cells(world, &decided.plan.cells, &decided.scenarios)?;
    step("Draw the requests");
    for cell in &mut cells {
        let plan = journal.places().plan(&cell.scenario.id);
        draw(world, cell, &plan)?;
        cell.plan = Some(plan);
    }
    let mut ready = PreparedCampaign::new(world, bench, decided, built, cells);
    ready.expected_us = u64::from(lab.runs_most()).saturating_mul(lab.each_us);
    ready.lab = Some(Box::new(lab));
    ready.freeze(journal.places())?;
    Ok(journal.note(Line::Campaign(Box::new(ready)))?)
}

/// Runs rounds until there is a conclusion, from wherever the journal says the lab is, then
/// publishes the records.
fn carry_out(
    world: &World,
    executor: &dyn Executor,
    ids: Ids,
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    Explore::new(world, executor, journal, ids).carry_out()?;
    let mut ready = explore::ready(journal).clone();
    let records = crate::executor::collect::records(&journal.places().staged())?;
    if let Some(record) = records.first() {
        // The node's own id is preferred: a node elsewhere knows its hardware better than the plan
        // does.
        record.hardware.id.clone_into(&mut ready.hardware.0.id);
    }
    let directory = ready.registry.clone();
    let registry = Registry::new(world, &directory);
    let exit = finish(world, &ready, &registry, &records, journal)?;
    journal.note(Line::Finished)?;
    Ok(exit)
}
