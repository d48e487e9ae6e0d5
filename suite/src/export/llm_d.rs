//! Exports a run as llm-d's benchmark report 0.2.1. Its schema forbids additional keys, so values
//! without a key of their own, such as the verdict, are under `load.native.config`, which is
//! free-form.

use schema::scenario::{Pack, Workload};
use serde_json::{Map, Value, json};

use super::figures::{Figures, Request, Requests, SHARES, Spread};
use crate::measure::summary::float;

/// Builds llm-d's report of the run, as one JSON object.
pub fn report(figures: &Figures<'_>) -> Value {
    let requests = figures.requests;
    // The hash of the requests and the start time identify this report among others.
    let manifest = figures.measurement.scenario.manifest_sha256.as_deref().unwrap_or("unknown");
    let start = figures.time.started_at.as_deref();
    json!({
        "version": "0.2.1",
        "run": {
            "uid": format!("{manifest}-{}", start.unwrap_or("unknown")),
            "time": {
                "start": start,
                "end": figures.time.finished_at,
                "duration": format!("PT{}S", figures.seconds),
            },
        },
        "scenario": {"load": load(figures, requests)},
        "results": {
            "request_performance": {
                "aggregate": {
                    "requests": counts(figures, requests),
                    "latency": latency(requests),
                    "throughput": throughput(figures),
                },
            },
        },
    })
}

fn load(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
    let scenario = &figures.measurement.scenario;
    let input = requests.values(|request| request.input_tokens.map(float));
    let mut standardized = Map::new();
    let mut put = |key: &str, value: Value| standardized.insert(key.to_owned(), value);
    put("tool", json!("redline-bench"));
    put("tool_version", json!(crate::release()));
    put("parallelism", json!(1));
    put("source", json!(source(figures.asked.workload.as_ref())));
    put("stage", json!(0));
    put("input_seq_len", lengths(input, figures));
    if let Some(rate) = figures.request_rate() {
        put("rate_qps", json!(rate));
    }
    if let Some(cap) = figures.max_concurrency() {
        put("concurrency", json!(cap));
    }
    json!({
        "metadata": {"cfg_id": scenario.manifest_sha256},
        "standardized": standardized,
        "native": {"config": {"scenario": scenario, "validity": figures.measurement.validity}},
    })
}

fn source(workload: Option<&Workload>) -> &'static str {
    match workload.map(|workload| workload.pack) {
        None => "unknown",
        Some(Pack::RandomVllm | Pack::RandomInferencex | Pack::RandomIdsSglang) => "random",
        Some(Pack::PrefixGroupsSglang | Pack::PrefixRepetitionVllm) => "random",
        Some(_) => "sampled",
    }
}

/// Builds the prompt lengths in tokens for llm-d's report: their distribution as the server counted
/// them, else the mean of the plan.
fn lengths(values: Vec<f64>, figures: &Figures<'_>) -> Value {
    let Some(spread) = Spread::of(values) else {
        let tokens = float(figures.counts.input_tokens.unwrap_or(0));
        return json!({"distribution": "other", "value": tokens / float(figures.completed)});
    };
    if spread.variance == 0.0 {
        return json!({"distribution": "fixed", "value": spread.mean});
    }
    json!({
        "distribution": "other",
        "value": spread.mean,
        "std_dev": spread.variance.sqrt(),
        "min": spread.min,
        "max": spread.max,
    })
}

fn counts(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
    let of = |read: fn(&Request<'_>) -> Option<u64>| {
        statistics("count", requests.values(|request| read(request).map(float)))
    };
    json!({
        "total": figures.completed + figures.failed,
        "failures": figures.failed,
        "input_length": of(|request| request.input_tokens),
        "output_length": of(|request| request.output_tokens),
    })
}

fn latency(requests: &Requests<'_>) -> Value {
    let normalized = |request: &Request<'_>| {
        let tokens = request.output_tokens.filter(|tokens| *tokens > 0)?;
        Some(request.e2e_s / float(tokens))
    };
    json!({
        "time_to_first_token": statistics("s", requests.values(|request| Some(request.ttft_s))),
        "normalized_time_per_output_token": statistics("s/token", requests.values(normalized)),
        "time_per_output_token": statistics("s/token", requests.values(Request::tpot_s)),
        "inter_token_latency": statistics("s/token", requests.gaps_s()),
        "request_latency": statistics("s", requests.values(|request| Some(request.e2e_s))),
    })
}

fn throughput(figures: &Figures<'_>) -> Value {
    let rate =
        |units: &str, mean: Option<f64>| mean.map(|mean| json!({"units": units, "mean": mean}));
    let metrics = figures.metrics;
    json!({
        "input_token_rate": rate("tokens/s", metrics.input_tokens_per_s),
        "output_token_rate": rate("tokens/s", metrics.output_tokens_per_s),
        "total_token_rate": rate("tokens/s", metrics.total_tokens_per_s),
        "request_rate": rate("queries/s", metrics.requests_per_s),
    })
}

/// Builds the distribution of `values` as JSON of llm-d's report; null without values.
fn statistics(units: &str, values: Vec<f64>) -> Value {
    let Some(spread) = Spread::of(values) else { return Value::Null };
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("units", json!(units));
    put("mean", json!(spread.mean));
    put("stddev", json!(spread.variance.sqrt()));
    put("min", json!(spread.min));
    for share in SHARES {
        // A point in a name is a `p`, as in `p99p9`.
        let percent = (share * 100.0).to_string().replace('.', "p");
        put(&format!("p{percent}"), json!(spread.percentile(share)));
    }
    put("max", json!(spread.max));
    Value::Object(object)
}
