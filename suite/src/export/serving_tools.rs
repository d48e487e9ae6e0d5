//! Exports a run as the console blocks and result files of LMDeploy's `profile_restful_api.py`
//! v0.9.2, SGLang's `bench_serving` 0.5 and `vllm bench serve` 0.33, which have the same figures.
//!
//! A console block has 50 columns, values from column 42 on. The tools pad some lines with spaces
//! at the end; these are left out, as on published pages. Python writes an infinite rate as a bare
//! `Infinity`, which is not JSON; here it is "inf", as in SGLang's Rust client.

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use super::figures::{Figures, Requests, python_float};
use super::name_of;

/// Latency metric for which vLLM's tool reports percentiles: TTFT, TPOT, ITL or E2E.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Quantity {
    Ttft,
    Tpot,
    Itl,
    E2el,
}

/// Metrics and percentiles that vLLM's report shows, as vLLM's `--percentile-metrics` and
/// `--metric-percentiles` select them.
#[derive(Clone, Debug)]
pub struct Selection {
    pub quantities: Vec<Quantity>,
    pub percentiles: Vec<f64>,
}

impl Default for Selection {
    /// Selects all latency metrics, with the percentile 99, the default of vLLM's tool.
    fn default() -> Self {
        Self { quantities: Quantity::value_variants().to_vec(), percentiles: vec![99.0] }
    }
}

/// Labels of LMDeploy's console block in order, separated by `; `; `#` begins the title of a
/// section.
const LMDEPLOY_BLOCK: &str = "Backend; Traffic request rate; Successful requests; \
    Benchmark duration (s); Total input tokens; Total generated tokens; \
    Total generated tokens (retokenized); Request throughput (req/s); \
    Input token throughput (tok/s); Output token throughput (tok/s); #End-to-End Latency; \
    Mean E2E Latency (ms); Median E2E Latency (ms); #Time to First Token; Mean TTFT (ms); \
    Median TTFT (ms); P99 TTFT (ms); #Time per Output Token (excl. 1st token); Mean TPOT (ms); \
    Median TPOT (ms); P99 TPOT (ms); #Inter-token Latency; Mean ITL (ms); Median ITL (ms); \
    P99 ITL (ms)";
/// Labels of SGLang's console block in order, separated by `; `; `#` begins the title of a section.
const SGLANG_BLOCK: &str = "Backend; Traffic request rate; Max request concurrency; \
    Successful requests; Benchmark duration (s); Total input tokens; Total input text tokens; \
    Total generated tokens; Total generated tokens (retokenized); Request throughput (req/s); \
    Input token throughput (tok/s); Output token throughput (tok/s); \
    Peak output token throughput (tok/s); Peak concurrent requests; \
    Total token throughput (tok/s); Concurrency; #End-to-End Latency; Mean E2E Latency (ms); \
    Median E2E Latency (ms); P90 E2E Latency (ms); P99 E2E Latency (ms); #Time to First Token; \
    Mean TTFT (ms); Median TTFT (ms); P99 TTFT (ms); #Time per Output Token (excl. 1st token); \
    Mean TPOT (ms); Median TPOT (ms); P99 TPOT (ms); #Inter-Token Latency; Mean ITL (ms); \
    Median ITL (ms); P95 ITL (ms); P99 ITL (ms); Max ITL (ms)";
/// Labels of vLLM's console block above the latencies, in order, separated by `; `.
const VLLM_BLOCK: &str = "Successful requests; Failed requests; Maximum request concurrency; \
    Request rate configured (RPS); Benchmark duration (s); Total input tokens; \
    Total generated tokens; Request throughput (req/s); Input throughput (inputs/s); \
    Request goodput (req/s); Output token throughput (tok/s); Peak output token throughput (tok/s); \
    Peak concurrent requests; Total token throughput (tok/s)";

/// Formats the run as LMDeploy's console block.
pub fn lmdeploy_block(figures: &Figures<'_>) -> String {
    framed(&lines(LMDEPLOY_BLOCK, |label| printed(figures, label)))
}

/// Formats the run as SGLang's console block.
pub fn sglang_block(figures: &Figures<'_>) -> String {
    framed(&lines(SGLANG_BLOCK, |label| printed(figures, label)))
}

/// Formats the run as vLLM's console block.
pub fn vllm_block(figures: &Figures<'_>) -> String {
    let mut text = lines(VLLM_BLOCK, |label| match label {
        // vLLM's tool prints this count with two decimals, like a float.
        "Peak concurrent requests" => json!(printed(figures, label).as_f64()),
        _ => printed(figures, label),
    });
    for quantity in quantities(figures) {
        let (name, title) = match quantity {
            Quantity::Ttft => ("TTFT", "Time to First Token"),
            Quantity::Tpot => ("TPOT", "Time per Output Token (excl. 1st token)"),
            Quantity::Itl => ("ITL", "Inter-token Latency"),
            Quantity::E2el => ("E2EL", "End-to-end Latency"),
        };
        let fixed = format!("#{title}; Mean {name} (ms); Median {name} (ms)");
        text += &lines(&fixed, |label| printed(figures, label));
        for percentile in &figures.asked.selection.percentiles {
            let label = format!("P{percentile} {name} (ms)");
            text += &lines(&label, |label| printed(figures, label));
        }
    }
    framed(&text)
}

/// Returns the latency metrics of vLLM's report: those selected, or, of embeddings, E2E alone.
fn quantities<'a>(figures: &Figures<'a>) -> &'a [Quantity] {
    if figures.has_output() { &figures.asked.selection.quantities } else { &[Quantity::E2el] }
}

/// Returns the value that a console block prints under `label`; null for a line that is left out.
fn printed(figures: &Figures<'_>, label: &str) -> Value {
    match label {
        "Backend" => json!(figures.asked.backend.as_deref().unwrap_or("unknown")),
        "Traffic request rate" => json!(figures.request_rate_word()),
        "Request rate configured (RPS)" => json!(figures.request_rate()),
        "Max request concurrency" => match figures.max_concurrency() {
            Some(cap) => json!(cap),
            None => json!("not set"),
        },
        "Total input text tokens" => figures.value("total_input_text_tokens"),
        "Input throughput (inputs/s)" => figures.value("input_sequence_throughput"),
        // vLLM's tool computes none for embeddings.
        "Request goodput (req/s)" => json!(figures.goodput().filter(|_| figures.has_output())),
        "Peak concurrent requests" => figures.value("max_concurrent_requests"),
        // Labels are read and written by the same table.
        _ => reports::name_of_label(label).map_or(Value::Null, |(name, _)| figures.value(&name)),
    }
}

/// Formats the lines of a console block with the given `labels`: words and counts as they are,
/// floats with two decimals. A label without a value gets no line.
fn lines(labels: &str, value: impl Fn(&str) -> Value) -> String {
    let line = |label: &str| {
        if let Some(title) = label.strip_prefix('#') {
            return format!("{title:-^50}\n");
        }
        let shown = match value(label) {
            Value::Null => return String::new(),
            Value::String(word) => word,
            Value::Number(figure) if figure.is_f64() => {
                format!("{:.2}", figure.as_f64().unwrap_or_default())
            }
            other => other.to_string(),
        };
        format!("{:<40} {shown}\n", format!("{label}:"))
    };
    labels.split("; ").map(line).collect()
}

fn framed(lines: &str) -> String {
    format!("{:=^50}\n{lines}{}\n", " Serving Benchmark Result ", "=".repeat(50))
}

/// Columns of LMDeploy's CSV result file, separated by spaces.
const LMDEPLOY_COLUMNS: &str = "backend dataset_name sharegpt_output_len random_input_len \
    random_output_len random_range_ratio request_rate completed total_input_tokens \
    total_output_tokens duration request_throughput input_throughput output_throughput \
    mean_e2e_latency_ms mean_ttft_ms mean_tpot_ms mean_itl_ms";

/// Formats the run as LMDeploy's CSV result file in the dialect of Python's `csv`: the header and
/// one row.
pub fn lmdeploy_csv(figures: &Figures<'_>) -> String {
    let names: Vec<&str> = LMDEPLOY_COLUMNS.split(' ').collect();
    let cell = |name: &&str| match figures.value(name) {
        Value::Null => String::new(),
        Value::String(text) if text.contains([',', '"', '\r', '\n']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        Value::String(text) => text,
        Value::Number(figure) if figure.is_f64() => {
            python_float(figure.as_f64().unwrap_or_default())
        }
        other => other.to_string(),
    };
    let cells: Vec<String> = names.iter().map(cell).collect();
    // Python's `csv` ends rows with carriage return and line feed.
    format!("{}\r\n{}\r\n", names.join(","), cells.join(","))
}

/// Keys of SGLang's result line before the latencies, separated by spaces; `SGLANG_TAIL` has those
/// after the latencies.
const SGLANG_HEAD: &str = "tag backend protocol dataset_name request_rate max_concurrency \
    sharegpt_output_len random_input_len random_output_len random_range_ratio server_info duration \
    completed total_input_tokens total_input_text_tokens total_input_vision_tokens \
    total_output_tokens total_output_tokens_retokenized request_throughput input_throughput \
    output_throughput total_throughput";
const SGLANG_TAIL: &str =
    "concurrency accept_length max_output_tokens_per_s max_concurrent_requests";
/// Keys of vLLM's result file before the user's additional entries, separated by spaces;
/// `VLLM_RATE`, `VLLM_RAMP` (only with a ramp-up) and `VLLM_TAIL` have those after the entries.
const VLLM_HEAD: &str = "date endpoint_type backend label model_id tokenizer_id num_prompts";
const VLLM_RATE: &str = "request_rate burstiness max_concurrency";
const VLLM_RAMP: &str = "ramp_up_strategy ramp_up_start_rps ramp_up_end_rps";
const VLLM_TAIL: &str = "duration completed failed total_input_tokens total_output_tokens \
    request_throughput request_goodput output_throughput total_token_throughput";
/// Keys of vLLM's result file for embeddings, in place of those of `VLLM_TAIL` and `VLLM_PEAKS`.
const VLLM_EMBEDDINGS: &str = "duration completed total_input_tokens total_input_sequences \
    request_throughput input_sequence_throughput total_token_throughput";
/// Lists of vLLM's result file, one value for each request; those of `VLLM_LISTS` are left out
/// without `--save-detailed`, as in vLLM's tool.
const VLLM_LISTS: &str = "input_lens output_lens ttfts itls start_times generated_texts errors";
const VLLM_EMBEDDINGS_LISTS: &str = "input_lens errors";
const VLLM_LISTS_KEPT: &str = "latencies queue_times";
/// Keys of vLLM's result file between its lists and its latencies.
const VLLM_PEAKS: &str = "max_output_tokens_per_s max_concurrent_requests rtfx";

/// Builds SGLang's result of the run as one JSON object; `detailed` adds lists of the figures of
/// the given requests.
pub fn sglang_json(figures: &Figures<'_>, detailed: bool) -> Value {
    let mut object = Map::new();
    put(&mut object, figures, SGLANG_HEAD);
    for quantity in ["e2e_latency", "ttft", "tpot", "itl"] {
        for statistic in ["mean", "median", "std", "p90", "p95", "p99"] {
            put(&mut object, figures, &format!("{statistic}_{quantity}_ms"));
        }
    }
    put(&mut object, figures, SGLANG_TAIL);
    if detailed {
        let names = "input_lens output_lens ttfts itls generated_texts errors";
        put_lists(&mut object, figures.requests, names);
    }
    Value::Object(object)
}

/// Builds vLLM's result of the run as one JSON object; `detailed` adds lists of the figures of all
/// requests.
pub fn vllm_json(figures: &Figures<'_>, detailed: bool) -> Value {
    let mut object = Map::new();
    put(&mut object, figures, VLLM_HEAD);
    let metadata = figures.asked.metadata.iter();
    object.extend(metadata.map(|(key, value)| (key.clone(), json!(value))));
    put(&mut object, figures, VLLM_RATE);
    if figures.ramp_up().is_some() {
        put(&mut object, figures, VLLM_RAMP);
    }
    let has_output = figures.has_output();
    let (tail, lists) = match has_output {
        true => (VLLM_TAIL, VLLM_LISTS),
        false => (VLLM_EMBEDDINGS, VLLM_EMBEDDINGS_LISTS),
    };
    put(&mut object, figures, tail);
    if detailed {
        put_lists(&mut object, figures.requests, lists);
    }
    put_lists(&mut object, figures.requests, VLLM_LISTS_KEPT);
    if has_output {
        put(&mut object, figures, VLLM_PEAKS);
    }
    for quantity in quantities(figures) {
        let name = name_of(*quantity);
        put(&mut object, figures, &format!("mean_{name}_ms median_{name}_ms std_{name}_ms"));
        for percentile in &figures.asked.selection.percentiles {
            put(&mut object, figures, &format!("p{percentile}_{name}_ms"));
        }
    }
    Value::Object(object)
}

fn put(object: &mut Map<String, Value>, figures: &Figures<'_>, names: &str) {
    object.extend(names.split(' ').map(|name| (name.to_owned(), figures.value(name))));
}

/// Adds to a result the lists `names`, with the times in seconds, the token counts, the text and the
/// error of each request. The texts are left out where the run did not keep them.
fn put_lists(object: &mut Map<String, Value>, requests: &Requests<'_>, names: &str) {
    for name in names.split(' ') {
        if name == "generated_texts" && requests.answered().any(|request| request.text.is_none()) {
            continue;
        }
        let each = requests.0.iter().map(|request| match name {
            "input_lens" => json!(request.input_tokens),
            // The tools count no output of a failed request.
            "output_lens" if !request.answered => json!(0),
            "output_lens" => json!(request.output_tokens),
            "ttfts" => json!(request.ttft_s),
            "itls" => json!(request.gaps_s),
            "start_times" => json!(request.start_s),
            "latencies" => json!(request.e2e_s),
            "queue_times" => json!(request.queue_s),
            "generated_texts" => json!(request.text.unwrap_or_default()),
            _ => json!(request.error.1),
        });
        object.insert(name.to_owned(), each.collect());
    }
}
