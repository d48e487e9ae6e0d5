//! Reader of result files with tool-specific summaries: inference-perf, inference-benchmarker,
//! trtllm-bench and MLCommons' endpoints.

use serde_json::{Map, Value};

use super::figures::Figures;
use super::nested::{found, statistics, take};
use super::served::{Served, public};
use super::tool::Tool;
use super::{Found, Unread};

/// Reads the results in `object`; `None` where it is a file of none of these tools.
pub fn read(object: &Map<String, Value>, lines: (u64, u64)) -> Option<Vec<Result<Found, Unread>>> {
    let report = Value::Object(object.clone());
    let has = |pointer: &str| report.pointer(pointer).is_some();
    let one = |tool, read| vec![found(tool, read, lines)];
    if has("/successes/latency/request_latency") {
        Some(one(Tool::InferencePerf, inference_perf(&report)))
    } else if has("/results/0/inter_token_latency_ms") {
        let results = report["results"].as_array().into_iter().flatten();
        let read = |result| found(Tool::InferenceBenchmarker, inference_benchmarker(result), lines);
        Some(results.map(read).collect())
    } else if has("/performance/system_output_throughput_tok_s") {
        let mut results = one(Tool::TrtllmBench, trtllm_bench(&report));
        results.iter_mut().flatten().for_each(|found| found.served = trtllm_served(&report));
        Some(results)
    } else if has("/n_samples_completed") && has("/duration_ns") {
        Some(one(Tool::Endpoints, endpoints(&report)))
    } else {
        None
    }
}

fn number(report: &Value, pointer: &str) -> Option<f64> {
    report.pointer(pointer).and_then(Value::as_f64)
}

/// Reads the figures of `names` that the report has. Each entry is our name, a scale factor, and
/// the JSON pointer in the report.
fn take_all(
    figures: &mut Figures,
    report: &Value,
    names: &[(&str, f64, &str)],
) -> Result<(), String> {
    names.iter().try_for_each(|(ours, scale, theirs)| take(figures, ours, *scale, report, theirs))
}

/// Total that a report gives as a mean times a count. It is rounded, because the true total is a
/// whole number.
fn sum(report: &Value, mean: &str, count: &str) -> Option<f64> {
    Some((number(report, mean)? * number(report, count)?).round())
}

/// Reads a summary of inference-perf. Times are in seconds. Its inter-token latency counts gaps
/// between tokens, which are zero within a chunk.
fn inference_perf(report: &Value) -> Result<Figures, String> {
    const COUNT: &str = "/successes/count";
    let mut figures = Figures::default();
    let names = [
        ("completed", 1.0, COUNT),
        ("failed", 1.0, "/failures/count"),
        ("total_input_tokens", 1.0, "/successes/prompt_tokens/total"),
        ("request_throughput", 1.0, "/successes/throughput/requests_per_sec"),
        ("input_throughput", 1.0, "/successes/throughput/input_tokens_per_sec"),
        ("output_throughput", 1.0, "/successes/throughput/output_tokens_per_sec"),
    ];
    take_all(&mut figures, report, &names)?;
    let rate = number(report, "/successes/throughput/requests_per_sec").filter(|rate| *rate > 0.0);
    // Older reports omit the duration that their rates refer to, so it follows from count and
    // rate.
    let seconds = number(report, "/benchmark_time_seconds").filter(|seconds| *seconds > 0.0);
    let seconds = seconds.or_else(|| Some(number(report, COUNT)? / rate?));
    seconds.map_or(Ok(()), |seconds| figures.take("duration", seconds))?;
    // A flag that no report records decides which of two token counts the throughput uses: the
    // nearer one is taken.
    let counts = [
        sum(report, "/successes/output_len/mean", COUNT),
        number(report, "/successes/output_tokens/total"),
    ];
    let rate = number(report, "/successes/throughput/output_tokens_per_sec").unwrap_or(0.0);
    let strays = |total: &f64| (total - rate * seconds.unwrap_or(0.0)).abs();
    let tokens = counts.into_iter().flatten().min_by(|a, b| strays(a).total_cmp(&strays(b)));
    tokens.map_or(Ok(()), |tokens| figures.take("total_output_tokens", tokens))?;
    let names = [
        ("mean", "/mean"),
        ("p50", "/median"),
        ("p90", "/p90"),
        ("p95", "/p95"),
        ("p99", "/p99"),
        ("max", "/max"),
    ];
    for (ours, theirs) in [
        ("e2e_latency", "request_latency"),
        ("ttft", "time_to_first_token"),
        ("tpot", "time_per_output_token"),
        ("itl", "inter_token_latency"),
    ] {
        let of = report.pointer(&format!("/successes/latency/{theirs}"));
        statistics(&mut figures, ours, 1e3, of, &names)?;
    }
    Ok(figures)
}

/// Reads results of inference-benchmarker. Its inter-token latency is one mean per request, which
/// is TPOT.
fn inference_benchmarker(report: &Value) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let names = [
        ("completed", 1.0, "/successful_requests"),
        ("failed", 1.0, "/failed_requests"),
        ("duration", 1e-3, "/duration_ms"),
        ("total_input_tokens", 1.0, "/total_tokens_sent"),
        ("total_output_tokens", 1.0, "/total_tokens"),
        ("request_throughput", 1.0, "/request_rate"),
        ("output_throughput", 1.0, "/token_throughput_secs"),
    ];
    take_all(&mut figures, report, &names)?;
    let names =
        [("mean", "/avg"), ("p50", "/p50"), ("p90", "/p90"), ("p95", "/p95"), ("p99", "/p99")];
    for (ours, theirs) in [
        ("e2e_latency", "e2e_latency_ms"),
        ("ttft", "time_to_first_token_ms"),
        ("tpot", "inter_token_latency_ms"),
    ] {
        statistics(&mut figures, ours, 1.0, report.get(theirs), &names)?;
    }
    Ok(figures)
}

/// Reads a report of trtllm-bench, which calls the engine without a server and does not count
/// failed requests.
fn trtllm_bench(report: &Value) -> Result<Figures, String> {
    const COUNT: &str = "/request_info/num_requests";
    let mut figures = Figures::default();
    let names = [
        ("completed", 1.0, COUNT),
        ("duration", 1e-3, "/performance/total_latency_ms"),
        ("request_throughput", 1.0, "/performance/request_throughput_req_s"),
        ("output_throughput", 1.0, "/performance/system_output_throughput_tok_s"),
        ("total_throughput", 1.0, "/performance/system_total_throughput_tok_s"),
        ("concurrency", 1.0, "/request_info/avg_num_concurrent_requests"),
    ];
    take_all(&mut figures, report, &names)?;
    for (ours, theirs) in [
        ("total_input_tokens", "/request_info/avg_input_length"),
        ("total_output_tokens", "/request_info/avg_output_length"),
    ] {
        sum(report, theirs, COUNT).map_or(Ok(()), |sum| figures.take(ours, sum))?;
    }
    let names = [
        ("mean", "/average"),
        ("p50", "/p50"),
        ("p90", "/p90"),
        ("p95", "/p95"),
        ("p99", "/p99"),
        ("max", "/maximum"),
    ];
    for (ours, theirs) in [
        ("e2e_latency", "/performance/request_latency_percentiles_ms"),
        ("ttft", "/streaming_metrics/ttft_percentiles"),
        ("tpot", "/streaming_metrics/tpot_percentiles"),
    ] {
        statistics(&mut figures, ours, 1.0, report.pointer(theirs), &names)?;
    }
    Ok(figures)
}

fn trtllm_served(report: &Value) -> Served {
    let text = |pointer: &str| report.pointer(pointer).and_then(Value::as_str);
    let ranks = report.pointer("/world_info/tp_size").and_then(Value::as_u64);
    Served {
        engine: Some("tensorrt-llm".to_owned()),
        release: text("/engine/version").map(|version| format!("v{version}")),
        model: text("/engine/model").map(public),
        tp: ranks.and_then(|ranks| ranks.try_into().ok()),
        argv: None,
    }
}

/// Reads a summary of MLCommons' endpoints. Times are in nanoseconds.
fn endpoints(report: &Value) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let names = [
        ("completed", 1.0, "/n_samples_completed"),
        ("failed", 1.0, "/n_samples_failed"),
        ("duration", 1e-9, "/duration_ns"),
        ("total_output_tokens", 1.0, "/output_sequence_lengths/total"),
    ];
    take_all(&mut figures, report, &names)?;
    // Rates over a window that cuts the tail do not refer to the duration.
    if number(report, "/legacy_loadgen_window_duration_ns").is_none() {
        let rates = [("request_throughput", 1.0, "/qps"), ("output_throughput", 1.0, "/tps")];
        take_all(&mut figures, report, &rates)?;
    }
    // Reports write percentiles with or without a fraction.
    let names = [
        ("mean", "/avg"),
        ("std", "/std_dev"),
        ("p50", "/median"),
        ("p90", "/percentiles/90"),
        ("p90", "/percentiles/90.0"),
        ("p95", "/percentiles/95"),
        ("p95", "/percentiles/95.0"),
        ("p99", "/percentiles/99"),
        ("p99", "/percentiles/99.0"),
        ("max", "/max"),
    ];
    for (ours, theirs) in [("e2e_latency", "latency"), ("ttft", "ttft"), ("tpot", "tpot")] {
        statistics(&mut figures, ours, 1e-6, report.get(theirs), &names)?;
    }
    Ok(figures)
}
