//! Reader of reports that nest figures in objects of statistics: guidellm, AIPerf and llm-d.

use serde_json::{Map, Value};

use super::figures::Figures;
use super::served::Served;
use super::tool::Tool;
use super::workload::StatedWorkload;
use super::{Found, Unread};

/// Reads the results in `object`; `None` where it is a report of none of these tools.
pub fn read(object: &Map<String, Value>, lines: (u64, u64)) -> Option<Vec<Result<Found, Unread>>> {
    let results = if let Some(benchmarks) = object.get("benchmarks").and_then(Value::as_array) {
        benchmarks.iter().map(guidellm).map(|read| (Tool::Guidellm, read)).collect()
    } else if object.contains_key("request_latency") && object.contains_key("request_count") {
        vec![(Tool::Aiperf, aiperf(object))]
    } else {
        let report = object.get("results")?.get("request_performance")?.get("aggregate")?;
        vec![(Tool::LlmD, llm_d(object, report))]
    };
    Some(results.into_iter().map(|(tool, read)| found(tool, read, lines)).collect())
}

pub(super) fn found(
    tool: Tool,
    read: Result<Figures, String>,
    lines: (u64, u64),
) -> Result<Found, Unread> {
    let complete = read.and_then(|figures| figures.complete().map(|()| figures));
    let figures = complete.map_err(|why| Unread { line: lines.0, why })?;
    Ok(Found {
        tool,
        backend: None,
        figures,
        asked: StatedWorkload::default(),
        served: Served::default(),
        lines,
    })
}

/// Adds the number at the JSON pointer `pointer`, times `scale`, as `name`, if the report has one.
pub(super) fn take(
    figures: &mut Figures,
    name: &str,
    scale: f64,
    report: &Value,
    pointer: &str,
) -> Result<(), String> {
    let Some(value) = report.pointer(pointer).and_then(Value::as_f64) else { return Ok(()) };
    figures.take(name, value * scale).map_err(|why| format!("`{pointer}`: {why}"))
}

/// Names of statistics: our name and the tool's JSON pointer.
type Statistics = [(&'static str, &'static str)];

/// Adds the statistics of one latency; times are in milliseconds after multiplication by `scale`.
pub(super) fn statistics(
    figures: &mut Figures,
    quantity: &str,
    scale: f64,
    report: Option<&Value>,
    names: &Statistics,
) -> Result<(), String> {
    let Some(report) = report else { return Ok(()) };
    names.iter().try_for_each(|(ours, theirs)| {
        take(figures, &format!("{ours}_{quantity}_ms"), scale, report, theirs)
    })
}

const OF_GUIDELLM: &Statistics = &[
    ("mean", "/mean"),
    ("std", "/std_dev"),
    ("p50", "/percentiles/p50"),
    ("p95", "/percentiles/p95"),
    ("p99", "/percentiles/p99"),
    ("max", "/max"),
];

/// Reads one benchmark of guidellm. Its "time per output token" is E2E divided by all tokens, so
/// it is not read as TPOT.
fn guidellm(report: &Value) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let of = |name: &str| report.pointer(&format!("/metrics/{name}/successful"));
    take(&mut figures, "completed", 1.0, report, "/metrics/request_totals/successful")?;
    take(&mut figures, "failed", 1.0, report, "/metrics/request_totals/errored")?;
    take(&mut figures, "duration", 1.0, report, "/duration")?;
    for (name, counts) in [
        ("total_input_tokens", "prompt_token_count"),
        ("total_output_tokens", "output_token_count"),
    ] {
        let sum = of(counts).and_then(|counts| counts["total_sum"].as_f64());
        // A mean times a count is rounded, because the true sum is a whole number.
        sum.map_or(Ok(()), |sum| figures.take(name, sum.round()))?;
    }
    let names = OF_GUIDELLM;
    statistics(&mut figures, "e2e_latency", 1e3, of("request_latency"), names)?;
    statistics(&mut figures, "ttft", 1.0, of("time_to_first_token_ms"), names)?;
    statistics(&mut figures, "itl", 1.0, of("inter_token_latency_ms"), names)?;
    Ok(figures)
}

const OF_AIPERF: &Statistics = &[
    ("mean", "/avg"),
    ("std", "/std"),
    ("p50", "/p50"),
    ("p95", "/p95"),
    ("p99", "/p99"),
    ("max", "/max"),
];

fn aiperf(object: &Map<String, Value>) -> Result<Figures, String> {
    let mut figures = Figures::default();
    for (name, theirs) in [
        ("completed", "request_count"),
        ("failed", "error_request_count"),
        ("duration", "benchmark_duration"),
        ("total_input_tokens", "total_isl"),
        ("total_output_tokens", "total_osl"),
        ("request_throughput", "request_throughput"),
        ("output_throughput", "output_token_throughput"),
    ] {
        let value = object.get(theirs).and_then(|figure| figure["avg"].as_f64());
        let taken = value.map_or(Ok(()), |value| figures.take(name, value));
        taken.map_err(|why| format!("`{theirs}`: {why}"))?;
    }
    let names = OF_AIPERF;
    statistics(&mut figures, "e2e_latency", 1.0, object.get("request_latency"), names)?;
    statistics(&mut figures, "ttft", 1.0, object.get("time_to_first_token"), names)?;
    // AIPerf's inter-token latency is one mean per request, which is TPOT.
    statistics(&mut figures, "tpot", 1.0, object.get("inter_token_latency"), names)?;
    statistics(&mut figures, "itl", 1.0, object.get("inter_chunk_latency"), names)?;
    Ok(figures)
}

const OF_LLM_D: &Statistics = &[
    ("mean", "/mean"),
    ("std", "/stddev"),
    ("p50", "/p50"),
    ("p95", "/p95"),
    ("p99", "/p99"),
    ("max", "/max"),
];

fn llm_d(object: &Map<String, Value>, report: &Value) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let requests = &report["requests"];
    let failed = requests["failures"].as_f64().unwrap_or(0.0);
    let completed = requests["total"].as_f64().ok_or("a report without `requests.total`")? - failed;
    figures.take("completed", completed)?;
    figures.take("failed", failed)?;
    let run = object.get("run").unwrap_or(&Value::Null);
    if let Some(seconds) = run.pointer("/time/duration").and_then(Value::as_str) {
        figures.take("duration", duration(seconds)?)?;
    }
    for (name, length) in
        [("total_input_tokens", "input_length"), ("total_output_tokens", "output_length")]
    {
        let mean = requests[length]["mean"].as_f64();
        mean.map_or(Ok(()), |mean| figures.take(name, (mean * completed).round()))?;
    }
    let throughput = &report["throughput"];
    take(&mut figures, "request_throughput", 1.0, throughput, "/request_rate/mean")?;
    take(&mut figures, "output_throughput", 1.0, throughput, "/output_token_rate/mean")?;
    for (name, theirs) in [
        ("e2e_latency", "request_latency"),
        ("ttft", "time_to_first_token"),
        ("tpot", "time_per_output_token"),
        ("itl", "inter_token_latency"),
    ] {
        let all = report["latency"].get(theirs).filter(|all| all.is_object());
        let scale = all.map_or(Ok(1.0), |all| scale_to_ms(theirs, &all["units"]))?;
        statistics(&mut figures, name, scale, all, OF_LLM_D)?;
    }
    Ok(figures)
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
