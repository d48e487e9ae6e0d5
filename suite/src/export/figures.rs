//! Figures of a run by the names that the tools' result files have for them, in the files' units; and
//! times and tokens of each request, read from the samples file, with their distributions as the
//! tools compute them.

use std::collections::BTreeMap;

use judge::quantile::quantile_of_floats;
use reports::latency_us;
use schema::event::unix_s_of;
use schema::measurement::Measurement;
use schema::run::{Counts, Metrics, Time, TokenSource};
use schema::samples::Sample;
use schema::scenario::Arrival;
use serde_json::{Value, json};

use super::{Format, ReportFacts};
use crate::measure::summary::{float, whole};
use crate::workload::arrival::{ramp_up_strategy, requested_rate};

/// Counts, metrics and times of a run with at least one answered request, from which the tools'
/// result files are filled.
#[derive(Clone, Copy, Debug)]
pub struct Figures<'a> {
    pub asked: &'a ReportFacts,
    pub measurement: &'a Measurement,
    pub counts: &'a Counts,
    pub metrics: &'a Metrics,
    pub time: &'a Time,
    pub requests: &'a Requests<'a>,
    pub seconds: f64,
    pub completed: u64,
    pub failed: u64,
    /// Number of prompt tokens as the exported format's tool counts them; `None` if unknown.
    input_tokens: Option<u64>,
    /// Number of output tokens as the exported format's tool counts them; `None` if unknown.
    output_tokens: Option<u64>,
    /// True when the tool's definition of a chunk differs from Redline's, so that latencies are
    /// those of the requests and not those of the measurement.
    from_requests: bool,
}

impl<'a> Figures<'a> {
    /// Collects the counts, metrics and times of a measurement for export in `format`; `None` if it
    /// lacks them, as when no request was answered.
    pub fn of(
        measurement: &'a Measurement,
        asked: &'a ReportFacts,
        format: Format,
        requests: &'a Requests<'a>,
    ) -> Option<Self> {
        let (counts, time) = (measurement.counts.as_ref()?, measurement.time.as_ref()?);
        let usage =
            matches!(counts.token_source, Some(TokenSource::Usage | TokenSource::UsagePerChunk));
        let from_requests = format.is_vllm();
        let wall_s = float(time.wall_us?) / 1e6;
        Some(Self {
            asked,
            measurement,
            counts,
            metrics: measurement.metrics.as_ref()?,
            time,
            requests,
            // A chunk that only this tool counts may follow the last token.
            seconds: if from_requests { wall_s.max(requests.end_s()) } else { wall_s },
            // vLLM's tool counts the prompt tokens that the server reports.
            input_tokens: requests.input_tokens().filter(|_| from_requests).or(counts.input_tokens),
            from_requests,
            completed: counts.requests_ok?,
            failed: counts.requests_failed.unwrap_or(0),
            output_tokens: match format {
                Format::Lmdeploy | Format::LmdeployCsv => counts.output_tokens_requested,
                // The other tools count what the server reports, if it reports anything.
                _ if usage => counts.output_tokens_reported,
                Format::Sglang | Format::SglangJsonl | Format::SglangJsonlDetailed => {
                    counts.output_tokens_requested
                }
                _ => counts.output_tokens_retokenized,
            },
        })
    }

    /// True when the requests asked for output tokens; requests for embeddings do not.
    pub fn has_output(&self) -> bool {
        self.counts.output_tokens_requested.is_some()
    }

    /// Returns the value that a result file has under the key `name`; null if it is unknown.
    pub fn value(&self, name: &str) -> Value {
        let (counts, asked) = (self.counts, self.asked);
        let lengths = asked.random();
        let has_output = self.has_output();
        let total = match has_output {
            true => self.input_tokens.zip(self.output_tokens).map(|(input, output)| input + output),
            false => self.input_tokens,
        };
        // Each request for an embedding has one input.
        let sequences = Some(self.completed).filter(|_| !has_output);
        let peaks = || self.requests.peaks().filter(|_| has_output);
        let per_second = |count: Option<u64>| json!(count.map(|count| float(count) / self.seconds));
        match name {
            "tag" | "label" => json!(asked.label),
            "backend" | "endpoint_type" => json!(asked.backend),
            "dataset_name" => json!(asked.dataset_name()),
            "date" => json!(self.time.started_at.as_deref().map(compact_date)),
            "model_id" => json!(asked.model),
            "tokenizer_id" => json!(asked.tokenizer),
            "num_prompts" => json!(counts.requests_planned),
            "request_rate" => match self.request_rate() {
                Some(rate) => json!(rate),
                None => json!(self.request_rate_word()),
            },
            "burstiness" => self.burstiness(),
            "ramp_up_strategy" => json!(self.ramp_up().map(|(strategy, ..)| strategy)),
            "ramp_up_start_rps" => json!(self.ramp_up().map(|(_, from, _)| from)),
            "ramp_up_end_rps" => json!(self.ramp_up().map(|(.., to)| to)),
            "max_concurrency" => json!(self.max_concurrency()),
            "sharegpt_output_len" => json!(asked.sharegpt_output_len()),
            "random_input_len" => json!(lengths.and_then(|workload| workload.input_tokens)),
            "random_output_len" => json!(lengths.and_then(|workload| workload.output_tokens)),
            "random_range_ratio" => json!(lengths.and_then(|workload| workload.range_ratio)),
            "duration" => json!(self.seconds),
            "completed" => json!(self.completed),
            "failed" => json!(self.failed),
            "total_input_tokens" | "total_input_text_tokens" => json!(self.input_tokens),
            "total_input_vision_tokens" => json!(0),
            "total_output_tokens" => json!(self.output_tokens),
            "total_output_tokens_retokenized" => json!(counts.output_tokens_retokenized),
            "total_input_sequences" => json!(sequences),
            "request_throughput" => per_second(Some(self.completed)),
            "input_sequence_throughput" => per_second(sequences),
            "input_throughput" => per_second(self.input_tokens),
            "output_throughput" => per_second(self.output_tokens),
            "total_throughput" | "total_token_throughput" => per_second(total),
            "request_goodput" => json!(self.goodput()),
            "concurrency" => json!(self.metrics.concurrency_mean),
            "max_output_tokens_per_s" => json!(peaks().map(|(chunks, _)| chunks)),
            "max_concurrent_requests" => json!(peaks().map(|(_, running)| running)),
            // Rate of input audio: no request has any.
            "rtfx" => json!(0.0),
            "protocol" => json!("http"),
            _ => json!(self.latency_ms(name)),
        }
    }

    /// Returns a statistic of a latency metric in milliseconds, by a name such as `median_ttft_ms`;
    /// `None` for another name or an unknown value.
    fn latency_ms(&self, name: &str) -> Option<f64> {
        let (statistic, rest) = name.split_once('_')?;
        let quantity = rest.strip_suffix("_ms")?;
        if self.from_requests {
            let spread = Spread::of(self.requests.times_s(quantity))?;
            let seconds = match statistic {
                "mean" => spread.mean,
                "std" => spread.variance.sqrt(),
                "median" => spread.percentile(0.5)?,
                percentile => {
                    let percent: f64 = percentile.strip_prefix('p')?.parse().ok()?;
                    spread.percentile(percent / 100.0)?
                }
            };
            return Some(seconds * 1e3);
        }
        latency_us(self.metrics, quantity, statistic).map(|us| float(us) / 1e3)
    }

    /// Returns the rate of requests that met all latency limits, per second; `None` if no limits
    /// were given.
    pub fn goodput(&self) -> Option<f64> {
        self.metrics.goodput_per_s.as_ref()?.get("all").copied()
    }

    /// Returns the requested mean rate of the arrival process, in requests per second; `None` if it
    /// has no constant one.
    pub fn request_rate(&self) -> Option<f64> {
        requested_rate(self.measurement.scenario.arrival.as_ref()?)
    }

    /// Returns the requested request rate as the tools print it: a number, `inf`, `trace` or
    /// `ramp`.
    pub fn request_rate_word(&self) -> String {
        match self.measurement.scenario.arrival {
            Some(Arrival::Trace { .. }) => "trace".to_owned(),
            Some(Arrival::Ramp { .. }) if self.ramp_up().is_none() => "ramp".to_owned(),
            _ => self.request_rate().map_or_else(|| "inf".to_owned(), python_float),
        }
    }

    /// Returns the growth of the request rate and its first and last value, in whole requests per
    /// second as vLLM's tool takes them; `None` for the other tools, which have none, and for another
    /// arrival process.
    pub fn ramp_up(&self) -> Option<(&'static str, u64, u64)> {
        match self.measurement.scenario.arrival.as_ref()? {
            Arrival::Ramp { from_requests_per_s: from, to_requests_per_s: to, growth, .. }
                if self.from_requests =>
            {
                Some((ramp_up_strategy(*growth)?, whole(*from), whole(*to)))
            }
            _ => None,
        }
    }

    fn burstiness(&self) -> Value {
        match self.measurement.scenario.arrival {
            Some(Arrival::Gamma { shape, .. }) => json!(shape),
            // A constant rate is an infinite burstiness parameter in vLLM's tool.
            Some(Arrival::Constant { .. }) => json!("inf"),
            Some(Arrival::Ramp { shape: Some(shape), .. }) => json!(shape),
            Some(Arrival::Ramp { .. }) if self.ramp_up().is_some() => json!("inf"),
            Some(Arrival::Ramp { .. } | Arrival::Trace { .. }) => Value::Null,
            _ => json!(1.0),
        }
    }

    pub fn max_concurrency(&self) -> Option<u64> {
        self.measurement.scenario.arrival.as_ref()?.concurrency_max()
    }
}

/// Formats a float with a decimal point, as in `1.0`. For zero and for magnitudes from 1e-4 up to
/// 1e16 the text is Python's; others may have another exponent notation than in Python.
pub fn python_float(value: f64) -> String {
    // `{:?}` prints `1.0` where `{}` prints `1`.
    format!("{value:?}")
}

/// Formats a date in the notation of vLLM's result files: `2026-01-02T03:04:05Z` becomes
/// `20260102-030405`.
pub fn compact_date(rfc3339: &str) -> String {
    let kept = rfc3339.chars().filter(|sign| sign.is_ascii_digit() || *sign == 'T');
    kept.map(|sign| if sign == 'T' { '-' } else { sign }).take(15).collect()
}

/// Returns the Unix time at which the run started, in seconds; `None` if it is unknown.
pub fn started_s(figures: &Figures<'_>) -> Option<f64> {
    let started = unix_s_of(figures.time.started_at.as_deref()?)?;
    u64::try_from(started).ok().map(float)
}

/// Times in seconds and token counts of one request of a run. An unknown token count is `None`; a
/// request without a token has zero as TTFT and E2E.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request<'a> {
    pub answered: bool,
    /// Time at which the request was sent, in seconds after the run's first scheduled send.
    pub start_s: f64,
    /// Time that the request waited for the concurrency limit as vLLM's tool counts it, in seconds:
    /// where all requests are due at once, since the start of the run.
    pub queue_s: f64,
    pub ttft_s: f64,
    /// Time from the request's send to its last token, in seconds.
    pub e2e_s: f64,
    /// Gaps between consecutive chunks of the request's answer, in seconds.
    pub gaps_s: Vec<f64>,
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    /// Number of tokens in the first chunk of the request's answer; `None` if unknown.
    pub first_tokens: Option<u64>,
    /// Text of the request's answer; `None` if the run did not keep it.
    pub text: Option<&'a str>,
    /// Class and message of the request's failure; both empty for an answered request.
    pub error: (&'a str, &'a str),
}

impl Request<'_> {
    /// Returns the request's TPOT in seconds, `(e2e - ttft) / (n - 1)`; `None` for an unknown
    /// number of tokens or fewer than two.
    pub fn tpot_s(&self) -> Option<f64> {
        let after = self.output_tokens?.checked_sub(1).filter(|n| *n > 0)?;
        Some((self.e2e_s - self.ttft_s) / float(after))
    }
}

/// Requests of a run, in the order of the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests<'a>(pub Vec<Request<'a>>);

impl<'a> Requests<'a> {
    /// Converts the samples of a run with the arrival process `arrival` to requests, for export in
    /// `format`; their times count in seconds from the first scheduled send.
    pub fn of(samples: &'a [Sample], arrival: Option<&Arrival>, format: Format) -> Self {
        let origin_ns = samples.iter().map(|sample| sample.scheduled_at_ns).min().unwrap_or(0);
        let closed = matches!(arrival, Some(Arrival::Closed { .. }));
        let each = samples.iter().map(|sample| {
            let mut request = request(sample, &chunk_times(sample, format), origin_ns);
            if closed {
                request.queue_s = request.start_s;
            }
            request
        });
        Self(each.collect())
    }

    /// Iterates over the requests whose answer is complete.
    pub fn answered(&self) -> impl Iterator<Item = &Request<'a>> {
        self.0.iter().filter(|request| request.answered)
    }

    /// Returns the values that `read` gives for the answered requests, without those for which it
    /// gives `None`.
    pub fn values(&self, read: impl Fn(&Request<'a>) -> Option<f64>) -> Vec<f64> {
        self.answered().filter_map(read).collect()
    }

    /// Returns the values of the latency metric `quantity`, by the tools' name for it, of all answered
    /// requests, in seconds; none for another name.
    pub fn times_s(&self, quantity: &str) -> Vec<f64> {
        match quantity {
            "ttft" => self.values(|request| Some(request.ttft_s)),
            "tpot" => self.values(Request::tpot_s),
            "itl" => self.gaps_s(),
            "e2el" | "e2e_latency" => self.values(|request| Some(request.e2e_s)),
            _ => Vec::new(),
        }
    }

    /// Returns the number of prompt tokens of all answered requests as the server reports it; `None`
    /// if it reports none for some request, or no request was answered.
    fn input_tokens(&self) -> Option<u64> {
        let total: Option<u64> = self.answered().map(|request| request.input_tokens).sum();
        total.filter(|tokens| *tokens > 0)
    }

    /// Returns the arrival of the last chunk of an answered request, in seconds.
    fn end_s(&self) -> f64 {
        self.answered().map(|request| request.start_s + request.e2e_s).fold(0.0, f64::max)
    }

    /// Returns the largest number of chunks in a second, and of requests that ran in a second, as
    /// the tools of vLLM and SGLang count them: seconds follow each other from the first send, a
    /// chunk counts as one token, and a request counts in each second that it touches. `None` if no
    /// request was answered.
    pub fn peaks(&self) -> Option<(f64, u64)> {
        let start_s = self.answered().map(|request| request.start_s).reduce(f64::min)?;
        let second = |at_s: f64| whole((at_s - start_s).max(0.0).floor());
        let (mut chunks, mut running) = (BTreeMap::new(), BTreeMap::new());
        for request in self.answered() {
            let mut at_s = request.start_s + request.ttft_s;
            *chunks.entry(second(at_s)).or_insert(0_u64) += 1;
            for gap_s in &request.gaps_s {
                at_s += gap_s;
                *chunks.entry(second(at_s)).or_insert(0) += 1;
            }
            for touched in second(request.start_s)..=second(request.start_s + request.e2e_s) {
                *running.entry(touched).or_insert(0_u64) += 1;
            }
        }
        let most = |of: BTreeMap<u64, u64>| of.into_values().max().unwrap_or(0);
        Some((float(most(chunks)), most(running)))
    }

    /// Returns the gaps between chunks of all answered requests, in seconds.
    pub fn gaps_s(&self) -> Vec<f64> {
        self.answered().flat_map(|request| request.gaps_s.iter().copied()).collect()
    }
}

/// Returns the arrival of each chunk of a sample's answer that the tool of `format` counts, in
/// nanoseconds. vLLM's tool also counts chunks with an empty text, since a token may have none.
fn chunk_times(sample: &Sample, format: Format) -> Vec<u64> {
    let Some(first) = sample.first_chunk_at_ns else { return Vec::new() };
    let later = sample.gaps_ns.iter().scan(first, |at, gap| {
        *at += gap;
        Some(*at)
    });
    let mut times: Vec<u64> = std::iter::once(first).chain(later).collect();
    if format.is_vllm() {
        times.extend(&sample.empty_chunks_at_ns);
        times.sort_unstable();
    }
    times
}

/// Converts a sample to a request whose chunks arrived at `times`.
fn request<'a>(sample: &'a Sample, times: &[u64], origin_ns: u64) -> Request<'a> {
    // A request that failed before it was sent has only its scheduled time.
    let sent = sample.sent_at_ns.unwrap_or(sample.scheduled_at_ns);
    let chunks: Option<u64> = sample.chunk_tokens.iter().map(|tokens| tokens.map(u64::from)).sum();
    let seconds = |ns: u64| float(ns) / 1e9;
    let since = |at: Option<&u64>| seconds(at.map_or(0, |at| at.saturating_sub(sent)));
    let failure = sample.failure.as_ref();
    Request {
        answered: failure.is_none(),
        start_s: seconds(sent.saturating_sub(origin_ns)),
        queue_s: seconds(sample.queue_ns.unwrap_or(0)),
        ttft_s: since(times.first()),
        e2e_s: since(times.last()),
        gaps_s: times.windows(2).map(|pair| seconds(pair[1] - pair[0])).collect(),
        input_tokens: sample.prompt_tokens,
        // Without usage the tokens of the chunks are summed, if every chunk has a count.
        output_tokens: sample.completion_tokens.or(chunks),
        first_tokens: sample.chunk_tokens.first().copied().flatten().map(u64::from),
        text: sample.text.as_deref(),
        error: failure.map_or(("", ""), |failure| (&failure.kind, &failure.message)),
    }
}

/// Percentiles, as shares from 0 to 1, of the distributions in guidellm's and llm-d's reports;
/// AIPerf's reports leave out the lowest and the highest.
pub const SHARES: [f64; 11] = [0.001, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999];

/// Distribution of values: sorted values, sum, mean, variance and extremes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    pub values: Vec<f64>,
    pub sum: f64,
    pub mean: f64,
    /// Population variance of the values (divided by their number).
    pub variance: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Computes the distribution of `values`; `None` if there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let count = float(values.len() as u64);
        let sum: f64 = values.iter().sum();
        let mean = sum / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self { sum, mean, variance: squares / count, min, max, values })
    }

    /// Returns the quantile of the values at `share`, from 0 to 1, by linear interpolation between
    /// order statistics, NumPy's default.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        quantile_of_floats(&self.values, share)
    }
}
