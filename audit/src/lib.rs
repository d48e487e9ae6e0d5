//! Judges any result by named rules. Pure: no I/O and no clock; a record goes in, findings come
//! out.
//!
//! Each rule lives in one place ([`rules`]) with its id, its reason and its scope; pages and
//! documents list them from the same constants. Storage (paths, hashes, history) is not judged
//! here but in `registry`, because it needs the files.

#![warn(missing_docs)]

pub mod quantile;
pub mod report;
pub mod rule;
pub mod rules;
#[doc(hidden)]
pub mod sample;

use schema::canonical::{CanonicalError, record_sha256};
use schema::run::{Check, RunRecord};

pub use rule::{Rule, Scope};
pub use rules::RULES;

/// Revision of the rules. It grows when a rule is added; a rule that a stored record was judged
/// by is never changed, a better one gets an id of its own.
pub const CHECKS_REV: u32 = 6;

/// The findings of today's rules over `record`, in the order of [`RULES`]. A rule that does not
/// apply to the record, or whose inputs the record does not know, gives no finding.
#[must_use]
pub fn judge(record: &RunRecord) -> Vec<Check> {
    judge_at(record, CHECKS_REV)
}

/// The findings of the rules as they were at revision `rev`: what a record that says `checks_rev`
/// must hold.
#[must_use]
pub fn judge_at(record: &RunRecord, rev: u32) -> Vec<Check> {
    RULES.iter().filter(|rule| rule.since <= rev).filter_map(|rule| rule.judge(record)).collect()
}

/// The findings of rules that came after `record` was judged. They are shown, never stored.
#[must_use]
pub fn judge_later(record: &RunRecord) -> Vec<Check> {
    let later = RULES.iter().filter(|rule| rule.since > record.checks_rev);
    later.filter_map(|rule| rule.judge(record)).collect()
}

/// Finds a rule by its id.
#[must_use]
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// Gives a finished record its findings and its hash. Whoever changes a record afterwards has to
/// seal it again.
///
/// # Errors
/// The record has no JSON form: a rate in it is not a number.
pub fn seal(record: &mut RunRecord) -> Result<(), CanonicalError> {
    record.checks_rev = CHECKS_REV;
    record.checks = judge(record);
    record.record_sha256 = record_sha256(record)?;
    Ok(())
}
