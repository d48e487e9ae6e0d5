//! List of all quality rules over one run, and the reasons that the load generator gives.
//!
//! Rules that need files or other records are elsewhere: `E01` (path equals key) and `E03` (hash)
//! are storage rules of the registry; `E09` (the same figures in two runs), `W08` (configuration
//! differs from the release before), `W09` (repeats that scatter) and `W20` (repeats that answer
//! differently) are rules over several runs.

pub mod client;
mod counts;
mod facts;
mod figures;
mod identities;
mod machine;
mod parts;
mod published;
mod telemetry;

use std::sync::LazyLock;

use schema::run::ValidityVerdict;

use crate::rule::{Outcome, Reason, Rule};

/// All quality rules over one run, ordered by id, which is the order in which findings are listed
/// and stored.
pub static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| {
    let mut rules = [
        client::RULES,
        counts::RULES,
        facts::RULES,
        figures::RULES,
        identities::RULES,
        machine::RULES,
        parts::RULES,
        published::RULES,
        telemetry::RULES,
    ]
    .concat();
    rules.sort_by_key(|rule| rule.id);
    rules
});

/// Returns every reason that the load generator can give a fresh run, in the order of [`RULES`],
/// each once even where two conditions share it.
pub fn reasons() -> Vec<Reason> {
    let mut reasons: Vec<Reason> = Vec::new();
    let conditions =
        RULES.iter().filter(|rule| rule.until.is_none()).flat_map(|rule| rule.conditions);
    for reason in conditions.filter_map(|one| one.reason) {
        // One reason may have two conditions: too many cache hits and too few.
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
}

/// Returns the rule that has the reason with this id, and the verdict on the metrics that the rule
/// affects; `None` where no rule has it.
pub fn rule_of_reason(id: &str) -> Option<(&'static Rule, ValidityVerdict)> {
    let verdict = |rule: &Rule| {
        let mut reasons = rule.conditions.iter().filter_map(|one| one.reason);
        reasons.find(|reason| reason.id == id).map(|reason| reason.verdict)
    };
    // A reason that outlived its rule belongs to today's.
    let among = |retired: bool| {
        let mut rules = RULES.iter().filter(move |rule| rule.until.is_some() == retired);
        rules.find_map(|rule| Some((rule, verdict(rule)?)))
    };
    among(false).or_else(|| among(true))
}

/// True when two values differ by at most `share` of the second: `|left - right| <= share *
/// |right|`.
fn within(left: f64, right: f64, share: f64) -> bool {
    (left - right).abs() <= share * right.abs()
}

#[expect(clippy::cast_precision_loss, reason = "times and counts of a run are far below 2^53")]
pub(crate) fn float(value: u64) -> f64 {
    value as f64
}

/// Builds the outcome of a claim about a record that has all values which the claim needs; `broken`
/// says how the claim is broken.
fn claim(holds: bool, broken: impl FnOnce() -> String) -> Outcome {
    Some(if holds { Ok(()) } else { Err(broken()) })
}

#[cfg(test)]
mod tests;
