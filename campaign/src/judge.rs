//! Stands in for `audit` until its rules are here.

use schema::run::{Check, RunRecord};

pub const CHECKS_REV: u32 = 0;

#[must_use]
pub fn judge(_record: &RunRecord) -> Vec<Check> {
    Vec::new()
}
