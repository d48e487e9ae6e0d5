//! Drift of a machine: how a baseline that was measured again differs from its own earlier runs.
//! No release changed then, so the machine did, or the load on it.

use schema::comparison::Drift;
use schema::metric::METRICS;
use schema::run::RunRecord;

use super::cells::{CellRuns, workloads};
use super::{estimate, flags};
use crate::summary::values;

/// Metric whose drift on the machine is reported: output throughput.
const METRIC: &str = "output_tokens_per_s";

/// Returns how the baseline's output throughput in the cell changed since its last campaign before
/// the campaign `judged`. `None` if there is none, a throughput is missing, workload or flags
/// differ, or the change is within the metric's minimum effect. It is shown, and no verdict depends
/// on it.
pub fn of(runs: &CellRuns<'_>, judged: &str) -> Option<Drift> {
    let usable = runs.baseline.usable();
    let before = usable.iter().copied().filter_map(campaign).filter(|id| *id < judged).max()?;
    let of = |id: &str| -> Vec<&RunRecord> {
        usable.iter().copied().filter(|run| campaign(run) == Some(id)).collect()
    };
    let (then, now) = (of(before), of(judged));
    // A changed workload or flag would explain the difference, so it is not drift.
    let alike = workloads(then.iter().chain(&now).copied()).len() <= 1
        && flags::changed(&then, &now).is_empty();
    let metric = METRICS.iter().find(|metric| metric.name == METRIC).filter(|_| alike)?;
    let moved = estimate::unpaired(&values(metric, then), &values(metric, now))?;
    let drift = Drift { campaign: before.to_owned(), effect_pct: moved };
    (moved.abs() > metric.floor_pct).then_some(drift)
}

fn campaign(run: &RunRecord) -> Option<&str> {
    run.campaign.as_ref().map(|slot| slot.id.as_str())
}
