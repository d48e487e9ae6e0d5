//! One campaign from the command line to the commit: decide, build, fetch, run, publish.

use std::io::{BufRead, IsTerminal, stdin};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use schema::exit::Exit;
use schema::run::{RunRecord, Status, ValidityVerdict};

use crate::brief::Brief;
use crate::cli::ReleaseBench;
use crate::confirm;
use crate::console::about;
use crate::decide::{Decided, decide, ready_cells};
use crate::finish::finish;
use crate::journal::Journal;
use crate::lock::Lock;
use crate::plan::Slot;
use crate::process::Interrupt;
use crate::publish::{Registry, write_run};
use crate::run::{Bench, BuiltSide, ReadyCell};
use crate::sides;
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
    confirm(&decided.brief, flags.yes, &world.interrupt)?;
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
    } else if flags.max_gpu_hours.is_some() {
        "`--max-gpu-hours` is not supported yet".to_owned()
    } else {
        return Ok(());
    };
    Err(Stop::wrong_use(refused))
}

/// Asks before hours of measuring, where somebody can answer.
fn confirm(brief: &Brief, yes: bool, interrupt: &Interrupt) -> Result<(), Stop> {
    let expected = brief.expected_us();
    if yes || Duration::from_micros(expected) <= ASK_BEYOND {
        return Ok(());
    }
    let expected = about(expected);
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
    let built = sides::build_all(world, &decided.engine.id, &decided.wanted)?;
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
        engine: &decided.engine,
        campaign: &decided.plan.campaign,
        places: &places,
        hardware: &decided.hardware,
        url: flags.url.as_deref(),
        timeout_s: flags.timeout_s,
        limit: None,
    };
    let launches = Launches { bench, built, cells: &cells };
    let mut records = launches.carry_out("Run", &decided.plan.slots, journal)?;
    let mut confirming = Vec::new();
    if let Some(pairs) = decided.confirm_pairs
        && let Some((baseline, candidate)) = decided.plan.compared()
    {
        step("Look for what differs");
        let compared = registry.compare(baseline, decided.named(candidate), &places.overlay())?;
        let mut ids = decided.ids.clone();
        confirming = confirm::slots(&decided.plan, &compared, pairs, &mut ids);
        records.extend(launches.carry_out("Confirm", &confirming, journal)?);
    }
    Ok((records, confirming))
}

/// What is launched again and again.
struct Launches<'a> {
    bench: Bench<'a>,
    built: &'a [BuiltSide],
    cells: &'a [ReadyCell],
}

impl Launches<'_> {
    /// Carries out some of the plan and lays the records into the overlay.
    fn carry_out(
        &self,
        verb: &str,
        slots: &[Slot],
        journal: &mut Journal,
    ) -> Result<Vec<RunRecord>, Stop> {
        let world = self.bench.world;
        let mut records = Vec::new();
        let total = slots.len();
        for (index, slot) in slots.iter().enumerate() {
            world.interrupt.check()?;
            let (side, cell) = (&self.built[slot.side], &self.cells[slot.cell]);
            let (title, id, repeat) = (side.side.title(), &cell.scenario.id, slot.repeat);
            let heading =
                format!("{verb} {} of {total}: {title}, {id}, repeat {repeat}", index + 1);
            world.console.step(world.clock.elapsed(), &heading);
            let record = self.bench.run(slot, side, cell)?;
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
    use clap::Parser;

    #[test]
    fn flags_of_later_releases_are_refused_by_name() {
        for (args, message) in [
            (
                &["--executor", "slurm"][..],
                "error: executor `slurm` is not supported yet; only `local` is",
            ),
            (&["--resume"], "error: `--resume` is not supported yet"),
            (&["--max-gpu-hours", "3"], "error: `--max-gpu-hours` is not supported yet"),
        ] {
            let words = ["redline-campaign", "release-bench", "v1.0.0"].iter().chain(args);
            let cli = crate::cli::Cli::try_parse_from(words).unwrap();
            let crate::cli::Verb::ReleaseBench(flags) = cli.command else { panic!("{args:?}") };
            let stop = refuse_unsupported(&flags).unwrap_err();
            assert_eq!((stop.to_string().as_str(), stop.exit()), (message, Exit::Unsound));
        }
    }
}
