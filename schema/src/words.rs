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

        #[cfg(test)]
        #[test]
        fn a_name_is_what_a_record_holds() {
            $($(assert_eq!(serde_json::json!($type::$variant), $name);)*)*
        }
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
