//! List of all quality rules over one record, in the order in which their findings are listed and
//! stored.
//!
//! Rules that need files or other records are elsewhere: `E01` (path equals key) and `E03` (hash)
//! are storage rules of the registry; `E09` (the same figures in two runs), `W08` (configuration
//! differs from the release before) and `W09` (repeats that scatter) are group rules.

mod client;
mod counts;
mod facts;
mod figures;
mod identities;
mod machine;
mod parts;
mod published;
mod telemetry;

use crate::rule::Rule;

pub use client::{
    CPU_SHARE_MAX, KERNEL_GAP_SHARE_OF_TPOT, KERNEL_GAP_US, LATE_READ_SHARE_MAX,
    LOOP_LAG_SHARE_OF_TPOT, LOOP_LAG_US_MAX, SCHEDULE_LAG_SHARE_OF_TTFT, SCHEDULE_LAG_US_MAX,
};
pub use telemetry::{
    STEAL_SHARE_MAX, STEAL_WALL_US_MIN, THROTTLED_SHARE_MAX, counts_stray, held_down,
};

/// All quality rules over one record.
pub const RULES: &[Rule] = &[
    facts::COMPLETE,
    counts::PLANNED,
    counts::ACCOUNTED,
    figures::RATES,
    figures::PERCENTILES,
    figures::PEAK,
    facts::PROVENANCE,
    facts::HARDWARE,
    facts::PREFIX_HITS,
    machine::OWN,
    telemetry::UNDISTURBED,
    client::BUSY,
    client::WINDOW,
    client::CORRECTNESS,
    facts::TIMES,
    identities::TPOT,
    identities::TOKEN_GAPS,
    identities::CONCURRENCY,
    identities::FIRST_TOKEN,
    published::TPOT,
    published::GAPS,
    published::SURVIVORS,
    parts::TTFT_PARTS,
    parts::SCHEDULED,
    parts::SLICES,
    parts::SAMPLED,
    parts::PARTIAL,
    parts::CHUNK_SOURCE,
    client::CAP,
    telemetry::COUNTED,
    telemetry::ADDS_UP,
    telemetry::ENERGY,
    counts::RETOKENIZED,
    identities::CHUNKED,
    client::ARRIVAL_LIMITED,
    identities::QUEUE_TIME,
    telemetry::THROTTLED,
    machine::POWER_LIMIT,
    machine::STEADY,
    counts::REQUESTED,
    figures::SAMPLES,
    published::CHUNK_TOKENS,
    published::SAMPLE,
    client::READ_LATE,
    client::SENT_LATE,
    telemetry::STEAL,
];

/// True when two values differ by at most `share`: `|left - right| <= share * |right|`.
fn within(left: f64, right: f64, share: f64) -> bool {
    (left - right).abs() <= share * right.abs()
}

#[expect(clippy::cast_precision_loss, reason = "times and counts of a run are far below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

/// Builds a finding from a claim and the sentence that says how the claim is broken.
fn claim(holds: bool, broken: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(broken()) }
}

#[cfg(test)]
mod tests;
