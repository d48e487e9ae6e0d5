//! What the client's times mean: counts, distributions, rates, and whether they may be believed.
//! Pure: no clock, no server, no file.

pub(crate) mod capacity;
pub mod credit;
pub mod distribution;
pub(crate) mod rates;
pub(crate) mod slo;
mod stall;
pub mod summary;
pub mod tally;
pub(crate) mod window;

/// Nanoseconds as whole microseconds, to the nearest.
pub fn to_us(ns: u64) -> u64 {
    (ns + 500) / 1000
}
