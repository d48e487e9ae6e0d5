//! The command `release-bench`: one campaign from the command line to the commit. It plans, builds
//! the releases, fetches inputs, runs both stages and publishes; the stages themselves live in the
//! folders of the same names.

use std::io::{BufRead, IsTerminal, stdin};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use schema::exit::Exit;
use schema::verdict::Stage;

use crate::build::variants;
use crate::cli::ReleaseBench;
use crate::console::about;
use crate::executor::collect;
use crate::executor::confirm;
use crate::executor::drive::{Drive, jobs_of};
use crate::executor::journal::{Journal, Line};
use crate::executor::local::Local;
use crate::executor::prepared::PreparedCampaign;
use crate::executor::resume;
use crate::executor::slurm::Slurm;
use crate::executor::{Executor, LOCAL, SLURM};
use crate::lock::Lock;
use crate::plan::brief::Brief;
use crate::plan::decide::{Decided, decide, ready_cells};
use crate::process::Interrupt;
use crate::publish::Registry;
use crate::publish::finish::finish;
use crate::stop::Stop;
use crate::world::{Ids, World};

/// Expected duration of a campaign above which the user has to confirm the start.
pub const ASK_BEYOND: Duration = Duration::from_secs(2 * 3600);

/// Runs `release-bench`, either from the beginning or, with `--resume`, from an unfinished
/// campaign.
///
/// # Errors
/// Wrong use, an unfit machine, or an interruption. A failing engine is no error: its failure
/// becomes a record.
pub fn run(world: &World, flags: &ReleaseBench) -> Result<Exit, Stop> {
    check_executor(flags)?;
    world.tools.check()?;
    let _lock = match flags.dry_run {
        true => None,
        false => Some(Lock::take(&world.places.lock(), world.pid)?),
    };
    // The campaign's flags are in its journal; of this command's only `--max-gpu-hours` counts.
    if flags.resume {
        return go_on(world, flags);
    }
    let executor = |campaign: &str| {
        executor(world, (&flags.execution.executor, &flags.execution.slurm_options), campaign)
    };
    // Before anything is resolved: an executor that is not known is wrong use of the command.
    executor("")?;
    let decided = decide(world, flags)?;
    world.console.answer(decided.brief.render().trim_end());
    if flags.dry_run {
        return Ok(Exit::Well);
    }
    let executor = executor(&decided.plan.campaign)?;
    executor.preflight()?;
    confirm(&decided.brief, flags, &world.interrupt)?;
    let mut journal = Journal::new(world.places.campaign(&decided.plan.campaign));
    prepare(world, flags, &decided, &mut journal)
        .and_then(|ready| carry_out(world, &*executor, (ready, decided.ids), &mut journal))
        .map_err(|stop| journal.ended_early(stop, &world.places, &world.interrupt))
}

/// Resumes the campaign that the journal on disk describes.
fn go_on(world: &World, flags: &ReleaseBench) -> Result<Exit, Stop> {
    let campaign = resume::find(world, flags)?;
    let mut journal = resume::reopen(world, &campaign, &format!("campaign {campaign}"))?;
    let mut ready = journal.state.ready.clone().ok_or_else(|| resume::nothing(flags))?;
    ready.max_gpu_hours = flags.max_gpu_hours.or(ready.max_gpu_hours);
    let ids = Ids::new(world.clock.unix_ms(), world.random);
    let executor = executor(world, (&ready.executor, &ready.slurm_options), &campaign)?;
    executor.preflight()?;
    carry_out(world, &*executor, (ready, ids), &mut journal)
        .map_err(|stop| journal.ended_early(stop, &world.places, &world.interrupt))
}

/// Asks the user to confirm a plan that takes hours, and refuses one above `--max-gpu-hours`.
fn confirm(brief: &Brief, flags: &ReleaseBench, interrupt: &Interrupt) -> Result<(), Stop> {
    if let Some(most) = flags.max_gpu_hours
        && brief.gpu_hours() > most
    {
        let expected = brief.gpu_hours();
        let message = format!("this would take {expected:.1} GPU-hours, and {most} are allowed");
        return Err(Stop::wrong_use(message)
            .with_hint("allow more, or name fewer `--model`, `--scenario` and `--repeats`"));
    }
    let expected = brief.expected_us();
    let unknown = if brief.on_gpu { brief.unknown() } else { 0 };
    if flags.yes || (Duration::from_micros(expected) <= ASK_BEYOND && unknown == 0) {
        return Ok(());
    }
    let mut expected = about(expected);
    if brief.on_gpu {
        expected.push_str(&format!(", {:.1} GPU-hours", brief.gpu_hours()));
    }
    if unknown > 0 {
        expected.push_str(&format!(", and {unknown} runs of unknown duration"));
    }
    consent(&expected, "fewer `--scenario` and `--repeats`", interrupt)
}

/// Asks the user at the terminal to confirm a plan of duration `expected`; `fewer` names flags that
/// make the plan smaller, for the hint.
///
/// # Errors
/// Standard input is no terminal, or the answer is not yes.
pub fn consent(expected: &str, fewer: &str, interrupt: &Interrupt) -> Result<(), Stop> {
    if !stdin().is_terminal() {
        return Err(Stop::wrong_use(format!("this would take {expected}"))
            .with_hint(format!("use `--yes` to start it, or {fewer}")));
    }
    eprint!("This will take {expected}. Start? [y/N] ");
    match read_answer(interrupt)?.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Stop::wrong_use("not started")),
    }
}

/// Reads a line from the terminal. Ctrl-C only sets a flag here, so the wait polls in steps of 100
/// ms and checks that flag in between.
fn read_answer(interrupt: &Interrupt) -> Result<String, Stop> {
    let stdin = stdin();
    let mut waiting = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    while !matches!(poll(&mut waiting, 100_u8), Ok(ready) if ready > 0) {
        interrupt.check()?;
    }
    let mut answer = String::new();
    // An answer that cannot be read is no consent.
    let _ = stdin.lock().read_line(&mut answer);
    Ok(answer)
}

/// Builds the planned releases, fetches their inputs, and writes the [`Ready`] campaign to the
/// journal, so that it can be resumed from there.
fn prepare(
    world: &World,
    flags: &ReleaseBench,
    decided: &Decided,
    journal: &mut Journal,
) -> Result<PreparedCampaign, Stop> {
    let step = |heading: &str| world.console.step(world.clock.elapsed(), heading);
    // Found out now, because hours of measuring are wasted when the commit fails afterwards.
    if decided.commits {
        step("Check that the registry can take records");
        Registry::new(world, &decided.registry).preflight()?;
    }
    // Builds come before downloads: a release that does not compile is the more likely failure.
    let built = variants::build_all(world, &decided.wanted)?;
    step("Fetch inputs");
    let cells = ready_cells(world, &decided.plan.cells, &decided.scenarios)?;
    let mut ready = PreparedCampaign::new(world, flags, decided, built, cells);
    ready.freeze(journal.places())?;
    journal.note(Line::Campaign(Box::new(ready.clone())))?;
    Ok(ready)
}

/// Runs the screening and confirmation stages from wherever the journal says they are, then
/// publishes the records.
fn carry_out(
    world: &World,
    executor: &dyn Executor,
    (mut ready, mut ids): (PreparedCampaign, Ids),
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let staged = journal.places().staged();
    // A resumed campaign has its jobs in the journal already.
    if !journal.state.stages.contains(&None) {
        let jobs = jobs_of(&ready.plan.campaign, &ready.plan.slots);
        journal.note(Line::Planned { stage: None, jobs })?;
    }
    Drive::new(world, executor, &ready, journal).carry_out(None)?;
    if let Some(record) = collect::records(&staged)?.first() {
        // The node's own id is preferred: a node elsewhere knows its hardware better than the plan
        // does.
        record.hardware.id.clone_into(&mut ready.hardware.0.id);
    }
    let directory = ready.registry.clone();
    let registry = Registry::new(world, &directory);
    if let Some(pairs) = ready.confirm_pairs
        && let Some((baseline, candidate)) = ready.compared()
    {
        let stage = Some(Stage::Confirm);
        if !journal.state.stages.contains(&stage) {
            world.console.step(world.clock.elapsed(), "Select cells to confirm");
            let compared = registry.compare(baseline, candidate, &staged)?;
            let slots = confirm::slots(&ready.plan, &compared, pairs, &mut ids);
            let jobs = jobs_of(&ready.plan.campaign, &slots);
            journal.note(Line::Planned { stage, jobs })?;
        }
        Drive::new(world, executor, &ready, journal).carry_out(stage)?;
    }
    let exit = finish(world, &ready, &registry, &collect::records(&staged)?, journal)?;
    journal.note(Line::Finished)?;
    Ok(exit)
}

/// Returns the executor named `id` for a campaign's jobs, with the user's `--slurm-option` values.
///
/// # Errors
/// The executor is unknown, or an option does not fit it.
pub fn executor(
    world: &World,
    (id, options): (&str, &[String]),
    campaign: &str,
) -> Result<Box<dyn Executor>, Stop> {
    match id {
        LOCAL => Ok(Box::new(Local::new(&world.places.campaign(campaign).jobs()))),
        SLURM => {
            let (env, interrupt) = (world.slurm_env.clone(), world.interrupt.clone());
            Ok(Box::new(Slurm::new(options, env, interrupt)?))
        }
        other => {
            let message = format!("executor `{other}` is unknown; known are {LOCAL}, {SLURM}");
            Err(Stop::wrong_use(message))
        }
    }
}

/// Checks that `--executor`, `--slurm-option` and `--url` can be combined.
///
/// # Errors
/// Two of the flags contradict each other.
pub fn check_executor(flags: &ReleaseBench) -> Result<(), Stop> {
    let message = match flags.execution.executor.as_str() {
        SLURM if flags.url.is_some() => {
            "`--url` measures a server that runs already; no scheduler is needed"
        }
        LOCAL if !flags.execution.slurm_options.is_empty() && !flags.resume => {
            "`--slurm-option` is for `--executor slurm`"
        }
        _ => return Ok(()),
    };
    Err(Stop::wrong_use(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::brief::CellBrief;
    use crate::plan::estimate::Estimate;
    use clap::Parser;

    fn flags(args: &[&str]) -> ReleaseBench {
        let words = ["redline-campaign", "release-bench", "v1.0.0"].iter().chain(args);
        let cli = crate::cli::Cli::try_parse_from(words).unwrap();
        let crate::cli::Verb::ReleaseBench(flags) = cli.command else { panic!("{args:?}") };
        *flags
    }

    /// A plan of one cell with three runs on eight GPUs each.
    fn brief(each: Estimate) -> Brief {
        let cell = CellBrief {
            engine: "vllm".into(),
            model: "m".into(),
            tp: 8,
            scenario: "balanced@1".into(),
            launches: 3,
            each,
        };
        Brief {
            campaign: String::new(),
            variants: Vec::new(),
            hardware: String::new(),
            target: String::new(),
            on_gpu: true,
            cells: vec![cell],
            confirm_pairs: None,
            inputs: Vec::new(),
            quirks: Vec::new(),
            records: String::new(),
        }
    }

    const HOUR: Estimate = Estimate::Measured { us: 3_600_000_000, runs: 1 };

    #[test]
    fn hours_are_spent_only_when_they_were_allowed() {
        let interrupt = Interrupt::new(&crate::environment::SystemClock::start());
        let asked = |each, args: &[&str]| confirm(&brief(each), &flags(args), &interrupt);
        let most = asked(HOUR, &["--yes", "--max-gpu-hours", "20"]).unwrap_err().to_string();
        assert!(most.starts_with("error: this would take 24.0 GPU-hours, and 20 are allowed"));
        assert!(asked(HOUR, &["--yes", "--max-gpu-hours", "24"]).is_ok());
        assert!(asked(Estimate::Unknown, &["--yes"]).is_ok());
        // A CPU plan of unknown length starts without a question: only unknown GPU-hours need
        // consent.
        let on_cpu = Brief { on_gpu: false, ..brief(Estimate::Unknown) };
        assert!(confirm(&on_cpu, &flags(&[]), &interrupt).is_ok());
    }
}
