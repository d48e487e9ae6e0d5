//! `measurement.v1`: result of one `redline-bench run`, with the parts of a run record that the
//! load generator measures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{
    CacheFacts, ClientFacts, Correctness, Counts, Failure, Histograms, Metrics, RunRecord,
    ScenarioFacts, Status, Telemetry, Time, Validity,
};

/// Result file of `redline-bench run`: status, counts, histograms, metrics and telemetry of one
/// run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Name of this schema, always `measurement.v1`.
    pub schema: String,
    /// Status of the run: complete, partial, failed or skipped.
    pub status: Status,
    /// Validity of the figures: could the client have distorted them?
    pub validity: Validity,
    /// Failure that left the run without figures or with only a part of them; null where nothing
    /// failed.
    pub failure: Option<Failure>,
    /// Start, end and duration of the run.
    pub time: Option<Time>,
    /// Scenario that was measured and the requests drawn from it.
    pub scenario: ScenarioFacts,
    /// Load generator: its version, load and timing errors.
    pub client: Option<ClientFacts>,
    /// State and hits of the server's prefix cache.
    pub cache: Option<CacheFacts>,
    /// Numbers of requests and tokens in the run.
    pub counts: Option<Counts>,
    /// Latency histograms: TTFT, TPOT, ITL, E2E, waits and delays.
    pub histograms: Option<Histograms>,
    /// Metrics: throughput, goodput and latency percentiles.
    pub metrics: Option<Metrics>,
    /// Telemetry of server, machine and GPUs during the run.
    #[serde(default)]
    pub telemetry: Option<Telemetry>,
    /// Check of the server's outputs: greedy tokens for fixed prompts.
    pub correctness: Option<Correctness>,
}

/// Schema name of a measurement.
pub const SCHEMA: &str = "measurement.v1";

impl Measurement {
    /// Moves the fields of the measurement into the run record `record`, and leaves its other
    /// fields unchanged.
    pub fn fill(self, record: &mut RunRecord) {
        record.status = self.status;
        record.validity = self.validity;
        record.failure = self.failure;
        record.time = self.time;
        record.scenario = self.scenario;
        record.client = self.client;
        record.cache = self.cache;
        record.counts = self.counts;
        record.histograms = self.histograms;
        record.metrics = self.metrics;
        record.telemetry = self.telemetry;
        record.correctness = self.correctness;
    }
}
