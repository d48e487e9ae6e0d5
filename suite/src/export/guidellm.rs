//! Exports a run as guidellm's report, version 2. Two of its definitions differ from those of all
//! other tools: its time per output token is E2E divided by all tokens, so it includes TTFT, and
//! both that and the inter-token latency are means over requests weighted by their tokens. Its
//! rates are distributions over instants, which are not comparable; here they have only a mean.

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::figures::Figures;
use super::requests::{Request, Requests, SHARES};
use crate::measure::summary::float;

/// guidellm report with one benchmark.
pub fn report(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
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
    let at = OffsetDateTime::parse(rfc3339, &Rfc3339).ok()?;
    u64::try_from(at.unix_timestamp()).ok().map(float)
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

/// Rate metric with a mean only, because distributions over instants are not comparable.
fn mean_only(mean: Option<f64>) -> Value {
    json!({"successful": mean.map(|mean| json!({"mean": mean})), "incomplete": null, "errored": null})
}

/// Weighted distribution over the answered requests. `read` returns a value and its weight.
fn of_successful(
    requests: &Requests<'_>,
    read: impl Fn(&Request<'_>) -> Option<(f64, f64)>,
) -> Value {
    let values: Vec<(f64, f64)> = requests.answered().filter_map(read).collect();
    json!({"successful": weighted(values), "incomplete": null, "errored": null})
}

/// Weighted distribution as JSON; null without values. A percentile is the smallest value at which
/// the cumulated weight reaches that share.
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

/// Value with the largest weight; the smallest of several.
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

/// Figures of every request, grouped into successful and failed ones.
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
