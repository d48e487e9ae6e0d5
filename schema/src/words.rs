//! Names of statuses, kinds and verdicts as records, pages and tables write them.

use crate::run::{Kind, Level, Status, ValidityVerdict};
use crate::verdict::VerdictKind;

impl Kind {
    /// Returns the kind's name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Imported => "imported",
            Self::Simulated => "simulated",
        }
    }
}

impl Status {
    /// Returns the status's name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Partial => "partial",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl Level {
    /// Returns the level's name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

impl ValidityVerdict {
    /// Returns the validity verdict's name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Degraded => "degraded",
            Self::Invalid => "invalid",
        }
    }
}

impl VerdictKind {
    /// Returns the verdict's name in comparisons.
    pub fn name(self) -> &'static str {
        match self {
            Self::Regressed => "regressed",
            Self::Improved => "improved",
            Self::Unchanged => "unchanged",
            Self::Inconclusive => "inconclusive",
            Self::ChangedConfig => "changed-config",
            Self::NewFailure => "new-failure",
            Self::FixedFailure => "fixed-failure",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_a_record_holds() {
        for kind in [Kind::Measured, Kind::Imported, Kind::Simulated] {
            assert_eq!(serde_json::json!(kind), kind.name());
        }
        for status in [Status::Ok, Status::Partial, Status::Failed, Status::Skipped] {
            assert_eq!(serde_json::json!(status), status.name());
        }
        for verdict in [ValidityVerdict::Valid, ValidityVerdict::Degraded, ValidityVerdict::Invalid]
        {
            assert_eq!(serde_json::json!(verdict), verdict.name());
        }
        for verdict in [
            VerdictKind::Regressed,
            VerdictKind::Improved,
            VerdictKind::Unchanged,
            VerdictKind::Inconclusive,
            VerdictKind::ChangedConfig,
            VerdictKind::NewFailure,
            VerdictKind::FixedFailure,
        ] {
            assert_eq!(serde_json::json!(verdict), verdict.name());
        }
    }
}
