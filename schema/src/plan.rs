//! A saved plan: all that a run sends and when, to be replayed by anyone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::manifest::{Manifest, ManifestRequest};
use crate::scenario::Scenario;

/// The file of `redline-bench plan --out`, which `run --plan` takes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanFile {
    /// Always `plan.v1`.
    pub schema: String,
    /// The scenario's id.
    pub scenario_id: String,
    /// SHA-256 of the scenario's file.
    pub scenario_sha256: String,
    /// What its file says.
    pub scenario: Scenario,
    /// The manifest's hash, by which a reader sees that nothing was changed.
    pub manifest_sha256: String,
    /// Every request.
    pub manifest: Manifest,
    /// Prompts that no measured request shares.
    pub warmup: Vec<ManifestRequest>,
}

/// The schema name that a plan carries.
pub const SCHEMA: &str = "plan.v1";
