//! Course and resume of a campaign, of a release or of a lab: it is prepared, its stages run, and its
//! records are published. A resume continues from wherever the journal says the campaign is;
//! `--resume` means the latest unfinished one of the named release, or the latest that the same
//! command began.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, IsTerminal, stdin};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use schema::comparison::{CellDiff, Diff};
use schema::exit::Exit;
use schema::run::RunRecord;
use schema::verdict::Stage;

use crate::build::variants;
use crate::cli::ReleaseBench;
use crate::executor::collect;
use crate::executor::drive::{Drive, jobs_of};
use crate::executor::journal::{Journal, Line, PreparedCampaign};
use crate::executor::{self, Executor};
use crate::lab::explore::{self, Explore};
use crate::lab::spec::PreparedLab;
use crate::node::run::save_workload;
use crate::plan::decide::{Decided, ready_cells};
use crate::plan::{Plan, PlannedRun, Round, interleave};
use crate::process::Interrupt;
use crate::publish::Registry;
use crate::publish::finish::finish;
use crate::stop::Stop;
use crate::world::{Ids, World};

/// Expected duration of a campaign above which the user has to confirm the start.
pub const ASK_BEYOND: Duration = Duration::from_secs(2 * 3600);
/// Number of variants that the confirmation stage runs: baseline and candidate.
const COMPARED: usize = 2;

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

/// Reads the user's answer, one line, from the terminal. Ctrl-C only sets a flag, so the wait polls
/// every 100 ms and checks that flag in between.
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

/// Carries out a new campaign, of a release or of a lab, with a journal from which it can be
/// resumed.
///
/// # Errors
/// A build, a download, a tool or the machine fails, or the campaign was interrupted.
pub fn begin(
    world: &World,
    flags: &ReleaseBench,
    (decided, lab): (Decided, Option<PreparedLab>),
    executor: &dyn Executor,
) -> Result<Exit, Stop> {
    let mut journal = Journal::new(world.places.campaign(&decided.plan.campaign));
    prepare(world, flags, (&decided, lab), &mut journal)
        .and_then(|ready| carry_out(world, executor, (ready, decided.ids), &mut journal))
        .map_err(|stop| journal.ended_early(stop, world))
}

/// Resumes the campaign `id`, whose journal is on disk; `title` names the campaign or lab.
///
/// # Errors
/// The journal cannot be read, or the campaign fails as in [`begin`].
pub fn resume(
    world: &World,
    (id, title): (&str, &str),
    max_gpu_hours: Option<f64>,
) -> Result<Exit, Stop> {
    let (mut journal, torn) = Journal::open(world.places.campaign(id))?;
    world.step(&format!("Resume {title}"));
    if torn {
        world.console.note("the last line of its journal was incomplete and is dropped");
    }
    let mut ready = journal.prepared().clone();
    ready.max_gpu_hours = max_gpu_hours.or(ready.max_gpu_hours);
    let executor = executor::named(world, (&ready.executor, &ready.slurm_options), id)?;
    executor.preflight()?;
    let ids = Ids::new(world.clock.unix_ms(), world.random);
    carry_out(world, &*executor, (ready, ids), &mut journal)
        .map_err(|stop| journal.ended_early(stop, world))
}

/// Returns the id of the latest unfinished campaign that satisfies `fits`, or `None`.
///
/// # Errors
/// A journal cannot be read.
pub fn latest_unfinished(
    world: &World,
    fits: impl Fn(&PreparedCampaign) -> bool,
) -> Result<Option<String>, Stop> {
    let entries = fs::read_dir(world.places.campaigns()).into_iter().flatten().flatten();
    let mut ids: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    // Campaign ids are ULIDs, which sort by time.
    ids.sort_by(|a, b| b.cmp(a));
    for id in ids {
        let state = Journal::read(&world.places.campaign(&id))?;
        // A campaign without a first line never began: there is nothing to resume.
        if !state.finished && state.ready.as_ref().is_some_and(&fits) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

/// Returns true when a command with `--resume` means the campaign `ready`: it names only that
/// campaign's release, or repeats all arguments that the campaign was begun with.
pub fn is_requested(ready: &PreparedCampaign, flags: &ReleaseBench, command: &[String]) -> bool {
    let words = essential(command);
    let bare = |word: &str| {
        flags.release.as_deref() == Some(word) || word == flags.engine || word == "--engine"
    };
    if !words.iter().skip(1).all(|word| bare(word)) {
        return words == essential(&ready.command);
    }
    let name = flags.release.as_ref().map(|name| name.trim_start_matches('v'));
    ready.plan.variants.iter().any(|variant| {
        let named = name.is_none_or(|name| variant.release.trim_start_matches('v') == name);
        named && variant.engine == flags.engine
    })
}

/// Returns the arguments of a command that determine what is measured, without flags such as
/// `--yes` that may differ on resume.
fn essential(command: &[String]) -> Vec<&str> {
    const ALONE: &[&str] = &["--resume", "--yes"];
    const WITH_VALUE: &[&str] = &["--root", "--tools-dir", "--max-gpu-hours"];
    let mut words = command.iter().map(String::as_str);
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        let (name, joined) = word.split_once('=').map_or((word, false), |(name, _)| (name, true));
        if !WITH_VALUE.contains(&name) && !ALONE.contains(&word) {
            kept.push(word);
        } else if WITH_VALUE.contains(&name) && !joined {
            words.next();
        }
    }
    kept
}

/// Builds the planned releases, fetches their inputs, and writes the prepared campaign to the
/// journal, so that it can be resumed from there. For a lab, the requests are sampled once for all
/// runs.
fn prepare(
    world: &World,
    flags: &ReleaseBench,
    (decided, lab): (&Decided, Option<PreparedLab>),
    journal: &mut Journal,
) -> Result<PreparedCampaign, Stop> {
    // Found out now, because hours of measuring are wasted when the commit fails afterwards.
    if decided.commits {
        world.step("Check that the registry can take records");
        Registry::new(world, &decided.registry).preflight()?;
    }
    // Builds come before downloads: a release that does not compile is the more likely failure.
    let built = variants::build_all(world, &decided.wanted)?;
    world.step("Fetch inputs");
    let mut cells = ready_cells(world, &decided.plan.cells, &decided.scenarios)?;
    if lab.is_some() {
        world.step("Draw the requests");
        for cell in &mut cells {
            let workload = journal.places.plan(&cell.scenario.id);
            save_workload(world, cell, &workload)?;
            cell.plan = Some(workload);
        }
    }
    let mut ready = PreparedCampaign::new(world, flags, decided, built, cells);
    if let Some(lab) = lab {
        ready.expected_us = u64::from(lab.runs_most()).saturating_mul(lab.each_us);
        ready.lab = Some(Box::new(lab));
    }
    ready.freeze(&journal.places)?;
    journal.note(Line::Campaign(Box::new(ready.clone())))?;
    Ok(ready)
}

/// Runs a lab's rounds, or the screening and confirmation stages, from wherever the journal says
/// they are, then publishes the records.
fn carry_out(
    world: &World,
    executor: &dyn Executor,
    (mut ready, ids): (PreparedCampaign, Ids),
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    if ready.lab.is_some() {
        Explore::new(world, executor, journal, ids).carry_out()?;
        // The rounds have added variants.
        ready = journal.prepared().clone();
    } else {
        run_stages(world, executor, (&mut ready, ids), journal)?;
    }
    let records = collect::records(&journal.places.staged())?;
    conclude(world, ready, &records, journal)
}

fn run_stages(
    world: &World,
    executor: &dyn Executor,
    (ready, mut ids): (&mut PreparedCampaign, Ids),
    journal: &mut Journal,
) -> Result<(), Stop> {
    // A resumed campaign has its jobs in the journal already.
    if !journal.state.stages.contains(&None) {
        let jobs = jobs_of(&ready.plan.campaign, &ready.plan.runs);
        journal.note(Line::Planned { stage: None, jobs })?;
    }
    Drive::new(world, executor, ready, journal).carry_out(None)?;
    let Some(pairs) = ready.confirm_pairs else { return Ok(()) };
    let staged = journal.places.staged();
    ready.take_hardware(&collect::records(&staged)?);
    let Some((baseline, candidate)) = ready.compared() else { return Ok(()) };
    let stage = Some(Stage::Confirm);
    if !journal.state.stages.contains(&stage) {
        world.step("Select cells to confirm");
        let compared =
            Registry::new(world, &ready.registry).compare(baseline, candidate, &staged)?;
        let runs = confirmation(&ready.plan, &compared, pairs, &mut ids);
        let jobs = jobs_of(&ready.plan.campaign, &runs);
        journal.note(Line::Planned { stage, jobs })?;
    }
    Drive::new(world, executor, ready, journal).carry_out(stage)
}

/// Plans the confirmation stage of a comparison: `pairs` pairs of runs in every cell of the plan that
/// has a suspected change of a release-blocking metric. It computes no statistics: the registry's
/// comparison says which figures differ.
fn confirmation(plan: &Plan, compared: &Diff, pairs: u32, ids: &mut Ids) -> Vec<PlannedRun> {
    let differs: BTreeSet<(&str, &str)> = compared
        .cells
        .iter()
        // A cell judged from an older campaign's runs is not this campaign's to confirm.
        .filter(|cell| cell.judged.as_ref() == Some(&plan.campaign) && is_open(cell))
        .map(|cell| (cell.cell.model.as_str(), scenario_id(&cell.cell.scenario)))
        .collect();
    let cells = plan.cells.iter().enumerate();
    let cells = cells.filter(|(_, cell)| differs.contains(&(&cell.model, &cell.scenario)));
    let round = Round {
        cells: cells.map(|(index, _)| index).collect(),
        variants: COMPARED,
        repeats: pairs,
        // Block numbers continue after the screening stage, since a block is unique in its
        // campaign.
        block: plan.runs.iter().map(|run| run.block + 1).max().unwrap_or(0),
        stage: Some(Stage::Confirm),
    };
    interleave(&round, || ids.next_id())
}

/// Returns true if the screening stage suspects, in the cell, a change of a release-blocking metric
/// that is neither confirmed nor refuted yet.
fn is_open(cell: &CellDiff) -> bool {
    let mut verdicts = cell.rows.iter().filter(|row| row.gates).map(|row| &row.verdict);
    verdicts.any(|verdict| verdict.suspected && verdict.stage == Stage::Screen)
}

/// Returns the scenario's id from `id@rev`.
fn scenario_id(named: &str) -> &str {
    named.split('@').next().unwrap_or_default()
}

/// Publishes the records of a campaign whose stages have run, and prints its result.
///
/// # Errors
/// A record is refused, or a tool fails.
pub fn conclude(
    world: &World,
    mut ready: PreparedCampaign,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    ready.take_hardware(records);
    let exit = match ready.lab {
        Some(_) => explore::finish(world, &ready, records, journal)?,
        None => finish(world, &ready, records, journal)?,
    };
    journal.note(Line::Finished)?;
    Ok(exit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_say_what_is_measured_is_passed_over() {
        let command = "--root /x release-bench v1 --resume --yes --max-gpu-hours=3 --model m";
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        assert_eq!(essential(&words), ["release-bench", "v1", "--model", "m"]);
    }
}
