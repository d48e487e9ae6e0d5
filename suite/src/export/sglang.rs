//! Exports a run as one line of the result file of SGLang's `bench_serving` 0.5. Python writes an
//! infinite rate as a bare `Infinity`, which is not JSON; here it is "inf", as in SGLang's Rust
//! client.

use serde_json::{Map, Value, json};

use super::figures::{Figures, Statistic, statistic};
use super::requests::{Request, Requests};

/// SGLang result of the run, as one JSON object.
pub fn object(figures: &Figures<'_>) -> Value {
    Value::Object(map(figures))
}

/// SGLang result with lists of the figures of all requests.
pub fn detailed(figures: &Figures<'_>, requests: &Requests<'_>) -> Value {
    let mut object = map(figures);
    let each = |read: fn(&Request<'_>) -> Value| requests.0.iter().map(read).collect::<Value>();
    object.insert("input_lens".into(), each(|request| json!(request.input_tokens)));
    object.insert("output_lens".into(), each(|request| json!(request.output_tokens)));
    object.insert("ttfts".into(), each(|request| json!(request.ttft_s)));
    object.insert("itls".into(), each(|request| json!(request.gaps_s)));
    object.insert("errors".into(), each(|request| json!(request.error)));
    Value::Object(object)
}

fn map(figures: &Figures<'_>) -> Map<String, Value> {
    let (counts, metrics, asked) = (figures.counts, figures.metrics, figures.asked);
    let workload = asked.random();
    let output = figures.reported_or(counts.output_tokens_requested);
    let total = counts.input_tokens.zip(output).map(|(input, output)| input + output);
    let rate =
        figures.request_rate().map_or_else(|| json!(figures.request_rate_word()), |r| json!(r));
    let mut object = Map::new();
    let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
    put("tag", json!(asked.label));
    put("backend", json!(asked.backend));
    put("dataset_name", json!(asked.dataset_name()));
    put("request_rate", rate);
    put("max_concurrency", json!(figures.max_concurrency()));
    put("sharegpt_output_len", json!(asked.sharegpt_output_len()));
    put("random_input_len", json!(workload.and_then(|workload| workload.input_tokens)));
    put("random_output_len", json!(workload.and_then(|workload| workload.output_tokens)));
    put("random_range_ratio", json!(workload.and_then(|workload| workload.range_ratio)));
    put("server_info", Value::Null);
    put("duration", json!(figures.seconds));
    put("completed", json!(figures.completed));
    put("total_input_tokens", json!(counts.input_tokens));
    put("total_input_text_tokens", json!(counts.input_tokens));
    put("total_input_vision_tokens", json!(0));
    put("total_output_tokens", json!(output));
    put("total_output_tokens_retokenized", json!(counts.output_tokens_retokenized));
    put("request_throughput", json!(figures.per_second(Some(figures.completed))));
    put("input_throughput", json!(figures.per_second(counts.input_tokens)));
    put("output_throughput", json!(figures.per_second(output)));
    put("total_throughput", json!(figures.per_second(total)));
    for (name, summary) in [
        ("e2e_latency", &metrics.e2e_us),
        ("ttft", &metrics.ttft_us),
        ("tpot", &metrics.tpot_us),
        ("itl", &metrics.itl_chunk_us),
    ] {
        for (statistic_name, of) in STATISTICS {
            let value = statistic(summary.as_ref(), of);
            put(&format!("{statistic_name}_{name}_ms"), json!(value));
        }
    }
    put("concurrency", json!(metrics.concurrency_mean));
    put("accept_length", Value::Null);
    put("max_output_tokens_per_s", json!(metrics.output_tokens_per_s_peak));
    put("max_concurrent_requests", json!(figures.concurrent_max()));
    object
}

const STATISTICS: &[Statistic] = &[
    ("mean", |summary| summary.mean),
    ("median", |summary| summary.p50),
    ("std", |summary| summary.std),
    ("p90", |summary| summary.p90),
    ("p95", |summary| summary.p95),
    ("p99", |summary| summary.p99),
];
