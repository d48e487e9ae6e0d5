//! `measurement.v1`: result of one run of `redline-bench`, with the parts of a run record that the
//! load generator measures.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{
    CacheFacts, ClientFacts, Correctness, Counts, Failure, Histograms, Metrics, RunRecord,
    ScenarioFacts, Status, Telemetry, Time, Validity,
};

/// Result file of one run of `redline-bench`: status, counts, histograms, metrics and telemetry.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Name of this schema, always `measurement.v1`.
    pub schema: String,
    /// Status of the run: ok, partial, failed or skipped.
    pub status: Status,
    /// Validity of the run's figures: a verdict with its reasons.
    pub validity: Validity,
    /// Failure that left the run without figures or with only a part of them; null where nothing
    /// failed.
    pub failure: Option<Failure>,
    /// Start, end and durations of the run; null where it ended before its clock started, or where
    /// the load generator was killed.
    pub time: Option<Time>,
    /// URL of the server that was measured: scheme, host and port. Left out in older measurements,
    /// and where the load generator was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Model name that the requests carried; left out where they carried none, in older
    /// measurements, and where the load generator was killed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_name: Option<String>,
    /// Scenario that was measured and the requests drawn from it.
    pub scenario: ScenarioFacts,
    /// Facts about the load generator, such as version, CPU use and timing errors; null where the
    /// run ended before its clock started.
    pub client: Option<ClientFacts>,
    /// State and hits of the server's prefix cache; null where the run ended before its clock
    /// started.
    pub cache: Option<CacheFacts>,
    /// Numbers of requests and tokens in the run; null where it ended before its clock started.
    pub counts: Option<Counts>,
    /// Latency histograms: TTFT, TPOT, ITL, E2E, waits and delays; null where no request was
    /// answered or a time is longer than a histogram can hold.
    pub histograms: Option<Histograms>,
    /// Metrics: throughput, goodput and latency percentiles; null where no request was answered.
    pub metrics: Option<Metrics>,
    /// Telemetry of server, machine and GPUs during the run; null where it ended before its clock
    /// started.
    #[serde(default)]
    pub telemetry: Option<Telemetry>,
    /// Check of the server's outputs: greedy tokens for fixed prompts; null where the check was
    /// switched off or could not be completed.
    pub correctness: Option<Correctness>,
}

/// Schema name of a measurement.
pub const SCHEMA: &str = "measurement.v1";

impl Measurement {
    /// Moves the fields of the measurement into the fields of the same names in the run record
    /// `record`, and leaves the other fields of `record` unchanged. A record has neither the URL
    /// nor the model's name in requests: it describes the server and the model themselves.
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
