//! Rules over the GPUs of a run: were they the run's own, and did they run as they are sold.

use schema::run::{Gpu, Level, RunRecord};
use schema::telemetry::{GpuTelemetry, Throttled};

use super::claim;
use crate::rule::{Finding, Rule, Scope};

/// Share of the looks at which a GPU's clocks may be held down.
pub const THROTTLED_SHARE_MAX: f64 = 0.01;

pub(super) const OWN: Rule = Rule {
    id: "E13",
    title: "the GPUs were whole and nobody else's",
    why: "A process of others, or a slice of a card, takes compute and memory that the page \
          credits to the engine.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 4,
    scope: Scope::MEASURED,
    look: own,
};

pub(super) const SLOWED: Rule = Rule {
    id: "E14",
    title: "no GPU was slowed down by its own hardware",
    why: "A power brake or an emergency slow-down cuts clocks to a fraction, and says that the \
          machine is not fit.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 4,
    scope: Scope::MEASURED_FIGURES,
    look: slowed,
};

pub(super) const THROTTLED: Rule = Rule {
    id: "W05",
    title: "clocks were held down for at most 1 % of the run",
    why: "A card at its power limit, or hot, is another card on another day.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 4,
    scope: Scope::MEASURED_FIGURES,
    look: throttled,
};

pub(super) const POWER_LIMIT: Rule = Rule {
    id: "W06",
    title: "the power limit is the card's default",
    why: "A card with a lower limit is slower than its name, one with a higher limit faster.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 4,
    scope: Scope::MEASURED,
    look: power_limit,
};

fn gpus(record: &RunRecord) -> Option<&[Gpu]> {
    record.hardware.gpu.as_deref().filter(|gpus| !gpus.is_empty())
}

fn own(record: &RunRecord) -> Finding {
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
    Some(claim(wrong.is_empty(), || wrong.join("; ")))
}

/// The GPUs that worked and tell why their clocks were held down, by number.
fn told(record: &RunRecord) -> Option<Vec<(usize, Throttled)>> {
    let worked = |(index, gpu): (usize, &GpuTelemetry)| {
        gpu.throttled.filter(|_| gpu.worked).map(|throttled| (index, throttled))
    };
    let gpus = record.telemetry.as_ref()?.gpus.as_deref()?;
    let told: Vec<_> = gpus.iter().enumerate().filter_map(worked).collect();
    (!told.is_empty()).then_some(told)
}

fn slowed(record: &RunRecord) -> Finding {
    let told = told(record)?;
    let slowed = told.iter().filter(|(_, throttled)| throttled.hardware_share > 0.0);
    let wrong: Vec<String> = slowed
        .map(|(index, throttled)| {
            format!("GPU {index} for {:.1} % of the looks", throttled.hardware_share * 100.0)
        })
        .collect();
    Some(claim(wrong.is_empty(), || wrong.join("; ")))
}

fn throttled(record: &RunRecord) -> Finding {
    let mut wrong = Vec::new();
    for (index, throttled) in told(record)? {
        for (what, share) in [("power", throttled.power_share), ("heat", throttled.thermal_share)] {
            if share > THROTTLED_SHARE_MAX {
                wrong.push(format!("GPU {index} by {what} at {:.1} % of the looks", share * 100.0));
            }
        }
    }
    Some(claim(wrong.is_empty(), || wrong.join("; ")))
}

fn power_limit(record: &RunRecord) -> Finding {
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
    (!limits.is_empty()).then(|| claim(wrong.is_empty(), || wrong.join("; ")))
}
