//! Target files (`suite/targets/<id>.toml`): a hardware class with its scenarios, models and
//! tensor-parallel sizes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::scenario::{InvalidFile, from_toml};

/// Target file `suite/targets/<id>.toml`; the id is the file's stem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Condition that a machine must meet to belong to the target; a target whose condition
    /// requires no GPU is used where no other one fits.
    #[serde(rename = "match")]
    pub matches: TargetMatch,
    /// Platform of the target's GPUs, by which the container images of engines are chosen; `cuda`
    /// where left out.
    #[serde(default, skip_serializing_if = "Accelerator::is_default")]
    pub accelerator: Accelerator,
    /// Ids of the scenarios that are measured on the target, in the order in which they run.
    pub scenarios: Vec<String>,
    /// Scenario ids that run in addition where a release is compared with a baseline: concurrency
    /// levels whose latencies are release-blocking.
    #[serde(default)]
    pub gate_scenarios: Vec<String>,
    /// Number of runs of each scenario and model where no releases are compared, unless the user
    /// requests another number.
    pub repeats: u32,
    /// Models that are served on the target.
    pub models: Vec<TargetModel>,
}

/// Condition by which a machine belongs to a target.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetMatch {
    /// Lower-case parts of GPU names; the name of the machine's first GPU must contain one. Empty
    /// for a target that requires no GPU.
    #[serde(default)]
    pub device_name: Vec<String>,
    /// Minimum memory of the machine's first GPU, in GiB; 0 where left out.
    #[serde(default)]
    pub memory_gib_min: f64,
}

/// Platform for which programs on GPUs are built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// CUDA: GPUs of NVIDIA.
    #[default]
    Cuda,
    /// ROCm: GPUs of AMD.
    Rocm,
}

impl Accelerator {
    /// True for the platform of a target that names none.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Kind of device that a server computes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    /// CPU: the processor.
    Cpu,
    /// GPU: one or more graphics processors.
    Gpu,
}

/// Model of a target, and how every engine serves it there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TargetModel {
    /// Id of the model: file stem under `suite/models/`.
    pub id: String,
    /// Number of tensor-parallel ranks with which the model is served.
    pub tp: u32,
    /// Seed that every server is started with; left out for the engine's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Longest sequence that servers are started for, in tokens; left out for the engine's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_tokens: Option<u64>,
    /// Percentage of memory that servers may use. The engine defines whether that is free or all
    /// memory, of the GPU or of the machine. Left out for the engine's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_percent: Option<u32>,
}

/// Parses a target file.
///
/// # Errors
/// The text is not TOML with the fields of a target.
pub fn parse(text: &str) -> Result<Target, InvalidFile> {
    from_toml(text)
}
