//! What `redline-bench probe` learns from a running server, whatever engine it is.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{Absent, ModelFacts, ServerFacts};

/// The answer of `redline-bench probe`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Always `probe.v1`.
    pub schema: String,
    /// Id of the engine's file.
    pub engine: String,
    /// Version as the server states it, without `v`.
    pub version: Option<String>,
    /// What it was built from, as the server states it.
    pub commit: Option<String>,
    /// `cpu`, `cuda`, or as the engine calls it.
    pub device: Option<String>,
    /// As the server names the machine's.
    pub device_name: Option<String>,
    /// `config`, `config_sha256`, `device`, `kv_*`, `startup_us`, ... as far as the server tells.
    pub server: ServerFacts,
    /// What it says of its model.
    pub model: ModelFacts,
    /// `/metrics` by the suite's names.
    pub metrics: BTreeMap<String, f64>,
    /// Why each null is one.
    pub absent: Absent,
}

/// The schema name that a probe carries.
pub const SCHEMA: &str = "probe.v1";

/// The answer of `redline-bench first-answer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAnswer {
    /// When the first byte of the first good answer came: nanoseconds of CLOCK_MONOTONIC, whose
    /// origin all processes of a machine share.
    pub first_byte_ns: u64,
}
