//! Error bounds of metrics: how far the client itself may have moved each figure. A bound of a
//! percentile or a mean is found by computing it again with every sample moved by its own bound.

use std::collections::BTreeMap;

use judge::quantile::quantile;

use super::distribution::token_gaps;
use super::rates::Wall;
use super::summary::{float, mean};
use super::tally::Answered;

/// Error in nanoseconds of relating the kernel's receive stamps to the monotonic clock: clock
/// readings within this time count as simultaneous.
const CLOCK_NS: u64 = 5_000;
/// Smallest time by which an error is divided to a relative error, in nanoseconds: figures are
/// stored in whole microseconds, so a shorter time has no digits.
const SHORTEST_NS: f64 = 1_000.0;

/// Percentiles of latencies that have an error bound, with the endings of their metrics' names.
const PERCENTILES: [(&str, f64); 3] = [("p50", 0.50), ("p95", 0.95), ("p99", 0.99)];
/// Metrics of throughput, which share one error bound.
const RATES: [&str; 4] =
    ["requests_per_s", "input_tokens_per_s", "output_tokens_per_s", "total_tokens_per_s"];

/// Influence of the client on the length of the run, beside its delays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Influence {
    /// Share of the machine's CPU time that the client took, from 0 to 1; zero where the server
    /// computes on other cores or on a GPU.
    pub cpu_share: f64,
    /// True where a request is sent only after another has ended, so that a delay of the client
    /// also delays all that follows.
    pub chained: bool,
}

/// Computes the error bound of each metric of the answered requests, in percent of the figure, by
/// the metric's name. A latency whose samples are not known has none. `wall` is the time window of
/// the run.
pub fn error_pct(
    answered: &[Answered<'_>],
    wall: Wall,
    influence: Influence,
) -> BTreeMap<String, f64> {
    let all = Latencies::of(answered);
    let known = answered.iter().all(|request| request.credit.chunk_source.is_some());
    let rate = rate_error(answered, wall, influence);
    let mut found: BTreeMap<String, f64> =
        RATES.iter().map(|name| ((*name).to_owned(), percent(rate))).collect();
    for (name, latency) in [("ttft", &all.ttft), ("tpot", &all.tpot), ("e2e", &all.e2e)] {
        found.extend(latency.percentiles(name));
        let error = latency.error(|samples| (!samples.is_empty()).then(|| mean(samples)));
        found.extend(error.map(|error| (format!("{name}_us_mean"), error)));
    }
    if known && !all.itl.exact.is_empty() {
        found.extend(all.itl.percentiles("itl_token"));
        let error = relative(0.0, all.ends_ns, mean(&all.itl.exact) * float_len(&all.itl.exact));
        found.insert("itl_token_us_mean".to_owned(), error);
    }
    found
}

/// Samples of one latency in nanoseconds: as measured, and at the ends of their error bounds.
#[derive(Debug, Default)]
struct Moved {
    low: Vec<u64>,
    exact: Vec<u64>,
    high: Vec<u64>,
}

impl Moved {
    /// Adds a sample that may really be shorter by `less_ns` or longer by `more_ns`.
    fn push(&mut self, exact_ns: u64, less_ns: u64, more_ns: u64) {
        self.low.push(exact_ns.saturating_sub(less_ns));
        self.exact.push(exact_ns);
        self.high.push(exact_ns.saturating_add(more_ns));
    }

    fn percentiles(&self, name: &str) -> Vec<(String, f64)> {
        let sorted = [&self.low, &self.exact, &self.high].map(|samples| {
            let mut sorted = samples.clone();
            sorted.sort_unstable();
            sorted
        });
        let [low, exact, high] = sorted;
        let sorted = Self { low, exact, high };
        let of = |(ending, share): (&str, f64)| {
            let error = sorted.error(|samples| quantile(samples, share))?;
            Some((format!("{name}_us_{ending}"), error))
        };
        PERCENTILES.into_iter().filter_map(of).collect()
    }

    /// Returns the error bound of a figure in percent. The figure must not fall where a sample
    /// grows, as is true of means and percentiles.
    fn error(&self, figure: impl Fn(&[u64]) -> Option<f64>) -> Option<f64> {
        let (low, exact, high) = (figure(&self.low)?, figure(&self.exact)?, figure(&self.high)?);
        Some(relative(exact - low, high - exact, exact))
    }
}

/// Latencies of a run with the error bounds of their samples.
#[derive(Debug, Default)]
struct Latencies {
    ttft: Moved,
    tpot: Moved,
    itl: Moved,
    e2e: Moved,
    /// Sum of the error bounds of the times from the first to the last chunk of all answers, in
    /// nanoseconds. The gaps of an answer add up to that time, so the chunks between do not matter
    /// for a mean.
    ends_ns: f64,
}

impl Latencies {
    fn of(answered: &[Answered<'_>]) -> Self {
        let mut all = Self::default();
        for request in answered {
            all.take(request);
        }
        all
    }

    fn take(&mut self, request: &Answered<'_>) {
        let sample = request.sample;
        let (Some(sent), Some((first, last))) = (sample.sent_ns, sample.span()) else { return };
        let [first_early, last_early] = [first.early_ns, last.early_ns];
        let ttft = first.at_ns.saturating_sub(sent);
        let e2e = last.at_ns.saturating_sub(sent);
        let late = sample.schedule_lag_ns().unwrap_or(0) + CLOCK_NS;
        let sooner = sample.send_ns + CLOCK_NS;
        self.ttft.push(ttft, first_early + sooner, late);
        self.e2e.push(e2e, last_early + sooner, late);
        let tokens = request.credit.tokens;
        if tokens > 1 {
            let each = |ns: u64| (ns + CLOCK_NS) / (tokens - 1);
            self.tpot.push((e2e - ttft) / (tokens - 1), each(last_early), each(first_early));
            self.ends_ns += float(first_early.max(last_early) + CLOCK_NS);
        }
        self.take_gaps(request);
    }

    fn take_gaps(&mut self, request: &Answered<'_>) {
        let mut moved = Moved::default();
        for pair in request.sample.chunks.windows(2) {
            let gap = pair[1].at_ns.saturating_sub(pair[0].at_ns);
            let [more, less] = [pair[0], pair[1]].map(|chunk| chunk.early_ns + CLOCK_NS);
            moved.push(gap, less, more);
        }
        let per_token = |gaps: &[u64]| token_gaps(gaps, &request.credit.per_chunk);
        self.itl.low.extend(per_token(&moved.low));
        self.itl.exact.extend(per_token(&moved.exact));
        self.itl.high.extend(per_token(&moved.high));
    }
}

/// Returns the error bound of the rates, as a share of them: the CPU time that the client took from
/// the server, and the time by which its delays lengthened the run. In a chain of requests a delay
/// leaves a stream idle, so the idle time is compared with the time of answers (Little's law);
/// otherwise the server has its requests, and only the ends of the run move.
fn rate_error(answered: &[Answered<'_>], wall: Wall, influence: Influence) -> f64 {
    let samples = || answered.iter().map(|request| request.sample);
    let last_early =
        |request: &Answered<'_>| request.sample.span().map_or(0, |(_, last)| last.early_ns);
    let end: u64 = answered.iter().map(last_early).max().unwrap_or(0);
    let delayed = if influence.chained {
        let idle: u64 = samples().map(|sample| sample.send_lag_ns() + sample.idle_ns).sum();
        let hidden: u64 = answered.iter().map(last_early).sum();
        let busy: u64 = answered.iter().filter_map(e2e_ns).sum();
        float(idle + hidden) / float(busy.max(1))
    } else {
        let lag = samples().map(crate::client::sample::Sample::send_lag_ns).max().unwrap_or(0);
        float(lag) / float(wall.length_ns().max(1))
    };
    influence.cpu_share + delayed + float(end) / float(wall.length_ns().max(1))
}

fn e2e_ns(request: &Answered<'_>) -> Option<u64> {
    let (_, last) = request.sample.span()?;
    Some(last.at_ns.saturating_sub(request.sample.sent_ns?))
}

fn relative(less: f64, more: f64, exact: f64) -> f64 {
    percent(less.max(more) / exact.max(SHORTEST_NS))
}

/// Converts a share to percent, rounded up to four decimals.
fn percent(share: f64) -> f64 {
    (share * 1e6).ceil() / 1e4
}

fn float_len(samples: &[u64]) -> f64 {
    float(samples.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::sample::{ChunkStamp, Sample};
    use crate::measure::tally::untokenized;

    const MS: u64 = 1_000_000;

    /// Answer of three tokens, of which the second may have come 10 ms earlier: it was read with
    /// the third one.
    fn sample(send_ns: u64, idle_ns: u64) -> Sample {
        let chunk = |(ms, early_ms): (u64, u64)| ChunkStamp {
            at_ns: ms * MS,
            lag_ns: 0,
            early_ns: early_ms * MS,
            tokens: Some(1),
            text_bytes: 1,
        };
        Sample {
            taken_ns: Some(0),
            sent_ns: Some(0),
            send_ns,
            idle_ns,
            chunks: [(100, 0), (120, 10), (120, 0)].map(chunk).to_vec(),
            ..Sample::default()
        }
    }

    fn errors(sample: Sample, influence: Influence) -> BTreeMap<String, f64> {
        let samples = [sample];
        error_pct(&untokenized(&samples), Wall { start_ns: 0, end_ns: 120 * MS }, influence)
    }

    fn is(found: &BTreeMap<String, f64>, name: &str, percent: f64) {
        assert!((found[name] - percent).abs() < 0.001, "`{name}`: {}", found[name]);
    }

    #[test]
    fn only_figures_that_a_chunk_may_have_moved_have_a_wide_bound() {
        let found = errors(sample(0, 0), Influence::default());
        // The gaps are 20 and 0 ms, and may be 10 and 10: their median is between 5 and 15.
        is(&found, "itl_token_us_p50", 50.05);
        is(&found, "itl_token_us_mean", 0.025);
        is(&found, "ttft_us_p50", 0.005);
        is(&found, "tpot_us_p99", 0.025);
        is(&found, "e2e_us_mean", 0.0042);
        is(&found, "output_tokens_per_s", 0.0);
        assert_eq!(found.len(), 20);
    }

    #[test]
    fn a_late_send_moves_what_counts_from_it() {
        let found = errors(sample(6 * MS, 0), Influence::default());
        is(&found, "ttft_us_p50", 6.005);
        is(&found, "e2e_us_p50", 5.0042);
        is(&found, "tpot_us_p50", 0.025);
        is(&found, "requests_per_s", 5.0);
    }

    #[test]
    fn idle_streams_and_taken_cores_lower_throughput() {
        let chained = Influence { chained: true, cpu_share: 0.01 };
        is(&errors(sample(0, 6 * MS), chained), "output_tokens_per_s", 6.0);
        let free = Influence { chained: false, ..chained };
        is(&errors(sample(0, 6 * MS), free), "output_tokens_per_s", 1.0);
    }
}
