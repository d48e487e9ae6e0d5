//! Figures of one published result under the names that result files commonly use, and the run
//! record that is built from them.

use std::collections::BTreeMap;

use schema::canonical::record_sha256;
use schema::run::{
    Counts, EngineFacts, Gpu, HardwareFacts, Kind, Metrics, ModelFacts, RunRecord, SCHEMA,
    ScenarioFacts, ServerFacts, Source, Status, Summary, Time, TokenSource,
};
use schema::scenario::Arrival;
use serde_json::Value;

use super::served::Served;
use super::tool::Tool;
use super::{Found, READER, Unread};

/// Labels of figures in console blocks, each with the figure's name in result files.
const LABELS: &[(&str, &str)] = &[
    ("Traffic request rate", REQUEST_RATE),
    ("Maximum request concurrency", "max_concurrency"),
    ("Max request concurrency", "max_concurrency"),
    ("Successful requests", "completed"),
    ("Failed requests", "failed"),
    ("Benchmark duration (s)", "duration"),
    ("Total input tokens", "total_input_tokens"),
    ("Total generated tokens", "total_output_tokens"),
    ("Total generated tokens (retokenized)", "total_output_tokens_retokenized"),
    ("Request throughput (req/s)", "request_throughput"),
    ("Input token throughput (tok/s)", "input_throughput"),
    ("Output token throughput (tok/s)", "output_throughput"),
    ("Total Token throughput (tok/s)", "total_throughput"),
    ("Total token throughput (tok/s)", "total_throughput"),
    ("Peak output token throughput (tok/s)", "max_output_tokens_per_s"),
    ("Concurrency", "concurrency"),
];

/// Label of the largest number of requests in flight. Records of reports have it as printed alone.
const PEAK_REQUESTS: &str = "Peak concurrent requests";

/// Name of the request rate, the only figure that may be infinite, which means that all requests
/// are sent at once.
const REQUEST_RATE: &str = "request_rate";

/// Names of the figures without which a published result is incomplete and is not read.
const NEEDED: &[&str] = &["completed", "duration", "total_output_tokens"];
/// Names of the figures without which a published result of embeddings is incomplete.
const NEEDED_OF_EMBEDDINGS: &[&str] =
    &["completed", "duration", "total_input_tokens", "total_throughput"];
/// Parts of the names of figures that only answers with output tokens have.
const OF_OUTPUT: [&str; 4] = ["output", "ttft", "tpot", "itl"];

/// Words that a console block prints in place of a missing value; `not` is the first word of
/// SGLang's `not set`.
const NOT_THERE: &[&str] = &["N/A", "None", "null", "nan", "NaN", "not", "trace"];

/// Returns the name of the figure that a console block calls `label`, and the factor from the
/// label's unit to the name's; `None` where records have no such figure.
pub fn name_of_label(label: &str) -> Option<(String, f64)> {
    if let Some((_, name)) = LABELS.iter().find(|(known, _)| *known == label) {
        return Some(((*name).to_owned(), 1.0));
    }
    let (statistic, rest) = label.split_once(' ')?;
    let (quantity, unit) = rest.split_once('(')?;
    let quantity = match quantity.trim() {
        "E2E Latency" | "E2EL" | "Latency" => "e2e_latency",
        "TTFT" => "ttft",
        "TPOT" => "tpot",
        "ITL" => "itl",
        _ => return None,
    };
    let scale = match unit {
        "ms)" => 1.0,
        "s)" => 1_000.0,
        _ => return None,
    };
    Some((format!("{}_{quantity}_ms", statistic.to_lowercase()), scale))
}

/// Returns the figure of `record` that a console block prints as `label`, in the label's unit; `None`
/// where records have no such figure or this one does not. ITL is that between chunks, as the tools
/// mean it.
#[expect(clippy::cast_precision_loss, reason = "counts and times of a run are far below 2^53")]
pub fn figure_of(record: &RunRecord, label: &str) -> Option<f64> {
    let float = |value: Option<u64>| value.map(|value| value as f64);
    if label == PEAK_REQUESTS {
        return float(record.client.as_ref()?.streams_max);
    }
    let (name, scale) = name_of_label(label)?;
    let counts = record.counts.as_ref();
    let metrics = record.metrics.as_ref()?;
    let value = match name.as_str() {
        "completed" => float(counts?.requests_ok),
        "failed" => float(counts?.requests_failed),
        "duration" => float(record.time.as_ref()?.wall_us).map(|us| us / 1e6),
        "total_input_tokens" => float(counts?.input_tokens),
        "total_output_tokens" => float(counts?.output_tokens_reported),
        "total_output_tokens_retokenized" => float(counts?.output_tokens_retokenized),
        "request_throughput" => metrics.requests_per_s,
        "input_throughput" => metrics.input_tokens_per_s,
        "output_throughput" => metrics.output_tokens_per_s,
        "total_throughput" => metrics.total_tokens_per_s,
        "max_output_tokens_per_s" => metrics.output_tokens_per_s_peak,
        "concurrency" => metrics.concurrency_mean,
        latency => {
            let (statistic, quantity) = latency.strip_suffix("_ms")?.split_once('_')?;
            float(latency_us(metrics, quantity, statistic)).map(|us| us / 1e3)
        }
    }?;
    Some(value / scale)
}

/// Returns a statistic of a latency in microseconds, by the names of both in result files, such as
/// `ttft` and `median`; `None` for another name or an unknown value. ITL is that between chunks, as
/// the tools mean it.
pub fn latency_us(metrics: &Metrics, quantity: &str, statistic: &str) -> Option<u64> {
    let summary = match quantity {
        "ttft" => metrics.ttft_us.as_ref(),
        "tpot" => metrics.tpot_us.as_ref(),
        "itl" => metrics.itl_chunk_us.as_ref(),
        "e2e_latency" => metrics.e2e_us.as_ref(),
        _ => None,
    }?;
    match statistic {
        "mean" => summary.mean,
        "std" => summary.std,
        "median" | "p50" => summary.p50,
        "p90" => summary.p90,
        "p95" => summary.p95,
        "p99" => summary.p99,
        "max" => summary.max,
        _ => None,
    }
}

/// Figures of one published result, by their names in result files: milliseconds, seconds
/// (`duration`), counts, and rates per second.
#[derive(Debug, Default)]
pub struct Figures(BTreeMap<String, f64>);

impl Figures {
    /// Adds the figure `name` from its printed text, multiplied by `scale`; a value that is printed
    /// as missing is left out.
    ///
    /// # Errors
    ///
    /// The text is not a number, or the number is one that the figure cannot have (negative, not
    /// finite, or not whole for a number of requests or tokens).
    pub fn read(&mut self, name: &str, scale: f64, printed: &str) -> Result<(), String> {
        if NOT_THERE.contains(&printed) {
            return Ok(());
        }
        let value: f64 = printed.parse().map_err(|_| format!("`{printed}` is not a number"))?;
        self.take(name, value * scale)
    }

    /// Adds the figure `name` from its value.
    ///
    /// # Errors
    ///
    /// The value is negative, is not finite (except an infinite request rate), or has a fraction
    /// though it is a number of requests or tokens.
    pub fn take(&mut self, name: &str, value: f64) -> Result<(), String> {
        let endless = value == f64::INFINITY && name == REQUEST_RATE;
        if !(endless || value.is_finite() && value >= 0.0) {
            return Err(format!("`{value}` is not a figure that it can have"));
        }
        let counted = matches!(name, "completed" | "failed")
            || name.starts_with("total_") && name.contains("_tokens");
        if counted && value.fract() != 0.0 {
            return Err(format!("`{value}` is not a whole number"));
        }
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    /// Adds the figure `name` from the JSON value at `key` of `object`, multiplied by `scale`; a key
    /// that is missing or `null` is left out.
    ///
    /// # Errors
    ///
    /// The value is not a number, or is one that the figure cannot have. The error names the key.
    pub fn take_key(
        &mut self,
        name: &str,
        scale: f64,
        object: &Value,
        key: &str,
    ) -> Result<(), String> {
        let value = match object.get(key) {
            None | Some(Value::Null) => return Ok(()),
            Some(value) => value.as_f64().ok_or_else(|| "it is not a number".to_owned()),
        };
        let taken = value.and_then(|value| self.take(name, value * scale));
        taken.map_err(|why| format!("`{key}`: {why}"))
    }

    /// Checks that a published result has the figures that a record needs; the error names the
    /// first that is missing.
    pub fn complete(&self) -> Result<(), String> {
        if self.is_of_embeddings() { Ok(()) } else { self.complete_with(NEEDED) }
    }

    /// True for the figures of a run of embeddings, as vLLM's tool prints them: all tokens are those of
    /// prompts, and no figure is one of output tokens.
    fn is_of_embeddings(&self) -> bool {
        let has_output = self.0.keys().any(|name| OF_OUTPUT.iter().any(|part| name.contains(part)));
        !has_output && self.complete_with(NEEDED_OF_EMBEDDINGS).is_ok()
    }

    /// Checks that a published result has the figures called `needed`; the error names the first
    /// that is missing.
    pub fn complete_with(&self, needed: &[&str]) -> Result<(), String> {
        let missing = needed.iter().find(|name| !self.0.contains_key(**name));
        missing.map_or(Ok(()), |name| Err(format!("a result without `{name}`")))
    }

    fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    fn count(&self, name: &str) -> Option<u64> {
        self.get(name).map(whole)
    }

    fn summary(&self, quantity: &str) -> Option<Summary> {
        let us = |statistic: &str| {
            self.get(&format!("{statistic}_{quantity}_ms")).map(|ms| whole(ms * 1e3))
        };
        let summary = Summary {
            mean: us("mean"),
            std: us("std"),
            // Some tools call the median `median`, others `p50`.
            p50: us("median").or_else(|| us("p50")),
            p90: us("p90"),
            p95: us("p95"),
            p99: us("p99"),
            max: us("max"),
            ..Summary::default()
        };
        (summary != Summary::default()).then_some(summary)
    }

    fn metrics(&self, tool: Tool) -> Metrics {
        let gaps = self.summary("itl");
        let (chunks, tokens) = if tool.gaps_are_chunks() { (gaps, None) } else { (None, gaps) };
        let total = self.get("total_throughput");
        Metrics {
            requests_per_s: self.get("request_throughput"),
            // Embeddings have no tokens but those of prompts, so the prompts' count checks their rate.
            input_tokens_per_s: self
                .get("input_throughput")
                .or_else(|| total.filter(|_| self.is_of_embeddings())),
            output_tokens_per_s: self.get("output_throughput"),
            total_tokens_per_s: total,
            output_tokens_per_s_peak: self.get("max_output_tokens_per_s"),
            concurrency_mean: self.get("concurrency"),
            ttft_us: self.summary("ttft"),
            tpot_us: self.summary("tpot"),
            itl_chunk_us: chunks,
            itl_token_us: tokens,
            e2e_us: self.summary("e2e_latency"),
            ..Metrics::default()
        }
    }

    fn counts(&self, tool: Tool, planned: Option<u64>) -> Counts {
        let output = self.count("total_output_tokens");
        let source = tool.token_source();
        let requested = source == Some(TokenSource::Requested);
        Counts {
            requests_planned: planned,
            requests_ok: self.count("completed"),
            requests_failed: self.count("failed"),
            input_tokens: self.count("total_input_tokens"),
            // A requested length is no count of generated tokens, so it has a field of its own.
            output_tokens_requested: output.filter(|_| requested),
            output_tokens_reported: output.filter(|_| !requested),
            output_tokens_retokenized: self.count("total_output_tokens_retokenized"),
            token_source: source.filter(|_| output.is_some()),
            ..Counts::default()
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures are neither negative nor infinite, and far below 2^53"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

impl Found {
    /// Builds the run record of this published result, without verdict and without the record's
    /// SHA-256. The importer fills in its id, an unknown release, and the hardware if the user
    /// states it.
    ///
    /// # Errors
    ///
    /// The record cannot be written as JSON.
    pub(super) fn record(&self, file: &str, sha256: &str) -> Result<RunRecord, Unread> {
        let planned = self.asked.requests;
        let counts = self.figures.counts(self.tool, planned);
        // The figures describe only a part of the workload if requests failed or are missing.
        let short = planned.is_some_and(|planned| counts.requests_ok < Some(planned))
            || counts.requests_failed.is_some_and(|failed| failed > 0);
        let record = RunRecord {
            schema: SCHEMA.to_owned(),
            kind: Kind::Imported,
            status: if short { Status::Partial } else { Status::Ok },
            time: Some(Time {
                wall_us: self.figures.get("duration").map(|seconds| whole(seconds * 1e6)),
                ..Time::default()
            }),
            engine: EngineFacts {
                // The serving command comes first: the backend is only what the client was set to.
                name: known(&self.served.engine, &self.backend),
                release: self.served.release.clone().unwrap_or_default(),
                ..EngineFacts::default()
            },
            server: self.server(),
            model: ModelFacts {
                id: known(&self.asked.model, &self.served.model),
                ..ModelFacts::default()
            },
            scenario: ScenarioFacts {
                id: self.asked.scenario(),
                dataset: self.asked.dataset.clone(),
                requests: planned,
                output_tokens: self.asked.tokens.map(|(_, output)| output),
                seed: self.asked.seed,
                ignore_eos: self.asked.ignore_eos,
                arrival: self.arrival(),
                ..ScenarioFacts::default()
            },
            hardware: HardwareFacts {
                id: "unknown".to_owned(),
                claimed: true,
                gpu: self.served.gpu.clone().map(|name| vec![Gpu { name, ..Gpu::default() }]),
                ..HardwareFacts::default()
            },
            counts: Some(counts),
            metrics: Some(self.figures.metrics(self.tool)),
            source: Some(self.source(file, sha256)),
            ..RunRecord::default()
        };
        // A record that could not be sealed later is reported here, where its line is known.
        record_sha256(&record)
            .map_err(|error| Unread { line: self.lines.0, why: error.to_string() })?;
        Ok(record)
    }

    fn server(&self) -> Option<ServerFacts> {
        let Served { argv, tp, env, .. } = &self.served;
        let (argv, env) = (argv.clone(), env.clone());
        let facts = ServerFacts { argv, env, tp: *tp, ..ServerFacts::default() };
        (facts.argv.is_some() || tp.is_some()).then_some(facts)
    }

    /// Returns how the requests arrived; `None` where the report does not state it. A finite rate
    /// in a result alone does not show how the intervals between requests were drawn; a rate in a
    /// profile means even intervals.
    fn arrival(&self) -> Option<Arrival> {
        let cap = self.figures.count("max_concurrency").or(self.asked.concurrency);
        if let Some(requests_per_s) = self.asked.rate.filter(|rate| *rate > 0.0) {
            return Some(Arrival::Constant { requests_per_s, concurrency_max: cap });
        }
        let rate = self.figures.get(REQUEST_RATE).or(self.asked.request_rate);
        let all = rate? == f64::INFINITY;
        let arrival = cap.map_or(Arrival::AllAtOnce, |most| Arrival::Closed { concurrency: most });
        all.then_some(arrival)
    }

    fn source(&self, file: &str, sha256: &str) -> Source {
        Source {
            tool: self.tool.name().to_owned(),
            tool_version: None,
            file: file.to_owned(),
            line_first: self.lines.0,
            line_last: self.lines.1,
            sha256: sha256.to_owned(),
            definitions: self.tool.definitions(),
            reader: Some(READER),
            stated: None,
            printed: Some(self.printed.clone()),
        }
    }
}

/// Returns a fact that two sources may state: the value of `first`, else that of `second`, or
/// `unknown` if both are `None`.
fn known(first: &Option<String>, second: &Option<String>) -> String {
    first.clone().or_else(|| second.clone()).unwrap_or_else(|| "unknown".to_owned())
}
