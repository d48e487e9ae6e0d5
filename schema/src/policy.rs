//! A policy: how many pairs of launches a verdict takes, and how sure it has to be.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `suite/policies/<id>.toml`. The id is the file's stem; a revision that a campaign cites is never
/// edited. The smallest effects that are called a change are the metrics' own
/// ([`crate::metric::Metric::floor_pct`]).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    /// What this file answers.
    pub question: String,
    /// Its revision.
    pub rev: u32,
    /// Pairs of launches that look for candidates, where the user asks for no other number.
    pub screen_pairs: u32,
    /// Pairs of fresh launches that confirm or refute a candidate.
    pub confirm_pairs: u32,
    /// With fewer pairs than this nothing is judged.
    pub pairs_min: u32,
    /// Probability of an error that each one-sided test allows.
    pub alpha: f64,
    /// Confidence, two-sided, of the interval that is shown.
    pub confidence: f64,
    /// Power at which the smallest effect that could have been found is stated.
    pub power: f64,
}

/// Reads a policy file.
///
/// # Errors
/// The text is not TOML of this shape, or a number is out of its range.
pub fn parse(text: &str) -> Result<PolicyFile, PolicyError> {
    let policy: PolicyFile = toml::from_str(text).map_err(Box::new)?;
    for (key, pairs) in [
        ("screen_pairs", policy.screen_pairs),
        ("confirm_pairs", policy.confirm_pairs),
        ("pairs_min", policy.pairs_min),
    ] {
        // An interval has n - 1 degrees of freedom.
        if !(2..=100).contains(&pairs) {
            return Err(PolicyError::Range { key, range: "2 to 100" });
        }
    }
    for (key, share) in
        [("alpha", policy.alpha), ("confidence", policy.confidence), ("power", policy.power)]
    {
        if !(share > 0.0 && share < 1.0) {
            return Err(PolicyError::Range { key, range: "above 0 and below 1" });
        }
    }
    Ok(policy)
}

/// A policy file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// It is not TOML of this shape.
    #[error(transparent)]
    Toml(#[from] Box<toml::de::Error>),
    /// A number makes no sense.
    #[error("`{key}` is not {range}")]
    Range {
        /// The key.
        key: &'static str,
        /// What would, in words.
        range: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "question = \"?\"\nrev = 1\nscreen_pairs = 5\nconfirm_pairs = 8\n\
                         pairs_min = 3\nalpha = 0.05\nconfidence = 0.95\npower = 0.8\n";

    #[test]
    fn numbers_that_judge_nothing_are_refused() {
        assert_eq!(parse(SOUND).map(|policy| policy.screen_pairs).ok(), Some(5));
        for (from, to, error) in [
            ("pairs_min = 3", "pairs_min = 1", "`pairs_min` is not 2 to 100"),
            ("alpha = 0.05", "alpha = 0.0", "`alpha` is not above 0 and below 1"),
            ("power = 0.8", "power = nan", "`power` is not above 0 and below 1"),
        ] {
            let found = parse(&SOUND.replace(from, to)).map(|_| ()).map_err(|e| e.to_string());
            assert_eq!(found, Err(error.to_owned()));
        }
        assert!(parse(&SOUND.replace("alpha", "alfa")).is_err());
    }
}
