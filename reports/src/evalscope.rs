//! Reader of the files that `evalscope perf` writes for a run: `benchmark_summary.json`, and beside
//! it in the same text `benchmark_percentile.json` and `benchmark_args.json`.
//!
//! Names, units and missing values are those of evalscope 1.14.1: `perf/utils/perf_constants.py`,
//! `perf/utils/benchmark_util.py` and `perf/utils/db_util.py`.

use std::collections::BTreeSet;

use schema::run::{Printed, PrintedRow};
use serde_json::Value;

use super::documents::Document;
use super::figures::Figures;
use super::redact::public;
use super::result_file::rows;
use super::served::Served;
use super::tool::Tool;
use super::workload::StatedWorkload;
use super::{Found, Unread};

/// Keys by which a text may be evalscope's: it has at least one of them.
pub const MARKS: &[&str] = &[DURATION, PERCENTILE];
const DURATION: &str = "Test Duration (s)";
const COMPLETED: &str = "Success Requests";
const PERCENTILE: &str = "Percentiles";
const OUTPUT_TOKENS_MEAN: &str = "Avg Output Tokens";

/// Figures of a summary about the run, each with its name in [`Figures`] and its key.
const RUN: &[(&str, &str)] = &[
    ("duration", DURATION),
    ("completed", COMPLETED),
    ("failed", "Failed Requests"),
    ("request_throughput", "Req Throughput (req/s)"),
    ("output_throughput", "Output Throughput (tok/s)"),
    ("total_throughput", "Total Throughput (tok/s)"),
];

/// Total numbers of tokens, each with its name and the key of the mean per successful request. Means
/// have four decimals, so a total is exact below 10,000 requests.
const TOTALS: &[(&str, &str)] =
    &[("total_input_tokens", "Avg Input Tokens"), ("total_output_tokens", OUTPUT_TOKENS_MEAN)];

/// Latencies, each with its quantity, the factor to milliseconds, the key of its mean in a summary
/// and its key in a row of percentiles. An inter-token latency is the gap between two chunks.
const LATENCIES: &[(&str, f64, &str, &str)] = &[
    ("e2e_latency", 1e3, "Avg Latency (s)", "Latency (s)"),
    ("ttft", 1.0, "Avg TTFT (ms)", "TTFT (ms)"),
    ("tpot", 1.0, "Avg TPOT (ms)", "TPOT (ms)"),
    ("itl", 1.0, "Avg ITL (ms)", "ITL (ms)"),
];

/// Rows of percentiles that records have a figure for, each with the figure's statistic.
const STATISTICS: &[(&str, &str)] =
    &[("50%", "p50"), ("90%", "p90"), ("95%", "p95"), ("99%", "p99"), ("max", "max")];

/// Part of a run's report, by the file that it is from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Summary,
    Percentile,
    Settings,
}

/// Files of one run, in the order of the text.
#[derive(Default)]
struct Run<'a> {
    summary: Option<&'a Document>,
    percentiles: Vec<&'a Value>,
    /// Labels of the percentiles, such as `99%`.
    labels: BTreeSet<&'a str>,
    settings: Option<&'a Value>,
    lines: Option<(u64, u64)>,
}

/// True for a summary or a row of percentiles, by which a text is recognized as evalscope's.
pub fn is_part(document: &Document) -> bool {
    part(&document.object).is_some_and(|part| part != Part::Settings)
}

fn part(object: &Value) -> Option<Part> {
    let has = |key: &str| object.get(key).is_some();
    if has(DURATION) && has(COMPLETED) {
        Some(Part::Summary)
    } else if object.get(PERCENTILE).is_some_and(Value::is_string) {
        Some(Part::Percentile)
    } else {
        ["model_id", "api", "parallel", "number"]
            .iter()
            .all(|key| has(key))
            .then_some(Part::Settings)
    }
}

/// Reads every run of a text: a summary with the percentiles and settings before or after it. A
/// part that a run has already begins the next run.
pub fn read(documents: Vec<Result<Document, Unread>>) -> Vec<Result<Found, Unread>> {
    let mut results = Vec::new();
    let mut known = Vec::new();
    for document in documents {
        match document {
            Ok(document) if part(&document.object).is_some() => known.push(document),
            Ok(document) => {
                results.push(Err(document.unread("part of a report of `evalscope perf`")));
            }
            Err(unread) => results.push(Err(unread)),
        }
    }
    let mut run = Run::default();
    for document in &known {
        if run.has_part_of(document) {
            results.push(std::mem::take(&mut run).found());
        }
        run.add(document);
    }
    if run.lines.is_some() {
        results.push(run.found());
    }
    results
}

impl<'a> Run<'a> {
    fn has_part_of(&self, document: &Document) -> bool {
        match part(&document.object) {
            Some(Part::Summary) => self.summary.is_some(),
            Some(Part::Settings) => self.settings.is_some(),
            Some(Part::Percentile) => self.labels.contains(label(&document.object)),
            None => false,
        }
    }

    fn add(&mut self, document: &'a Document) {
        let (first, _) = self.lines.unwrap_or(document.lines);
        self.lines = Some((first, document.lines.1));
        match part(&document.object) {
            Some(Part::Summary) => self.summary = Some(document),
            Some(Part::Settings) => self.settings = Some(&document.object),
            Some(Part::Percentile) => {
                self.labels.insert(label(&document.object));
                self.percentiles.push(&document.object);
            }
            None => {}
        }
    }

    fn found(&self) -> Result<Found, Unread> {
        let lines = self.lines.unwrap_or((1, 1));
        let Some(Document { object: summary, lines: (line, _) }) = self.summary else {
            let why = "percentiles or settings of `evalscope perf` without its \
                       `benchmark_summary.json`";
            return Err(Unread { line: lines.0, why: why.to_owned() });
        };
        let figures = figures(summary, &self.percentiles);
        let complete = figures.and_then(|figures| figures.complete().map(|()| figures));
        let figures = complete.map_err(|why| Unread { line: *line, why })?;
        let settings = self.settings.unwrap_or(&Value::Null);
        Ok(Found {
            tool: Tool::Evalscope,
            backend: None,
            figures,
            asked: workload(summary, settings),
            served: Served::default(),
            printed: self.printed(summary, settings),
            lines,
        })
    }

    fn printed(&self, summary: &Value, settings: &Value) -> Printed {
        let of = |section: &str, object: &Value| -> Vec<PrintedRow> {
            let section = Some(section.to_owned());
            rows(object)
                .into_iter()
                .map(|row| PrintedRow { section: section.clone(), ..row })
                .collect()
        };
        let percentiles = self.percentiles.iter().flat_map(|row| {
            let mut printed = of(label(row), row);
            printed.retain(|row| row.label != PERCENTILE);
            printed
        });
        // Other objects in the settings, such as HTTP headers, may have secrets.
        let open = ["dataset_args", "extra_args"];
        let nested = open.iter().flat_map(|name| of(name, &settings[*name]));
        Printed {
            settings: rows(settings).into_iter().chain(nested).collect(),
            rows: rows(summary).into_iter().chain(percentiles).collect(),
            ..Printed::default()
        }
    }
}

fn label(percentile: &Value) -> &str {
    percentile[PERCENTILE].as_str().unwrap_or_default()
}

fn figures(summary: &Value, percentiles: &[&Value]) -> Result<Figures, String> {
    let mut figures = Figures::default();
    let of = |key: &str| summary.get(key).and_then(Value::as_f64);
    let completed = of(COMPLETED);
    // Summaries of embeddings and reranking have zeros for what they do not measure.
    if completed > Some(0.0)
        && of(OUTPUT_TOKENS_MEAN).unwrap_or(0.0) == 0.0
        && of("Input Throughput (tok/s)") > Some(0.0)
    {
        return Err("a result of an API that generates no tokens".to_owned());
    }
    for (name, key) in RUN {
        // A rate is -1 where no time passed.
        if of(key) != Some(-1.0) {
            figures.take_key(name, 1.0, summary, key)?;
        }
    }
    for (name, key) in TOTALS {
        // A mean over no request is -1, and the total of no request is 0.
        let total = of(key).zip(completed).map(|(mean, count)| (mean * count).round());
        let total = if completed == Some(0.0) { Some(0.0) } else { total };
        let taken = total.map_or(Ok(()), |total| figures.take(name, total));
        taken.map_err(|why| format!("`{key}`: {why}"))?;
    }
    for (quantity, scale, mean, row_key) in LATENCIES {
        if *quantity != "e2e_latency" && !is_streamed(summary) {
            continue;
        }
        // A mean over nothing is 0, or -1 s.
        if ![Some(0.0), Some(-1.0), Some(-1e3)].contains(&of(mean)) {
            figures.take_key(&format!("mean_{quantity}_ms"), *scale, summary, mean)?;
        }
        for row in percentiles {
            let known = STATISTICS.iter().find(|(theirs, _)| *theirs == label(row));
            let Some((theirs, ours)) = known else { continue };
            figures
                .take_key(&format!("{ours}_{quantity}_ms"), *scale, row, row_key)
                .map_err(|why| format!("row `{theirs}`: {why}"))?;
        }
    }
    Ok(figures)
}

/// False where no answer was streamed. The TTFT of such a run is its E2E latency under another name,
/// and its TPOT and ITL were not measured.
fn is_streamed(summary: &Value) -> bool {
    summary.get("Stream Requests").and_then(Value::as_u64) != Some(0)
}

fn workload(summary: &Value, settings: &Value) -> StatedWorkload {
    let count = |object: &Value, key: &str| object.get(key).and_then(Value::as_u64);
    let text = |key: &str| settings[key].as_str().map(public);
    let is_on = |key: &str| settings[key].as_bool() == Some(true);
    // A number of conversations is no number of requests, and a run with a time limit may end
    // before its number of requests.
    let asked = count(settings, "number")
        .filter(|_| !is_on("multi_turn") && settings["duration"].is_null());
    let requests = asked.or_else(|| count(summary, "Total Requests"));
    let concurrency = count(summary, "Concurrency").filter(|most| *most > 0);
    let rate = summary.get("Request Rate (req/s)").and_then(Value::as_f64);
    StatedWorkload {
        dataset: text("dataset"),
        requests,
        model: text("model"),
        // A rate of -1 means none: under a limit on concurrency the next request follows at once.
        // Without that limit a trace in the dataset says when requests are sent.
        request_rate: match rate {
            Some(rate) if rate > 0.0 => Some(rate),
            Some(-1.0) if concurrency.is_some() => Some(f64::INFINITY),
            _ => None,
        },
        concurrency,
        seed: count(settings, "seed"),
        ignore_eos: settings["extra_args"]["ignore_eos"].as_bool(),
        ..StatedWorkload::default()
    }
}
