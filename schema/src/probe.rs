//! `probe.v1`: version and effective configuration that `redline-bench probe` reads from a running
//! server of any engine; and the outputs of `redline-bench first-answer` and `redline-bench abort`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{ModelFacts, ServerFacts};

/// Output of `redline-bench probe`: version and configuration that a running server reports.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Name of this schema, always `probe.v1`.
    pub schema: String,
    /// Id of the engine: the one that the server reports, else that of the engine file.
    pub engine: String,
    /// Version that the server reports, without `v`; null where it reports none.
    pub version: Option<String>,
    /// Commit that the server was built from, as it reports it; null where it does not.
    pub commit: Option<String>,
    /// Device that computes: `cpu`, `cuda`, or the engine's own name for it; null where the server
    /// does not report it.
    pub device: Option<String>,
    /// Name of the device's model, as the server reports it; null where it does not.
    pub device_name: Option<String>,
    /// Effective configuration and properties of the server, as far as it reports them.
    pub server: ServerFacts,
    /// Model that the server reports, as far as it reports it.
    pub model: ModelFacts,
    /// Values of the server's metrics at one moment, by the suite's names; empty where it reports
    /// none.
    pub metrics: BTreeMap<String, f64>,
}

/// Schema name of the output of `redline-bench probe`.
pub const SCHEMA: &str = "probe.v1";

/// Output of `redline-bench first-answer`: when a starting server first answered a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirstAnswer {
    /// Arrival of the first byte of the first successful answer, in nanoseconds of CLOCK_MONOTONIC,
    /// which all processes of a machine share.
    pub first_byte_ns: u64,
}

/// Output of `redline-bench abort`: how many requests were aborted, and when.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aborted {
    /// Number of requests whose client closed the connection before the answer had ended.
    pub requests: u64,
    /// The aborted requests by the moment at which the client left: `body` (in the middle of sending
    /// it), `waiting` (before reading anything), `head` (after the answer's head) and `tokens` (after
    /// some tokens).
    pub moments: BTreeMap<String, u64>,
    /// Number of requests whose answer had ended before the client left.
    pub answered: u64,
}
