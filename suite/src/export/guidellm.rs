//! Exports a run as guidellm's report, version 2.
//!
//! Two of guidellm's definitions differ from those of all other tools. Its time per output token is
//! E2E divided by all tokens, so it includes TTFT, and both that and the inter-token latency are means
//! over requests weighted by their tokens. Its rates are distributions over instants, which are not
//! comparable; here each is a distribution of one value, the mean.
//!
//! guidellm's `export` refuses a report with a missing field. A text that is not known is `unknown`,
//! a time that Redline does not take is zero, and a distribution without values is one of zeros.

use serde_json::{Map, Value, json};

use super::figures::{Figures, Request, Requests, SHARES, started_s};
use crate::measure::summary::{float, whole};

/// Builds guidellm's report of the run, with one benchmark.
pub fn report(figures: &Figures<'_>) -> Value {
    json!({
        "metadata": {
            "version": 2,
            "guidellm_version": UNKNOWN,
            "python_version": UNKNOWN,
            "platform": UNKNOWN,
            "generator": format!("redline-bench {}", crate::release()),
        },
        "config": {"spec": spec(figures)},
        "benchmarks": [benchmark(figures)],
    })
}

/// Text in place of one that guidellm requires and Redline does not know.
const UNKNOWN: &str = "unknown";

/// Delays of guidellm's own scheduler, which Redline does not have.
const DELAYS: [&str; 10] = [
    "queued_time_avg",
    "resolve_start_delay_avg",
    "resolve_targeted_start_delay_avg",
    "request_start_delay_avg",
    "request_targeted_start_delay_avg",
    "request_time_avg",
    "resolve_end_delay_avg",
    "resolve_time_avg",
    "finalized_delay_avg",
    "processed_delay_avg",
];

/// Counts of guidellm's report for each kind of content, which are unknown here.
const CONTENTS: [(&str, &[&str]); 5] = [
    ("text", &["tokens", "words", "characters"]),
    ("image", &["tokens", "images", "pixels", "bytes"]),
    ("video", &["tokens", "frames", "seconds", "bytes"]),
    ("audio", &["tokens", "samples", "seconds", "bytes"]),
    ("tool_call", &["tokens", "mixed_tokens", "count"]),
];

/// Builds the arguments of the run as guidellm's own would be.
fn spec(figures: &Figures<'_>) -> Value {
    let most = figures.max_concurrency().unwrap_or(figures.completed + figures.failed);
    json!({
        "backend": {"kind": "openai_http", "target": UNKNOWN, "model": figures.asked.model},
        "profile": {"kind": "throughput", "max_concurrency": most.max(1)},
        "data": [{"kind": "synthetic_text", "prompt_tokens": 1, "output_tokens": 1}],
    })
}

fn benchmark(figures: &Figures<'_>) -> Value {
    let requests = figures.requests;
    // guidellm requires a start; an unknown one is the beginning of Unix time.
    let start = Some(started_s(figures).unwrap_or(0.0));
    let end = start.map(|start| start + figures.seconds);
    let made = totals(figures);
    let run = figures.measurement.scenario.manifest_sha256.as_deref().unwrap_or(UNKNOWN);
    let mut scheduler: Map<String, Value> =
        DELAYS.iter().map(|name| ((*name).to_owned(), json!(0.0))).collect();
    for (name, time) in [("start", start), ("end", end)] {
        for prefix in ["", "request_", "measure_"] {
            scheduler.insert(format!("{prefix}{name}_time"), json!(time));
        }
    }
    scheduler.insert("requests_made".to_owned(), made.clone());
    json!({
        "type_": "generative_benchmark",
        "config": {
            "run_id": run,
            "run_index": 0,
            "strategy": {"type_": "throughput"},
            "constraints": {},
            "profile": {},
            "requests": {},
            "backend": {"model": figures.asked.model},
            "environment": {},
        },
        "scheduler_state": {},
        "scheduler_metrics": scheduler,
        "metrics": metrics(figures, requests, &made),
        "requests": each(requests, start),
        "start_time": start,
        "end_time": end,
        "duration": figures.seconds,
    })
}

fn totals(figures: &Figures<'_>) -> Value {
    json!({
        "successful": figures.completed,
        "incomplete": 0,
        "errored": figures.failed,
        "total": figures.completed + figures.failed,
    })
}

fn metrics(figures: &Figures<'_>, requests: &Requests<'_>, made: &Value) -> Value {
    let tokens = |request: &Request<'_>| request.output_tokens.map(float);
    let total = |request: &Request<'_>| Some(float(request.input_tokens? + request.output_tokens?));
    let per_chunk =
        |request: &Request<'_>| Some(tokens(request)? / float(request.gaps_s.len() as u64 + 1));
    let rates = figures.metrics;
    let one = |read: &dyn Fn(&Request<'_>) -> Option<f64>| {
        of_successful(requests, |request| Some((read(request)?, 1.0)))
    };
    let mut metrics = json!({
        "request_totals": made,
        "requests_per_second": mean_only(rates.requests_per_s),
        "request_concurrency": mean_only(rates.concurrency_mean),
        "request_latency": one(&|request| Some(request.e2e_s)),
        "request_streaming_iterations_count":
            one(&|request| Some(float(request.gaps_s.len() as u64 + 1))),
        "prompt_token_count": one(&|request| request.input_tokens.map(float)),
        "output_token_count": one(&tokens),
        "total_token_count": one(&total),
        "time_to_first_token_ms": one(&|request| Some(request.ttft_s * 1e3)),
        "time_to_first_output_token_ms": one(&|request| Some(request.ttft_s * 1e3)),
        "time_to_last_round_trip_ms": one(&|request| Some(request.e2e_s * 1e3)),
        "avg_round_trip_time_ms": one(&|request| Some(request.e2e_s * 1e3)),
        "output_tokens_per_iteration": one(&per_chunk),
        "iter_tokens_per_iteration": one(&per_chunk),
        "time_per_output_token_ms": of_successful(requests, |request| {
            let tokens = tokens(request).filter(|tokens| *tokens > 0.0)?;
            Some((request.e2e_s * 1e3 / tokens, tokens))
        }),
        "inter_token_latency_ms": of_successful(requests, |request| {
            Some((request.tpot_s()? * 1e3, tokens(request)? - 1.0))
        }),
        "prompt_tokens_per_second": mean_only(rates.input_tokens_per_s),
        "output_tokens_per_second": mean_only(rates.output_tokens_per_s),
        "tokens_per_second": mean_only(rates.total_tokens_per_s),
    });
    for (content, counts) in CONTENTS {
        metrics[content] = counts.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    }
    metrics
}

/// Builds a rate metric of guidellm's report with the one value `mean`, because distributions over
/// instants are not comparable.
fn mean_only(mean: Option<f64>) -> Value {
    by_status(mean.map(|mean| (mean, 1.0)).into_iter().collect())
}

/// Builds a metric of guidellm's report with the weighted distribution over the answered requests.
/// `read` returns a value and its weight.
fn of_successful(
    requests: &Requests<'_>,
    read: impl Fn(&Request<'_>) -> Option<(f64, f64)>,
) -> Value {
    by_status(requests.answered().filter_map(read).collect())
}

/// Builds a metric of guidellm's report from its values for answered requests, the only ones with
/// figures.
fn by_status(values: Vec<(f64, f64)>) -> Value {
    let (none, all) = (weighted(Vec::new()), weighted(values));
    json!({"successful": all, "incomplete": none, "errored": none, "total": all})
}

/// Builds the weighted distribution of pairs of value and weight as JSON of guidellm's report; all
/// zeros without values. A percentile is the smallest value at which the cumulated weight reaches its
/// share of the total weight.
fn weighted(mut values: Vec<(f64, f64)>) -> Value {
    values.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
    let count: f64 = values.iter().map(|(_, weight)| weight).sum();
    if values.is_empty() {
        values.push((0.0, 1.0));
    }
    let (min, max) = (values[0].0, values[values.len() - 1].0);
    let weight: f64 = values.iter().map(|(_, weight)| weight).sum();
    let mean = values.iter().map(|(value, each)| value * each).sum::<f64>() / weight;
    let squares: f64 = values.iter().map(|(value, each)| (value - mean).powi(2) * each).sum();
    let variance = squares / weight;
    let at = |share: f64| {
        let mut reached = 0.0;
        let found = values.iter().find(|(_, each)| {
            reached += each;
            // The tolerance absorbs the rounding error of summed weights.
            reached >= (share - 1e-9) * weight
        });
        found.map_or(max, |(value, _)| *value)
    };
    // The digits after the point, at least two: `p05`, `p50`, `p999`.
    let name = |share: &f64| format!("p{:0<2}", share.to_string().trim_start_matches("0."));
    let percentiles: Map<String, Value> =
        SHARES.iter().map(|share| (name(share), json!(at(*share)))).collect();
    json!({
        "mean": mean,
        "median": percentiles["p50"],
        "mode": mode(&values),
        "variance": variance,
        "std_dev": variance.sqrt(),
        "min": min,
        "max": max,
        "count": whole(count),
        "total_sum": mean * count.round(),
        "percentiles": percentiles,
        "pdf": null,
    })
}

/// Returns the value with the largest total weight, the smallest of several such values.
fn mode(sorted: &[(f64, f64)]) -> f64 {
    let mut best = (f64::NAN, 0.0);
    for same in sorted.chunk_by(|left, right| left.0.total_cmp(&right.0).is_eq()) {
        let weight: f64 = same.iter().map(|(_, weight)| weight).sum();
        if weight > best.1 {
            best = (same[0].0, weight);
        }
    }
    best.0
}

/// Builds the list of requests in guidellm's report: the figures of each successful request, and
/// the error message of each failed one.
fn each(requests: &Requests<'_>, start: Option<f64>) -> Value {
    let shown = |(number, request): (usize, &Request<'_>)| {
        let at = |offset_s: f64| start.map(|start| start + request.start_s + offset_s);
        let chunks = if request.ttft_s > 0.0 { request.gaps_s.len() + 1 } else { 0 };
        json!({
            "request_id": number.to_string(),
            "output": request.text,
            "info": {
                "request_id": number.to_string(),
                "status": if request.answered { "completed" } else { "errored" },
                "error": (!request.answered).then_some(request.error.1),
                "timings": {
                    "request_start": at(0.0),
                    "first_token_iteration": at(request.ttft_s),
                    "last_token_iteration": at(request.e2e_s),
                    "request_end": at(request.e2e_s),
                    "request_iterations": chunks,
                    "token_iterations": chunks,
                },
            },
            "input_metrics": {"text_tokens": request.input_tokens},
            "output_metrics": {"text_tokens": request.output_tokens},
            "request_start_time": at(0.0),
            "request_end_time": at(request.e2e_s),
            "request_latency": request.e2e_s,
            "prompt_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
            "time_to_first_token_ms": request.ttft_s * 1e3,
            "inter_token_latency_ms": request.tpot_s().map(|tpot| tpot * 1e3),
        })
    };
    let of = |answered: bool| -> Value {
        let each = requests.0.iter().enumerate();
        each.filter(|(_, request)| request.answered == answered).map(shown).collect()
    };
    json!({"successful": of(true), "incomplete": [], "errored": of(false), "total": null})
}
