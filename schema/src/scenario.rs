//! A scenario file: what is asked and when. The first key is the question it answers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `suite/scenarios/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    pub question: String,
    /// Once a record cites `id@rev`, that revision is never edited.
    pub rev: u32,
    pub workload: Workload,
    pub warmup: Warmup,
    pub arrival: Arrival,
    pub output: Output,
    pub tier: Tier,
}

/// Which requests, drawn how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    pub pack: Pack,
    /// File stem under `suite/datasets/`.
    pub dataset: String,
    pub requests: u64,
    pub seed: u64,
    /// Upper bound of a prompt's length; `random` packs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Upper bound of an answer's length; `random` packs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Lengths are drawn from `[ratio * bound, bound]`; 1.0 fixes them. `random` packs only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_ratio: Option<f64>,
}

/// A tool's way of drawing requests, followed bit for bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Pack {
    /// Conversations as LMDeploy's `profile_restful_api.py` v0.9.2 samples them.
    #[serde(rename = "sharegpt@lmdeploy")]
    SharegptLmdeploy,
    /// Fixed or uniform lengths of conversation text, as the same tool's `random`.
    #[serde(rename = "random@lmdeploy")]
    RandomLmdeploy,
}

/// Requests before the clock starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warmup {
    pub requests: u64,
    pub from: WarmupSource,
    /// Longest answer asked for; as long as those of the measured requests where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmupSource {
    /// Prompts that no measured request shares.
    Disjoint,
}

/// When requests are sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrival {
    AllAtOnce,
    /// At most `concurrency` requests at a time, the next when one ends.
    Closed {
        concurrency: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    pub ignore_eos: bool,
    pub temperature: f64,
}

/// How much a scenario asks for; rules know their tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    #[default]
    Full,
    Quarter,
    Lite,
}

/// A scenario file that does not say what it must.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    #[error("not a scenario: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    #[error("`{pack}` needs `workload.{key}`")]
    Missing { pack: &'static str, key: &'static str },
    #[error("`workload.{key}` has no meaning for `{pack}`")]
    Superfluous { pack: &'static str, key: &'static str },
    #[error("`{key}` must be {wanted}, found {found}")]
    Range { key: &'static str, wanted: &'static str, found: String },
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// The text is not TOML of this shape, or its values contradict each other.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(Box::new)?;
        scenario.workload.check()?;
        positive("workload.requests", scenario.workload.requests)?;
        positive("rev", u64::from(scenario.rev))?;
        positive("warmup.output_tokens_max", scenario.warmup.output_tokens_max.unwrap_or(1))?;
        if let Arrival::Closed { concurrency } = scenario.arrival {
            positive("arrival.concurrency", concurrency)?;
        }
        Ok(scenario)
    }
}

impl Workload {
    fn check(&self) -> Result<(), ScenarioError> {
        let keys = [
            ("input_tokens", self.input_tokens.is_some()),
            ("output_tokens", self.output_tokens.is_some()),
            ("range_ratio", self.range_ratio.is_some()),
        ];
        for (key, given) in keys {
            match (self.pack, given) {
                (Pack::RandomLmdeploy, false) => {
                    return Err(ScenarioError::Missing { pack: "random@lmdeploy", key });
                }
                (Pack::SharegptLmdeploy, true) => {
                    return Err(ScenarioError::Superfluous { pack: "sharegpt@lmdeploy", key });
                }
                _ => {}
            }
        }
        let ratio = self.range_ratio.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&ratio) {
            let found = ratio.to_string();
            return Err(ScenarioError::Range {
                key: "workload.range_ratio",
                wanted: "from 0 to 1",
                found,
            });
        }
        positive("workload.input_tokens", self.input_tokens.unwrap_or(1))?;
        positive("workload.output_tokens", self.output_tokens.unwrap_or(1))
    }
}

fn positive(key: &'static str, value: u64) -> Result<(), ScenarioError> {
    if value == 0 {
        return Err(ScenarioError::Range { key, wanted: "at least 1", found: value.to_string() });
    }
    Ok(())
}
