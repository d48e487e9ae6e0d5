//! Quality rules over the load generator: it was not the bottleneck, it sent on time, the
//! measuring window was long enough, and outputs were checked.

use schema::run::{Level, RunRecord, Status};
use schema::scenario::{Arrival, Tier};

use super::{claim, float};
use crate::rule::{Finding, Rule, Scope, on_cpu};

/// Largest share of one core that the client's event loop may use (95th percentile over the run).
pub const CPU_SHARE_MAX: f64 = 0.8;
/// Largest lag of the client's event loop, 99th percentile, in microseconds.
pub const LOOP_LAG_US_MAX: u64 = 5_000;
/// Largest lag of the client's event loop as a share of the median TPOT. It applies only where
/// receive times are not stamped by the kernel, since stamps do not depend on the loop.
pub const LOOP_LAG_SHARE_OF_TPOT: f64 = 0.02;

/// Limits on how long received bytes may wait for the client, 99th percentile, in microseconds. A
/// wait above the first limit is always too long; one above the second is too long where it also
/// exceeds [`KERNEL_GAP_SHARE_OF_TPOT`] of the median TPOT.
pub const KERNEL_GAP_US: (u64, u64) = (5_000, 1_000);
/// Share of the median TPOT above which a wait of received bytes is too long. See
/// [`KERNEL_GAP_US`].
pub const KERNEL_GAP_SHARE_OF_TPOT: f64 = 0.1;
/// Largest share of reads that may bring several chunks which arrived separately: such chunks
/// share one time stamp.
pub const LATE_READ_SHARE_MAX: f64 = 0.02;
/// Send lag (99th percentile, microseconds) up to which requests count as sent on time.
pub const SCHEDULE_LAG_US_MAX: u64 = 5_000;
/// Share of the median TTFT that a send lag must exceed as well to count as late. See
/// [`SCHEDULE_LAG_US_MAX`].
pub const SCHEDULE_LAG_SHARE_OF_TTFT: f64 = 0.02;
/// Ratio of the answered rate to the arrival rate from which the arrival rate, not the engine,
/// sets the throughput.
pub const ARRIVAL_SHARE: f64 = 0.95;

/// Shortest steady window of a full scenario with all requests at once, in microseconds.
pub const WINDOW_US_MIN_FULL: u64 = 300_000_000;
/// Shortest steady window of every other scenario, in microseconds.
pub const WINDOW_US_MIN: u64 = 60_000_000;

pub(super) const BUSY: Rule = Rule {
    id: "E15",
    title: "the client was not the bottleneck: under 80 % of a core, loop lag under 5 ms",
    why: "A client that lags adds its own delay to every time it reports.",
    level: Level::Error,
    // Client and server share the cores, so a busy client is expected there and only reported.
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

pub(super) const CAP: Rule = Rule {
    id: "E32",
    title: "no more requests ran at one time than the cap allows",
    why: "A cap that is not kept is another load.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 3,
    scope: Scope::MEASURED_FIGURES,
    look: cap,
};

pub(super) const ARRIVAL_LIMITED: Rule = Rule {
    id: "W03",
    title: "the engine sets the throughput, not the arrival",
    why: "An engine that keeps up with the rate at which requests arrive shows that rate: it may \
          be faster, and a change of it does not show.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 3,
    scope: Scope::FIGURES,
    look: arrival_limited,
};

pub(super) const READ_LATE: Rule = Rule {
    id: "W14",
    title: "what arrived was read at once, chunk by chunk",
    why: "Chunks that wait for the client are read together, with one time for all of them.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 3,
    scope: Scope::MEASURED_FIGURES,
    look: read_late,
};

pub(super) const SENT_LATE: Rule = Rule {
    id: "W15",
    title: "requests were sent when they were due",
    why: "The load was another than the scenario says where the client was late with it.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 3,
    scope: Scope::MEASURED_FIGURES,
    look: sent_late,
};

fn cap(record: &RunRecord) -> Finding {
    let cap = record.scenario.arrival.as_ref().and_then(Arrival::concurrency_max)?;
    let streams = record.client.as_ref()?.streams_max?;
    Some(claim(streams <= cap, || format!("{streams} requests ran at once under a cap of {cap}")))
}

fn arrival_limited(record: &RunRecord) -> Finding {
    let rate = match record.scenario.arrival.as_ref()? {
        Arrival::Constant { requests_per_s, .. }
        | Arrival::Poisson { requests_per_s, .. }
        | Arrival::Gamma { requests_per_s, .. } => *requests_per_s,
        _ => return None,
    };
    let answered = record.metrics.as_ref()?.requests_per_s?;
    Some(claim(answered < ARRIVAL_SHARE * rate, || {
        format!("{answered:.2} requests a second were answered, {rate:.2} arrived")
    }))
}

fn read_late(record: &RunRecord) -> Finding {
    let client = record.client.as_ref()?;
    let tpot = record.metrics.as_ref().and_then(|metrics| metrics.tpot_us.as_ref()?.p50);
    let waited = client.kernel_to_user_us_p99;
    let late = client.late_read_share;
    if waited.is_none() && late.is_none() {
        return None;
    }
    let (much, little) = KERNEL_GAP_US;
    let of_tpot =
        |us: u64| tpot.is_some_and(|p50| float(us) > KERNEL_GAP_SHARE_OF_TPOT * float(p50));
    let long = waited.filter(|us| *us > much || (*us > little && of_tpot(*us)));
    let reasons = [
        long.map(|us| format!("arrived bytes waited {us} us for the client")),
        late.filter(|share| *share > LATE_READ_SHARE_MAX)
            .map(|share| format!("{:.0} % of reads brought chunks that came apart", share * 100.0)),
    ];
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    Some(claim(reasons.is_empty(), || reasons.join("; ")))
}

fn sent_late(record: &RunRecord) -> Finding {
    let lag = record.client.as_ref()?.schedule_lag_us_p99?;
    let ttft = record.metrics.as_ref()?.ttft_us.as_ref()?.p50?;
    let late = lag > SCHEDULE_LAG_US_MAX && float(lag) > SCHEDULE_LAG_SHARE_OF_TTFT * float(ttft);
    Some(claim(!late, || format!("requests were sent {lag} us late (p99)")))
}

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
