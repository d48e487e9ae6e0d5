//! Jobs that make an alternating comparison: the files in which a node keeps it, the share of the
//! budget that a job gets, and what a later attempt takes over from an earlier one.

use judge::alternation::share_us;
use schema::alternation::AlternatingComparison;
use schema::verdict::Stage;

use crate::executor::job::{COMPARISON, Progress, Step, places, read_steps, verified};
use crate::executor::journal::{Entry, Journal, PreparedCampaign, Reached, State};
use crate::files::{self, Lines};
use crate::places::CampaignPlaces;
use crate::plan::PlannedAlternation;
use crate::stop::Stop;
use crate::world::World;

/// Reads the alternating comparison of a job in the folder `places`; `None` where the job has not
/// finished one.
///
/// # Errors
/// The step log is invalid, or the file is missing or differs from what the node wrote.
pub fn comparison(places: &CampaignPlaces) -> Result<Option<AlternatingComparison>, Stop> {
    let progress = Progress::of(&read_steps(places)?);
    let file = progress.files.iter().find(|file| file.path == COMPARISON);
    file.map(|file| verified(&places.dir, file)).transpose()
}

/// Returns the extent of the alternating comparison that a job makes: its share of the budget that
/// the stage has left, which faster comparisons before it increase, within `gpu_hours_max`. Earlier
/// attempts at the job spend its own share, since their starts count. `None` for a job of another
/// stage.
pub fn extent(
    ready: &PreparedCampaign,
    state: &State,
    entry: &Entry,
    gpu_hours_max: Option<f64>,
) -> Option<PlannedAlternation> {
    let of_stage = |other: &&Entry| other.stage == Some(Stage::Alternate);
    let planned = ready.alternation.filter(|_| of_stage(&entry))?;
    let others = state.jobs.iter().filter(of_stage).filter(|job| !is_retried(job, state));
    let (ended, open): (Vec<&Entry>, Vec<&Entry>) =
        others.partition(|job| job.reached >= Reached::Collected);
    let spent_us: u64 = ended.iter().map(|job| job.wall_us).sum();
    let left_us = share_us(planned.budget_us, spent_us, open.len());
    let gpus = if ready.on_gpu { ready.cells[entry.planned.cell].cell.tp } else { 0 };
    let allowed_us = gpu_hours_max.filter(|_| gpus > 0).map(|hours| us_of(hours, gpus));
    let budget_us = left_us.min(allowed_us.unwrap_or(u64::MAX));
    Some(PlannedAlternation { budget_us, ..planned })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "GPU-hours of a campaign are positive and far below 2^53 microseconds"
)]
fn us_of(gpu_hours: f64, gpus: u32) -> u64 {
    (gpu_hours / f64::from(gpus) * 3.6e9) as u64
}

/// True where a later attempt at the job's runs is planned.
fn is_retried(job: &Entry, state: &State) -> bool {
    let later = |other: &&Entry| other.planned.attempt > job.planned.attempt;
    state.jobs.iter().filter(later).any(|other| is_same(other, job))
}

/// True for two attempts at the same runs.
fn is_same(one: &Entry, other: &Entry) -> bool {
    let first = |entry: &Entry| entry.planned.runs.first().map(|run| run.run.clone());
    first(one) == first(other)
}

/// Copies the starts that the latest earlier attempt at a job has ended into the folder of this one,
/// so that they are not repeated. Does nothing for a job of another stage, and for one that has begun.
///
/// # Errors
/// A file cannot be read or written, or the earlier attempt's step log is invalid.
pub fn take_over(
    world: &World,
    ready: &PreparedCampaign,
    state: &State,
    entry: &Entry,
) -> Result<(), Stop> {
    let to = places(world, ready, &entry.planned.key);
    let earlier = state
        .jobs
        .iter()
        .filter(|other| is_same(other, entry) && other.planned.attempt < entry.planned.attempt);
    let Some(earlier) = earlier.max_by_key(|other| other.planned.attempt) else { return Ok(()) };
    let steps = read_steps(&to)?;
    if entry.stage != Some(Stage::Alternate) || steps.contains(&Step::Began) {
        return Ok(());
    }
    let from = places(world, ready, &earlier.planned.key);
    let starts = Progress::of(&read_steps(&from)?).starts;
    let (mut lines, _) = Lines::open::<Step>(&to.steps())?;
    // A controller that was killed here has taken over some of them.
    let taken = Progress::of(&steps).starts;
    for file in starts.into_iter().filter(|start| !taken.contains(start)) {
        files::copy(&from.dir.join(&file.path), &to.dir.join(&file.path))?;
        // The earlier attempt has counted the time.
        lines.append(&Step::StartEnded { file, said: Vec::new(), wall_us: 0 })?;
    }
    Ok(())
}

/// Reads the alternating comparisons that the jobs of a campaign have made, in the order of the
/// cells.
///
/// # Errors
/// A job's files are missing, damaged or invalid.
pub fn comparisons(
    world: &World,
    ready: &PreparedCampaign,
    journal: &Journal,
) -> Result<Vec<AlternatingComparison>, Stop> {
    let jobs = journal.state.jobs.iter().filter(|job| job.reached >= Reached::Collected);
    let found = jobs.map(|job| comparison(&places(world, ready, &job.planned.key)));
    Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}
