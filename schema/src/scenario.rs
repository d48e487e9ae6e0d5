//! A scenario file: what is asked and when. The first key is the question it answers.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::arrival::Arrival;
pub use crate::run::CacheState;
pub use crate::workload::{Pack, Workload};

/// Number of requests of the `sharegpt` scenario, the ShareGPT sample on which all engines publish
/// results.
pub const SHAREGPT_REQUESTS: u64 = 10_000;

/// `suite/scenarios/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What this file answers.
    pub question: String,
    /// Once a record cites `id@rev`, that revision is never edited.
    pub rev: u32,
    /// What is asked.
    pub workload: Workload,
    /// What is asked before the clock starts.
    pub warmup: Warmup,
    /// When.
    pub arrival: Arrival,
    /// How answers are asked for.
    pub output: Output,
    /// How much it asks for.
    pub tier: Tier,
    /// Whether requests share connections.
    #[serde(default, skip_serializing_if = "Connections::is_default")]
    pub connections: Connections,
    /// What the prefix cache holds when the clock starts.
    #[serde(default, skip_serializing_if = "CacheProtocol::is_default")]
    pub cache: CacheProtocol,
}

/// What connections cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// They are open before the clock starts, and carry one request after the other.
    #[default]
    Warm,
    /// Each request opens its own.
    Cold,
}

impl Connections {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What the server's prefix cache holds when the clock starts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheProtocol {
    /// `cold`: emptied, and the emptiness read back. `primed`: emptied, then given the beginning
    /// of each measured prompt. `unknown`: left as it is found.
    pub state: CacheState,
    /// Of `primed`: the share of each prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
}

impl Default for CacheProtocol {
    fn default() -> Self {
        Self { state: CacheState::Cold, share: None }
    }
}

impl CacheProtocol {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<(), ScenarioError> {
        let wrong =
            |wanted, found: String| ScenarioError::Range { key: "cache.share", wanted, found };
        match (self.state, self.share) {
            (CacheState::Primed, Some(share)) if share > 0.0 && share <= 1.0 => Ok(()),
            (CacheState::Primed, share) => {
                let found = share.map_or_else(|| "nothing".to_owned(), |share| share.to_string());
                Err(wrong("above 0 and at most 1 where the cache is primed", found))
            }
            (_, Some(share)) => {
                Err(wrong("left out where the cache is not primed", share.to_string()))
            }
            (_, None) => Ok(()),
        }
    }
}

/// Requests before the clock starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Warmup {
    /// How many.
    pub requests: u64,
    /// Where their prompts come from.
    pub from: WarmupSource,
    /// Longest answer asked for; as long as those of the measured requests where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens_max: Option<u64>,
}

/// Where the prompts that warm up come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WarmupSource {
    /// Prompts that no measured request shares.
    Disjoint,
}

/// How answers are asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Answers go on to the length that is asked for.
    pub ignore_eos: bool,
    /// None leaves it to the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Further fields of each request's body, such as `top_p`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra_body: BTreeMap<String, Value>,
}

/// Fields of a request that say what is measured, or how: they have a place of their own, or are
/// the client's.
const NOT_EXTRA: [&str; 14] = [
    "ignore_eos",
    "input",
    "input_ids",
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "messages",
    "model",
    "n",
    "prompt",
    "stream",
    "stream_options",
    "temperature",
    "text",
];

impl Output {
    fn check(&self) -> Result<(), ScenarioError> {
        match self.extra_body.keys().find(|key| NOT_EXTRA.contains(&key.as_str())) {
            Some(key) => Err(ScenarioError::NotExtra { key: key.clone() }),
            None => Ok(()),
        }
    }
}

/// How much a scenario asks for; rules know their tier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// As published.
    #[default]
    Full,
    /// A quarter of the requests, for a short look at a GPU.
    Quarter,
    /// Fewer and shorter requests, for machines without a GPU.
    Lite,
}

/// A scenario file that does not say what it must.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// It is not TOML of this shape.
    #[error("not a scenario: {0}")]
    Toml(#[from] Box<toml::de::Error>),
    /// The workload lacks something.
    #[error("`{pack}` needs `workload.{key}`")]
    Missing {
        /// What would need it.
        pack: &'static str,
        /// The key.
        key: &'static str,
    },
    /// The workload has something that would be without effect.
    #[error("`workload.{key}` has no meaning for `{pack}`")]
    Superfluous {
        /// What does not read it.
        pack: &'static str,
        /// The key.
        key: &'static str,
    },
    /// Requests are to be sent at times that there are not.
    #[error(
        "`arrival.kind` is `trace`, and `{pack}` has no times\nhint: `trace@mooncake` and `jsonl` \
         have"
    )]
    NoTimes {
        /// Where they would come from.
        pack: &'static str,
    },
    /// A field of the body is not to be given.
    #[error(
        "`output.extra_body` has `{key}`, which the plan or the client decides\nhint: prompts and \
         lengths are those of `workload`; `output` has `ignore_eos` and `temperature`"
    )]
    NotExtra {
        /// Its name.
        key: String,
    },
    /// A number makes no sense.
    #[error("`{key}` must be {wanted}, found {found}")]
    Range {
        /// The key.
        key: &'static str,
        /// What would, in words.
        wanted: &'static str,
        /// The number.
        found: String,
    },
}

impl Scenario {
    /// Reads and checks a scenario file.
    ///
    /// # Errors
    /// The text is not TOML of this shape, or its values contradict each other.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = toml::from_str(text).map_err(Box::new)?;
        scenario.check()?;
        Ok(scenario)
    }

    /// Sees that the values go together.
    ///
    /// # Errors
    /// They contradict each other.
    pub fn check(&self) -> Result<(), ScenarioError> {
        self.workload.check()?;
        positive("workload.requests", self.workload.requests)?;
        positive("rev", u64::from(self.rev))?;
        positive("warmup.output_tokens_max", self.warmup.output_tokens_max.unwrap_or(1))?;
        self.arrival.check()?;
        self.output.check()?;
        self.cache.check()?;
        if matches!(self.arrival, Arrival::Trace { .. }) && !self.workload.pack.has_times() {
            return Err(ScenarioError::NoTimes { pack: self.workload.pack.id() });
        }
        Ok(())
    }

    /// The text of a scenario file that says the same.
    ///
    /// # Errors
    /// A further field of the body is one that TOML cannot hold: `null`.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }
}

pub(crate) fn positive(key: &'static str, value: u64) -> Result<(), ScenarioError> {
    if value == 0 {
        return Err(ScenarioError::Range { key, wanted: "at least 1", found: value.to_string() });
    }
    Ok(())
}
