//! The command `release-bench`, which plans a campaign and asks for consent; course and
//! resume of a campaign, of a release or of a lab: it is prepared, its stages run, and its records
//! are published. A resume continues from wherever the journal says the campaign is; `--resume` means
//! the latest unfinished one of the named release, or the latest that the same command began.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, IsTerminal, stdin};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use schema::comparison::{CellDiff, Diff};
use schema::exit::Exit;
use schema::run::RunRecord;
use schema::scenario::id_of;
use schema::verdict::Stage;

use crate::build::variants;
use crate::cli::{Execution, ReleaseBench};
use crate::console::about;
use crate::executor::drive::{Drive, jobs_of};
use crate::executor::journal::{Journal, Line, PreparedCampaign, PreparedLab};
use crate::executor::{self, Executor, LOCAL, SLURM, job};
use crate::lab::explore::{self, Explore};
use crate::lock::Lock;
use crate::node::load_generator::save_workload;
use crate::plan::brief::Brief;
use crate::plan::decide::{Decided, decide, ready_cells};
use crate::plan::fit::fit;
use crate::plan::{Plan, PlannedRun, Round, interleave};
use crate::process::Interrupt;
use crate::publish::Registry;
use crate::publish::finish::finish;
use crate::publish::gate;
use crate::stop::{Stop, wrong_use};
use crate::world::{Ids, World};

/// Two hours: a campaign that is expected to take longer starts only if the user confirms it or has
/// given `--yes`.
pub const ASK_BEYOND: Duration = Duration::from_secs(2 * 3600);
/// Number of variants that are compared: baseline and candidate.
const COMPARED: usize = 2;

/// Asks the user at the terminal to confirm a plan of duration `expected`; `fewer` names flags that
/// make the plan smaller, for the hint.
///
/// # Errors
/// Standard input is no terminal, the user answers something else than yes, or the wait is
/// interrupted.
pub fn consent(expected: &str, fewer: &str, interrupt: &Interrupt) -> Result<(), Stop> {
    if !stdin().is_terminal() {
        return Err(wrong_use!("this would take {expected}")
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
/// A build, a download, a job, a tool or a file operation fails, a record is refused, or the
/// campaign is interrupted.
pub fn begin(
    world: &World,
    flags: &ReleaseBench,
    (mut decided, lab): (Decided, Option<PreparedLab>),
    executor: &dyn Executor,
) -> Result<Exit, Stop> {
    let mut journal = Journal::new(world.places.campaign(&decided.plan.campaign));
    prepare(world, flags, (&mut decided, lab), &mut journal)
        .and_then(|ready| carry_out(world, executor, (ready, decided.ids), &mut journal))
        .map_err(|stop| journal.ended_early(stop, world))
}

/// Resumes the campaign `id`, whose journal is on disk; `title` names the campaign or lab in the
/// heading that is printed.
///
/// # Errors
/// The journal cannot be read, jobs cannot be submitted now, or the campaign fails as in [`begin`].
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
    go_on(world, &*executor, ready, &mut journal)
}

/// Carries out the rest of a campaign whose journal was opened again.
///
/// # Errors
/// The campaign fails as in [`begin`].
pub fn go_on(
    world: &World,
    executor: &dyn Executor,
    ready: PreparedCampaign,
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let ids = Ids::new(world.clock.unix_ms(), world.random);
    carry_out(world, executor, (ready, ids), journal)
        .map_err(|stop| journal.ended_early(stop, world))
}

/// Returns the id of the latest unfinished campaign that satisfies `fits`, or `None`.
///
/// # Errors
/// The journal of a campaign cannot be read or is invalid.
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

/// Returns true when a command with `--resume` means the campaign `ready`: it names nothing but an
/// engine and a release that the campaign measures, or repeats all arguments that determine what is
/// measured.
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

/// Returns the words of a command line that determine what is measured: all except flags, such as
/// `--yes`, that may differ on resume.
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
    (decided, lab): (&mut Decided, Option<PreparedLab>),
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
    fit(world, flags.repeats, &mut ready, &mut decided.ids)?;
    write_down(&mut ready, journal)?;
    Ok(ready)
}

/// Copies the files of the suite that a prepared campaign reads, and begins the journal with it.
///
/// # Errors
/// A file cannot be read or written.
pub fn write_down(ready: &mut PreparedCampaign, journal: &mut Journal) -> Result<(), Stop> {
    ready.freeze(&journal.places)?;
    journal.note(Line::Campaign(Box::new(ready.clone())))
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
        Explore { world, executor, journal, ids }.carry_out()?;
        // The rounds have added variants.
        ready = journal.prepared().clone();
    } else {
        run_stages(world, executor, (&mut ready, ids), journal)?;
    }
    let records = job::records(&journal.places.staged())?;
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
    if ready.alternation.is_some() {
        let stage = Some(Stage::Alternate);
        if !journal.state.stages.contains(&stage) {
            let jobs = jobs_of(&ready.plan.campaign, &in_turns(&ready.plan, &mut ids));
            journal.note(Line::Planned { stage, jobs })?;
        }
        return Drive::new(world, executor, ready, journal).carry_out(stage);
    }
    let Some(pairs) = ready.confirm_pairs else { return Ok(()) };
    let staged = journal.places.staged();
    ready.take_hardware(&job::records(&staged)?);
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

/// Plans the alternating comparisons: in each cell of the plan one of the first two variants, whose
/// two runs name logs and containers.
fn in_turns(plan: &Plan, ids: &mut Ids) -> Vec<PlannedRun> {
    let round = Round {
        cells: (0..plan.cells.len()).collect(),
        variants: COMPARED,
        repeats: 1,
        block: plan.runs.iter().map(|run| run.block + 1).max().unwrap_or(0),
        stage: Some(Stage::Alternate),
    };
    interleave(&round, || ids.next_id())
}

/// Plans the confirmation stage of a comparison: `pairs` pairs of runs in every cell of the plan
/// that has a suspected change of a release-blocking metric. It computes no statistics: the
/// registry's comparison says which metrics differ.
fn confirmation(plan: &Plan, compared: &Diff, pairs: u32, ids: &mut Ids) -> Vec<PlannedRun> {
    let differs: BTreeSet<(&str, &str)> = compared
        .cells
        .iter()
        // A cell judged from an older campaign's runs is not this campaign's to confirm.
        .filter(|cell| cell.judged.as_ref() == Some(&plan.campaign) && is_open(cell))
        .map(|cell| (cell.cell.model.as_str(), id_of(&cell.cell.scenario)))
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

/// Publishes the records of a campaign whose stages have run, and prints its result.
///
/// # Errors
/// A record is refused, the releases cannot be compared, a tool fails, a file cannot be read or
/// written, or the command is interrupted.
pub fn conclude(
    world: &World,
    mut ready: PreparedCampaign,
    records: &[RunRecord],
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    ready.take_hardware(records);
    let exit = match (&ready.lab, &ready.gate) {
        (Some(_), _) => explore::finish(world, &ready, records, journal)?,
        (None, Some(gate)) => gate::finish(world, &ready, gate, journal)?,
        (None, None) => finish(world, &ready, records, journal)?,
    };
    journal.note(Line::Finished)?;
    Ok(exit)
}

/// Runs the command `release-bench`, either from the beginning or, with `--resume`, from an
/// unfinished campaign.
///
/// # Errors
/// Wrong use, a machine or clone that is unfit or in use by another campaign, a build, download,
/// tool or file operation that fails, or an interruption. An engine that fails in a run is no
/// error: its failure becomes a record.
pub fn run(world: &World, flags: &ReleaseBench) -> Result<Exit, Stop> {
    check_executor(flags)?;
    world.tools.check()?;
    let lock = || Lock::take(&world.places.lock(), world.pid);
    let _lock = (!flags.dry_run).then(lock).transpose()?;
    // The campaign's flags are in its journal; of this command's only `--max-gpu-hours` counts.
    if flags.resume {
        let id = unfinished(world, flags)?;
        return resume(world, (&id, &format!("campaign {id}")), flags.max_gpu_hours);
    }
    check_scheduler(world, &flags.execution, flags.dry_run)?;
    let decided = decide(world, flags)?;
    Ok(measure(world, flags, decided)?.unwrap_or(Exit::Well))
}

/// Prints a decided plan, asks for consent where the plan is long, and carries it out; returns
/// `None` for a dry run, which ends after the plan.
///
/// # Errors
/// The user does not consent, jobs cannot be submitted now, or the campaign fails as in [`begin`].
pub fn measure(
    world: &World,
    flags: &ReleaseBench,
    decided: Decided,
) -> Result<Option<Exit>, Stop> {
    world.console.answer(decided.brief.render().trim_end())?;
    refuse_beyond(&decided.brief, flags)?;
    if flags.dry_run {
        return Ok(None);
    }
    let executor = executor_of(world, flags, &decided.plan.campaign)?;
    executor.preflight()?;
    confirm(&decided.brief, flags, &world.interrupt)?;
    begin(world, flags, (decided, None), &*executor).map(Some)
}

/// Checks, before anything is resolved or downloaded, that the executor is known and that a scheduler
/// answers; a dry run needs none.
///
/// # Errors
/// The executor is unknown, an option of it is malformed or reserved, or its scheduler does not
/// answer.
pub fn check_scheduler(world: &World, execution: &Execution, dry_run: bool) -> Result<(), Stop> {
    let executor = executor::named(world, (&execution.executor, &execution.slurm_options), "")?;
    match dry_run || executor.is_here() {
        true => Ok(()),
        false => executor.preflight(),
    }
}

/// Returns the executor that the flags name, for the jobs of `campaign`.
///
/// # Errors
/// The executor is unknown, or an option of it is malformed or reserved.
pub fn executor_of(
    world: &World,
    flags: &ReleaseBench,
    campaign: &str,
) -> Result<Box<dyn Executor>, Stop> {
    let execution = &flags.execution;
    executor::named(world, (&execution.executor, &execution.slurm_options), campaign)
}

/// Returns the id of the campaign that `--resume` continues: the latest unfinished one, not of a
/// lab, whose engine and release or whose arguments fit this command.
fn unfinished(world: &World, flags: &ReleaseBench) -> Result<String, Stop> {
    let latest = latest_unfinished(world, |ready| {
        ready.lab.is_none() && ready.gate.is_none() && is_requested(ready, flags, &world.command)
    })?;
    latest.ok_or_else(|| {
        let of = flags.release.as_ref().map(|release| format!(" of `{release}`"));
        let of = of.unwrap_or_default();
        wrong_use!("no unfinished campaign{of} was started by this command")
            .with_hint("leave `--resume` out to start one")
    })
}

/// Refuses a plan that is expected to take more GPU-hours than `--max-gpu-hours`.
fn refuse_beyond(brief: &Brief, flags: &ReleaseBench) -> Result<(), Stop> {
    let expected = brief.gpu_hours();
    match flags.max_gpu_hours {
        Some(most) if expected > most => {
            Err(wrong_use!("this would take {expected:.1} GPU-hours, and {most} are allowed")
                .with_hint("allow more, or name fewer `--model`, `--scenario` and `--repeats`"))
        }
        _ => Ok(()),
    }
}

/// Without `--yes`, asks the user to confirm a plan that is expected to take more than two hours or an
/// unknown number of GPU-hours.
fn confirm(brief: &Brief, flags: &ReleaseBench, interrupt: &Interrupt) -> Result<(), Stop> {
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

/// Checks that `--executor`, `--slurm-option` and `--url` can be combined.
///
/// # Errors
/// `--url` is given with the executor `slurm`, or `--slurm-option` with the executor `local` and
/// without `--resume`.
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

    #[test]
    fn what_does_not_say_what_is_measured_is_passed_over() {
        let command = "--root /x release-bench v1 --resume --yes --max-gpu-hours=3 --model m";
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        assert_eq!(essential(&words), ["release-bench", "v1", "--model", "m"]);
    }
}

#[cfg(test)]
mod release_bench_tests {
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

    /// Builds, for tests, the printed plan of one cell with three runs on eight GPUs each.
    fn brief(each: Estimate) -> Brief {
        let cell = CellBrief {
            engine: "vllm".into(),
            model: "m".into(),
            tp: 8,
            scenario: "balanced@1".into(),
            runs: 3,
            each,
            start_us: None,
            newer: None,
        };
        Brief {
            campaign: String::new(),
            variants: Vec::new(),
            commands: Vec::new(),
            jobs: None,
            hardware: String::new(),
            target: String::new(),
            on_gpu: true,
            cells: vec![cell],
            confirm_pairs: None,
            alternation_us: None,
            pairs_because: None,
            servers: None,
            packages: Vec::new(),
            inputs: Vec::new(),
            missing: Vec::new(),
            quirks: Vec::new(),
            records: String::new(),
        }
    }

    const HOUR: Estimate = Estimate::Measured { us: 3_600_000_000, runs: 1 };

    #[test]
    fn hours_are_spent_only_when_they_were_allowed() {
        let interrupt = Interrupt::new(crate::clock::Clock::start());
        let allowed = |args: &[&str]| refuse_beyond(&brief(HOUR), &flags(args));
        let most = allowed(&["--max-gpu-hours", "20"]).unwrap_err().to_string();
        assert!(most.starts_with("error: this would take 24.0 GPU-hours, and 20 are allowed"));
        assert!(allowed(&["--max-gpu-hours", "24"]).is_ok());
        assert!(confirm(&brief(Estimate::Unknown), &flags(&["--yes"]), &interrupt).is_ok());
        // A CPU plan of unknown length starts without a question: only unknown GPU-hours need
        // consent.
        let on_cpu = Brief { on_gpu: false, ..brief(Estimate::Unknown) };
        assert!(confirm(&on_cpu, &flags(&[]), &interrupt).is_ok());
    }
}
