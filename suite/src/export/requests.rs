//! Times and tokens of each request out of a file of samples, and what tools make of many.

use judge::quantile::percentile_f64;
use schema::samples::Sample;

use crate::measure::summary::float;

/// One request in seconds and tokens. What its sample does not tell is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request<'a> {
    pub answered: bool,
    /// From the first sample's schedule.
    pub start_s: f64,
    pub ttft_s: f64,
    /// To the last token.
    pub e2e_s: f64,
    /// Gaps between chunks.
    pub gaps_s: Vec<f64>,
    pub input_tokens: Option<u64>,
    pub output_tokens: Option<u64>,
    /// Of the first chunk.
    pub first_tokens: Option<u64>,
    pub error: &'a str,
}

impl Request<'_> {
    /// `(e2e - ttft) / (n - 1)`; none of a single token.
    pub fn tpot_s(&self) -> Option<f64> {
        let after = self.output_tokens?.checked_sub(1).filter(|n| *n > 0)?;
        Some((self.e2e_s - self.ttft_s) / float(after))
    }
}

/// All requests of a run, in the order of the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests<'a>(pub Vec<Request<'a>>);

impl<'a> Requests<'a> {
    /// Times from the first scheduled send on, in seconds.
    pub fn of(samples: &'a [Sample]) -> Self {
        let origin_ns = samples.iter().map(|sample| sample.scheduled_at_ns).min().unwrap_or(0);
        Self(samples.iter().map(|sample| request(sample, origin_ns)).collect())
    }

    /// Those that were answered to their end.
    pub fn answered(&self) -> impl Iterator<Item = &Request<'a>> {
        self.0.iter().filter(|request| request.answered)
    }

    /// What `read` gives of each request that was answered.
    pub fn values(&self, read: impl Fn(&Request<'a>) -> Option<f64>) -> Vec<f64> {
        self.answered().filter_map(read).collect()
    }

    /// Gaps between chunks, over all requests.
    pub fn gaps_s(&self) -> Vec<f64> {
        self.answered().flat_map(|request| request.gaps_s.iter().copied()).collect()
    }
}

fn request(sample: &Sample, origin_ns: u64) -> Request<'_> {
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
        output_tokens: sample.completion_tokens.or(chunks),
        first_tokens: sample.chunk_tokens.first().copied().flatten().map(u64::from),
        error: sample.failure.as_ref().map_or("", |failure| failure.message.as_str()),
    }
}

/// What is said of many values at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spread {
    pub values: Vec<f64>,
    pub sum: f64,
    pub mean: f64,
    /// Of the population.
    pub variance: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// None of nothing.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let count = float(values.len() as u64);
        let sum: f64 = values.iter().sum();
        let mean = sum / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Some(Self { sum, mean, variance: squares / count, min, max, values })
    }

    /// Linear between order statistics, NumPy's default.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        percentile_f64(&self.values, share)
    }
}
