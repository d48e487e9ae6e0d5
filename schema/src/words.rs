//! Names of statuses, kinds and verdicts as records, pages and tables write them.

use crate::event::EventKind;
use crate::run::{Kind, Level, Status, ValidityVerdict};
use crate::scenario::Tier;
use crate::verdict::VerdictKind;

/// Declares for each enum the words that its variants are written as.
macro_rules! names {
    ($($type:ident { $($variant:ident $name:literal)* })*) => {
        $(impl $type {
            /// Returns the word for the variant, as records, files and commands write it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        })*
    };
}

names! {
    Kind { Measured "measured" Imported "imported" Simulated "simulated" }
    Status { Ok "ok" Partial "partial" Failed "failed" Skipped "skipped" }
    Tier { Full "full" Quarter "quarter" Lite "lite" }
    Level { Error "error" Warning "warning" }
    ValidityVerdict { Valid "valid" Degraded "degraded" Invalid "invalid" }
    EventKind { Retract "retract" Annotate "annotate" Waive "waive" Epoch "epoch" }
    VerdictKind {
        Regressed "regressed"
        Improved "improved"
        Unchanged "unchanged"
        Inconclusive "inconclusive"
        ChangedConfig "changed-config"
        NewFailure "new-failure"
        FixedFailure "fixed-failure"
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
