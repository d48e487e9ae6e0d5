//! `search.v1`: result of a search for the highest request rate that meets given latency limits
//! (SLOs).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Result file `search.json` of `redline-bench search`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchResult {
    /// Name of this schema, always `search.v1`.
    pub schema: String,
    /// Scenario whose requests were sent, as `id@rev`.
    pub scenario: String,
    /// Latency limits that the user gave for each request, such as `ttft_ms=500`.
    pub slos: Vec<String>,
    /// Share of requests that must meet all latency limits for a request rate to pass, from 0 to 1.
    pub attainment: f64,
    /// Confidence, from 0 to 1, of the one-sided bounds by which a rate is judged.
    pub confidence: f64,
    /// Precision of the search, above 0 and below 1: the search narrows the range until
    /// `requests_per_s_lost` exceeds `requests_per_s_kept` by at most this share of the latter.
    pub precision: f64,
    /// Highest tried request rate that was judged to meet the limits, in requests per second; null
    /// where no tried rate met them.
    pub requests_per_s_kept: Option<f64>,
    /// Lowest tried request rate that was judged to miss the limits or was undecided, in requests
    /// per second; null where every tried rate met them.
    pub requests_per_s_lost: Option<f64>,
    /// Trials of the search, one for each tried request rate, in the order of the search.
    pub trials: Vec<SearchTrial>,
}

/// Trial of a search: the runs at one request rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchTrial {
    /// Request rate of the trial, in requests per second.
    pub requests_per_s: f64,
    /// Result of the trial: `met`, `missed` or `undecided`.
    pub standing: String,
    /// Lower confidence bound of the share of requests, over all runs of the trial, that meet all
    /// limits, from 0 to 1.
    pub share_min: f64,
    /// Upper confidence bound of the share of requests, over all runs of the trial, that meet all
    /// limits, from 0 to 1.
    pub share_max: f64,
    /// Runs of the trial, all at its request rate, in the order in which they were made.
    pub runs: Vec<SearchRun>,
}

/// Run of a search: one measurement at one request rate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SearchRun {
    /// Name of the run's measurement file, which lies in the folder of `search.json`.
    pub file: String,
    /// Number of the run's requests that met all latency limits.
    pub requests_met: u64,
    /// Number of requests in the run's manifest.
    pub requests_planned: u64,
}

/// Schema name of a search result.
pub const SCHEMA: &str = "search.v1";
