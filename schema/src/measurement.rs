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
    pub status: Status,
    pub validity: Validity,
    pub failure: Option<Failure>,
    pub time: Option<Time>,
    pub scenario: ScenarioFacts,
    pub client: Option<ClientFacts>,
    pub cache: Option<CacheFacts>,
    pub counts: Option<Counts>,
    pub histograms: Option<Histograms>,
    pub metrics: Option<Metrics>,
    #[serde(default)]
    pub telemetry: Option<Telemetry>,
    pub correctness: Option<Correctness>,
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
