//! Judgement over records: quality rules, comparisons of releases and engines, rankings, trends,
//! and the decisions of labs. Pure: no I/O, no clock, no git.
//!
//! Reading order: [`records`] and [`events`] (the input), [`mod@rule`], [`rules`] and [`groups`] (is a
//! figure valid), [`submission`] (records of others), [`validity`] (which of its figures a run may show), [`listing`] (all rules by id), [`quantile`] and [`summary`] (figures of
//! repeats), [`diff`] (two releases), [`side_by_side`] (two engines), [`output_form`] (tool calls and structured output), [`trend`] (many releases),
//! [`mod@newest`] (which runs a figure comes from),
//! [`best`], [`pick`] and [`pareto`] (rankings), [`coverage`] (what is measured), [`kernels`] (operations beside their limits), [`lab`] (a
//! search for a configuration).

#![warn(missing_docs)]

pub mod alternation;
pub mod best;
pub mod binomial;
mod client_error;
pub mod coverage;
pub mod diff;
pub mod events;
pub mod facts;
pub mod finding;
pub mod groups;
pub mod kernels;
pub mod lab;
pub mod listing;
pub mod newest;
pub mod order;
pub mod output_form;
pub mod pareto;
pub mod pick;
pub mod quantile;
pub mod records;
pub mod reproduction;
pub mod rule;
pub mod rules;
pub mod side_by_side;
pub mod submission;
pub mod summary;
pub mod table;
pub mod trend;
pub mod validity;

use schema::canonical::{CanonicalError, record_sha256};
use schema::run::{Check, Kind, RunRecord};

pub use records::{QueryError, Registry, Stored, by_prefix};
pub use rule::{Rule, Scope};
pub use rules::RULES;

/// Revision of the list of quality rules. It grows when a rule is added or retired, or applies to
/// other records. A rule never judges a stored record in another way than it did.
pub const CHECKS_REV: u32 = 12;

/// Returns the checks, passed and failed, of `record` by today's quality rules, in the order of
/// [`RULES`]. A rule gives no check where it does not apply, or where the record lacks the values
/// that its conditions need.
pub fn findings(record: &RunRecord) -> Vec<Check> {
    findings_at(record, CHECKS_REV)
}

/// Returns the checks, passed and failed, of `record` by the quality rules as they were at revision
/// `rev`. A record whose `checks_rev` is `rev` must store exactly these.
pub fn findings_at(record: &RunRecord, rev: u32) -> Vec<Check> {
    let known = RULES.iter().filter(|rule| rule.is_of(rev));
    known.filter_map(|rule| rule.judge(record)).collect()
}

/// Returns the checks, passed and failed, of `record` by quality rules that are newer than its
/// `checks_rev`. Pages show those that fail; records never store them.
pub fn findings_later(record: &RunRecord) -> Vec<Check> {
    let later =
        RULES.iter().filter(|rule| rule.is_of(CHECKS_REV) && rule.since > Some(record.checks_rev));
    later.filter_map(|rule| rule.judge(record)).collect()
}

/// Returns the failed checks of `record` as they count today: those that it stores, except of a rule
/// that another took the place of, followed by those of newer rules.
pub fn failed(record: &RunRecord) -> Vec<Check> {
    // Pages read thousands of figures, and most checks pass: only failed ones are copied.
    let stored = record.checks.iter().filter(|check| !check.ok && counts_today(check)).cloned();
    stored.chain(findings_later(record).into_iter().filter(|check| !check.ok)).collect()
}

/// True unless the check is of a rule that another took the place of.
pub fn counts_today(check: &Check) -> bool {
    rule(&check.rule).is_none_or(|rule| rule.successor.is_none())
}

/// Returns the quality rule over one run with this id, or `None` where there is none.
pub fn rule(id: &str) -> Option<&'static Rule> {
    RULES.iter().find(|rule| rule.id == id)
}

/// Seals a finished record: stores its checks by the quality rules, their revision, the verdicts on
/// the metrics of a measured run, and its hash. A record that changes afterwards must be sealed
/// again.
///
/// # Errors
///
/// The record cannot be written as JSON.
pub fn seal(record: &mut RunRecord) -> Result<(), CanonicalError> {
    record.checks_rev = CHECKS_REV;
    record.checks = findings(record);
    if record.kind == Kind::Measured {
        record.validity.metrics = validity::verdicts(record);
    }
    record.record_sha256 = record_sha256(record)?;
    Ok(())
}
