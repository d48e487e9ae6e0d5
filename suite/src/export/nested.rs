//! Exports a run as reports of AIPerf, guidellm and llm-d, which nest figures in JSON objects.
//!
//! AIPerf's `profile_export_aiperf.json`, schema 1.4: its inter-token latency is one mean per request,
//! without the tokens of the first chunk; the gaps between chunks are its `inter_chunk_latency`.
//!
//! guidellm's report, version 2: two of its definitions differ from those of all other tools. Its time
//! per output token is E2E divided by all tokens, so it includes TTFT, and both that and the
//! inter-token latency are means over requests weighted by their tokens. Its rates are distributions
//! over instants, which are not comparable; here they have only a mean.
//!
//! llm-d's benchmark report 0.2.1: its schema forbids additional keys, so values without a key of
//! their own, such as the verdict, are under `load.native.config`, which is free-form.

use schema::event::unix_s_of;
use schema::run::Status;
use schema::scenario::{Pack, Workload};
use serde_json::{Map, Value, json};

use super::figures::{Figures, Request, Requests, SHARES, Spread};
use crate::measure::summary::float;

/// Builds AIPerf's report of the run, as one JSON object.
pub fn aiperf(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
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

/// Builds guidellm's report of the run, with one benchmark.
pub fn guidellm(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
    json!({
        "metadata": {
            "version": 2,
            "guidellm_version": null,
            "python_version": null,
            "platform": null,
            "generator": format!("redline-bench {}", env!("CARGO_PKG_VERSION")),
        },
        "config": null,
        "benchmarks": [benchmark(figures, requests)],
    })
}

fn benchmark(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
    let start = figures.time.started_at.as_deref().and_then(unix_seconds);
    let end = start.map(|start| start + figures.seconds);
    let made = totals(figures);
    json!({
        "type_": "generative_benchmark",
        "config": null,
        "scheduler_state": null,
        "scheduler_metrics": {
            "start_time": start,
            "measure_start_time": start,
            "measure_end_time": end,
            "end_time": end,
            "requests_made": made,
        },
        "metrics": metrics(figures, requests, &made),
        "requests": each(requests, start),
        "start_time": start,
        "end_time": end,
        "duration": figures.seconds,
    })
}

fn unix_seconds(rfc3339: &str) -> Option<f64> {
    u64::try_from(unix_s_of(rfc3339)?).ok().map(float)
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
    let rates = figures.metrics;
    let one = |read: &dyn Fn(&Request<'_>) -> Option<f64>| {
        of_successful(requests, |request| Some((read(request)?, 1.0)))
    };
    json!({
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
    })
}

/// Builds a rate metric of guidellm's report with a mean only, because distributions over instants
/// are not comparable.
fn mean_only(mean: Option<f64>) -> Value {
    json!({"successful": mean.map(|mean| json!({"mean": mean})), "incomplete": null, "errored": null})
}

/// Builds a metric of guidellm's report with the weighted distribution over the answered requests.
/// `read` returns a value and its weight.
fn of_successful(
    requests: &Requests<'_>,
    read: impl Fn(&Request<'_>) -> Option<(f64, f64)>,
) -> Value {
    let values: Vec<(f64, f64)> = requests.answered().filter_map(read).collect();
    json!({"successful": weighted(values), "incomplete": null, "errored": null})
}

/// Builds the weighted distribution of pairs of value and weight as JSON of guidellm's report; null
/// without values. A percentile is the smallest value at which the cumulated weight reaches its
/// share of the total weight.
fn weighted(mut values: Vec<(f64, f64)>) -> Value {
    values.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
    let (Some((min, _)), Some((max, _))) = (values.first(), values.last()) else {
        return Value::Null;
    };
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
        found.map_or(*max, |(value, _)| *value)
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
        "count": weight.round(),
        "total_sum": mean * weight.round(),
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
    let shown = |request: &Request<'_>| {
        let begin = start.map(|start| start + request.start_s);
        json!({
            "request_start_time": begin,
            "request_end_time": begin.map(|begin| begin + request.e2e_s),
            "request_latency": request.e2e_s,
            "prompt_tokens": request.input_tokens,
            "output_tokens": request.output_tokens,
            "time_to_first_token_ms": request.ttft_s * 1e3,
            "inter_token_latency_ms": request.tpot_s().map(|tpot| tpot * 1e3),
        })
    };
    let failed = requests.0.iter().filter(|request| !request.answered);
    json!({
        "successful": requests.answered().map(shown).collect::<Value>(),
        "incomplete": [],
        "errored": failed.map(|request| json!({"error": request.error})).collect::<Value>(),
    })
}

/// Builds llm-d's report of the run, as one JSON object.
pub fn llm_d(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
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
    put("tool_version", json!(env!("CARGO_PKG_VERSION")));
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
        Some(Pack::RandomVllm | Pack::RandomInferencex) => "random",
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
