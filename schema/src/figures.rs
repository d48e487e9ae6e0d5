//! The figures of a run: distributions, rates and summaries of times.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::histogram::HdrHistogram;

/// Distributions, for plots and for computing percentiles again within a bin's width.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Histograms {
    /// Actual send to the first chunk that carries a token.
    pub ttft_us: Option<HdrHistogram>,
    /// The same from the scheduled send.
    pub ttft_scheduled_us: Option<HdrHistogram>,
    /// Per token after the first, one sample a request.
    pub tpot_us: Option<HdrHistogram>,
    /// From one chunk that carries a token to the next.
    pub itl_chunk_us: Option<HdrHistogram>,
    /// The same per token.
    pub itl_token_us: Option<HdrHistogram>,
    /// Actual send to the last chunk that carries a token.
    pub e2e_us: Option<HdrHistogram>,
    /// The same from the scheduled send.
    pub e2e_scheduled_us: Option<HdrHistogram>,
    /// Waits behind a cap on concurrency.
    pub queue_us: Option<HdrHistogram>,
    /// What connections took to open.
    pub connect_us: Option<HdrHistogram>,
    /// The client's own delay.
    pub schedule_lag_us: Option<HdrHistogram>,
}

impl Histograms {
    /// Every histogram with its name, in the order of the record.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Option<&HdrHistogram>); 10] {
        [
            ("ttft_us", self.ttft_us.as_ref()),
            ("ttft_scheduled_us", self.ttft_scheduled_us.as_ref()),
            ("tpot_us", self.tpot_us.as_ref()),
            ("itl_chunk_us", self.itl_chunk_us.as_ref()),
            ("itl_token_us", self.itl_token_us.as_ref()),
            ("e2e_us", self.e2e_us.as_ref()),
            ("e2e_scheduled_us", self.e2e_scheduled_us.as_ref()),
            ("queue_us", self.queue_us.as_ref()),
            ("connect_us", self.connect_us.as_ref()),
            ("schedule_lag_us", self.schedule_lag_us.as_ref()),
        ]
    }
}

/// Rates over `time.wall_us`, exact percentiles over all samples.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metrics {
    /// Answered.
    pub requests_per_s: Option<f64>,
    /// Of answered requests.
    pub input_tokens_per_s: Option<f64>,
    /// Of answered requests.
    pub output_tokens_per_s: Option<f64>,
    /// Of prompts and answers.
    pub total_tokens_per_s: Option<f64>,
    /// Over the tensor-parallel ranks; null without a GPU.
    pub output_tokens_per_s_per_gpu: Option<f64>,
    /// Within `time.window_us`.
    pub output_tokens_per_s_steady: Option<f64>,
    /// Most output tokens in any sliding second.
    pub output_tokens_per_s_peak: Option<f64>,
    /// Requests that were under way, over the time of the run.
    pub concurrency_mean: Option<f64>,
    /// Service level to requests per second that met it.
    pub goodput_per_s: Option<BTreeMap<String, f64>>,
    /// Of all GPUs that worked.
    pub joules_per_output_token: Option<f64>,
    /// Actual send to the first chunk that carries a token.
    pub ttft_us: Option<Summary>,
    /// Per token after the first, one sample a request.
    pub tpot_us: Option<Summary>,
    /// From one chunk that carries a token to the next.
    pub itl_chunk_us: Option<Summary>,
    /// The same per token.
    pub itl_token_us: Option<Summary>,
    /// Actual send to the last chunk that carries a token.
    pub e2e_us: Option<Summary>,
    /// The same as TTFT and E2E from the scheduled send: what waits behind a cap waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_scheduled_us: Option<Summary>,
    /// See `ttft_scheduled_us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_scheduled_us: Option<Summary>,
    /// Actual send to the first event of the stream, such as a chunk with a role alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_event_us: Option<Summary>,
    /// Actual send to the first chunk of the answer itself, after any reasoning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_content_us: Option<Summary>,
    /// What the time to the first token is made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_parts_us: Option<TtftParts>,
    /// Long gaps within answers; left out where no answer has two chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalls: Option<Stalls>,
    /// The run cut into spans of equal length, in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<Vec<Slice>>,
}

/// Gaps between two chunks of an answer that a reader notices. The longest is the maximum of
/// `itl_chunk_us`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stalls {
    /// A gap longer than this is one.
    pub over_us: u64,
    /// How many there were.
    pub gaps: u64,
    /// Of all time from first to last chunks, the share that lies within such gaps, from 0 to 1.
    pub time_share: f64,
}

/// The time from the scheduled send to the first token in the client's hands, in parts that add
/// up to it request by request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TtftParts {
    /// Behind the cap on concurrency.
    pub queue: Summary,
    /// The client's own delay.
    pub schedule_lag: Summary,
    /// For a connection, where none was open; without the handshake of `tls`.
    pub connect: Summary,
    /// For the TLS handshake, where a connection needs one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Summary>,
    /// First byte of the request to its last.
    pub send: Summary,
    /// Server and network.
    pub server: Summary,
    /// From the arrival of the first token to its being read and parsed.
    pub parse: Summary,
}

impl TtftParts {
    /// Every part with its name, in the order of time.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, &Summary)> {
        let before = [
            ("queue", &self.queue),
            ("schedule lag", &self.schedule_lag),
            ("connect", &self.connect),
        ];
        let after = [("send", &self.send), ("server", &self.server), ("parse", &self.parse)];
        let tls = self.tls.iter().map(|tls| ("tls", tls));
        before.into_iter().chain(tls).chain(after).collect()
    }
}

/// A span of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// From the first scheduled send of the run.
    pub start_us: u64,
    /// The last one may be shorter than the others.
    pub length_us: u64,
    /// Requests whose first byte went out.
    pub requests_sent: u64,
    /// Requests whose last token came.
    pub requests_ended: u64,
    /// Tokens that came.
    pub output_tokens: u64,
    /// Of the requests sent in this span; none where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_us_p50: Option<u64>,
}

impl Metrics {
    /// The summaries with the names of the histograms that they belong to.
    #[must_use]
    pub fn summaries(&self) -> [(&'static str, Option<&Summary>); 5] {
        [
            ("ttft_us", self.ttft_us.as_ref()),
            ("tpot_us", self.tpot_us.as_ref()),
            ("itl_chunk_us", self.itl_chunk_us.as_ref()),
            ("itl_token_us", self.itl_token_us.as_ref()),
            ("e2e_us", self.e2e_us.as_ref()),
        ]
    }
}

/// Microseconds. Percentiles are linear between order statistics (NumPy's default), `std` is the
/// population's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Of all samples.
    pub mean: Option<u64>,
    /// Standard deviation.
    pub std: Option<u64>,
    /// The median.
    pub p50: Option<u64>,
    /// 90th percentile.
    pub p90: Option<u64>,
    /// 95th percentile.
    pub p95: Option<u64>,
    /// 99th percentile.
    pub p99: Option<u64>,
    /// The largest.
    pub max: Option<u64>,
    /// What the percentile of that name is at most, with 99 % confidence; none where the samples
    /// are too few to say (MLPerf Inference's early-stopping rule).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90_upper: Option<u64>,
    /// See `p90_upper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_upper: Option<u64>,
    /// See `p90_upper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_upper: Option<u64>,
}
