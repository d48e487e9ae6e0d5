//! Comparison policies: how long a comparison takes or how many pairs of runs a verdict needs, and
//! with which error rates.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{InvalidFile, from_toml};

/// Citation of a comparison policy in a record: id, revision and hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// Id of the policy: stem of its file under `suite/policies/`.
    pub id: String,
    /// Revision of the policy file.
    pub rev: u32,
    /// SHA-256 of the canonical JSON of the policy file's content and of the minimum effects of all
    /// metrics, lower-case hex.
    pub sha256: String,
}

/// Policy file `suite/policies/<id>.toml`; the id is the file's stem. A revision that a campaign
/// cites is never edited. Minimum effects are not part of a policy: each metric has its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// Question that the comparison policy answers.
    pub question: String,
    /// Revision of the comparison policy.
    pub rev: u32,
    /// Number of pairs of runs in the screen of each cell, from 2 to 100, where pairs of runs decide
    /// because two servers do not fit into memory, unless the user requests another number.
    pub screen_pairs: u32,
    /// Number of pairs of fresh runs with which a cell's suspected changes are confirmed or
    /// refuted, from 2 to 100.
    pub confirm_pairs: u32,
    /// Time of the alternating comparison of one cell in seconds, from 10 to 86,400; the command
    /// `gate` has a budget of its own.
    pub alternate_s: u32,
    /// Minimum number of pairs for a statistical test, from 2 to 100; with fewer, no change is
    /// claimed or excluded.
    pub pairs_min: u32,
    /// Error probability of each one-sided test, above 0 and below 1.
    pub alpha: f64,
    /// Confidence of the two-sided interval that is shown with an effect, above 0 and below 1.
    pub confidence: f64,
    /// Power for which the minimum detectable effect is stated, above 0 and below 1.
    pub power: f64,
}

/// Parses and checks a policy file.
///
/// # Errors
/// The text is not TOML with the fields of a policy, or a number is out of range.
pub fn parse(text: &str) -> Result<PolicyFile, InvalidFile> {
    let policy: PolicyFile = from_toml(text)?;
    for (key, pairs) in [
        ("screen_pairs", policy.screen_pairs),
        ("confirm_pairs", policy.confirm_pairs),
        ("pairs_min", policy.pairs_min),
    ] {
        // An interval has n - 1 degrees of freedom, so one pair gives none.
        if !(2..=100).contains(&pairs) {
            return Err(InvalidFile(format!("`{key}` is not 2 to 100")));
        }
    }
    if !(10..=86_400).contains(&policy.alternate_s) {
        return Err(InvalidFile("`alternate_s` is not 10 to 86400".to_owned()));
    }
    for (key, share) in
        [("alpha", policy.alpha), ("confidence", policy.confidence), ("power", policy.power)]
    {
        if !(share > 0.0 && share < 1.0) {
            return Err(InvalidFile(format!("`{key}` is not above 0 and below 1")));
        }
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "question = \"?\"\nrev = 1\nscreen_pairs = 5\nconfirm_pairs = 8\n\
                         alternate_s = 300\npairs_min = 3\nalpha = 0.05\nconfidence = 0.95\n\
                         power = 0.8\n";

    #[test]
    fn numbers_that_judge_nothing_are_refused() {
        assert_eq!(parse(SOUND).map(|policy| policy.screen_pairs).ok(), Some(5));
        for (from, to, error) in [
            ("pairs_min = 3", "pairs_min = 1", "`pairs_min` is not 2 to 100"),
            ("alternate_s = 300", "alternate_s = 5", "`alternate_s` is not 10 to 86400"),
            ("alpha = 0.05", "alpha = 0.0", "`alpha` is not above 0 and below 1"),
            ("power = 0.8", "power = nan", "`power` is not above 0 and below 1"),
        ] {
            let found = parse(&SOUND.replace(from, to)).map(|_| ()).map_err(|e| e.to_string());
            assert_eq!(found, Err(error.to_owned()));
        }
        assert!(parse(&SOUND.replace("alpha", "alfa")).is_err());
    }
}
