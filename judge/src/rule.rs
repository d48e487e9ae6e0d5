//! What a rule is: an id, a claim that must hold, the reason for it, and where it applies.

use schema::run::{Check, Kind, Level, RunRecord, Status};
use schema::scenario::Tier;

/// What a rule found: `None` when the record does not know what the rule needs, else whether the
/// claim holds, and if not, the figures that break it.
pub type Finding = Option<Result<(), String>>;

/// One quality rule.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// `E..` finds what must not be published as it stands, `W..` what a reader has to know.
    pub id: &'static str,
    /// The claim that must hold, in a few words.
    pub title: &'static str,
    /// Why it matters: a sentence for pages.
    pub why: &'static str,
    /// Level of the rule: error or warning.
    pub level: Level,
    /// The level on machines without a GPU, where client and server share the cores.
    pub level_on_cpu: Level,
    /// First revision of the rules that has this rule.
    pub since: u32,
    /// The records that it judges.
    pub scope: Scope,
    pub(crate) look: fn(&RunRecord) -> Finding,
}

impl Rule {
    /// The finding over `record`; `None` where the rule does not apply.
    #[must_use]
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

/// The records that a rule judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scope {
    /// How their figures came about.
    pub kinds: &'static [Kind],
    /// How their runs ended.
    pub statuses: &'static [Status],
    /// How much their scenarios ask for.
    pub tiers: &'static [Tier],
}

const KINDS: &[Kind] = &[Kind::Measured, Kind::Imported, Kind::Simulated];
const STATUSES: &[Status] = &[Status::Ok, Status::Partial, Status::Failed, Status::Skipped];
const WITH_FIGURES: &[Status] = &[Status::Ok, Status::Partial];
const TIERS: &[Tier] = &[Tier::Full, Tier::Quarter, Tier::Lite];

impl Scope {
    /// Every record.
    pub const ALL: Self = Self { kinds: KINDS, statuses: STATUSES, tiers: TIERS };
    /// Records with figures, whoever measured them.
    pub const FIGURES: Self = Self { statuses: WITH_FIGURES, ..Self::ALL };
    /// Records of runs that this program launched.
    pub const MEASURED: Self = Self { kinds: &[Kind::Measured], ..Self::ALL };
    /// Measured records with figures.
    pub const MEASURED_FIGURES: Self = Self { statuses: WITH_FIGURES, ..Self::MEASURED };

    /// The same scope without the `-lite` scenarios.
    #[must_use]
    pub const fn but_lite(self) -> Self {
        Self { tiers: &[Tier::Full, Tier::Quarter], ..self }
    }

    /// True when a rule of this scope judges `record`.
    #[must_use]
    pub fn covers(&self, record: &RunRecord) -> bool {
        self.kinds.contains(&record.kind)
            && self.statuses.contains(&record.status)
            && self.tiers.contains(&record.scenario.tier)
    }

    /// The scope in words, for the list of rules: `measured runs with figures, not -lite`.
    #[must_use]
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

/// True when the record's machine is a CPU alone.
#[must_use]
pub fn on_cpu(record: &RunRecord) -> bool {
    record.hardware.id.starts_with("cpu-")
}
