//! `alternation.v1`: two servers that stand beside each other on one machine and answer a scenario's
//! requests in turns, in short slices, while the other one is frozen. One file is one start of both
//! servers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{CacheState, Histograms, ScenarioFacts};

/// Schema name of an alternation.
pub const SCHEMA: &str = "alternation.v1";

/// Variant of a comparison of two.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Baseline: what the candidate is compared with.
    Baseline,
    /// Candidate: what is judged.
    Candidate,
}

impl Side {
    /// Both variants, baseline first.
    pub const BOTH: [Self; 2] = [Self::Baseline, Self::Candidate];

    /// Returns the variant's name: `baseline` or `candidate`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline => "baseline",
            Self::Candidate => "candidate",
        }
    }

    /// Returns the other variant.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Baseline => Self::Candidate,
            Self::Candidate => Self::Baseline,
        }
    }
}

/// Result file of `redline-bench alternate`: the slices of one start of two servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Alternation {
    /// Name of this schema, always `alternation.v1`.
    pub schema: String,
    /// Scenario whose requests the slices consist of.
    pub scenario: ScenarioFacts,
    /// Seed of the order of the variants within pairs.
    pub seed: u64,
    /// Start of the first slice, as RFC 3339 in UTC; null where the clock has no usable date.
    pub started_at: Option<String>,
    /// Number of requests in a slice. A round of the scenario's requests whose number is no multiple
    /// of it leaves its last requests out.
    pub slice_requests: u64,
    /// State of both prefix caches at the start of a round of the scenario's requests: `cold` where
    /// they were emptied, else `unknown`.
    pub prefix_cache: CacheState,
    /// Slices in the order of time. Two that follow each other are a pair: the same requests, first
    /// to one variant and then to the other.
    pub slices: Vec<Slice>,
    /// Latencies of all requests that the baseline answered in the slices; null where it answered
    /// none, or one took longer than a histogram holds.
    pub baseline: Option<Histograms>,
    /// Latencies of all requests that the candidate answered in the slices; null as for the
    /// baseline.
    pub candidate: Option<Histograms>,
}

/// Slice of an alternation: some requests that one variant answers while the other is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Number of the slice's pair, from 0.
    pub pair: u32,
    /// Variant that answered.
    pub variant: Side,
    /// Start of the slice in microseconds since the first slice began.
    pub start_us: u64,
    /// Length of the slice in microseconds, from the first send that was due to the last token.
    pub elapsed_us: u64,
    /// Number of requests of the slice that failed.
    pub requests_failed: u64,
    /// Number of output tokens of the answered requests.
    pub output_tokens: u64,
    /// Median TTFT of the slice's answered requests in microseconds; null where none was answered.
    pub ttft_us_p50: Option<u64>,
    /// Median TPOT of the slice's requests with at least two tokens, in microseconds; null where
    /// there is none.
    pub tpot_us_p50: Option<u64>,
    /// 99th percentile of the slice's ITL per token in microseconds; null where the number of tokens
    /// in a chunk is not known.
    pub itl_us_p99: Option<u64>,
    /// CPU time that the other, frozen variant used during the slice, in microseconds; null where
    /// the client does not freeze it.
    pub idle_cpu_us: Option<u64>,
    /// Time during the slice in which the hypervisor ran something else on a core of this machine
    /// that had work, summed over cores, in microseconds; null where the kernel does not report it.
    pub steal_us: Option<u64>,
}

impl Slice {
    /// Returns the output tokens per second of the slice; `None` where it has no length.
    #[expect(clippy::cast_precision_loss, reason = "a slice has few tokens and microseconds")]
    pub fn output_tokens_per_s(&self) -> Option<f64> {
        (self.elapsed_us > 0).then(|| self.output_tokens as f64 * 1e6 / self.elapsed_us as f64)
    }
}
