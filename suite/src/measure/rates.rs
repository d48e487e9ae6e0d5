//! Metrics of a record: rates, windows of a run (from first send to last token, its steady part,
//! its best second), stalls (gaps within answers that are long enough to be noticed, which a median
//! hides), and goodput: latency limits (SLO) with the number of requests that meet them.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schema::run::{Counts, Metrics, Slice, Stalls, Time};

use super::distribution::Distributions;
use super::summary::{float, summarize, summarize_requests, whole};
use super::tally::Answered;
use super::to_us;

/// Minimum length of a run's steady part, in nanoseconds; a shorter one counts as absent.
const STEADY_MIN_NS: u64 = 10_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Maximum number of time slices into which a run is divided.
const SLICES_MAX: u64 = 60;

/// Time window of a run, in nanoseconds of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wall {
    /// Start of the time window, in nanoseconds: of a whole run, its first scheduled send; of its
    /// steady part, the moment at which that begins.
    pub start_ns: u64,
    /// End of the time window, in nanoseconds: of a whole run, the arrival of its last token; of
    /// its steady part, the moment at which that ends.
    pub end_ns: u64,
}

impl Wall {
    /// Returns the time window of the whole run, from the first scheduled send of an answered
    /// request to the last token; `None` if no request was answered.
    pub fn of(answered: &[Answered<'_>]) -> Option<Self> {
        let start_ns = answered.iter().map(|request| request.sample.scheduled_ns).min()?;
        let end_ns = answered
            .iter()
            .filter_map(|request| request.sample.span())
            .map(|span| span.1.at_ns)
            .max()?;
        Some(Self { start_ns, end_ns })
    }

    /// Returns the length of the time window in nanoseconds.
    pub fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Returns the steady part of a run: from the first to the last moment at which at least 90 % of
/// the largest number of requests are running. A closed loop dips between two requests of a
/// connection and remains in its steady state. `None` if that part is shorter than ten seconds or
/// no request was answered.
pub fn steady(answered: &[Answered<'_>]) -> Option<Wall> {
    // At the same moment ends precede starts: a request that follows another adds no concurrency.
    let mut changes: Vec<(u64, i64)> = Vec::new();
    for request in answered {
        let (Some(sent), Some((_, last))) = (request.sample.sent_ns, request.sample.span()) else {
            continue;
        };
        changes.extend([(sent, 1), (last.at_ns.max(sent), -1)]);
    }
    changes.sort_unstable();
    let running = changes.iter().scan(0, |running, (_, change)| {
        *running += change;
        Some(*running)
    });
    let running: Vec<i64> = running.collect();
    let most = *running.iter().max()?;
    let enough = |count: &i64| *count * 10 >= most * 9;
    let first = running.iter().position(enough)?;
    let last = running.iter().rposition(enough)?;
    let end_ns = changes.get(last + 1).map_or(changes[last].0, |change| change.0);
    let window = Wall { start_ns: changes[first].0, end_ns };
    (window.length_ns() >= STEADY_MIN_NS).then_some(window)
}

/// Returns the arrival time in nanoseconds and number of tokens of every chunk with tokens, in
/// order of time.
pub fn token_times(answered: &[Answered<'_>]) -> Vec<(u64, u64)> {
    let chunks = answered.iter().flat_map(|request| {
        request.sample.chunks.iter().map(|chunk| chunk.at_ns).zip(request.credit.per_chunk.clone())
    });
    let mut times: Vec<(u64, u64)> = chunks.collect();
    times.sort_unstable();
    times
}

/// Returns the number of tokens that arrived within `window`; `times` has pairs of arrival time and
/// number of tokens.
pub fn tokens_within(times: &[(u64, u64)], window: &Wall) -> u64 {
    let inside = |at: &u64| (window.start_ns..=window.end_ns).contains(at);
    times.iter().filter(|(at, _)| inside(at)).map(|(_, tokens)| tokens).sum()
}

/// Divides a run into time slices, each of so many whole seconds that there are at most
/// `SLICES_MAX`. The last one may be shorter. `times` has pairs of a chunk's arrival time and
/// number of tokens.
pub fn slices(answered: &[Answered<'_>], times: &[(u64, u64)], wall: Wall) -> Vec<Slice> {
    let length_ns = wall.length_ns().div_ceil(SLICES_MAX * SECOND_NS).max(1) * SECOND_NS;
    let count = wall.length_ns().div_ceil(length_ns).max(1);
    let of = |at_ns: u64| (at_ns.saturating_sub(wall.start_ns) / length_ns).min(count - 1);
    let slice = |number: u64| {
        let start_ns = number * length_ns;
        Slice {
            start_us: to_us(start_ns),
            length_us: to_us((wall.length_ns() - start_ns).min(length_ns)),
            ..Slice::default()
        }
    };
    let mut slices: Vec<Slice> = (0..count).map(slice).collect();
    let mut ttft: Vec<Vec<u64>> = vec![Vec::new(); slices.len()];
    let index = |at_ns| usize::try_from(of(at_ns)).unwrap_or(0);
    for request in answered {
        let (Some(sent), Some((first, last))) = (request.sample.sent_ns, request.sample.span())
        else {
            continue;
        };
        slices[index(sent)].requests_sent += 1;
        slices[index(last.at_ns)].requests_ended += 1;
        ttft[index(sent)].push(first.at_ns.saturating_sub(sent));
    }
    for (at_ns, tokens) in times {
        slices[index(*at_ns)].output_tokens += tokens;
    }
    for (slice, ttft) in slices.iter_mut().zip(ttft) {
        slice.ttft_us_p50 = summarize(ttft).and_then(|summary| summary.p50);
    }
    slices
}

/// Returns the largest number of tokens that arrived within any second of a run, by a sliding
/// window over `times`, pairs of arrival time and number of tokens.
pub fn peak_per_second(times: &[(u64, u64)]) -> u64 {
    let (mut most, mut sum, mut first) = (0, 0, 0);
    for (at, tokens) in times {
        sum += tokens;
        while at - times[first].0 >= SECOND_NS {
            sum -= times[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Time between two chunks above which a gap counts as a stall, in nanoseconds: MLPerf Inference's
/// limit on the time per token of Llama 2 70B, chosen there as the pace of a reader. It is the same
/// for every run, so that figures of two runs are comparable whatever limits they have.
const STALL_NS: u64 = 200_000_000;

/// Returns the number of stalls among `gaps`, the gaps between chunks in nanoseconds, and the share
/// of the sum of all gaps that they take; `None` without gaps.
pub fn stalls(gaps: &[u64]) -> Option<Stalls> {
    let long: Vec<u64> = gaps.iter().copied().filter(|gap| *gap > STALL_NS).collect();
    let (within, all): (u64, u64) = (long.iter().sum(), gaps.iter().sum());
    (!gaps.is_empty()).then(|| Stalls {
        over_us: to_us(STALL_NS),
        gaps: long.len() as u64,
        time_share: float(within) / float(all.max(1)),
    })
}

/// Latency limit (SLO) of a request. TTFT and E2E count from the scheduled send, because a user
/// also waits for the concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slo {
    metric: Metric,
    limit_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Ttft,
    Tpot,
    E2e,
}

impl Metric {
    const NAMED: [(&'static str, Self); 3] =
        [("ttft_ms", Self::Ttft), ("tpot_ms", Self::Tpot), ("e2e_ms", Self::E2e)];
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("`{text}` is no limit: give `ttft_ms=500`, `tpot_ms=…` or `e2e_ms=…`");
        let (name, limit) = text.split_once('=').ok_or_else(wrong)?;
        let named = Metric::NAMED.iter().find(|(known, _)| *known == name).ok_or_else(wrong)?;
        let limit_ms: f64 = limit.parse().map_err(|_| wrong())?;
        if !(0.001..=1e9).contains(&limit_ms) {
            return Err(wrong());
        }
        let limit_ns = whole(limit_ms * 1e6);
        Ok(Self { metric: named.1, limit_ns })
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Metric::NAMED.iter().find(|(_, metric)| *metric == self.metric);
        let name = name.map_or("", |(name, _)| name);
        write!(formatter, "{name}={}", float(self.limit_ns) / 1e6)
    }
}

impl Slo {
    fn is_met(&self, request: &Answered<'_>) -> bool {
        let sample = request.sample;
        let Some((first, last)) = sample.span() else { return false };
        let since = |at_ns: u64| at_ns.saturating_sub(sample.scheduled_ns);
        let found_ns = match self.metric {
            Metric::Ttft => since(first.at_ns),
            Metric::E2e => since(last.at_ns),
            // A single token has no time per further token.
            Metric::Tpot => {
                let decode_ns = last.at_ns.saturating_sub(first.at_ns);
                decode_ns.checked_div(request.credit.tokens.saturating_sub(1)).unwrap_or(0)
            }
        };
        found_ns <= self.limit_ns
    }
}

/// Returns the number of answered requests that meet all latency limits in `slos`.
pub fn met(slos: &[Slo], answered: &[Answered<'_>]) -> u64 {
    let good = |request: &&Answered<'_>| slos.iter().all(|slo| slo.is_met(request));
    answered.iter().filter(good).count() as u64
}

/// Computes goodput: the requests per second that meet a latency limit, by the limit's text, and
/// under `all` those that meet all limits; `None` without limits.
pub fn goodput(
    slos: &[Slo],
    answered: &[Answered<'_>],
    wall: Wall,
) -> Option<BTreeMap<String, f64>> {
    let seconds = float(wall.length_ns()) / 1e9;
    let rate = |slos: &[Slo]| float(met(slos, answered)) / seconds;
    let each = slos.iter().map(|slo| (slo.to_string(), rate(&[*slo])));
    (!slos.is_empty()).then(|| each.chain([("all".to_owned(), rate(slos))]).collect())
}

/// Computes the metrics of a run with the time window `wall`. `gpus` is the number of GPUs that the
/// server runs on, if it runs on any; `slos` are the latency limits of goodput.
pub fn metrics(
    answered: &[Answered<'_>],
    wall: Wall,
    counts: &Counts,
    all: &Distributions,
    gpus: Option<u32>,
    slos: &[Slo],
) -> Metrics {
    let wall_us = to_us(wall.length_ns());
    let rate = |count: Option<u64>| count.map(|count| float(count) * 1e6 / float(wall_us.max(1)));
    let output = rate(counts.output_tokens_reported);
    let total = counts.input_tokens.zip(counts.output_tokens_reported).map(|(i, o)| i + o);
    let times = token_times(answered);
    let steady_rate = steady(answered)
        .map(|window| float(tokens_within(&times, &window)) * 1e9 / float(window.length_ns()));
    let peak = (wall.length_ns() >= SECOND_NS).then(|| float(peak_per_second(&times)));
    let busy: u64 = all.e2e_ns.iter().sum();
    let per_gpu = output.zip(gpus).map(|(output, gpus)| output / f64::from(gpus.max(1)));
    Metrics {
        requests_per_s: rate(counts.requests_ok),
        input_tokens_per_s: rate(counts.input_tokens),
        output_tokens_per_s: output,
        total_tokens_per_s: rate(total),
        output_tokens_per_s_per_gpu: per_gpu,
        output_tokens_per_s_steady: steady_rate,
        output_tokens_per_s_peak: peak,
        concurrency_mean: Some(float(busy) / float(wall.length_ns().max(1))),
        goodput_per_s: goodput(slos, answered, wall),
        // The energy is added from the samples of `telemetry`.
        joules_per_output_token: None,
        ttft_us: summarize_requests(all.ttft_ns.clone()),
        tpot_us: summarize_requests(all.tpot_ns.clone()),
        itl_chunk_us: summarize(all.itl_chunk_ns.clone()),
        itl_token_us: all.itl_token_ns.clone().and_then(summarize),
        e2e_us: summarize_requests(all.e2e_ns.clone()),
        ttft_scheduled_us: summarize_requests(all.ttft_scheduled_ns.clone()),
        e2e_scheduled_us: summarize_requests(all.e2e_scheduled_ns.clone()),
        ttft_event_us: summarize_requests(all.ttft_event_ns.clone()),
        ttft_content_us: summarize_requests(all.ttft_content_ns.clone()),
        ttft_parts_us: all.parts(),
        stalls: stalls(&all.itl_chunk_ns),
        slices: Some(slices(answered, &times, wall)),
    }
}

/// Returns the lengths of the run, its steady part, ramp-up and drain, in microseconds. The lengths
/// of the three parts are `None` if the run has no steady part.
pub fn lengths(answered: &[Answered<'_>], wall: Wall) -> Time {
    let window = steady(answered);
    Time {
        wall_us: Some(to_us(wall.length_ns())),
        window_us: window.map(|window| to_us(window.length_ns())),
        ramp_us: window.map(|window| to_us(window.start_ns.saturating_sub(wall.start_ns))),
        drain_us: window.map(|window| to_us(wall.end_ns.saturating_sub(window.end_ns))),
        ..Time::default()
    }
}

#[cfg(test)]
mod window_tests {
    use super::*;
    use crate::client::sample::{ChunkStamp, Sample};
    use crate::measure::tally::untokenized;

    fn samples(spans_s: &[(u64, u64)]) -> Vec<Sample> {
        let sample = |(sent, end): &(u64, u64)| Sample {
            scheduled_ns: sent * SECOND_NS,
            sent_ns: Some(sent * SECOND_NS),
            chunks: vec![ChunkStamp {
                at_ns: end * SECOND_NS,
                lag_ns: 0,
                early_ns: 0,
                tokens: Some(1),
                text_bytes: 1,
            }],
            ..Sample::default()
        };
        spans_s.iter().map(sample).collect()
    }

    fn steady_s(spans_s: &[(u64, u64)]) -> Option<(u64, u64)> {
        let samples = samples(spans_s);
        let window = steady(&untokenized(&samples))?;
        Some((window.start_ns / SECOND_NS, window.end_ns / SECOND_NS))
    }

    #[test]
    fn the_steady_state_is_where_nine_in_ten_run() {
        let ten: Vec<(u64, u64)> = (0..10).map(|i| (i, 40 + i)).collect();
        assert_eq!(steady_s(&ten), Some((8, 41)), "from the ninth start to the second end");
        let closed = [(0, 6), (6, 12), (13, 20)];
        assert_eq!(steady_s(&closed), Some((0, 20)), "a dip between two requests is no end");
        assert_eq!(steady_s(&[(0, 9)]), None, "under ten seconds");
        assert_eq!(steady_s(&[]), None);
    }

    #[test]
    fn the_wall_runs_from_first_schedule_to_last_token() {
        let samples = samples(&[(3, 5), (2, 9), (4, 6)]);
        let wall = Wall::of(&untokenized(&samples)).unwrap();
        assert_eq!((wall.start_ns / SECOND_NS, wall.end_ns / SECOND_NS), (2, 9));
        assert_eq!(Wall::of(&[]), None);
    }

    #[test]
    fn slices_cover_the_run_and_hold_all_of_it() {
        let samples = samples(&[(0, 1), (1, 3), (1, 5)]);
        let answered = untokenized(&samples);
        let wall = Wall::of(&answered).unwrap();
        let found = slices(&answered, &token_times(&answered), wall);
        let columns = |read: fn(&Slice) -> u64| found.iter().map(read).collect::<Vec<_>>();
        assert_eq!(columns(|slice| slice.length_us), [1_000_000; 5]);
        assert_eq!(columns(|slice| slice.requests_sent), [1, 2, 0, 0, 0]);
        assert_eq!(columns(|slice| slice.requests_ended), [0, 1, 0, 1, 1]);
        assert_eq!(columns(|slice| slice.output_tokens), [0, 1, 0, 1, 1]);
        assert_eq!(found[1].ttft_us_p50, Some(3_000_000));
        assert_eq!(found[2].ttft_us_p50, None);
        let long = Wall { start_ns: 0, end_ns: 61 * SECOND_NS };
        let lengths: Vec<u64> = slices(&[], &[], long).iter().map(|s| s.length_us).collect();
        assert_eq!((lengths.len(), lengths[0], lengths[30]), (31, 2_000_000, 1_000_000));
    }

    #[test]
    fn the_peak_slides_and_weighs_tokens() {
        let ms = 1_000_000;
        let times = [(0, 5), (500 * ms, 5), (999 * ms, 1), (1000 * ms, 7), (2500 * ms, 12)];
        assert_eq!(peak_per_second(&times), 13, "a second that starts after the first five");
        assert_eq!(peak_per_second(&[]), 0);
    }
}

#[cfg(test)]
mod stall_tests {
    use super::*;

    #[test]
    fn a_stall_takes_the_whole_of_its_gap_and_begins_beyond_the_limit() {
        const MS: u64 = 1_000_000;
        let of = |gaps_ms: &[u64]| {
            let gaps: Vec<u64> = gaps_ms.iter().map(|ms| ms * MS).collect();
            stalls(&gaps).map(|found| (found.over_us, found.gaps, found.time_share))
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[0, 0]), Some((200_000, 0, 0.0)), "chunks of one read");
        assert_eq!(of(&[100, 200]), Some((200_000, 0, 0.0)), "at the limit there is none");
        assert_eq!(of(&[100, 300, 200, 400]), Some((200_000, 2, 0.7)));
    }
}

#[cfg(test)]
mod slo_tests {
    use super::*;
    use crate::client::sample::{ChunkStamp, Sample};
    use crate::measure::tally::untokenized;

    const MS: u64 = 1_000_000;

    /// Test helper: returns a sample that is scheduled at 0, sent at 100 ms, and has one token at
    /// each of the times `tokens_ms`, in milliseconds.
    fn sample(tokens_ms: &[u64]) -> Sample {
        let stamp = |ms: &u64| ChunkStamp {
            at_ns: ms * MS,
            lag_ns: 0,
            early_ns: 0,
            tokens: Some(1),
            text_bytes: 1,
        };
        Sample {
            sent_ns: Some(100 * MS),
            chunks: tokens_ms.iter().map(stamp).collect(),
            ..Sample::default()
        }
    }

    #[test]
    fn limits_count_from_the_schedule_and_hold_at_their_value() {
        let samples = [sample(&[150, 170, 190]), sample(&[300])];
        let answered = untokenized(&samples);
        let met = |limits: &[&str]| {
            let slos: Vec<Slo> = limits.iter().map(|limit| limit.parse().unwrap()).collect();
            met(&slos, &answered)
        };
        assert_eq!([met(&[]), met(&["ttft_ms=150"]), met(&["ttft_ms=149.9"])], [2, 1, 0]);
        assert_eq!([met(&["tpot_ms=20"]), met(&["tpot_ms=19.999"])], [2, 1], "one has no TPOT");
        assert_eq!([met(&["e2e_ms=300"]), met(&["e2e_ms=300", "ttft_ms=200"])], [2, 1]);
        let wall = Wall { start_ns: 0, end_ns: 500 * MS };
        let slos = ["ttft_ms=150".parse().unwrap(), "e2e_ms=300".parse().unwrap()];
        assert_eq!(goodput(&[], &answered, wall), None);
        let rates = goodput(&slos, &answered, wall).unwrap();
        let rates: Vec<(&str, f64)> =
            rates.iter().map(|(name, rate)| (name.as_str(), *rate)).collect();
        assert_eq!(rates, [("all", 2.0), ("e2e_ms=300", 4.0), ("ttft_ms=150", 2.0)]);
    }

    #[test]
    fn what_is_no_limit_is_refused_by_name() {
        for text in ["ttft", "ttft=5", "ttft_ms=x", "ttft_ms=-1", "itl_ms=5"] {
            assert!(text.parse::<Slo>().unwrap_err().contains(text), "{text}");
        }
    }
}
