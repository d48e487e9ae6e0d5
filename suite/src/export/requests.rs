//! Times and tokens of each request, read from the samples file, and their distributions as the
//! tools compute them.

use judge::quantile::quantile_of_floats;
use schema::samples::Sample;

use crate::measure::summary::float;

/// Times in seconds and token counts of one request. A count that is unknown is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request<'a> {
    pub answered: bool,
    /// Actual send time, in seconds after the first scheduled send of the run.
    pub start_s: f64,
    pub ttft_s: f64,
    /// Time from send to last token, in seconds.
    pub e2e_s: f64,
    /// Gaps between consecutive chunks, in seconds.
    pub gaps_s: Vec<f64>,
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    /// Tokens in the first chunk.
    pub first_tokens: Option<u64>,
    pub error: &'a str,
}

impl Request<'_> {
    /// TPOT in seconds, `(e2e - ttft) / (n - 1)`; `None` for fewer than two tokens.
    pub fn tpot_s(&self) -> Option<f64> {
        let after = self.output_tokens?.checked_sub(1).filter(|n| *n > 0)?;
        Some((self.e2e_s - self.ttft_s) / float(after))
    }
}

/// All requests of a run, in the order of the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests<'a>(pub Vec<Request<'a>>);

impl<'a> Requests<'a> {
    /// Converts samples; times count in seconds from the first scheduled send.
    pub fn of(samples: &'a [Sample]) -> Self {
        let origin_ns = samples.iter().map(|sample| sample.scheduled_at_ns).min().unwrap_or(0);
        Self(samples.iter().map(|sample| request(sample, origin_ns)).collect())
    }

    /// Requests whose answer is complete.
    pub fn answered(&self) -> impl Iterator<Item = &Request<'a>> {
        self.0.iter().filter(|request| request.answered)
    }

    /// Values that `read` returns for the answered requests.
    pub fn values(&self, read: impl Fn(&Request<'a>) -> Option<f64>) -> Vec<f64> {
        self.answered().filter_map(read).collect()
    }

    /// Gaps between chunks of all answered requests, in seconds.
    pub fn gaps_s(&self) -> Vec<f64> {
        self.answered().flat_map(|request| request.gaps_s.iter().copied()).collect()
    }
}

fn request(sample: &Sample, origin_ns: u64) -> Request<'_> {
    // A request that failed before it was sent has only its scheduled time.
    let sent = sample.sent_at_ns.unwrap_or(sample.scheduled_at_ns);
    let ttft_ns = sample.first_chunk_at_ns.map_or(0, |first| first.saturating_sub(sent));
    let chunks: Option<u64> = sample.chunk_tokens.iter().map(|tokens| tokens.map(u64::from)).sum();
    let seconds = |ns: u64| float(ns) / 1e9;
    Request {
        answered: sample.failure.is_none(),
        start_s: seconds(sent.saturating_sub(origin_ns)),
        ttft_s: seconds(ttft_ns),
        e2e_s: seconds(ttft_ns + sample.gaps_ns.iter().sum::<u64>()),
        gaps_s: sample.gaps_ns.iter().map(|gap| seconds(*gap)).collect(),
        input_tokens: sample.prompt_tokens,
        // Without usage the tokens of the chunks are summed, if every chunk has a count.
        output_tokens: sample.completion_tokens.or(chunks),
        first_tokens: sample.chunk_tokens.first().copied().flatten().map(u64::from),
        error: sample.failure.as_ref().map_or("", |failure| failure.message.as_str()),
    }
}

/// Shares of the percentiles that the tools' distributions have; AIPerf's leave out the outermost.
pub const SHARES: [f64; 11] = [0.001, 0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99, 0.999];

/// Distribution of values: sorted values, sum, mean, variance and extremes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    pub values: Vec<f64>,
    pub sum: f64,
    pub mean: f64,
    /// Population variance (divided by n).
    pub variance: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Computes the distribution; `None` without values.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let count = float(values.len() as u64);
        let sum: f64 = values.iter().sum();
        let mean = sum / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self { sum, mean, variance: squares / count, min, max, values })
    }

    /// Percentile by linear interpolation between order statistics, NumPy's default.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        quantile_of_floats(&self.values, share)
    }
}
