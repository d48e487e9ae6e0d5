//! Budget of a lab in runs. Hours are converted to runs by the expected duration of a run, and
//! again during the lab by the measured one.

use schema::lab::{LabBudget, LabOutline, Round};

use super::spec::PreparedLab;
use crate::executor::journal::{Reached, State};
use crate::plan::brief::CellBrief;
use crate::plan::decide::Decided;
use crate::plan::estimate::assumed_us;
use crate::stop::Stop;

/// Microseconds per hour.
const HOUR_US: f64 = 3.6e9;

/// Expected time of a run in microseconds: the mean over all engines and profiles.
pub fn each_us(decided: &Decided) -> u64 {
    let cells = &decided.brief.cells;
    let all: u64 = cells.iter().map(|cell| cell_us(decided, cell)).sum();
    all / (cells.len() as u64).max(1)
}

/// Expected time of a run of one engine under one profile, in microseconds: from earlier runs, else
/// assumed from the scenario.
pub fn cell_us(decided: &Decided, cell: &CellBrief) -> u64 {
    cell.each.us_when_drawn().unwrap_or_else(|| {
        let id = cell.scenario.split('@').next();
        let entry = decided.scenarios.iter().find(|entry| Some(entry.id.as_str()) == id);
        entry.map_or(0, |entry| assumed_us(&entry.scenario, decided.brief.on_gpu))
    })
}

/// Number of runs that a budget allows.
pub fn runs_max(limits: LabBudget, each_us: u64) -> u32 {
    let of_hours = limits.hours.map_or(u32::MAX, |hours| launches_in(hours * HOUR_US, each_us));
    limits.runs.unwrap_or(u32::MAX).min(of_hours)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "launches of a lab are far below 2^32, and more are as many"
)]
fn launches_in(us: f64, each_us: u64) -> u32 {
    (us / each_us.max(1) as f64) as u32
}

/// Refuses a budget that is too small for a conclusion, before the first run; the hint names one
/// that suffices.
///
/// # Errors
/// The budget is too small.
pub fn refuse_small(
    limits: LabBudget,
    runs_max: u32,
    (outline, each_us): (&LabOutline, u64),
) -> Result<(), Stop> {
    let enough = outline.runs_enough;
    if runs_max >= enough {
        return Ok(());
    }
    let each = std::time::Duration::from_micros(each_us).as_secs_f64();
    let given = match limits.hours {
        Some(hours) if limits.runs.is_none_or(|runs| runs > runs_max) => {
            format!("{hours} hours are {runs_max} runs of {each:.0} s, too few for a conclusion")
        }
        _ => format!("a budget of {runs_max} runs is too small for a conclusion"),
    };
    let hours = f64::from(enough) * each / 3600.0;
    let hint = format!(
        "allow `--max-runs {enough}` and `--max-hours {:.1}`, or leave out options or profiles",
        (hours * 10.0).ceil() / 10.0
    );
    let why = format!("{given}: {enough} judge every option once and confirm two");
    Err(Stop::wrong_use(why).with_hint(hint))
}

/// Returns a reduced limit on the lab's runs if runs take longer than expected; `None` if the limit
/// stays. The limit always allows the last round and as many runs as a conclusion needs, since
/// otherwise everything measured so far would be wasted. It never rises again: a round skipped for
/// lack of runs would be requested again.
#[expect(clippy::cast_precision_loss, reason = "microseconds of a lab are far below 2^53")]
pub fn lowered(lab: &PreparedLab, state: &State, round: &Round) -> Option<u32> {
    let left_us = lab.hours_max? * HOUR_US - spent_us(state) as f64;
    let affordable = launches_in(left_us.max(0.0), measured_us(state)?);
    let allowed = still_allowed(&lab.outline, round.runs, affordable);
    (allowed < lab.asked.runs_max).then_some(allowed)
}

/// Limit on all runs if `made` were made and the budget allows `affordable` more.
fn still_allowed(outline: &LabOutline, made: u32, affordable: u32) -> u32 {
    made.saturating_add(affordable.max(outline.runs_last)).max(outline.runs_enough)
}

/// Total time of all runs so far, in microseconds.
fn spent_us(state: &State) -> u64 {
    state.jobs.iter().map(|job| job.wall_us).sum()
}

/// Mean time of a run so far in microseconds; `None` before the first.
pub fn measured_us(state: &State) -> Option<u64> {
    let over = state.jobs.iter().filter(|job| job.reached >= Reached::Collected);
    let launches: usize = over.map(|job| job.runs.len()).sum();
    spent_us(state).checked_div(launches as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::policy::Policy;

    fn outline() -> LabOutline {
        LabOutline {
            runs_least: 50,
            runs_enough: 100,
            runs_most: 400,
            runs_last: 40,
            rounds_least: 1,
            rounds_most: 4,
            policy: Policy { id: "release".into(), rev: 1, sha256: String::new() },
        }
    }

    #[test]
    fn what_is_spent_first_ends_a_lab() {
        let budget = |runs, hours| runs_max(LabBudget { runs, hours }, 20_000_000);
        assert_eq!(budget(None, Some(1.0)), 180);
        assert_eq!((budget(Some(90), Some(1.0)), budget(Some(200), Some(1.0))), (90, 180));
        assert_eq!(budget(Some(90), None), 90);
    }

    #[test]
    fn a_lab_that_began_may_always_conclude() {
        assert_eq!(still_allowed(&outline(), 24, 200), 224);
        assert_eq!(still_allowed(&outline(), 24, 10), 100, "what concludes something");
        assert_eq!(still_allowed(&outline(), 90, 10), 130, "the last round");
    }

    #[test]
    fn a_small_budget_is_answered_with_the_one_that_would_do() {
        let refused = |runs, hours| {
            let limits = LabBudget { runs, hours };
            let most = runs_max(limits, 20_000_000);
            let refused = refuse_small(limits, most, (&outline(), 20_000_000));
            refused.map_err(|stop| stop.to_string()).err().unwrap_or_default()
        };
        let hours = refused(None, Some(0.5));
        assert!(hours.contains("0.5 hours are 90 runs of 20 s, too few for a conclusion: 100"));
        assert!(hours.contains("hint: allow `--max-runs 100` and `--max-hours 0.6`"), "{hours}");
        let runs = refused(Some(99), Some(4.0));
        assert!(
            runs.contains("a budget of 99 runs is too small for a conclusion: 100 judge"),
            "{runs}"
        );
        assert_eq!(refused(Some(100), Some(0.6)), "");
    }
}
