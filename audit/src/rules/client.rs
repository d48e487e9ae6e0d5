//! Rules over the measurement itself: the client was idle enough, the window long enough, and the
//! outputs were looked at.

use schema::run::{Level, RunRecord, Status};
use schema::scenario::{Arrival, Tier};

use super::{claim, float};
use crate::rule::{Finding, Rule, Scope, on_cpu};

/// Share of one core that the client's loop may use, 95th percentile.
pub const CPU_SHARE_MAX: f64 = 0.8;
/// Lag of the client's loop, 99th percentile, and as a share of the median time per token. The
/// share minds only where times are not taken from the kernel's receive stamps.
pub const LOOP_LAG_US_MAX: u64 = 5_000;
pub const LOOP_LAG_SHARE_OF_TPOT: f64 = 0.02;

/// Shortest steady window, in microseconds: full scenarios under an endless queue, and all others.
pub const WINDOW_US_MIN_FULL: u64 = 300_000_000;
pub const WINDOW_US_MIN: u64 = 60_000_000;

pub(super) const BUSY: Rule = Rule {
    id: "E15",
    title: "the client was not the bottleneck: under 80 % of a core, loop lag under 5 ms",
    why: "A client that lags adds its own delay to every time it reports.",
    level: Level::Error,
    // Client and server share the cores, so a busy client is expected and only said.
    level_on_cpu: Level::Warning,
    since: 1,
    scope: Scope::MEASURED_FIGURES,
    look: busy,
};

pub(super) const WINDOW: Rule = Rule {
    id: "E16",
    title: "the steady state lasted 60 s, or 300 s for a full run with all requests at once",
    why: "Short windows measure ramp-up and drain.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::MEASURED_FIGURES.but_lite(),
    look: window,
};

pub(super) const CORRECTNESS: Rule = Rule {
    id: "E17",
    title: "a check that the outputs were right stands beside the speed",
    why: "Fast and wrong looks like fast.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope { statuses: &[Status::Ok], ..Scope::MEASURED },
    look: correctness,
};

fn busy(record: &RunRecord) -> Finding {
    let client = record.client.as_ref()?;
    let mut reasons = Vec::new();
    if let Some(share) = client.cpu_share_p95.filter(|share| *share > CPU_SHARE_MAX) {
        reasons.push(format!("it used {:.0} % of a core", share * 100.0));
    }
    if let Some(lag) = client.loop_lag_us_p99 {
        let tpot = record.metrics.as_ref().and_then(|metrics| metrics.tpot_us.as_ref()?.p50);
        let stamped = client.kernel_timestamps == Some(true);
        let share_max = tpot.map(|tpot| LOOP_LAG_SHARE_OF_TPOT * float(tpot));
        if lag > LOOP_LAG_US_MAX {
            reasons.push(format!("its loop lagged by {lag} us"));
        } else if share_max.is_some_and(|most| !stamped && float(lag) > most) {
            reasons.push(format!("its loop lagged by {lag} us, over 2 % of the time per token"));
        }
    }
    if client.cpu_share_p95.is_none() && client.loop_lag_us_p99.is_none() {
        return None;
    }
    Some(claim(reasons.is_empty(), || format!("the client was busy: {}", reasons.join("; "))))
}

fn window(record: &RunRecord) -> Finding {
    if on_cpu(record) {
        return None;
    }
    let full =
        record.scenario.tier == Tier::Full && record.scenario.arrival == Some(Arrival::AllAtOnce);
    let least = if full { WINDOW_US_MIN_FULL } else { WINDOW_US_MIN };
    let window = record.time.as_ref()?.window_us.unwrap_or(0);
    Some(claim(window >= least, || {
        format!(
            "{:.1} s of steady state, {} s are asked for",
            float(window) / 1e6,
            least / 1_000_000
        )
    }))
}

fn correctness(record: &RunRecord) -> Finding {
    let looked = record.correctness.as_ref().is_some_and(|correctness| {
        let prompts = correctness.prompts.is_some_and(|prompts| prompts > 0);
        let share = |agreement: f64| (0.0..=1.0).contains(&agreement);
        let sound = correctness.agreement.is_none_or(share);
        let evidence = correctness.tokens_sha256.is_some() || correctness.agreement.is_some();
        prompts && sound && evidence
    });
    Some(claim(looked, || "the outputs of this run were not checked".to_owned()))
}
