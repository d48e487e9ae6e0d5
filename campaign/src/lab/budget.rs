//! What a lab may spend, in launches: its hours by how long a launch is expected to take, and again
//! by how long they took.

use schema::lab::{LabBudget, LabOutline, Round};

use super::spec::PreparedLab;
use crate::executor::journal::{Reached, State};
use crate::plan::brief::CellBrief;
use crate::plan::decide::Decided;
use crate::plan::estimate::assumed_us;
use crate::stop::Stop;

/// Microseconds of an hour.
const HOUR_US: f64 = 3.6e9;

/// Expected time of a launch, over all engines and profiles alike.
#[must_use]
pub fn each_us(decided: &Decided) -> u64 {
    let cells = &decided.brief.cells;
    let all: u64 = cells.iter().map(|cell| cell_us(decided, cell)).sum();
    all / (cells.len() as u64).max(1)
}

/// Of one engine under one profile: as earlier runs took, else what its scenario lets assume.
#[must_use]
pub fn cell_us(decided: &Decided, cell: &CellBrief) -> u64 {
    cell.each.us_when_drawn().unwrap_or_else(|| {
        let id = cell.scenario.split('@').next();
        let entry = decided.scenarios.iter().find(|entry| Some(entry.id.as_str()) == id);
        entry.map_or(0, |entry| assumed_us(&entry.scenario, decided.brief.on_gpu))
    })
}

/// Launches that a budget allows.
#[must_use]
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

/// Says before the first launch that a budget concludes nothing, and which would.
///
/// # Errors
/// It is that small.
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
            format!("{hours} hours are {runs_max} launches of {each:.0} s, which conclude nothing")
        }
        _ => format!("a budget of {runs_max} launches concludes nothing"),
    };
    let hours = f64::from(enough) * each / 3600.0;
    let hint = format!(
        "allow `--max-runs {enough}` and `--max-hours {:.1}`, or leave out options or profiles",
        (hours * 10.0).ceil() / 10.0
    );
    let why = format!("{given}: {enough} judge every option once and confirm two");
    Err(Stop::wrong_use(why).with_hint(hint))
}

/// Launches that a lab may make in all, where those so far took longer than was expected: what its
/// hours leave, and in any case the last round and what it takes to conclude something, since what
/// was spent so far would be lost. None where it may make as many as before. Never more than before:
/// a round that was left out for lack of launches would be wanted again.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "microseconds of a lab are far below 2^53")]
pub fn lowered(lab: &PreparedLab, state: &State, round: &Round) -> Option<u32> {
    let left_us = lab.hours_max? * HOUR_US - spent_us(state) as f64;
    let affordable = launches_in(left_us.max(0.0), measured_us(state)?);
    let allowed = still_allowed(&lab.outline, round.runs, affordable);
    (allowed < lab.asked.runs_max).then_some(allowed)
}

/// Launches in all, where so many were made and so many more can be afforded.
fn still_allowed(outline: &LabOutline, made: u32, affordable: u32) -> u32 {
    made.saturating_add(affordable.max(outline.runs_last)).max(outline.runs_enough)
}

/// Time of all launches so far.
fn spent_us(state: &State) -> u64 {
    state.jobs.iter().map(|job| job.wall_us).sum()
}

/// Mean time of a launch so far; none before there is any.
#[must_use]
pub fn measured_us(state: &State) -> Option<u64> {
    let over = state.jobs.iter().filter(|job| job.reached >= Reached::Collected);
    let launches: usize = over.map(|job| job.runs.len()).sum();
    spent_us(state).checked_div(launches as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::campaign::Policy;

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
        assert!(hours.contains("0.5 hours are 90 launches of 20 s, which conclude nothing: 100"));
        assert!(hours.contains("hint: allow `--max-runs 100` and `--max-hours 0.6`"), "{hours}");
        let runs = refused(Some(99), Some(4.0));
        assert!(runs.contains("a budget of 99 launches concludes nothing: 100 judge"), "{runs}");
        assert_eq!(refused(Some(100), Some(0.6)), "");
    }
}
