//! May the numbers be believed? VALID, DEGRADED or INVALID, with every reason.
//!
//! DEGRADED: the client or the server strayed, within what a reader can allow for. INVALID: the
//! numbers are not what they say they are. A reason that leaves a run VALID is a note. Each reason
//! has an id, by which a record's sentence begins, and its threshold beside it. The registry's
//! quality rules judge a record again, and by more than the client knows.

mod answers;
mod client;
mod identities;
mod telemetry;

use schema::run::{CacheFacts, ClientFacts, Counts, Metrics, Telemetry, Validity, ValidityVerdict};
use schema::scenario::{CacheState, Tier};

/// A reason not to take a figure as it stands.
#[derive(Debug, PartialEq, Eq)]
pub struct Reason {
    /// What a record names it by.
    pub id: &'static str,
    /// What a run is called that has it.
    pub verdict: ValidityVerdict,
    /// What is the matter, and from which figure on.
    pub when: &'static str,
}

impl Reason {
    const fn note(id: &'static str, when: &'static str) -> Self {
        Self { id, verdict: ValidityVerdict::Valid, when }
    }

    const fn degraded(id: &'static str, when: &'static str) -> Self {
        Self { id, verdict: ValidityVerdict::Degraded, when }
    }

    const fn invalid(id: &'static str, when: &'static str) -> Self {
        Self { id, verdict: ValidityVerdict::Invalid, when }
    }
}

/// Every reason, in the order in which a record lists those of one verdict.
pub const REASONS: &[&Reason] = &[
    &client::CPU_SHARE,
    &client::LOOP_LAG,
    &client::KERNEL_GAP,
    &client::SCHEDULE_LAG,
    &client::COALESCED_READS,
    &client::LATE_READS,
    &client::STAMPS_LOST,
    &answers::OUTPUT_LENGTH,
    &answers::RETOKENIZED,
    &answers::PROMPT_LENGTH,
    &answers::CHUNK_COUNT,
    &answers::FAILURES,
    &answers::MANY_FAILURES,
    &answers::SURVIVORS,
    &answers::CACHE_MISMATCH,
    &answers::CACHE_NOT_EMPTY,
    &answers::FEW_SAMPLES,
    &identities::ACCOUNTED,
    &identities::TPOT,
    &identities::GAPS,
    &identities::RATES,
    &identities::FIRST_TOKEN,
    &identities::PERCENTILES,
    &identities::PEAK,
    &identities::CONCURRENCY,
    &telemetry::SERVER_COUNT,
    &telemetry::STEAL,
    &telemetry::THROTTLED,
    &telemetry::POWER_LIMITED,
];

/// What is judged, beside the groups of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Mean prompt length of all requests, and of those that were answered.
    pub prompt_tokens_mean: (f64, f64),
    /// Prompts of which the server counts another length, where they go as ids.
    pub prompts_miscounted: u64,
    /// Requests whose chunks hold other numbers of tokens than their usage says.
    pub chunks_miscounted: u64,
    /// Every answer has the length that is asked for: its end is ignored.
    pub length_forced: bool,
    /// Every answer is asked to have this many tokens; none where lengths differ.
    pub fixed_output: Option<u64>,
    /// Length of the run.
    pub wall_us: u64,
    /// Sum of the gaps between tokens, and of E2E less TTFT, in nanoseconds; none where the gaps
    /// are not known.
    pub decode_ns: Option<(u64, u64)>,
    /// Most requests that may run at one time.
    pub concurrency_max: Option<u64>,
    /// How much the scenario asks for.
    pub tier: Tier,
    /// The state of the prefix cache that the scenario asks for.
    pub cache_asked: CacheState,
}

/// What was found.
#[derive(Default)]
struct Findings {
    found: Vec<(&'static Reason, String)>,
}

/// The groups of a record that are judged.
#[derive(Clone, Copy, Debug)]
pub struct Judged<'a> {
    /// Numbers of requests and tokens in the run.
    pub counts: &'a Counts,
    /// None where nothing was answered.
    pub metrics: Option<&'a Metrics>,
    /// How the client did.
    pub client: &'a ClientFacts,
    /// What the prefix cache held and gave.
    pub cache: &'a CacheFacts,
    /// None where nothing was looked at.
    pub telemetry: Option<&'a Telemetry>,
    /// What stands in no group.
    pub evidence: &'a Evidence,
}

/// Judges a run.
pub fn verdict(run: &Judged<'_>) -> Validity {
    let mut findings = Findings::default();
    findings.client(run);
    findings.answers(run);
    findings.identities(run);
    findings.telemetry(run);
    findings.validity()
}

impl Findings {
    /// Adds `reason` where it is `found`, with the figures of it.
    fn add(&mut self, reason: &'static Reason, found: bool, figures: impl FnOnce() -> String) {
        if found {
            self.found.push((reason, figures()));
        }
    }

    /// The verdict is that of the worst reason, which also comes first.
    fn validity(mut self) -> Validity {
        self.found.sort_by_key(|(reason, _)| std::cmp::Reverse(reason.verdict));
        let verdict = self.found.first().map_or(ValidityVerdict::Valid, |(first, _)| first.verdict);
        let sentence = |(reason, figures): (&Reason, String)| format!("{}: {figures}", reason.id);
        Validity { verdict, reasons: self.found.into_iter().map(sentence).collect() }
    }
}

#[cfg(test)]
mod tests;
