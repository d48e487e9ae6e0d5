//! Quality rules over the machine of a run: its GPUs were used by nobody else, and they are configured
//! as sold. The retired ones compared the machine's speed before and after the run.

use schema::run::{Gpu, RunRecord};
use serde_json::Value;

use super::{claim, within};
use crate::rule::{Condition, Outcome, Rule, Scope};

/// Relative difference that the retired rule W07 tolerated between a machine calibration after a
/// block and the one before it. On virtual machines 145 of 162 runs exceeded it.
const DRIFT_SHARE_MAX_W07: f64 = 0.01;
/// The same of the retired rule W19. A fifth of a second says nothing about the minutes beside it:
/// runs that exceeded it scattered like the others (decision 0057).
const DRIFT_SHARE_MAX_W19: f64 = 0.1;

/// Machine calibrations around a block, as the stem of their record keys (`gflops_before` and
/// `gflops_after`) and their unit.
const PROBES: [(&str, &str); 2] = [("gflops", "Gflop/s"), ("memory_gbps", "GB/s")];

/// Quality rules over the machine of a run, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E13",
        title: "no other process used the GPUs, and none was a slice of a card",
        finding: "GPU shared",
        why: "Another process, or a slice of a card, takes away compute and memory that the page \
              credits to the engine.",
        since: Some(5),
        scope: Scope::MEASURED,
        conditions: &[Condition::new(own)],
        ..Rule::ERROR
    },
    Rule {
        id: "W06",
        title: "the power limit is the card's default",
        finding: "other power limit",
        why: "A card with a lower limit is slower than its name suggests, one with a higher limit \
              faster.",
        since: Some(5),
        scope: Scope::MEASURED,
        conditions: &[Condition::new(power_limit)],
        ..Rule::WARNING
    },
    Rule {
        id: "W07",
        title: "the machine's speed after a block of runs is within 1 % of that before it",
        finding: "machine speed changed",
        why: "A machine that became faster or slower in between changes the figures of its runs \
              as well. Its speed is calibrated by arithmetic and by reading memory.",
        since: Some(6),
        until: Some(8),
        successor: Some("W16"),
        scope: Scope::MEASURED,
        conditions: &[Condition::new(|record| steady(record, DRIFT_SHARE_MAX_W07))],
        ..Rule::WARNING
    },
    Rule {
        id: "W19",
        title: "the machine was as fast after the block as before it, within 10 %",
        finding: "machine speed changed",
        why: "A machine that became faster or slower meanwhile moves the figures of its runs as well. \
              Ratios of runs that were measured in turns hardly change with it.",
        since: Some(9),
        until: Some(10),
        successor: Some("W16"),
        scope: Scope::MEASURED,
        conditions: &[Condition::new(|record| steady(record, DRIFT_SHARE_MAX_W19))],
        ..Rule::WARNING
    },
];

fn gpus(record: &RunRecord) -> Option<&[Gpu]> {
    record.hardware.gpu.as_deref().filter(|gpus| !gpus.is_empty())
}

fn own(record: &RunRecord) -> Outcome {
    let gpus = gpus(record)?;
    let others = record.hardware.platform.as_ref().and_then(|p| p.other_gpu_processes);
    let mig: Vec<Option<bool>> =
        gpus.iter().map(|gpu| gpu.state.as_ref().and_then(|state| state.mig)).collect();
    if others.is_none() && mig.iter().all(Option::is_none) {
        return None;
    }
    let mut wrong = Vec::new();
    if let Some(count) = others.filter(|count| *count > 0) {
        wrong.push(format!("{count} other processes were on the GPUs"));
    }
    let split = mig.iter().enumerate().filter(|(_, mig)| **mig == Some(true));
    wrong.extend(split.map(|(index, _)| format!("GPU {index} is divided (MIG)")));
    claim(wrong.is_empty(), || wrong.join("; "))
}

fn power_limit(record: &RunRecord) -> Outcome {
    let limits = gpus(record)?.iter().enumerate().filter_map(|(index, gpu)| {
        Some((index, gpu.power_limit_mw?, gpu.state.as_ref()?.power_limit_default_mw?))
    });
    let limits: Vec<_> = limits.collect();
    let watts = |mw: u64| format!("{}.{:03} W", mw / 1_000, mw % 1_000);
    let moved = limits.iter().filter(|(_, limit, default)| limit != default);
    let wrong: Vec<String> = moved
        .map(|(index, limit, default)| {
            format!("GPU {index} has {}, its default is {}", watts(*limit), watts(*default))
        })
        .collect();
    limits.first()?;
    claim(wrong.is_empty(), || wrong.join("; "))
}

/// Checks that calibrations before and after the block differ by at most `share` of the first.
fn steady(record: &RunRecord, share: f64) -> Outcome {
    let read = record.calibration.as_ref()?;
    let at = |probe: &str, when: &str| read.get(&format!("{probe}_{when}")).and_then(Value::as_f64);
    let probed = PROBES
        .into_iter()
        .filter_map(|(probe, unit)| Some((unit, at(probe, "before")?, at(probe, "after")?)));
    let probed: Vec<_> = probed.collect();
    let moved = probed.iter().filter(|(_, before, after)| !within(*after, *before, share));
    let wrong: Vec<String> = moved
        .map(|(unit, before, after)| format!("{before:.1} {unit} before, {after:.1} after"))
        .collect();
    probed.first()?;
    claim(wrong.is_empty(), || wrong.join("; "))
}
