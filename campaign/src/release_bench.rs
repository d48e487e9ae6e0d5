//! The command `release-bench`: one campaign from the command line to the commit. It plans and asks
//! for consent; `campaign` carries the plan out.

use std::time::Duration;

use schema::exit::Exit;

use crate::campaign::{self, ASK_BEYOND, consent};
use crate::cli::ReleaseBench;
use crate::console::about;
use crate::executor::{self, LOCAL, SLURM};
use crate::lock::Lock;
use crate::plan::brief::Brief;
use crate::plan::decide::decide;
use crate::process::Interrupt;
use crate::stop::Stop;
use crate::world::World;

/// Runs the command `release-bench`, either from the beginning or, with `--resume`, from an
/// unfinished campaign.
///
/// # Errors
/// Wrong use, an unfit machine, or an interruption. A failing engine is no error: its failure
/// becomes a record.
pub fn run(world: &World, flags: &ReleaseBench) -> Result<Exit, Stop> {
    check_executor(flags)?;
    world.tools.check()?;
    let lock = || Lock::take(&world.places.lock(), world.pid);
    let _lock = (!flags.dry_run).then(lock).transpose()?;
    // The campaign's flags are in its journal; of this command's only `--max-gpu-hours` counts.
    if flags.resume {
        let id = unfinished(world, flags)?;
        return campaign::resume(world, (&id, &format!("campaign {id}")), flags.max_gpu_hours);
    }
    let executor = |campaign: &str| {
        let execution = &flags.execution;
        executor::named(world, (&execution.executor, &execution.slurm_options), campaign)
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
    campaign::begin(world, flags, (decided, None), &*executor)
}

/// Returns the id of the campaign that `--resume` means.
fn unfinished(world: &World, flags: &ReleaseBench) -> Result<String, Stop> {
    let latest = campaign::latest_unfinished(world, |ready| {
        ready.lab.is_none() && campaign::is_requested(ready, flags, &world.command)
    })?;
    latest.ok_or_else(|| {
        let of = flags.release.as_ref().map(|release| format!(" of `{release}`"));
        let of = of.unwrap_or_default();
        Stop::wrong_use(format!("no unfinished campaign{of} was started by this command"))
            .with_hint("leave `--resume` out to start one")
    })
}

/// Asks the user to confirm a plan that takes long or an unknown number of GPU-hours, and refuses a
/// plan above `--max-gpu-hours`.
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

    /// Returns a plan of one cell with three runs on eight GPUs each.
    fn brief(each: Estimate) -> Brief {
        let cell = CellBrief {
            engine: "vllm".into(),
            model: "m".into(),
            tp: 8,
            scenario: "balanced@1".into(),
            runs: 3,
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
        let confirmed = |each, args: &[&str]| confirm(&brief(each), &flags(args), &interrupt);
        let most = confirmed(HOUR, &["--yes", "--max-gpu-hours", "20"]).unwrap_err().to_string();
        assert!(most.starts_with("error: this would take 24.0 GPU-hours, and 20 are allowed"));
        assert!(confirmed(HOUR, &["--yes", "--max-gpu-hours", "24"]).is_ok());
        assert!(confirmed(Estimate::Unknown, &["--yes"]).is_ok());
        // A CPU plan of unknown length starts without a question: only unknown GPU-hours need
        // consent.
        let on_cpu = Brief { on_gpu: false, ..brief(Estimate::Unknown) };
        assert!(confirm(&on_cpu, &flags(&[]), &interrupt).is_ok());
    }
}
