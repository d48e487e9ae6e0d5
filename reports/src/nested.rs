//! Reader of reports that nest figures in JSON objects: guidellm, AIPerf, llm-d, inference-perf,
//! inference-benchmarker, trtllm-bench and MLCommons' endpoints. A table states the JSON pointers
//! of each tool's figures.

use schema::run::{Printed, PrintedRow};
use serde_json::Value;

use super::figures::Figures;
use super::redact::public;
use super::served::Served;
use super::tool::Tool;
use super::workload::StatedWorkload;
use super::{Found, Unread};

/// Layout of one tool's reports: JSON pointers by which they are recognized and read.
struct Layout {
    tool: Tool,
    /// JSON pointers that must all exist in a report for it to be recognized as the tool's.
    marks: &'static [&'static str],
    /// JSON pointer to the result in the report, or to a list of results that are read one by one.
    /// The pointers of figures, totals and latencies begin at a result.
    results: &'static str,
    /// Figures, each with its name in [`Figures`], the factor to that name's unit, and its JSON
    /// pointer in a result.
    figures: &'static [(&'static str, f64, &'static str)],
    /// Total numbers of tokens, each with its name and the JSON pointers of the numbers whose
    /// product it is. They are rounded, because a mean times a count is inexact, and the true total
    /// is a whole number.
    totals: &'static [(&'static str, &'static [&'static str])],
    /// Latencies, each with its quantity such as `ttft`, the factor to milliseconds (`None` where
    /// the report states the unit), and its JSON pointer in a result.
    latencies: &'static [(&'static str, Option<f64>, &'static str)],
    /// Statistics of a latency, each with its name such as `p50`, and its JSON pointer, which begins
    /// at the latency.
    statistics: &'static [(&'static str, &'static str)],
    /// Function that adds the figures that no single pointer gives, from the whole report and one
    /// result in it.
    derived: fn(&Value, &Value, &mut Figures) -> Result<(), String>,
    /// Function that reads from the whole report which server was measured.
    served: fn(&Value) -> Served,
}

const EMPTY: Layout = Layout {
    tool: Tool::Vllm,
    marks: &[],
    results: "",
    figures: &[],
    totals: &[],
    latencies: &[],
    statistics: &[],
    derived: |_, _, _| Ok(()),
    served: |_| Served::default(),
};

const LAYOUTS: [Layout; 7] = [
    Layout {
        tool: Tool::Guidellm,
        marks: &["/benchmarks"],
        results: "/benchmarks",
        figures: &[
            ("completed", 1.0, "/metrics/request_totals/successful"),
            ("failed", 1.0, "/metrics/request_totals/errored"),
            ("duration", 1.0, "/duration"),
        ],
        totals: &[
            ("total_input_tokens", &["/metrics/prompt_token_count/successful/total_sum"]),
            ("total_output_tokens", &["/metrics/output_token_count/successful/total_sum"]),
        ],
        // Its "time per output token" is E2E divided by all tokens, so it is not read as TPOT.
        latencies: &[
            ("e2e_latency", Some(1e3), "/metrics/request_latency/successful"),
            ("ttft", Some(1.0), "/metrics/time_to_first_token_ms/successful"),
            ("itl", Some(1.0), "/metrics/inter_token_latency_ms/successful"),
        ],
        statistics: &[
            ("mean", "/mean"),
            ("std", "/std_dev"),
            ("p50", "/percentiles/p50"),
            ("p95", "/percentiles/p95"),
            ("p99", "/percentiles/p99"),
            ("max", "/max"),
        ],
        served: guidellm_served,
        ..EMPTY
    },
    Layout {
        tool: Tool::Aiperf,
        marks: &["/request_latency", "/request_count"],
        figures: &[
            ("completed", 1.0, "/request_count/avg"),
            ("failed", 1.0, "/error_request_count/avg"),
            ("duration", 1.0, "/benchmark_duration/avg"),
            ("total_input_tokens", 1.0, "/total_isl/avg"),
            ("total_output_tokens", 1.0, "/total_osl/avg"),
            ("request_throughput", 1.0, "/request_throughput/avg"),
            ("output_throughput", 1.0, "/output_token_throughput/avg"),
        ],
        latencies: &[
            ("e2e_latency", Some(1.0), "/request_latency"),
            ("ttft", Some(1.0), "/time_to_first_token"),
            // AIPerf's inter-token latency is one mean per request, which is TPOT.
            ("tpot", Some(1.0), "/inter_token_latency"),
            ("itl", Some(1.0), "/inter_chunk_latency"),
        ],
        statistics: &[
            ("mean", "/avg"),
            ("std", "/std"),
            ("p50", "/p50"),
            ("p95", "/p95"),
            ("p99", "/p99"),
            ("max", "/max"),
        ],
        served: aiperf_served,
        ..EMPTY
    },
    Layout {
        tool: Tool::LlmD,
        marks: &["/results/request_performance/aggregate"],
        results: "/results/request_performance/aggregate",
        figures: &[
            ("request_throughput", 1.0, "/throughput/request_rate/mean"),
            ("output_throughput", 1.0, "/throughput/output_token_rate/mean"),
        ],
        latencies: &[
            ("e2e_latency", None, "/latency/request_latency"),
            ("ttft", None, "/latency/time_to_first_token"),
            ("tpot", None, "/latency/time_per_output_token"),
            ("itl", None, "/latency/inter_token_latency"),
        ],
        statistics: &[
            ("mean", "/mean"),
            ("std", "/stddev"),
            ("p50", "/p50"),
            ("p95", "/p95"),
            ("p99", "/p99"),
            ("max", "/max"),
        ],
        derived: llm_d,
        ..EMPTY
    },
    Layout {
        tool: Tool::InferencePerf,
        marks: &["/successes/latency/request_latency"],
        figures: &[
            ("completed", 1.0, "/successes/count"),
            ("failed", 1.0, "/failures/count"),
            ("total_input_tokens", 1.0, "/successes/prompt_tokens/total"),
            ("request_throughput", 1.0, "/successes/throughput/requests_per_sec"),
            ("input_throughput", 1.0, "/successes/throughput/input_tokens_per_sec"),
            ("output_throughput", 1.0, "/successes/throughput/output_tokens_per_sec"),
        ],
        // Its inter-token latency counts gaps between tokens, which are zero within a chunk.
        latencies: &[
            ("e2e_latency", Some(1e3), "/successes/latency/request_latency"),
            ("ttft", Some(1e3), "/successes/latency/time_to_first_token"),
            ("tpot", Some(1e3), "/successes/latency/time_per_output_token"),
            ("itl", Some(1e3), "/successes/latency/inter_token_latency"),
        ],
        statistics: &[
            ("mean", "/mean"),
            ("p50", "/median"),
            ("p90", "/p90"),
            ("p95", "/p95"),
            ("p99", "/p99"),
            ("max", "/max"),
        ],
        derived: inference_perf,
        ..EMPTY
    },
    Layout {
        tool: Tool::InferenceBenchmarker,
        marks: &["/results/0/inter_token_latency_ms"],
        results: "/results",
        figures: &[
            ("completed", 1.0, "/successful_requests"),
            ("failed", 1.0, "/failed_requests"),
            ("duration", 1e-3, "/duration_ms"),
            ("total_input_tokens", 1.0, "/total_tokens_sent"),
            ("total_output_tokens", 1.0, "/total_tokens"),
            ("request_throughput", 1.0, "/request_rate"),
            ("output_throughput", 1.0, "/token_throughput_secs"),
        ],
        latencies: &[
            ("e2e_latency", Some(1.0), "/e2e_latency_ms"),
            ("ttft", Some(1.0), "/time_to_first_token_ms"),
            // Its inter-token latency is one mean per request, which is TPOT.
            ("tpot", Some(1.0), "/inter_token_latency_ms"),
        ],
        statistics: &[
            ("mean", "/avg"),
            ("p50", "/p50"),
            ("p90", "/p90"),
            ("p95", "/p95"),
            ("p99", "/p99"),
        ],
        ..EMPTY
    },
    // It calls the engine without a server and does not count failed requests.
    Layout {
        tool: Tool::TrtllmBench,
        marks: &["/performance/system_output_throughput_tok_s"],
        figures: &[
            ("completed", 1.0, "/request_info/num_requests"),
            ("duration", 1e-3, "/performance/total_latency_ms"),
            ("request_throughput", 1.0, "/performance/request_throughput_req_s"),
            ("output_throughput", 1.0, "/performance/system_output_throughput_tok_s"),
            ("total_throughput", 1.0, "/performance/system_total_throughput_tok_s"),
            ("concurrency", 1.0, "/request_info/avg_num_concurrent_requests"),
        ],
        totals: &[
            (
                "total_input_tokens",
                &["/request_info/avg_input_length", "/request_info/num_requests"],
            ),
            (
                "total_output_tokens",
                &["/request_info/avg_output_length", "/request_info/num_requests"],
            ),
        ],
        latencies: &[
            ("e2e_latency", Some(1.0), "/performance/request_latency_percentiles_ms"),
            ("ttft", Some(1.0), "/streaming_metrics/ttft_percentiles"),
            ("tpot", Some(1.0), "/streaming_metrics/tpot_percentiles"),
        ],
        statistics: &[
            ("mean", "/average"),
            ("p50", "/p50"),
            ("p90", "/p90"),
            ("p95", "/p95"),
            ("p99", "/p99"),
            ("max", "/maximum"),
        ],
        served: trtllm_served,
        ..EMPTY
    },
    Layout {
        tool: Tool::Endpoints,
        marks: &["/n_samples_completed", "/duration_ns"],
        figures: &[
            ("completed", 1.0, "/n_samples_completed"),
            ("failed", 1.0, "/n_samples_failed"),
            ("duration", 1e-9, "/duration_ns"),
            ("total_output_tokens", 1.0, "/output_sequence_lengths/total"),
        ],
        latencies: &[
            ("e2e_latency", Some(1e-6), "/latency"),
            ("ttft", Some(1e-6), "/ttft"),
            ("tpot", Some(1e-6), "/tpot"),
        ],
        // Reports write percentiles with or without a fraction.
        statistics: &[
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
        ],
        derived: endpoints,
        ..EMPTY
    },
];

/// Reads the results in `report`; returns `None` if it is not a report of one of the tools with
/// nested figures.
pub fn read(report: &Value, lines: (u64, u64)) -> Option<Vec<Result<Found, Unread>>> {
    LAYOUTS.iter().find_map(|layout| {
        let has = |mark: &&str| report.pointer(mark).is_some();
        if !layout.marks.iter().all(has) {
            return None;
        }
        let results = report.pointer(layout.results)?;
        let results = results.as_array().map_or(std::slice::from_ref(results), Vec::as_slice);
        Some(results.iter().map(|result| layout.found(report, result, lines)).collect())
    })
}

impl Layout {
    fn found(&self, report: &Value, result: &Value, lines: (u64, u64)) -> Result<Found, Unread> {
        let read = self.figures(report, result);
        let complete = read.and_then(|figures| figures.complete().map(|()| figures));
        let figures = complete.map_err(|why| Unread { line: lines.0, why })?;
        Ok(Found {
            tool: self.tool,
            backend: None,
            figures,
            asked: StatedWorkload::default(),
            served: (self.served)(report),
            printed: Printed { rows: self.rows(result), ..Printed::default() },
            lines,
        })
    }

    /// Returns the JSON pointers that are read, with the numbers of a result at them.
    fn rows(&self, result: &Value) -> Vec<PrintedRow> {
        let row = |section: Option<&str>, pointer: &str, at: &Value| {
            let number = at.pointer(pointer)?.as_number()?;
            let section = section.map(str::to_owned);
            Some(PrintedRow { section, label: pointer.to_owned(), text: number.to_string() })
        };
        let totals = self.totals.iter().flat_map(|(_, pointers)| pointers.iter());
        let plain = self.figures.iter().map(|(.., pointer)| pointer).chain(totals);
        let mut rows: Vec<PrintedRow> =
            plain.filter_map(|pointer| row(None, pointer, result)).collect();
        for (_, _, latency) in self.latencies {
            let Some(of) = result.pointer(latency) else { continue };
            let statistics = self.statistics.iter().map(|(_, pointer)| pointer);
            rows.extend(statistics.filter_map(|pointer| row(Some(latency), pointer, of)));
        }
        rows
    }

    fn figures(&self, report: &Value, result: &Value) -> Result<Figures, String> {
        let mut figures = Figures::default();
        for (name, scale, pointer) in self.figures {
            take(&mut figures, name, *scale, result, pointer)?;
        }
        for (name, pointers) in self.totals {
            let factors = pointers.iter().map(|pointer| number(result, pointer));
            // The product is `None` if a factor is missing: the total is unknown, and not zero.
            let total = factors.product::<Option<f64>>();
            total.map_or(Ok(()), |total| figures.take(name, total.round()))?;
        }
        (self.derived)(report, result, &mut figures)?;
        for (quantity, scale, pointer) in self.latencies {
            let Some(of) = result.pointer(pointer).filter(|of| of.is_object()) else { continue };
            let scale = scale.map_or_else(|| scale_to_ms(pointer, &of["units"]), Ok)?;
            for (name, theirs) in self.statistics {
                take(&mut figures, &format!("{name}_{quantity}_ms"), scale, of, theirs)?;
            }
        }
        Ok(figures)
    }
}

/// Adds to `figures` the number at the JSON pointer `pointer`, times `scale`, as `name`, if the
/// report has one.
fn take(
    figures: &mut Figures,
    name: &str,
    scale: f64,
    report: &Value,
    pointer: &str,
) -> Result<(), String> {
    let Some(value) = number(report, pointer) else { return Ok(()) };
    figures.take(name, value * scale).map_err(|why| format!("`{pointer}`: {why}"))
}

fn number(report: &Value, pointer: &str) -> Option<f64> {
    report.pointer(pointer).and_then(Value::as_f64)
}

fn llm_d(report: &Value, result: &Value, figures: &mut Figures) -> Result<(), String> {
    let requests = &result["requests"];
    let failed = requests["failures"].as_f64().unwrap_or(0.0);
    let completed = requests["total"].as_f64().ok_or("a report without `requests.total`")? - failed;
    figures.take("completed", completed)?;
    figures.take("failed", failed)?;
    if let Some(seconds) = report.pointer("/run/time/duration").and_then(Value::as_str) {
        figures.take("duration", duration(seconds)?)?;
    }
    for (name, length) in
        [("total_input_tokens", "input_length"), ("total_output_tokens", "output_length")]
    {
        let mean = requests[length]["mean"].as_f64();
        mean.map_or(Ok(()), |mean| figures.take(name, (mean * completed).round()))?;
    }
    Ok(())
}

fn scale_to_ms(name: &str, units: &Value) -> Result<f64, String> {
    match units.as_str() {
        Some("s" | "s/token") => Ok(1e3),
        Some("ms" | "ms/token") => Ok(1.0),
        _ => Err(format!("`{name}` is in {units}, which is neither s nor ms")),
    }
}

/// Parses an ISO 8601 duration without days, such as `PT49.9S`, into seconds.
fn duration(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a duration such as `PT49.9S`");
    let mut rest = text.strip_prefix("PT").ok_or_else(wrong)?;
    let mut seconds = 0.0;
    for (unit, scale) in [('H', 3600.0), ('M', 60.0), ('S', 1.0)] {
        if let Some((value, after)) = rest.split_once(unit) {
            seconds += scale * value.parse::<f64>().map_err(|_| wrong())?;
            rest = after;
        }
    }
    if rest.is_empty() { Ok(seconds) } else { Err(wrong()) }
}

fn inference_perf(_: &Value, report: &Value, figures: &mut Figures) -> Result<(), String> {
    let count = number(report, "/successes/count");
    // A rate of zero would make the duration infinite.
    let rate = number(report, "/successes/throughput/requests_per_sec").filter(|rate| *rate > 0.0);
    // Older reports omit the duration that their rates refer to, so it follows from count and
    // rate.
    let seconds = number(report, "/benchmark_time_seconds").filter(|seconds| *seconds > 0.0);
    let seconds = seconds.or_else(|| Some(count? / rate?));
    seconds.map_or(Ok(()), |seconds| figures.take("duration", seconds))?;
    // A flag that no report records decides which of two token counts the throughput uses: the
    // nearer one is taken.
    let mean = number(report, "/successes/output_len/mean");
    let counts = [
        mean.zip(count).map(|(mean, count)| (mean * count).round()),
        number(report, "/successes/output_tokens/total"),
    ];
    let rate = number(report, "/successes/throughput/output_tokens_per_sec").unwrap_or(0.0);
    let strays = |total: &f64| (total - rate * seconds.unwrap_or(0.0)).abs();
    let tokens = counts.into_iter().flatten().min_by(|a, b| strays(a).total_cmp(&strays(b)));
    tokens.map_or(Ok(()), |tokens| figures.take("total_output_tokens", tokens))
}

/// Returns the first text at one of the JSON pointers `pointers` that a server can have as a model's
/// name.
fn model_at(report: &Value, pointers: &[&str]) -> Option<String> {
    let texts = pointers.iter().filter_map(|pointer| report.pointer(pointer)?.as_str());
    texts.map(str::trim).find(|text| !text.is_empty()).map(public)
}

/// Reads the model from guidellm's report. Its backend is the API, such as `openai_http`, and names
/// no server.
fn guidellm_served(report: &Value) -> Served {
    let model =
        model_at(report, &["/benchmarks/0/config/backend/model", "/config/spec/backend/model"]);
    Served { model, ..Served::default() }
}

/// Reads the model from AIPerf's report, whose configuration has it in one of two places by
/// version.
fn aiperf_served(report: &Value) -> Served {
    let places = ["/input_config/models/items/0/name", "/input_config/endpoint/model_names/0"];
    Served { model: model_at(report, &places), ..Served::default() }
}

fn trtllm_served(report: &Value) -> Served {
    let text = |pointer: &str| report.pointer(pointer).and_then(Value::as_str);
    let ranks = report.pointer("/world_info/tp_size").and_then(Value::as_u64);
    Served {
        engine: Some("tensorrt-llm".to_owned()),
        release: text("/engine/version").map(|version| format!("v{version}")),
        model: text("/engine/model").map(public),
        tp: ranks.and_then(|ranks| ranks.try_into().ok()),
        ..Served::default()
    }
}

/// Reads the request and token rates of MLCommons' endpoints benchmark. Rates over a window that
/// cuts off the last requests are left out, because they do not refer to the reported duration.
fn endpoints(_: &Value, report: &Value, figures: &mut Figures) -> Result<(), String> {
    if number(report, "/legacy_loadgen_window_duration_ns").is_some() {
        return Ok(());
    }
    take(figures, "request_throughput", 1.0, report, "/qps")?;
    take(figures, "output_throughput", 1.0, report, "/tps")
}
