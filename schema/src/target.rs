//! A target file: a hardware class with its scenarios, models and tensor-parallel sizes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `suite/targets/<id>.toml`. The id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// When this target is the one at hand; a target that asks for no device is the fallback.
    #[serde(rename = "match")]
    pub matches: TargetMatch,
    /// Scenario ids, in the order in which they run.
    pub scenarios: Vec<String>,
    /// Scenario ids that run beside them where a release is compared with a baseline: the rungs
    /// whose latencies gate.
    #[serde(default)]
    pub gate_scenarios: Vec<String>,
    /// Launches per scenario.
    pub repeats: u32,
    /// What is served there, and how.
    pub models: Vec<TargetModel>,
}

/// How a machine is known to belong to a target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetMatch {
    /// Lower-case parts of a GPU's name, any of which will do; empty for a CPU.
    #[serde(default)]
    pub device_name: Vec<String>,
    /// A GPU's memory, at least.
    #[serde(default)]
    pub memory_gib_min: f64,
}

/// A model of a target, and how each engine is to serve it there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetModel {
    /// File stem under `suite/models/`.
    pub id: String,
    /// Tensor-parallel ranks.
    pub tp: u32,
    /// What every launch of it asks for; else as the engine does by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Tokens of the longest sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Share of the memory, as each engine counts that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<u32>,
}

/// Reads a target file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse(text: &str) -> Result<Target, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}
