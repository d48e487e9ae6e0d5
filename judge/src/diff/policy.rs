//! Policy by which releases are judged, compiled into this program.

use std::collections::BTreeMap;

use schema::canonical::sha256_of;
use schema::metric::METRICS;
use schema::policy::{Policy, PolicyFile, parse};

/// Text of the comparison policy's file; the file's stem is the policy's id.
const FILE: &str = include_str!("../../../suite/policies/release.toml");
const ID: &str = "release";

/// Comparison policy and the citation (id, revision, hash) of it that records store.
#[derive(Debug, Clone, PartialEq)]
pub struct Standard {
    /// Content of the policy file: numbers of pairs, error rates, confidence.
    pub file: PolicyFile,
    /// Citation of the policy. Its hash also covers the minimum effects of all metrics.
    pub quoted: Policy,
}

/// Returns the policy by which releases are judged.
///
/// # Panics
///
/// Never: a test parses the file.
pub fn standard() -> Standard {
    let file = parse(FILE).expect("the policy of this source tree is read by its tests");
    // Minimum effects decide verdicts, so a change of one must change the hash.
    let floors: BTreeMap<&str, f64> =
        METRICS.iter().map(|metric| (metric.name, metric.floor_pct)).collect();
    let sha256 = sha256_of(&(&file, floors)).expect("numbers of a policy are finite");
    let quoted = Policy { id: ID.to_owned(), rev: file.rev, sha256 };
    Standard { file, quoted }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    /// Tests that the policy's numbers and the minimum effects are those of its revision, which
    /// campaigns cite: a change of one needs a new revision.
    #[test]
    fn the_numbers_of_a_revision_never_change() {
        let Standard { file, quoted } = standard();
        assert_eq!((file.screen_pairs, file.confirm_pairs, file.alpha), (5, 8, 0.05));
        expect!["release@2 a2840900"].assert_eq(&format!(
            "{}@{} {}",
            quoted.id,
            quoted.rev,
            &quoted.sha256[..8]
        ));
    }
}
