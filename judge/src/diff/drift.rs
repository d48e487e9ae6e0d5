//! How a baseline that was measured again differs from itself: then the machine changed, or what
//! else runs on it, and no release did.

use schema::metric::METRICS;
use schema::run::RunRecord;

use super::cells::{CellRuns, workloads};
use super::words::percent;
use super::{estimate, flags};

/// The metric whose drift is told.
const METRIC: &str = "output_tokens_per_s";

/// What the baseline's throughput did since the last campaign before the one that is judged, where
/// it is more than a change of release would have to be. It informs: nothing is judged by it.
#[must_use]
pub fn of(runs: &CellRuns<'_>, judged: &str) -> Option<String> {
    let usable = runs.baseline.usable();
    let before = usable.iter().copied().filter_map(campaign).filter(|id| *id < judged).max()?;
    let of = |id: &str| -> Vec<&RunRecord> {
        usable.iter().copied().filter(|run| campaign(run) == Some(id)).collect()
    };
    let (then, now) = (of(before), of(judged));
    let alike = workloads(then.iter().chain(&now).copied()).len() <= 1
        && flags::changed(&then, &now).is_empty();
    let metric = METRICS.iter().find(|metric| metric.name == METRIC).filter(|_| alike)?;
    let values = |runs: &[&RunRecord]| -> Vec<f64> {
        runs.iter().filter_map(|run| metric.value(run)).collect()
    };
    let moved = estimate::unpaired(&values(&then), &values(&now))?;
    (moved.abs() > metric.floor_pct).then(|| {
        let (release, moved) = (&now[0].engine.release, percent(moved));
        format!(
            "{release} itself reads {moved} output tokens since campaign `{before}`: the machine \
             changed, or what else runs on it"
        )
    })
}

fn campaign(run: &RunRecord) -> Option<&str> {
    run.campaign.as_ref().map(|slot| slot.id.as_str())
}
