//! Quality rule: an id, a claim that must hold, the reason for it, its severity, and the records
//! that it applies to.

use schema::run::{Check, Kind, Level, RunRecord, Status};
use schema::scenario::Tier;

/// Outcome of a rule over a record: `None` when the record lacks the rule's inputs; `Ok` when the
/// claim holds; else the figures that break it, as a sentence.
pub type Finding = Option<Result<(), String>>;

/// A quality rule over one record.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// Id of the rule: `E..` finds what must not be published as it stands, `W..` what a reader
    /// has to know.
    pub id: &'static str,
    /// Claim that must hold, in a few words.
    pub title: &'static str,
    /// Reason why the rule matters, as a sentence for pages.
    pub why: &'static str,
    /// Severity of a broken rule: error or warning.
    pub level: Level,
    /// Severity on machines without a GPU, where client and server share the cores.
    pub level_on_cpu: Level,
    /// First revision of the list of rules that contains this rule.
    pub since: u32,
    /// Records that the rule applies to.
    pub scope: Scope,
    pub(crate) look: fn(&RunRecord) -> Finding,
}

impl Rule {
    /// Judges `record` by the rule; `None` where the rule does not apply.
    pub fn judge(&self, record: &RunRecord) -> Option<Check> {
        if !self.scope.covers(record) {
            return None;
        }
        let finding = (self.look)(record)?;
        let level = if on_cpu(record) { self.level_on_cpu } else { self.level };
        let rule = self.id.to_owned();
        Some(Check { rule, level, ok: finding.is_ok(), detail: finding.err() })
    }
}

/// Records that a rule applies to, by kind, status and tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// Kinds of records: measured, imported or simulated.
    pub kinds: &'static [Kind],
    /// Statuses with which the runs may have ended.
    pub statuses: &'static [Status],
    /// Tiers of the scenarios: full, quarter or lite.
    pub tiers: &'static [Tier],
}

const KINDS: &[Kind] = &[Kind::Measured, Kind::Imported, Kind::Simulated];
const STATUSES: &[Status] = &[Status::Ok, Status::Partial, Status::Failed, Status::Skipped];
const WITH_FIGURES: &[Status] = &[Status::Ok, Status::Partial];
const TIERS: &[Tier] = &[Tier::Full, Tier::Quarter, Tier::Lite];

impl Scope {
    /// Scope of rules that judge every record.
    pub const ALL: Self = Self { kinds: KINDS, statuses: STATUSES, tiers: TIERS };
    /// Scope of records with figures, whoever measured them.
    pub const FIGURES: Self = Self { statuses: WITH_FIGURES, ..Self::ALL };
    /// Scope of records of runs that Redline measured itself.
    pub const MEASURED: Self = Self { kinds: &[Kind::Measured], ..Self::ALL };
    /// Scope of measured records with figures.
    pub const MEASURED_FIGURES: Self = Self { statuses: WITH_FIGURES, ..Self::MEASURED };

    /// Returns the same scope without the `-lite` scenarios.
    pub const fn but_lite(self) -> Self {
        Self { tiers: &[Tier::Full, Tier::Quarter], ..self }
    }

    /// True when the scope contains `record`.
    pub fn covers(&self, record: &RunRecord) -> bool {
        self.kinds.contains(&record.kind)
            && self.statuses.contains(&record.status)
            && self.tiers.contains(&record.scenario.tier)
    }

    /// Scope in words for the list of rules: `measured runs with figures, not on -lite`.
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

/// True when the record's machine has no GPU.
pub fn on_cpu(record: &RunRecord) -> bool {
    record.hardware.id.starts_with("cpu-")
}
