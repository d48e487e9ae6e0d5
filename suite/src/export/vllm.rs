//! Exports a run as the JSON of `vllm bench serve` 0.33.

use std::fmt;
use std::str::FromStr;

use judge::quantile::quantile_of_floats;
use schema::run::{Metrics, Summary};
use schema::scenario::Arrival;
use serde_json::{Map, Value, json};

use super::figures::{Figures, ms, statistic};
use super::requests::{Request, Requests};

/// Latency metric for which vLLM's tool reports percentiles: TTFT, TPOT, ITL or E2E.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    Ttft,
    Tpot,
    Itl,
    E2el,
}

impl Quantity {
    const NAMED: [(&'static str, Self); 4] =
        [("ttft", Self::Ttft), ("tpot", Self::Tpot), ("itl", Self::Itl), ("e2el", Self::E2el)];

    fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, named)| *named == self).map_or("", |(name, _)| name)
    }

    pub fn summary(self, metrics: &Metrics) -> Option<&Summary> {
        match self {
            Self::Ttft => metrics.ttft_us.as_ref(),
            Self::Tpot => metrics.tpot_us.as_ref(),
            Self::Itl => metrics.itl_chunk_us.as_ref(),
            Self::E2el => metrics.e2e_us.as_ref(),
        }
    }

    fn samples_s(self, requests: &Requests<'_>) -> Vec<f64> {
        match self {
            Self::Ttft => requests.values(|request| Some(request.ttft_s)),
            Self::Tpot => requests.values(Request::tpot_s),
            Self::Itl => requests.gaps_s(),
            Self::E2el => requests.values(|request| Some(request.e2e_s)),
        }
    }
}

impl FromStr for Quantity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::NAMED.iter().find(|(name, _)| *name == text);
        named.map(|(_, quantity)| *quantity).ok_or_else(|| {
            format!("`{text}` is no quantity that is measured: give `ttft`, `tpot`, `itl`, `e2el`")
        })
    }
}

/// Percentile to report, above 0 and below 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentile(f64);

impl FromStr for Percentile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
        let within = value > 0.0 && value < 100.0;
        if within { Ok(Self(value)) } else { Err(format!("`{text}` is not between 0 and 100")) }
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0)
    }
}

/// Metrics and percentiles that the report shows, as vLLM's `--percentile-metrics` and
/// `--metric-percentiles` select them.
#[derive(Clone, Debug)]
pub struct Selection {
    pub quantities: Vec<Quantity>,
    pub percentiles: Vec<Percentile>,
}

impl Default for Selection {
    /// All metrics, with the tool's default percentile of 99.
    fn default() -> Self {
        let quantities = Quantity::NAMED.iter().map(|(_, quantity)| *quantity).collect();
        Self { quantities, percentiles: vec![Percentile(99.0)] }
    }
}

/// Percentile of a metric in milliseconds: from the measurement if it has that percentile, else
/// computed from the samples.
pub fn percentile_ms(
    quantity: Quantity,
    percentile: Percentile,
    metrics: &Metrics,
    requests: &Requests<'_>,
) -> Option<f64> {
    let summary = quantity.summary(metrics)?;
    let known =
        [(50.0, summary.p50), (90.0, summary.p90), (95.0, summary.p95), (99.0, summary.p99)];
    let measured = known.iter().find(|(known, _)| *known == percentile.0);
    if let Some((_, us)) = measured {
        return ms(*us);
    }
    let seconds = quantile_of_floats(&quantity.samples_s(requests), percentile.0 / 100.0)?;
    Some(seconds * 1e3)
}

/// Rate of requests that meet all latency limits, per second; `None` if no limits were given.
pub fn goodput(figures: &Figures<'_>) -> Option<f64> {
    figures.metrics.goodput_per_s.as_ref()?.get("all").copied()
}

/// vLLM result of the run, as one JSON object; `detailed` adds lists of the figures of all
/// requests.
pub fn object(figures: &Figures<'_>, requests: &Requests<'_>, detailed: bool) -> Value {
    let mut object = head(figures);
    results(&mut object, figures);
    if detailed {
        lists(&mut object, requests);
    }
    let mut put = |key: String, value: Option<f64>| object.insert(key, json!(value));
    for quantity in &figures.asked.selection.quantities {
        let (summary, name) = (quantity.summary(figures.metrics), quantity.name());
        put(format!("mean_{name}_ms"), statistic(summary, |all| all.mean));
        put(format!("median_{name}_ms"), statistic(summary, |all| all.p50));
        put(format!("std_{name}_ms"), statistic(summary, |all| all.std));
        for percentile in &figures.asked.selection.percentiles {
            let value = percentile_ms(*quantity, *percentile, figures.metrics, requests);
            put(format!("p{percentile}_{name}_ms"), value);
        }
    }
    Value::Object(object)
}

/// Part of the result that describes the request: backend, model, rate and concurrency.
fn head(figures: &Figures<'_>) -> Map<String, Value> {
    let asked = figures.asked;
    let burstiness = match figures.scenario.arrival {
        Some(Arrival::Gamma { shape, .. }) => json!(shape),
        // A constant rate is an infinite burstiness parameter in vLLM's tool.
        Some(Arrival::Constant { .. }) => json!("inf"),
        Some(Arrival::Ramp { .. } | Arrival::Trace { .. }) => Value::Null,
        _ => json!(1.0),
    };
    let rate =
        figures.request_rate().map_or_else(|| json!(figures.request_rate_word()), |r| json!(r));
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("date", json!(figures.time.started_at.as_deref().map(compact_date)));
    put("endpoint_type", json!(asked.backend));
    put("backend", json!(asked.backend));
    put("label", json!(asked.label));
    put("model_id", json!(asked.model));
    put("tokenizer_id", json!(asked.tokenizer));
    put("num_prompts", json!(figures.counts.requests_planned));
    for (key, value) in &asked.metadata {
        put(key, json!(value));
    }
    put("request_rate", rate);
    put("burstiness", burstiness);
    put("max_concurrency", json!(figures.max_concurrency()));
    object
}

/// Date in the tool's notation: `2026-01-02T03:04:05Z` becomes `20260102-030405`.
pub fn compact_date(rfc3339: &str) -> String {
    let kept = rfc3339.chars().filter(|sign| sign.is_ascii_digit() || *sign == 'T');
    kept.map(|sign| if sign == 'T' { '-' } else { sign }).take(15).collect()
}

/// Adds counts and rates. vLLM counts the output tokens that the server reports, else those of its
/// tokenizer.
fn results(object: &mut Map<String, Value>, figures: &Figures<'_>) {
    let (counts, metrics) = (figures.counts, figures.metrics);
    let output = figures.reported_or(counts.output_tokens_retokenized);
    let total = counts.input_tokens.zip(output).map(|(input, output)| input + output);
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("duration", json!(figures.seconds));
    put("completed", json!(figures.completed));
    put("failed", json!(figures.failed));
    put("total_input_tokens", json!(counts.input_tokens));
    put("total_output_tokens", json!(output));
    put("request_throughput", json!(figures.per_second(Some(figures.completed))));
    put("request_goodput", json!(goodput(figures)));
    put("output_throughput", json!(figures.per_second(output)));
    put("total_token_throughput", json!(figures.per_second(total)));
    put("max_output_tokens_per_s", json!(metrics.output_tokens_per_s_peak));
    put("max_concurrent_requests", json!(figures.concurrent_max()));
}

/// Adds lists with the times in seconds and tokens of each request. Texts are not kept.
fn lists(object: &mut Map<String, Value>, requests: &Requests<'_>) {
    let each = |read: fn(&Request<'_>) -> Value| requests.0.iter().map(read).collect::<Value>();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("input_lens", each(|request| json!(request.input_tokens)));
    put("output_lens", each(|request| json!(request.output_tokens)));
    put("ttfts", each(|request| json!(request.ttft_s)));
    put("itls", each(|request| json!(request.gaps_s)));
    put("start_times", each(|request| json!(request.start_s)));
    put("errors", each(|request| json!(request.error)));
    put("latencies", each(|request| json!(request.e2e_s)));
}
