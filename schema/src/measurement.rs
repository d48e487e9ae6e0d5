//! What the load generator hands over after a run: the groups of a record that it knows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{
    Absent, CacheFacts, ClientFacts, Correctness, Counts, Failure, Histograms, Metrics, RunRecord,
    ScenarioFacts, Status, Telemetry, Time, Validity,
};

/// The result file of `redline-bench run`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Always `measurement.v1`.
    pub schema: String,
    /// How the run ended.
    pub status: Status,
    /// Whether the client may be believed.
    pub validity: Validity,
    /// Why there are no figures, or not all.
    pub failure: Option<Failure>,
    /// When, and for how long.
    pub time: Option<Time>,
    /// What was asked.
    pub scenario: ScenarioFacts,
    /// What asked.
    pub client: Option<ClientFacts>,
    /// The server's prefix cache.
    pub cache: Option<CacheFacts>,
    /// Requests and tokens.
    pub counts: Option<Counts>,
    /// Distributions of times.
    pub histograms: Option<Histograms>,
    /// Rates and percentiles.
    pub metrics: Option<Metrics>,
    /// What server, machine and GPUs told while the clock ran.
    #[serde(default)]
    pub telemetry: Option<Telemetry>,
    /// Whether the outputs were right.
    pub correctness: Option<Correctness>,
    /// Why each null is one.
    pub absent: Absent,
}

/// The schema name that a measurement carries.
pub const SCHEMA: &str = "measurement.v1";

impl Measurement {
    /// Moves what was measured into `record`, whose other groups are left alone.
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
        record.absent.extend(self.absent);
    }
}
