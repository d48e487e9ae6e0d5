//! Exports a run as AIPerf's report, `profile_export_aiperf.json` of schema 1.4, and as its records of
//! all requests, `profile_export.jsonl`. AIPerf's `plot` reads both from one folder.
//!
//! AIPerf's inter-token latency is one mean per request, without the tokens of the first chunk; the
//! gaps between chunks are its `inter_chunk_latency`.

use schema::run::Status;
use serde_json::{Map, Value, json};

use super::figures::{Figures, Request, SHARES, Spread, started_s};
use crate::measure::summary::{float, whole};

/// Builds AIPerf's report of the run, as one JSON object.
pub fn report(figures: &Figures<'_>) -> Value {
    let requests = figures.requests;
    let mut object = Map::new();
    object.insert("schema_version".to_owned(), json!("1.4"));
    let mut put = |name: &str, value: Option<Value>| {
        // AIPerf leaves out a metric that it has no value for.
        value.map(|value| object.insert(name.to_owned(), value))
    };
    put("request_throughput", total("requests/sec", figures.metrics.requests_per_s));
    put("request_latency", spread("ms", requests.values(|request| Some(request.e2e_s * 1e3))));
    put("request_count", total("requests", Some(float(figures.completed))));
    put("time_to_first_token", spread("ms", requests.values(|request| Some(request.ttft_s * 1e3))));
    put("time_to_second_token", spread("ms", requests.values(second_token_ms)));
    put("inter_token_latency", spread("ms", requests.values(gap_ms)));
    put("output_token_throughput", total("tokens/sec", figures.metrics.output_tokens_per_s));
    // A mean gap of zero would be an infinite rate.
    let per_user = requests.values(|request| gap_ms(request).filter(|ms| *ms > 0.0));
    let per_user = per_user.into_iter().map(|ms| 1e3 / ms).collect();
    put("output_token_throughput_per_user", spread("tokens/sec/user", per_user));
    let output = requests.values(|request| request.output_tokens.map(float));
    put("output_sequence_length", spread("tokens", output));
    let input = requests.values(|request| request.input_tokens.map(float));
    put("input_sequence_length", spread("tokens", input));
    put("goodput", total("requests/sec", figures.goodput()));
    let gaps = requests.gaps_s().into_iter().map(|gap| gap * 1e3).collect();
    put("inter_chunk_latency", spread("ms", gaps));
    put("benchmark_duration", total("sec", Some(figures.seconds)));
    put("total_isl", total("tokens", figures.counts.input_tokens.map(float)));
    put("total_osl", total("tokens", figures.counts.output_tokens_reported.map(float)));
    put("error_request_count", total("requests", Some(float(figures.failed))));
    put("is_complete", Some(json!(figures.measurement.status == Status::Ok)));
    put("error_summary", Some(errors(figures)));
    let model = figures.asked.model.as_ref();
    put("input_config", model.map(|name| json!({"models": {"items": [{"name": name}]}})));
    put("start_time", figures.time.started_at.as_ref().map(|at| json!(at)));
    put("end_time", figures.time.finished_at.as_ref().map(|at| json!(at)));
    Value::Object(object)
}

/// Returns the gap between the first chunk and the second of a request, in milliseconds; `None` if
/// it has fewer than two chunks.
fn second_token_ms(request: &Request<'_>) -> Option<f64> {
    request.gaps_s.first().map(|gap| gap * 1e3)
}

/// Returns the time from a request's first token to its last, divided by the number of tokens after
/// its first chunk, in milliseconds. A first chunk of unknown size counts as one token. `None`
/// without tokens after it, or if the number of the request's tokens is unknown.
fn gap_ms(request: &Request<'_>) -> Option<f64> {
    let first = request.first_tokens.unwrap_or(1).max(1);
    let after = request.output_tokens?.checked_sub(first).filter(|after| *after > 0)?;
    Some((request.e2e_s - request.ttft_s) * 1e3 / float(after))
}

/// Builds a metric of AIPerf's report that has one value for the whole run; `None` without a value.
fn total(unit: &str, value: Option<f64>) -> Option<Value> {
    value.map(|value| json!({"unit": unit, "avg": value}))
}

/// Builds a metric of AIPerf's report that has a distribution over requests or gaps, with mean,
/// percentiles, extremes and standard deviation; `None` without values.
fn spread(unit: &str, values: Vec<f64>) -> Option<Value> {
    let spread = Spread::of(values)?;
    let mut object =
        Map::from_iter([("unit".to_owned(), json!(unit)), ("avg".to_owned(), json!(spread.mean))]);
    for share in &SHARES[1..10] {
        object.insert(format!("p{}", share * 100.0), json!(spread.percentile(*share)));
    }
    for (name, value) in [
        ("min", json!(spread.min)),
        ("max", json!(spread.max)),
        ("std", json!(spread.variance.sqrt())),
        ("count", json!(spread.values.len())),
        ("sum", json!(spread.sum)),
    ] {
        object.insert(name.to_owned(), value);
    }
    Some(Value::Object(object))
}

/// Builds the list of kinds of failure in AIPerf's report, each with the number of requests that
/// failed so.
fn errors(figures: &Figures<'_>) -> Value {
    let failures = figures.counts.failures.iter().flatten();
    failures.map(|(kind, count)| json!({"error_details": {"type": kind}, "count": count})).collect()
}

/// Builds AIPerf's record of each request of the run, in the order of the plan.
pub fn records(figures: &Figures<'_>) -> Vec<Value> {
    let start = started_s(figures).unwrap_or(0.0);
    let each = figures.requests.0.iter().enumerate();
    each.map(|(number, request)| record(number, request, start)).collect()
}

/// Builds the record of one request; `start` is the Unix time at which the run started, in seconds.
fn record(number: usize, request: &Request<'_>, start: f64) -> Value {
    let ns = |at_s: f64| whole((start + at_s) * 1e9);
    let mut metrics = Map::new();
    let mut put = |name: &str, unit: &str, value: Option<Value>| {
        value.map(|value| metrics.insert(name.to_owned(), json!({"value": value, "unit": unit})))
    };
    let count = |tokens: Option<u64>| tokens.map(Value::from);
    if request.answered {
        put("request_latency", "ms", Some(json!(request.e2e_s * 1e3)));
        put("time_to_first_token", "ms", Some(json!(request.ttft_s * 1e3)));
        put("time_to_second_token", "ms", second_token_ms(request).map(Value::from));
        put("inter_token_latency", "ms", gap_ms(request).map(Value::from));
        let gaps: Vec<f64> = request.gaps_s.iter().map(|gap| gap * 1e3).collect();
        put("inter_chunk_latency", "ms", Some(json!(gaps)));
        put("output_sequence_length", "tokens", count(request.output_tokens));
        put("input_sequence_length", "tokens", count(request.input_tokens));
    }
    let (kind, message) = request.error;
    json!({
        "metadata": {
            "session_num": number,
            "request_start_ns": ns(request.start_s),
            "request_end_ns": ns(request.start_s + request.e2e_s),
            "worker_id": "redline-bench",
            "record_processor_id": "redline-bench",
            "benchmark_phase": "profiling",
            "was_cancelled": false,
        },
        "metrics": metrics,
        "error": (!request.answered).then(|| json!({"type": kind, "message": message})),
    })
}
