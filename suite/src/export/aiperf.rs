//! Exports a run as AIPerf's `profile_export_aiperf.json`, schema 1.4. AIPerf's inter-token latency
//! is one mean per request, without the tokens of the first chunk; the gaps between chunks are its
//! `inter_chunk_latency`.

use schema::run::Status;
use serde_json::{Map, Value, json};

use super::figures::Figures;
use super::requests::{Request, Requests, SHARES, Spread};
use crate::measure::summary::float;

/// AIPerf report of the run, as one JSON object.
pub fn report(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
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
    put("start_time", figures.time.started_at.as_ref().map(|at| json!(at)));
    put("end_time", figures.time.finished_at.as_ref().map(|at| json!(at)));
    Value::Object(object)
}

/// Gap between the first chunk and the second of a request, in milliseconds.
fn second_token_ms(request: &Request<'_>) -> Option<f64> {
    request.gaps_s.first().map(|gap| gap * 1e3)
}

/// Mean gap between the tokens after the first chunk of a request, in milliseconds.
fn gap_ms(request: &Request<'_>) -> Option<f64> {
    let first = request.first_tokens.unwrap_or(1).max(1);
    let after = request.output_tokens?.checked_sub(first).filter(|after| *after > 0)?;
    Some((request.e2e_s - request.ttft_s) * 1e3 / float(after))
}

/// Metric with a single value for the whole run.
fn total(unit: &str, value: Option<f64>) -> Option<Value> {
    value.map(|value| json!({"unit": unit, "avg": value}))
}

/// Metric with a distribution over requests or gaps: mean, percentiles, extremes, standard
/// deviation.
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

/// Number of failed requests of each kind.
fn errors(figures: &Figures<'_>) -> Value {
    let failures = figures.counts.failures.iter().flatten();
    failures.map(|(kind, count)| json!({"error_details": {"type": kind}, "count": count})).collect()
}
