//! Evaluation of a run's samples: counts, distributions, rates and latency limits. It reads no
//! clock, contacts no server and opens no file.

pub(crate) mod capacity;
pub mod distribution;
pub(crate) mod embeddings;
pub mod error;
pub(crate) mod rates;
pub mod summary;
pub mod tally;

/// Converts nanoseconds to microseconds, rounded to the nearest integer.
pub fn to_us(ns: u64) -> u64 {
    (ns + 500) / 1000
}
