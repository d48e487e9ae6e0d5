//! Figures of a run: latency histograms, rates and percentiles (TTFT, TPOT, ITL, E2E).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::histogram::HdrHistogram;

/// Latency histograms over a run's answered requests, for plots and for percentiles at a precision
/// of one bin. A histogram is null where its latency was not measured.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Histograms {
    /// TTFT (time to first token) of each answered request: actual send to the first chunk with a
    /// token, in microseconds.
    pub ttft_us: Option<HdrHistogram>,
    /// TTFT of each answered request from its scheduled send, in microseconds.
    pub ttft_scheduled_us: Option<HdrHistogram>,
    /// TPOT (time per output token after the first) of each answered request with two output tokens
    /// or more, in microseconds.
    pub tpot_us: Option<HdrHistogram>,
    /// ITL (inter-token latency) per chunk: gap between two consecutive chunks with tokens, in
    /// microseconds.
    pub itl_chunk_us: Option<HdrHistogram>,
    /// ITL per token, in microseconds: a chunk of k tokens counts as k samples of its gap / k. Null
    /// where the number of tokens in some chunk is not known.
    pub itl_token_us: Option<HdrHistogram>,
    /// E2E latency of each answered request: actual send to the last chunk with a token, in
    /// microseconds.
    pub e2e_us: Option<HdrHistogram>,
    /// E2E latency of each answered request from its scheduled send, in microseconds.
    pub e2e_scheduled_us: Option<HdrHistogram>,
    /// Time that each answered request waited in the client for the concurrency limit, in
    /// microseconds; null without such a limit and in a closed loop.
    pub queue_us: Option<HdrHistogram>,
    /// Time to open the connection of each answered request, with its TLS handshake, in
    /// microseconds; requests on one connection have the same time.
    pub connect_us: Option<HdrHistogram>,
    /// Delay of the client in taking up each answered request after its scheduled send, without the
    /// wait for the concurrency limit, in microseconds.
    pub schedule_lag_us: Option<HdrHistogram>,
}

impl Histograms {
    /// Returns every histogram with its field name, in the order of the record.
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

/// Metrics of a run's answered requests: rates, most of them over `time.wall_us`, and latency
/// percentiles that are computed from all samples and not from histograms.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Metrics {
    /// Throughput: number of answered requests, divided by the seconds of `time.wall_us`.
    pub requests_per_s: Option<f64>,
    /// Prompt tokens per second: those of the answered requests, over `time.wall_us`.
    pub input_tokens_per_s: Option<f64>,
    /// Output tokens per second: those of the answered requests, over `time.wall_us`.
    pub output_tokens_per_s: Option<f64>,
    /// Prompt and output tokens per second: those of the answered requests, over `time.wall_us`.
    pub total_tokens_per_s: Option<f64>,
    /// Output tokens per second, divided by the number of tensor-parallel ranks; null where the
    /// server computes on no CUDA GPU or does not report the number of ranks.
    pub output_tokens_per_s_per_gpu: Option<f64>,
    /// Output tokens that arrived in the steady state, divided by the seconds of `time.window_us`;
    /// null without a steady state.
    pub output_tokens_per_s_steady: Option<f64>,
    /// Largest number of output tokens that arrived in any one second of the run, by a sliding
    /// window; null for a run of less than a second.
    pub output_tokens_per_s_peak: Option<f64>,
    /// Number of requests in flight, averaged over the time of the run and counting only those that
    /// were answered.
    pub concurrency_mean: Option<f64>,
    /// Goodput: number of requests per second that were answered within a latency limit, by the
    /// limit's text such as `ttft_ms=500`, and under `all` the number of those that met every
    /// limit. Null without limits.
    pub goodput_per_s: Option<BTreeMap<String, f64>>,
    /// Energy per output token in joules, of all GPUs that worked; null where it was not measured,
    /// or the GPUs that worked are not known to be the server's.
    pub joules_per_output_token: Option<f64>,
    /// TTFT (time to first token): actual send to the first chunk with a token, in microseconds.
    pub ttft_us: Option<Summary>,
    /// TPOT (time per output token after the first), one sample for each answered request with two
    /// output tokens or more, in microseconds.
    pub tpot_us: Option<Summary>,
    /// ITL (inter-token latency) per chunk: gap between two consecutive chunks with tokens, in
    /// microseconds.
    pub itl_chunk_us: Option<Summary>,
    /// ITL per token, in microseconds: a chunk of k tokens counts as k samples of its gap / k. Null
    /// where the number of tokens in some chunk is not known.
    pub itl_token_us: Option<Summary>,
    /// E2E latency: actual send to the last chunk with a token, in microseconds.
    pub e2e_us: Option<Summary>,
    /// TTFT from the scheduled send, in microseconds; it includes the wait for the limit on
    /// concurrency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_scheduled_us: Option<Summary>,
    /// E2E latency from the scheduled send, in microseconds; it includes the wait for the limit on
    /// concurrency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub e2e_scheduled_us: Option<Summary>,
    /// Time from the actual send to the first event of the stream, in microseconds; that event may
    /// have a role and no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_event_us: Option<Summary>,
    /// Time from the actual send to the first chunk with text of the answer itself, after any
    /// reasoning, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_content_us: Option<Summary>,
    /// Parts of the TTFT from the scheduled send: queue, client, connection, TLS handshake,
    /// sending, server, parsing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_parts_us: Option<TtftParts>,
    /// Number of stalls (gaps within answers that a reader notices) and their share of the time;
    /// left out where no answer has two chunks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalls: Option<Stalls>,
    /// Progress of the run's answered requests in slices of equal length (the last may be shorter),
    /// in order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<Vec<Slice>>,
}

/// Stalls: gaps between two consecutive chunks with tokens of an answer that are long enough for a
/// reader to notice. The longest gap is the maximum of `itl_chunk_us`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stalls {
    /// Threshold in microseconds: a longer gap is a stall.
    pub over_us: u64,
    /// Number of stalls in all answers of the run.
    pub gaps: u64,
    /// Share of the streaming time, summed over all answers from their first to their last chunk
    /// with a token, that lies in stalls, from 0 to 1.
    pub time_share: f64,
}

/// Parts of the TTFT from the scheduled send to the first parsed token, each summarized over the
/// answered requests, in microseconds. For each single request the parts add up to the whole.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TtftParts {
    /// Summary over the answered requests of the time that each waited in the client for the
    /// concurrency limit, in microseconds.
    pub queue: Summary,
    /// Summary over the answered requests of the delay in microseconds with which the client took
    /// up each one, without the wait for the concurrency limit.
    pub schedule_lag: Summary,
    /// Summary over the answered requests of the time to open a connection, in microseconds,
    /// without the TLS handshake; close to 0 for a request that needed no new connection.
    pub connect: Summary,
    /// Summary, over the answered requests that used TLS, of the time that each waited for the TLS
    /// handshake, in microseconds; left out where none used TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Summary>,
    /// Summary over the answered requests of the time to write each one, from its first byte to its
    /// last, in microseconds.
    pub send: Summary,
    /// Summary over the answered requests of the time from the last byte of the request to the
    /// arrival of its first token, which server and network took, in microseconds.
    pub server: Summary,
    /// Summary over the answered requests of the time from the arrival of the first token until the
    /// client had read and parsed it, in microseconds.
    pub parse: Summary,
}

impl TtftParts {
    /// Returns every part of the TTFT with its name, from the scheduled send to the parsed token.
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

/// Slice of a run: a span of time, with numbers of the answered requests that were sent or ended,
/// and of the tokens that arrived, in that span.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slice {
    /// Start of the slice in microseconds, from the first scheduled send of the run.
    pub start_us: u64,
    /// Length of the slice in microseconds; the last slice may be shorter than the others.
    pub length_us: u64,
    /// Number of answered requests whose first byte was sent in the slice.
    pub requests_sent: u64,
    /// Number of answered requests whose last token arrived in the slice.
    pub requests_ended: u64,
    /// Number of output tokens, of answered requests only, that arrived in the slice.
    pub output_tokens: u64,
    /// Median TTFT of the answered requests that were sent in the slice, in microseconds; left out
    /// where no such request was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttft_us_p50: Option<u64>,
}

impl Metrics {
    /// Returns the latency summaries of TTFT, TPOT, ITL per chunk, ITL per token and E2E, each with
    /// the name of its histogram; `None` for a latency that was not measured.
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

/// Summary of a latency in microseconds. In measured runs, percentiles are linear between order
/// statistics (NumPy's default), and `std` is the standard deviation of the population; in imported
/// records they are as the tool of the report defines them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Mean latency over all samples, in microseconds.
    pub mean: Option<u64>,
    /// Standard deviation of the latency over all samples, in microseconds; in measured runs that
    /// of the population.
    pub std: Option<u64>,
    /// Median latency over all samples, in microseconds.
    pub p50: Option<u64>,
    /// 90th percentile of the latency over all samples, in microseconds.
    pub p90: Option<u64>,
    /// 95th percentile of the latency over all samples, in microseconds.
    pub p95: Option<u64>,
    /// 99th percentile of the latency over all samples, in microseconds.
    pub p99: Option<u64>,
    /// Largest latency of all samples, in microseconds.
    pub max: Option<u64>,
    /// Upper 99 % confidence bound of the 90th percentile in microseconds (early-stopping rule of
    /// MLPerf Inference); left out where there are too few samples, and for latencies with several
    /// samples per request, such as ITL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90_upper: Option<u64>,
    /// Upper 99 % confidence bound of the 95th percentile, in microseconds; left out as for
    /// `p90_upper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p95_upper: Option<u64>,
    /// Upper 99 % confidence bound of the 99th percentile, in microseconds; left out as for
    /// `p90_upper`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_upper: Option<u64>,
}
