//! One campaign from the command line to the commit: decide, build, fetch, run, publish.

use std::io::{BufRead, IsTerminal, stdin};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use schema::exit::Exit;
use schema::run::{RunRecord, Status, ValidityVerdict};

use crate::brief::{Brief, CellBrief, gpu_hours};
use crate::cli::ReleaseBench;
use crate::confirm;
use crate::console::about;
use crate::decide::{Decided, decide, ready_cells};
use crate::finish::finish;
use crate::journal::Journal;
use crate::lock::Lock;
use crate::plan::{Cell, Slot};
use crate::process::Interrupt;
use crate::publish::{Registry, write_run};
use crate::run::{Bench, BuiltSide, ReadyCell};
use crate::sides::{self, Wanted};
use crate::stop::Stop;
use crate::world::World;

/// Beyond this much expected time the user is asked first.
const ASK_BEYOND: Duration = Duration::from_secs(2 * 3600);

/// Runs `release-bench`.
///
/// # Errors
/// Wrong use, an unfit machine, or an interruption; an engine's failure is no error.
pub fn run(world: &World, flags: &ReleaseBench) -> Result<Exit, Stop> {
    refuse_unsupported(flags)?;
    world.tools.check()?;
    let _lock = match flags.dry_run {
        true => None,
        false => Some(Lock::take(&world.places.lock(), world.pid)?),
    };
    let mut decided = decide(world, flags)?;
    world.console.answer(decided.brief.render().trim_end());
    if flags.dry_run {
        return Ok(Exit::Well);
    }
    confirm(&decided.brief, flags, &world.interrupt)?;
    let mut journal = Journal::new(world.places.campaign(&decided.plan.campaign));
    carry_out(world, flags, &mut decided, &mut journal)
        .map_err(|stop| journal.ended_early(stop, &world.places, &world.interrupt))
}

/// Flags of later releases are refused by name: one that is silently ignored would mislead.
fn refuse_unsupported(flags: &ReleaseBench) -> Result<(), Stop> {
    let refused = if flags.executor != "local" {
        format!("executor `{}` is not supported yet; only `local` is", flags.executor)
    } else if flags.resume {
        "`--resume` is not supported yet".to_owned()
    } else {
        return Ok(());
    };
    Err(Stop::wrong_use(refused))
}

/// Asks before hours of measuring, where somebody can answer.
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
        expected.push_str(&format!(", and what {unknown} launches take, which is unknown"));
    }
    if !stdin().is_terminal() {
        return Err(Stop::wrong_use(format!("this would take {expected}"))
            .with_hint("say `--yes` to start it, or fewer `--scenario` and `--repeats`"));
    }
    eprint!("This will take {expected}. Start? [y/N] ");
    match read_answer(interrupt)?.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Stop::wrong_use("not started")),
    }
}

/// A line from the terminal. Ctrl-C only sets a flag, so the wait looks at that too.
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

fn carry_out(
    world: &World,
    flags: &ReleaseBench,
    decided: &mut Decided,
    journal: &mut Journal,
) -> Result<Exit, Stop> {
    let registry =
        Registry { tools: &world.tools, dir: &decided.registry, interrupt: &world.interrupt };
    if decided.commits {
        world.console.step(world.clock.elapsed(), "Check that the registry can take records");
        registry.preflight()?;
    }
    let built = sides::build_all(world, &decided.wanted)?;
    let started = world.clock.elapsed();
    let (records, confirming) = measure(world, flags, decided, (&registry, &built), journal)?;
    let wall = world.clock.elapsed().saturating_sub(started);
    decided.plan.slots.extend(confirming);
    finish(world, decided, &registry, &records, wall, journal)
}

/// Both stages; a campaign without a baseline has one. Returns the records and what was launched
/// beyond the plan.
fn measure(
    world: &World,
    flags: &ReleaseBench,
    decided: &Decided,
    (registry, built): (&Registry<'_>, &[BuiltSide]),
    journal: &mut Journal,
) -> Result<(Vec<RunRecord>, Vec<Slot>), Stop> {
    let step = |heading: &str| world.console.step(world.clock.elapsed(), heading);
    step("Fetch inputs");
    let cells = ready_cells(world, &decided.plan.cells, &decided.scenarios)?;
    let places = journal.places().clone();
    let bench = Bench {
        world,
        engine: &decided.wanted[0].engine,
        campaign: &decided.plan.campaign,
        places: &places,
        hardware: &decided.hardware,
        url: flags.url.as_deref(),
        timeout_s: flags.timeout_s,
        limit: None,
    };
    let mut budget = Budget { most: flags.max_gpu_hours, used: 0.0, brief: &decided.brief };
    let launches = Launches { bench, wanted: &decided.wanted, built, cells: &cells };
    let mut records = launches.carry_out("Run", &decided.plan.slots, &mut budget, journal)?;
    let mut confirming = Vec::new();
    if let Some(pairs) = decided.confirm_pairs
        && let Some((baseline, candidate)) = decided.compared()
    {
        step("Look for what differs");
        let compared = registry.compare(baseline, candidate, &places.overlay())?;
        let mut ids = decided.ids.clone();
        confirming = confirm::slots(&decided.plan, &compared, pairs, &mut ids);
        records.extend(launches.carry_out("Confirm", &confirming, &mut budget, journal)?);
    }
    Ok((records, confirming))
}

/// What is launched again and again.
struct Launches<'a> {
    bench: Bench<'a>,
    wanted: &'a [Wanted],
    built: &'a [BuiltSide],
    cells: &'a [ReadyCell],
}

impl Launches<'_> {
    /// Carries out some of the plan and lays the records into the overlay.
    fn carry_out(
        &self,
        verb: &str,
        slots: &[Slot],
        budget: &mut Budget<'_>,
        journal: &mut Journal,
    ) -> Result<Vec<RunRecord>, Stop> {
        let world = self.bench.world;
        let mut records = Vec::new();
        let total = slots.len();
        for (index, slot) in slots.iter().enumerate() {
            world.interrupt.check()?;
            let (side, cell) = (&self.built[slot.side], &self.cells[slot.cell]);
            let (title, id, repeat) = (self.title(slot), &cell.scenario.id, slot.repeat);
            let heading =
                format!("{verb} {} of {total}: {title}, {id}, repeat {repeat}", index + 1);
            budget.allows(&side.side.engine, &cell.cell, id)?;
            world.console.step(world.clock.elapsed(), &heading);
            let bench = Bench { engine: &self.wanted[slot.side].engine, ..self.bench };
            let started = world.clock.elapsed();
            let record = bench.run(slot, side, cell)?;
            budget.spend(world.clock.elapsed().saturating_sub(started), cell.cell.tp);
            world.console.note(&outcome_line(&record));
            for reason in &record.validity.reasons {
                world.console.note(reason);
            }
            write_run(&self.bench.places.overlay(), &record)?;
            journal.runs_written += 1;
            records.push(record);
        }
        Ok(records)
    }

    /// The side's release, and its engine where there are several.
    fn title(&self, slot: &Slot) -> String {
        let side = &self.built[slot.side].side;
        match self.wanted.iter().all(|other| other.side.engine == side.engine) {
            true => side.title(),
            false => format!("{} {}", side.engine, side.title()),
        }
    }
}

/// The GPU-hours of a campaign.
struct Budget<'a> {
    most: Option<f64>,
    used: f64,
    brief: &'a Brief,
}

impl Budget<'_> {
    /// Refuses a launch that would exceed what is allowed, as far as is known how long it takes.
    fn allows(&self, engine: &str, cell: &Cell, scenario: &str) -> Result<(), Stop> {
        let Some(most) = self.most else { return Ok(()) };
        let is_of = |brief: &&CellBrief| {
            let same = brief.engine == engine && brief.model == cell.model;
            same && brief.scenario.split('@').next() == Some(scenario)
        };
        let brief = self.brief.cells.iter().find(is_of);
        let each = brief.and_then(|brief| brief.each.us()).unwrap_or(0);
        let next = gpu_hours(each, self.brief.gpus(cell.tp));
        if self.used + next <= most {
            return Ok(());
        }
        let used = self.used;
        let message =
            format!("{used:.1} GPU-hours are used, and the next launch may take {next:.1}");
        Err(Stop::wrong_use(format!("{message}: {most} are allowed")))
    }

    fn spend(&mut self, wall: Duration, tp: u32) {
        let us = u64::try_from(wall.as_micros()).unwrap_or(u64::MAX);
        self.used += gpu_hours(us, self.brief.gpus(tp));
    }
}

/// `1.52 requests/s, 301.4 output tokens/s`, or what went wrong.
fn outcome_line(record: &RunRecord) -> String {
    let mut line = match (&record.metrics, record.status) {
        (Some(metrics), Status::Ok | Status::Partial) => {
            let rate = |value: Option<f64>| value.map_or("?".to_owned(), |v| format!("{v:.2}"));
            let (requests, tokens) = (metrics.requests_per_s, metrics.output_tokens_per_s);
            format!("{} requests/s, {} output tokens/s", rate(requests), rate(tokens))
        }
        _ => "no figures".to_owned(),
    };
    if let Some(failure) = &record.failure {
        line.push_str("; failed: ");
        line.push_str(failure.message.lines().next().unwrap_or_default());
    }
    match record.validity.verdict {
        ValidityVerdict::Valid => {}
        ValidityVerdict::Degraded => line.push_str("; DEGRADED"),
        ValidityVerdict::Invalid => line.push_str("; INVALID"),
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Estimate;
    use clap::Parser;

    fn flags(args: &[&str]) -> ReleaseBench {
        let words = ["redline-campaign", "release-bench", "v1.0.0"].iter().chain(args);
        let cli = crate::cli::Cli::try_parse_from(words).unwrap();
        let crate::cli::Verb::ReleaseBench(flags) = cli.command else { panic!("{args:?}") };
        *flags
    }

    /// Three launches of an hour each on eight GPUs, or of unknown length.
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
            sides: Vec::new(),
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
    fn flags_of_later_releases_are_refused_by_name() {
        for (args, message) in [
            (
                &["--executor", "slurm"][..],
                "error: executor `slurm` is not supported yet; only `local` is",
            ),
            (&["--resume"], "error: `--resume` is not supported yet"),
        ] {
            let stop = refuse_unsupported(&flags(args)).unwrap_err();
            assert_eq!((stop.to_string().as_str(), stop.exit()), (message, Exit::Unsound));
        }
    }

    #[test]
    fn hours_are_spent_only_when_they_were_allowed() {
        let interrupt = Interrupt::default();
        let asked = |each, args: &[&str]| confirm(&brief(each), &flags(args), &interrupt);
        let most = asked(HOUR, &["--yes", "--max-gpu-hours", "20"]).unwrap_err().to_string();
        assert!(most.starts_with("error: this would take 24.0 GPU-hours, and 20 are allowed"));
        assert!(asked(HOUR, &["--yes", "--max-gpu-hours", "24"]).is_ok());
        assert!(asked(Estimate::Unknown, &["--yes"]).is_ok());
        // Minutes on a processor are not asked for, though nobody knows how many.
        let on_cpu = Brief { on_gpu: false, ..brief(Estimate::Unknown) };
        assert!(confirm(&on_cpu, &flags(&[]), &interrupt).is_ok());
    }

    #[test]
    fn no_launch_exceeds_the_hours_that_are_left() {
        let brief = brief(HOUR);
        let cell = Cell { model: "m".into(), tp: 8, ..Cell::default() };
        let mut budget = Budget { most: Some(17.0), used: 0.0, brief: &brief };
        let allowed = |budget: &Budget<'_>| budget.allows("vllm", &cell, "balanced");
        for _ in 0..2 {
            allowed(&budget).unwrap();
            budget.spend(Duration::from_secs(3600), 8);
        }
        let stop = allowed(&budget).unwrap_err().to_string();
        let expected = "error: 16.0 GPU-hours are used, and the next launch may take 8.0: 17 are \
                        allowed";
        assert_eq!(stop, expected);
        assert!(allowed(&Budget { most: None, ..budget }).is_ok());
    }
}
