//! Windows of a run: from first send to last token, the steady part of it, and its best second.

use schema::run::Slice;

use super::summary::summarize;
use super::tally::Answered;
use super::to_us;

/// The steady state of a run shorter than this says nothing.
const STEADY_MIN_NS: u64 = 10_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// More slices than this say no more about a run.
const SLICES_MAX: u64 = 60;

/// The run as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wall {
    /// First scheduled send.
    pub start_ns: u64,
    /// Last token.
    pub end_ns: u64,
}

impl Wall {
    /// None where nothing was answered.
    pub fn of(answered: &[Answered<'_>]) -> Option<Self> {
        let start_ns = answered.iter().map(|request| request.sample.scheduled_ns).min()?;
        let end_ns = answered
            .iter()
            .filter_map(|request| request.sample.span())
            .map(|span| span.1.at_ns)
            .max()?;
        Some(Self { start_ns, end_ns })
    }

    /// From the first scheduled send to the last token.
    pub fn length_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// The span in which the number of running requests is at least 90 % of its maximum, from the
/// first such moment to the last. A closed loop dips between two requests of a slot, and stays in
/// its steady state all the same. None under ten seconds.
pub fn steady(answered: &[Answered<'_>]) -> Option<Wall> {
    // Ends before starts at one moment: a request that follows another adds nothing to it.
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

/// Every token-bearing chunk's time and tokens, in order.
pub fn token_times(answered: &[Answered<'_>]) -> Vec<(u64, u64)> {
    let chunks = answered.iter().flat_map(|request| {
        request.sample.chunks.iter().map(|chunk| chunk.at_ns).zip(request.credit.per_chunk.clone())
    });
    let mut times: Vec<(u64, u64)> = chunks.collect();
    times.sort_unstable();
    times
}

/// Tokens within `window`.
pub fn tokens_within(times: &[(u64, u64)], window: &Wall) -> u64 {
    let inside = |at: &u64| (window.start_ns..=window.end_ns).contains(at);
    times.iter().filter(|(at, _)| inside(at)).map(|(_, tokens)| tokens).sum()
}

/// Slices of a run, of as many whole seconds each as keep them below `SLICES_MAX`. The last may
/// be shorter.
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

/// Most tokens in any sliding second.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::sample::{ChunkStamp, Sample};
    use crate::measure::credit::credit;

    fn samples(spans_s: &[(u64, u64)]) -> Vec<Sample> {
        let sample = |(sent, end): &(u64, u64)| Sample {
            scheduled_ns: sent * SECOND_NS,
            sent_ns: Some(sent * SECOND_NS),
            chunks: vec![ChunkStamp {
                at_ns: end * SECOND_NS,
                lag_ns: 0,
                tokens: Some(1),
                text_bytes: 1,
            }],
            ..Sample::default()
        };
        spans_s.iter().map(sample).collect()
    }

    fn answered(samples: &[Sample]) -> Vec<Answered<'_>> {
        let answered = |sample| Answered {
            sample,
            credit: credit(sample, None),
            prompt_tokens: 1,
            requested: 1,
            retokenized: None,
        };
        samples.iter().map(answered).collect()
    }

    fn steady_s(spans_s: &[(u64, u64)]) -> Option<(u64, u64)> {
        let samples = samples(spans_s);
        let window = steady(&answered(&samples))?;
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
        let wall = Wall::of(&answered(&samples)).unwrap();
        assert_eq!((wall.start_ns / SECOND_NS, wall.end_ns / SECOND_NS), (2, 9));
        assert_eq!(Wall::of(&[]), None);
    }

    #[test]
    fn slices_cover_the_run_and_hold_all_of_it() {
        let samples = samples(&[(0, 1), (1, 3), (1, 5)]);
        let answered = answered(&samples);
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
