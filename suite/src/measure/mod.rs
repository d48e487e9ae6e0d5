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
pub mod verdict;
pub(crate) mod window;

use schema::run::Absent;

/// Collects why fields are null.
#[derive(Clone, Debug, Default)]
pub struct Reasons(pub Absent);

impl Reasons {
    /// `value`, and where it is missing, why.
    pub fn explain<T>(&mut self, path: &str, value: Option<T>, reason: &str) -> Option<T> {
        if value.is_none() {
            self.0.insert(path.to_owned(), reason.to_owned());
        }
        value
    }

    /// Nothing, and why.
    pub fn none<T>(&mut self, path: &str, reason: &str) -> Option<T> {
        self.explain(path, None, reason)
    }
}

/// Nanoseconds as whole microseconds, to the nearest.
pub fn to_us(ns: u64) -> u64 {
    (ns + 500) / 1000
}
