//! Limitations of a page's figures, listed on every page and chosen by the records that the page
//! is made from.

use schema::run::{Kind, RunRecord};
use schema::scenario::{Arrival, Tier};

use crate::catalog::Run;

/// A limitation: the test for records that it applies to, and its sentence.
type Limit = (fn(&RunRecord) -> bool, &'static str);

const LIMITS: &[Limit] = &[
    (
        |_| true,
        "How fast the engine is on another machine, driver or day. Stored figures are shown side \
         by side, but only runs that were interleaved on one machine are compared.",
    ),
    (
        |_| true,
        "How fast your traffic would be. A scenario is one fixed list of requests, sent once, \
         greedily decoded to a fixed length.",
    ),
    (
        |record| matches!(record.scenario.arrival, Some(Arrival::AllAtOnce)),
        "How long a user waits for a first token. Where all requests arrive at once, TTFT and E2E \
         are mostly time in the queue; the ladder scenarios measure latency.",
    ),
    (
        |record| record.scenario.tier == Tier::Lite,
        "How the engine behaves under long load. Lite scenarios last seconds, so start and end \
         weigh more than in the full ones.",
    ),
    (
        |record| judge::rule::on_cpu(record),
        "What a load generator on a machine of its own would see: on a CPU, client and server \
         share the cores.",
    ),
    (
        |record| record.model.weights.as_deref() == Some("random"),
        "Whether the answers are right. Random weights have the shape and the speed of the model \
         and none of its sense.",
    ),
    (
        |record| record.kind == Kind::Imported,
        "Whether an imported figure is true: its hardware, its configuration and its client are \
         what the report says they were.",
    ),
    (
        |record| record.kind == Kind::Simulated,
        "Anything about a real server: simulated records exist to test the suite itself.",
    ),
    (
        |_| true,
        "Whether one answer is better than another. Outputs are checked for being the right \
         tokens, not for being good.",
    ),
];

/// Returns the limitations of a page made from `runs`.
pub fn of(runs: &[&Run]) -> Vec<String> {
    let default = RunRecord::default();
    let calls = |test: fn(&RunRecord) -> bool| {
        // Constant limitations also apply to a page that is made from no runs.
        runs.iter().any(|run| test(run.record)) || (runs.is_empty() && test(&default))
    };
    LIMITS.iter().filter(|(test, _)| calls(*test)).map(|(_, text)| (*text).to_owned()).collect()
}
