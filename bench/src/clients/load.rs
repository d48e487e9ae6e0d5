//! The load that a client sends, and the true times in the mock server's log. Pure.

use judge::quantile::percentile;
use schema::emitted::Emitted;
use serde::Serialize;

/// A load: requests that the mock server answers with one steady stream each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Load {
    pub requests: u64,
    /// Tokens of each answer. No client sends requests with this number before or after the load
    /// itself, so that it identifies the load's requests in the log.
    pub tokens: u64,
    /// Time from a request to its first token in microseconds.
    pub first_us: u64,
    /// Time between tokens in microseconds; 0 saturates the client.
    pub gap_us: u64,
    /// Rate at which requests are sent; `None` sends all at once.
    pub requests_per_s: Option<u32>,
}

impl Load {
    /// Makes a load of requests that are sent all at once.
    pub const fn burst(requests: u64, tokens: u64, first_us: u64, gap_us: u64) -> Self {
        Self { requests, tokens, first_us, gap_us, requests_per_s: None }
    }

    /// Returns the same load with another number of tokens per answer.
    pub const fn of_tokens(self, tokens: u64) -> Self {
        Self { tokens, ..self }
    }

    pub const fn events(&self) -> u64 {
        self.requests * self.tokens
    }
}

/// Mean, standard deviation and p99 of times in microseconds; `None` where a client does not report
/// one.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spread {
    pub mean_us: Option<f64>,
    pub std_us: Option<f64>,
    pub p99_us: Option<f64>,
}

impl Spread {
    /// Computes the statistics of samples in nanoseconds as the compared clients do: percentiles
    /// are linear between order statistics, and the deviation is that of the population. All are
    /// `None` without samples.
    #[expect(clippy::cast_precision_loss, reason = "times of a run are far below 2^53 ns")]
    pub fn of(mut samples_ns: Vec<u64>) -> Self {
        if samples_ns.is_empty() {
            return Self::default();
        }
        samples_ns.sort_unstable();
        let count = samples_ns.len() as f64;
        let mean = samples_ns.iter().map(|ns| *ns as f64).sum::<f64>() / count;
        let squares = samples_ns.iter().map(|ns| (*ns as f64 - mean).powi(2)).sum::<f64>();
        Self {
            mean_us: Some(mean / 1e3),
            std_us: Some((squares / count).sqrt() / 1e3),
            p99_us: percentile(&samples_ns, 0.99).map(|ns| ns / 1e3),
        }
    }
}

/// True times of a load, from the mock server's log.
#[derive(Debug, Clone, Default)]
pub struct Truth {
    pub answers: Vec<Emitted>,
    /// Time from the arrival of the complete request at the server until its first token is
    /// written.
    pub ttft: Spread,
    pub gaps: Spread,
}

impl Truth {
    /// Selects the answers of `load` from the log and computes their times.
    pub fn of(log: Vec<Emitted>, load: &Load) -> Self {
        // Warm-up requests have another number of tokens.
        let ours = |answer: &Emitted| answer.max_tokens == load.tokens && answer.is_whole();
        let answers: Vec<Emitted> = log.into_iter().filter(ours).collect();
        let first = |answer: &Emitted| Some(answer.first_ns?.saturating_sub(answer.received_ns));
        let ttft = Spread::of(answers.iter().filter_map(first).collect());
        let gaps = Spread::of(answers.iter().flat_map(|a| a.gaps_ns.iter().copied()).collect());
        Self { answers, ttft, gaps }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_as_the_tools_compute_it() {
        let spread = Spread::of((1..=101).rev().map(|i| i * 1000).collect());
        assert_eq!((spread.mean_us, spread.p99_us), (Some(51.0), Some(100.0)));
        assert!((spread.std_us.unwrap() - 29.154_759).abs() < 1e-5);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    #[test]
    fn what_was_sent_before_and_after_a_load_is_no_part_of_it() {
        let load = Load::burst(2, 3, 0, 0);
        let answer = |max_tokens, gaps: &[u64]| Emitted {
            max_tokens,
            received_ns: 5,
            first_ns: Some(1005),
            gaps_ns: gaps.to_vec(),
            ..Emitted::default()
        };
        let log = vec![answer(1, &[]), answer(3, &[2000, 4000]), answer(3, &[1])];
        let truth = Truth::of(log, &load);
        assert_eq!(truth.answers.len(), 1, "one is of the warm-up, one was cut");
        assert_eq!((truth.ttft.mean_us, truth.gaps.mean_us), (Some(1.0), Some(3.0)));
    }
}
