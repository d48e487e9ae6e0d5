//! Quality rule: an id, a claim that must hold, the reason for it, its severity, the metrics that it
//! affects, and the records that it applies to.
//!
//! A rule has conditions. Those with a [`Reason`] are also judged by the load generator over its own
//! fresh run, and give the run's verdict; the finished record is judged by all of them.

use schema::metric::{Metric, Unit};
use schema::run::{Check, Kind, Level, RunRecord, Status, ValidityVerdict};
use schema::scenario::Tier;

/// Outcome of a condition over a record: `None` when the record lacks a value that the condition
/// needs; `Ok` when the claim holds; else a sentence with the figures that break it.
pub type Outcome = Option<Result<(), String>>;

/// Quality rule over one run: a claim that must hold of its record, with id, severity and
/// conditions.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Id of the rule: `E..` finds what must not be published as it stands, `W..` what a reader
    /// has to know, and a word is a rule that only the load generator judges.
    pub id: &'static str,
    /// Claim of the quality rule that must hold, in a few words.
    pub title: &'static str,
    /// Name of the finding that a record which breaks the rule has, in two to four words, for
    /// tables: `other power limit`.
    pub finding: &'static str,
    /// Reason why the rule matters, as a sentence for pages.
    pub why: &'static str,
    /// Severity of a broken rule: error or warning.
    pub level: Level,
    /// Severity of a broken rule on machines without a GPU, where client and server share the
    /// cores.
    pub level_on_cpu: Level,
    /// First revision of the list of rules that contains this rule; `None` for a rule that needs
    /// facts which no record holds, or whose finding is stored in `validity` alone.
    pub since: Option<u32>,
    /// Last revision of the list of rules that contains this rule; `None` for a rule of today. A
    /// retired rule judges only the records that were stored with it.
    pub until: Option<u32>,
    /// Id of the rule that took the place of this retired one: a stored finding of this one no longer
    /// counts, and the other judges the record. `None` where nothing did.
    pub successor: Option<&'static str>,
    /// Scope of the rule: the records that it applies to.
    pub scope: Scope,
    /// Metrics that are doubtful where the rule is broken.
    pub affects: &'static [Family],
    /// Names of the metrics that alone are doubtful where a rule does not affect whole families; empty
    /// for all metrics of `affects`.
    pub only: &'static [&'static str],
    /// Conditions that must all hold for a record to pass the rule.
    pub conditions: &'static [Condition],
}

/// Family of metrics, which are doubtful together where a rule that affects it is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Family of throughput metrics: rates of requests and tokens.
    Throughput,
    /// Family of metrics of TTFT, the time to first token.
    Ttft,
    /// Family of metrics of TPOT, the time per output token.
    Tpot,
    /// Family of metrics of ITL, the inter-token latency: gaps between tokens and between chunks.
    Itl,
    /// Family of metrics of E2E, the end-to-end latency.
    E2e,
    /// Family of energy metrics: joules per output token.
    Energy,
}

impl Family {
    /// Families of metrics that rules can affect, that is, all of them.
    pub const ALL: &'static [Self] =
        &[Self::Throughput, Self::Ttft, Self::Tpot, Self::Itl, Self::E2e, Self::Energy];
    /// Families of latency metrics: TTFT, TPOT, ITL and E2E.
    pub const LATENCIES: &'static [Self] = &[Self::Ttft, Self::Tpot, Self::Itl, Self::E2e];

    /// Returns the family of a metric; `None` for one of no family, such as peak memory.
    pub fn of(metric: &Metric) -> Option<Self> {
        let families = [
            ("ttft_", Self::Ttft),
            ("tpot_", Self::Tpot),
            ("itl_", Self::Itl),
            ("e2e_", Self::E2e),
        ];
        let named = families.into_iter().find(|(start, _)| metric.name.starts_with(start));
        let is_rate = metric.unit == Unit::PerSecond;
        named.map(|(_, family)| family).or(is_rate.then_some(Self::Throughput))
    }
}

/// Condition of a quality rule: a test of one record, and the reason that a run which breaks it
/// gets.
#[derive(Debug, Clone, Copy)]
pub struct Condition {
    /// Reason that the load generator gives a fresh run which breaks the condition; `None` where
    /// only finished records are judged by the condition.
    pub reason: Option<Reason>,
    predicate: Predicate,
}

#[derive(Debug, Clone, Copy)]
enum Predicate {
    /// Record: the condition's test needs the run's record alone.
    Record(fn(&RunRecord) -> Outcome),
    /// Fresh: the condition's test needs facts about a fresh run that no record holds.
    Fresh(fn(&RunRecord, &Evidence) -> Outcome),
}

/// Reason not to take the figures of a run as they stand, as `validity` of a record lists it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// Id of the reason, with which its sentence in a record begins.
    pub id: &'static str,
    /// Verdict on a run that has the reason; VALID for a note.
    pub verdict: ValidityVerdict,
    /// Threshold at which a run gets the reason, described in words.
    pub when: &'static str,
}

/// Facts about a fresh run that its record does not hold.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Evidence {
    /// Mean prompt length of all planned requests, in tokens.
    pub prompt_tokens_planned: f64,
    /// Mean prompt length of the answered requests, in tokens.
    pub prompt_tokens_answered: f64,
    /// Number of prompts sent as token ids for which the server counts a different length.
    pub prompts_miscounted: u64,
    /// Number of tokens of the prompts that were sent as text: by the client's tokenizer, and by the
    /// server, without those that it adds to every prompt. `None` where prompts were sent as token
    /// ids, or one of both does not count them.
    pub prompt_tokens_as_text: Option<(u64, u64)>,
    /// Number of requests whose chunks have a different number of tokens than their usage reports.
    pub chunks_miscounted: u64,
    /// Sum over all answers of the gaps between tokens, and sum of E2E - TTFT, in nanoseconds;
    /// `None` where the number of tokens in chunks is not known.
    pub decode_ns: Option<(u64, u64)>,
    /// Largest number of prompt tokens that the run's own requests can take from the prefix cache:
    /// beginnings that their prompts share, and tokens of the chat template. `None` where an answer
    /// does not state the length of its prompt.
    pub prompt_tokens_shared: Option<u64>,
}

impl Condition {
    /// Creates a condition over the record alone. Without a reason, which other methods add, only
    /// finished records are judged by it.
    pub(crate) const fn new(look: fn(&RunRecord) -> Outcome) -> Self {
        Self { reason: None, predicate: Predicate::Record(look) }
    }

    /// Creates a condition that needs facts about a fresh run that no record holds.
    pub(crate) const fn fresh(look: fn(&RunRecord, &Evidence) -> Outcome) -> Self {
        Self { reason: None, predicate: Predicate::Fresh(look) }
    }

    /// Returns the condition with a reason that leaves a fresh run VALID and is listed as a note.
    pub(crate) const fn note(self, id: &'static str, when: &'static str) -> Self {
        Self { reason: Some(Reason { id, verdict: ValidityVerdict::Valid, when }), ..self }
    }

    /// Returns the condition with a reason that makes a fresh run which breaks it DEGRADED.
    pub(crate) const fn degraded(self, id: &'static str, when: &'static str) -> Self {
        Self { reason: Some(Reason { id, verdict: ValidityVerdict::Degraded, when }), ..self }
    }

    /// Returns the condition with a reason that makes a fresh run which breaks it INVALID.
    pub(crate) const fn invalid(self, id: &'static str, when: &'static str) -> Self {
        Self { reason: Some(Reason { id, verdict: ValidityVerdict::Invalid, when }), ..self }
    }

    /// Returns the outcome of the condition over `record`; `evidence` is `None` unless the run is
    /// fresh.
    pub(crate) fn outcome(&self, record: &RunRecord, evidence: Option<&Evidence>) -> Outcome {
        match self.predicate {
            Predicate::Record(look) => look(record),
            Predicate::Fresh(look) => look(record, evidence?),
        }
    }
}

impl Rule {
    /// Template of rules that are errors: in the first revision of the rules, over measured records
    /// with figures, and about all metrics. A rule overrides the fields in which it differs.
    pub(crate) const ERROR: Self = Self {
        id: "",
        title: "",
        finding: "",
        why: "",
        level: Level::Error,
        level_on_cpu: Level::Error,
        since: Some(1),
        until: None,
        successor: None,
        scope: Scope::MEASURED_FIGURES,
        affects: Family::ALL,
        only: &[],
        conditions: &[],
    };
    /// Template of rules that are warnings; otherwise equal to [`Self::ERROR`].
    pub(crate) const WARNING: Self =
        Self { level: Level::Warning, level_on_cpu: Level::Warning, ..Self::ERROR };

    /// True for a rule that judges records of revision `rev` of the list of rules.
    pub fn is_of(&self, rev: u32) -> bool {
        let has_begun = self.since.is_some_and(|since| since <= rev);
        has_begun && self.until.is_none_or(|until| rev <= until)
    }

    /// Formats in words which records the rule judges: `measured runs with figures, up to revision
    /// 7`.
    pub fn applies_to(&self) -> String {
        let until = self.until.map_or_else(String::new, |rev| format!(", up to revision {rev}"));
        let successor =
            self.successor.map_or_else(String::new, |id| format!(", superseded by `{id}`"));
        self.scope.words() + &until + &successor
    }

    /// Judges `record` by the rule; `None` where the rule does not apply, or the record lacks the
    /// values that its conditions need.
    pub fn judge(&self, record: &RunRecord) -> Option<Check> {
        if !self.scope.covers(record) {
            return None;
        }
        let outcomes = self.conditions.iter().filter_map(|one| one.outcome(record, None));
        let outcomes: Vec<Result<(), String>> = outcomes.collect();
        if outcomes.is_empty() {
            return None;
        }
        let broken: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
        let level = if on_cpu(record) { self.level_on_cpu } else { self.level };
        let detail = (!broken.is_empty()).then(|| broken.join("; "));
        Some(Check { rule: self.id.to_owned(), level, ok: detail.is_none(), detail })
    }
}

/// Records that a rule applies to, by kind, status and tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Kinds of records that the rule applies to: measured, imported or simulated.
    pub kinds: &'static [Kind],
    /// Statuses of runs that the rule applies to.
    pub statuses: &'static [Status],
    /// Tiers of scenarios that the rule applies to: full, quarter or lite.
    pub tiers: &'static [Tier],
}

const KINDS: &[Kind] = &[Kind::Measured, Kind::Imported, Kind::Simulated];
const STATUSES: &[Status] = &[Status::Ok, Status::Partial, Status::Failed, Status::Skipped];
const WITH_FIGURES: &[Status] = &[Status::Ok, Status::Partial];
const TIERS: &[Tier] = &[Tier::Full, Tier::Quarter, Tier::Lite];

impl Scope {
    /// Scope of all records.
    pub const ALL: Self = Self { kinds: KINDS, statuses: STATUSES, tiers: TIERS };
    /// Scope of records with figures: runs that ended as `ok` or `partial`, whoever measured them.
    pub const FIGURES: Self = Self { statuses: WITH_FIGURES, ..Self::ALL };
    /// Scope of measured records, that is, of runs that this suite made itself.
    pub const MEASURED: Self = Self { kinds: &[Kind::Measured], ..Self::ALL };
    /// Scope of measured records with figures: runs that ended as `ok` or `partial`.
    pub const MEASURED_FIGURES: Self = Self { statuses: WITH_FIGURES, ..Self::MEASURED };

    /// Returns the scope without runs of scenarios of the tier `lite`.
    pub const fn but_lite(self) -> Self {
        Self { tiers: &[Tier::Full, Tier::Quarter], ..self }
    }

    /// True when the scope contains `record`.
    pub fn covers(&self, record: &RunRecord) -> bool {
        self.kinds.contains(&record.kind)
            && self.statuses.contains(&record.status)
            && self.tiers.contains(&record.scenario.tier)
    }

    /// Formats the scope in words for the list of rules: `measured runs with figures, not on
    /// -lite`.
    pub fn words(&self) -> String {
        let kinds = match self.kinds {
            KINDS => "all runs",
            [Kind::Imported] => "imported runs",
            _ => "measured runs",
        };
        let figures = if self.statuses == STATUSES { "" } else { " with figures" };
        let tiers = if self.tiers == TIERS { "" } else { ", not on -lite" };
        format!("{kinds}{figures}{tiers}")
    }
}

/// True when the record's machine is known to have no GPU.
pub fn on_cpu(record: &RunRecord) -> bool {
    record.hardware.gpu.as_ref().is_some_and(Vec::is_empty)
}
