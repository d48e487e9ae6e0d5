//! `plan.v1`: saved plan with every request of a run and its send time, for anyone to send again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::manifest::{Manifest, ManifestRequest};
use crate::scenario::Scenario;

/// Plan file that `redline-bench plan --out` writes and `run --plan` reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanFile {
    /// Name of this schema, always `plan.v1`.
    pub schema: String,
    /// Id of the scenario that the plan was drawn for.
    pub scenario_id: String,
    /// SHA-256 of the scenario file, lower-case hex.
    pub scenario_sha256: String,
    /// Content of the scenario file that the plan was drawn for.
    pub scenario: Scenario,
    /// SHA-256 of the manifest, lower-case hex, by which a reader detects changes.
    pub manifest_sha256: String,
    /// Workload manifest: every measured request with its send time.
    pub manifest: Manifest,
    /// Warm-up requests, whose prompts begin with other tokens than those of all measured requests.
    pub warmup: Vec<ManifestRequest>,
}

/// Schema name of a plan file.
pub const SCHEMA: &str = "plan.v1";
