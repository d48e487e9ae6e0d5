//! Figures of a run by the names that the tools' result files have for them, in the files' units.

use schema::measurement::Measurement;
use schema::run::{Counts, Metrics, Summary, Time, TokenSource};
use schema::scenario::Arrival;
use serde_json::{Value, json};

use super::{Format, Report, ReportFacts};
use crate::measure::summary::float;
use crate::workload::arrival::requested_rate;

/// Figures of a run in which at least one request was answered.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    pub asked: &'a ReportFacts,
    pub measurement: &'a Measurement,
    pub counts: &'a Counts,
    pub metrics: &'a Metrics,
    pub time: &'a Time,
    pub seconds: f64,
    pub completed: u64,
    pub failed: u64,
    /// Output tokens as the format's tool counts them.
    output_tokens: Option<u64>,
}

impl<'a> Figures<'a> {
    /// Collects the figures of a measurement for `format`; `None` if no request was answered.
    pub fn of(report: &Report<'a>, format: Format) -> Option<Self> {
        let measurement = report.measurement;
        let (counts, time) = (measurement.counts.as_ref()?, measurement.time.as_ref()?);
        let usage =
            matches!(counts.token_source, Some(TokenSource::Usage | TokenSource::UsagePerChunk));
        Some(Self {
            asked: report.asked,
            measurement,
            counts,
            metrics: measurement.metrics.as_ref()?,
            time,
            seconds: float(time.wall_us?) / 1e6,
            completed: counts.requests_ok?,
            failed: counts.requests_failed.unwrap_or(0),
            output_tokens: match format {
                Format::Lmdeploy | Format::LmdeployCsv => counts.output_tokens_requested,
                // The other tools count what the server reports, if it reports anything.
                _ if usage => counts.output_tokens_reported,
                Format::Sglang | Format::SglangJsonl | Format::SglangJsonlDetailed => {
                    counts.output_tokens_requested
                }
                _ => counts.output_tokens_retokenized,
            },
        })
    }

    /// Figure `name` of a result file; null if it is unknown.
    pub fn value(&self, name: &str) -> Value {
        let (counts, asked) = (self.counts, self.asked);
        let lengths = asked.random();
        let total = counts.input_tokens.zip(self.output_tokens);
        let per_second = |count: Option<u64>| json!(count.map(|count| float(count) / self.seconds));
        match name {
            "tag" | "label" => json!(asked.label),
            "backend" | "endpoint_type" => json!(asked.backend),
            "dataset_name" => json!(asked.dataset_name()),
            "date" => json!(self.time.started_at.as_deref().map(compact_date)),
            "model_id" => json!(asked.model),
            "tokenizer_id" => json!(asked.tokenizer),
            "num_prompts" => json!(counts.requests_planned),
            "request_rate" => match self.request_rate() {
                Some(rate) => json!(rate),
                None => json!(self.request_rate_word()),
            },
            "burstiness" => self.burstiness(),
            "max_concurrency" => json!(self.max_concurrency()),
            "sharegpt_output_len" => json!(asked.sharegpt_output_len()),
            "random_input_len" => json!(lengths.and_then(|workload| workload.input_tokens)),
            "random_output_len" => json!(lengths.and_then(|workload| workload.output_tokens)),
            "random_range_ratio" => json!(lengths.and_then(|workload| workload.range_ratio)),
            "duration" => json!(self.seconds),
            "completed" => json!(self.completed),
            "failed" => json!(self.failed),
            "total_input_tokens" | "total_input_text_tokens" => json!(counts.input_tokens),
            "total_input_vision_tokens" => json!(0),
            "total_output_tokens" => json!(self.output_tokens),
            "total_output_tokens_retokenized" => json!(counts.output_tokens_retokenized),
            "request_throughput" => per_second(Some(self.completed)),
            "input_throughput" => per_second(counts.input_tokens),
            "output_throughput" => per_second(self.output_tokens),
            "total_throughput" | "total_token_throughput" => {
                per_second(total.map(|(input, output)| input + output))
            }
            "request_goodput" => json!(self.goodput()),
            "concurrency" => json!(self.metrics.concurrency_mean),
            "max_output_tokens_per_s" => json!(self.metrics.output_tokens_per_s_peak),
            "max_concurrent_requests" => {
                json!(self.measurement.client.as_ref().and_then(|client| client.streams_max))
            }
            _ => json!(self.latency_ms(name)),
        }
    }

    /// Statistic of a latency metric in milliseconds, by a name such as `median_ttft_ms`.
    fn latency_ms(&self, name: &str) -> Option<f64> {
        let (statistic, rest) = name.split_once('_')?;
        let summary = self.summary(rest.strip_suffix("_ms")?)?;
        let us = match statistic {
            "mean" => summary.mean,
            "std" => summary.std,
            "median" | "p50" => summary.p50,
            "p90" => summary.p90,
            "p95" => summary.p95,
            "p99" => summary.p99,
            "max" => summary.max,
            _ => None,
        };
        Some(float(us?) / 1e3)
    }

    /// Summary of a latency metric, by the tools' name for it.
    pub fn summary(&self, quantity: &str) -> Option<&'a Summary> {
        let metrics = self.metrics;
        match quantity {
            "ttft" => metrics.ttft_us.as_ref(),
            "tpot" => metrics.tpot_us.as_ref(),
            "itl" => metrics.itl_chunk_us.as_ref(),
            "e2el" | "e2e_latency" => metrics.e2e_us.as_ref(),
            _ => None,
        }
    }

    /// Rate of requests that meet all latency limits, per second; `None` if no limits were given.
    pub fn goodput(&self) -> Option<f64> {
        self.metrics.goodput_per_s.as_ref()?.get("all").copied()
    }

    /// Requested rate of the arrival process, in requests per second.
    pub fn request_rate(&self) -> Option<f64> {
        requested_rate(self.measurement.scenario.arrival.as_ref()?)
    }

    /// Requested rate as the tools print it: a number, `inf`, `trace` or `ramp`.
    pub fn request_rate_word(&self) -> String {
        match self.measurement.scenario.arrival {
            Some(Arrival::Trace { .. }) => "trace".to_owned(),
            Some(Arrival::Ramp { .. }) => "ramp".to_owned(),
            _ => self.request_rate().map_or_else(|| "inf".to_owned(), python_float),
        }
    }

    fn burstiness(&self) -> Value {
        match self.measurement.scenario.arrival {
            Some(Arrival::Gamma { shape, .. }) => json!(shape),
            // A constant rate is an infinite burstiness parameter in vLLM's tool.
            Some(Arrival::Constant { .. }) => json!("inf"),
            Some(Arrival::Ramp { .. } | Arrival::Trace { .. }) => Value::Null,
            _ => json!(1.0),
        }
    }

    pub fn max_concurrency(&self) -> Option<u64> {
        self.measurement.scenario.arrival.as_ref()?.concurrency_max()
    }
}

/// Formats a float as Python does, always with a decimal point.
pub fn python_float(value: f64) -> String {
    // `{:?}` prints `1.0` where `{}` prints `1`.
    format!("{value:?}")
}

/// Date in vLLM's notation: `2026-01-02T03:04:05Z` becomes `20260102-030405`.
pub fn compact_date(rfc3339: &str) -> String {
    let kept = rfc3339.chars().filter(|sign| sign.is_ascii_digit() || *sign == 'T');
    kept.map(|sign| if sign == 'T' { '-' } else { sign }).take(15).collect()
}
