//! What a search for the highest rate within given limits came to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The `search.json` of `redline-bench search`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchResult {
    /// Always `search.v1`.
    pub schema: String,
    /// `id@rev` of the scenario whose requests were sent.
    pub scenario: String,
    /// Limits that each request should keep, as `ttft_ms=500`.
    pub slos: Vec<String>,
    /// Share of the requests that must keep all limits.
    pub attainment: f64,
    /// Of what is said of a rate.
    pub confidence: f64,
    /// The rates below are no further apart than this share.
    pub precision: f64,
    /// The highest rate that is kept; null where none is.
    pub requests_per_s_kept: Option<f64>,
    /// The lowest rate that is not, or not surely; null where all that were tried are kept.
    pub requests_per_s_lost: Option<f64>,
    /// In the order in which they were made.
    pub trials: Vec<SearchTrial>,
}

/// The runs at one rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchTrial {
    /// The rate.
    pub requests_per_s: f64,
    /// `met`, `missed` or `undecided`.
    pub standing: String,
    /// The share of requests that keeps all limits is at least this, at the confidence.
    pub share_min: f64,
    /// And at most this.
    pub share_max: f64,
    /// In the order in which they were made.
    pub runs: Vec<SearchRun>,
}

/// One run at a rate, and how many of its requests met every limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SearchRun {
    /// The measurement, in the same folder.
    pub file: String,
    /// Requests that kept all limits.
    pub requests_met: u64,
    /// Requests of the manifest.
    pub requests_planned: u64,
}

/// The schema name that a search carries.
pub const SCHEMA: &str = "search.v1";
