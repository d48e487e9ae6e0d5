//! Evaluation of the samples: counts, distributions, rates and limits.
//! Pure: no clock, no server, no file.

pub(crate) mod capacity;
pub mod distribution;
pub(crate) mod rates;
pub mod summary;
pub mod tally;

/// Nanoseconds as whole microseconds, to the nearest.
pub fn to_us(ns: u64) -> u64 {
    (ns + 500) / 1000
}
