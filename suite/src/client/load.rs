//! Load of the client's own loop during a run: CPU share, loop lag and read delays, as evidence
//! that the client did not limit the figures.

use hdrhistogram::Histogram;

use crate::clock::{monotonic_ns, process_cpu_ns, thread_cpu_ns};
use crate::measure::summary::float;

/// Minimum length of the time slices over which the CPU share is computed, except a run's last, in
/// nanoseconds.
const SLICE_NS: u64 = 100_000_000;
/// Minimum length of a run's last time slice for its CPU share to be computed, in nanoseconds; a
/// shorter one is left out.
const SLICE_MIN_NS: u64 = 10_000_000;
/// Largest value that the histograms of the client's load can hold, in nanoseconds: one hour. A
/// longer time is recorded as this value.
const LONGEST_NS: u64 = 3600 * 1_000_000_000;

/// Counters of the load of the client's event loop.
#[derive(Debug)]
pub struct ClientLoad {
    /// Distribution of the time from the end of each poll to the start of the next, in nanoseconds.
    turns_ns: Histogram<u64>,
    kernel_to_user_ns: Histogram<u64>,
    reads: u64,
    reads_unstamped: u64,
    /// Number of reads that brought more than one chunk with tokens.
    reads_coalesced: u64,
    /// Shares of one CPU core that the client's loop used, one value for each time slice in order.
    pub cpu_shares: Vec<f64>,
    slice_start_ns: u64,
    slice_cpu_ns: u64,
    /// CPU time that all threads of this program used during the run, in nanoseconds; until
    /// [`Self::finish`], their CPU time before the run.
    pub process_cpu_ns: u64,
    pub streams_max: u64,
}

impl ClientLoad {
    /// Creates the counters of the client's load and starts the first time slice.
    pub fn start() -> Self {
        Self {
            turns_ns: durations(),
            kernel_to_user_ns: durations(),
            reads: 0,
            reads_unstamped: 0,
            reads_coalesced: 0,
            cpu_shares: Vec::new(),
            slice_start_ns: monotonic_ns(),
            slice_cpu_ns: thread_cpu_ns(),
            process_cpu_ns: process_cpu_ns(),
            streams_max: 0,
        }
    }

    /// Records that the client's loop spent `ns` nanoseconds between two polls.
    pub fn turn(&mut self, ns: u64) {
        self.turns_ns.saturating_record(ns);
    }

    /// Records a read of `chunks` token-bearing chunks, and the delay from the kernel's time stamp
    /// to it in nanoseconds; a read without such chunks is not recorded.
    pub fn read(&mut self, kernel_to_user_ns: Option<u64>, chunks: u32) {
        // A read without tokens affects no figure.
        if chunks == 0 {
            return;
        }
        self.reads += 1;
        self.reads_coalesced += u64::from(chunks > 1);
        match kernel_to_user_ns {
            Some(ns) => self.kernel_to_user_ns.saturating_record(ns),
            None => self.reads_unstamped += 1,
        }
    }

    /// Closes the current time slice of the CPU share if it has lasted at least 100 ms at `now_ns`,
    /// in nanoseconds of the monotonic clock.
    pub fn slice(&mut self, now_ns: u64) {
        if now_ns.saturating_sub(self.slice_start_ns) >= SLICE_NS {
            self.close_slice(now_ns);
        }
    }

    /// Ends the run: determines the CPU time that it used, and closes the last time slice of the CPU
    /// share if that is at least 10 ms long.
    pub fn finish(&mut self) {
        let now_ns = monotonic_ns();
        self.process_cpu_ns = process_cpu_ns().saturating_sub(self.process_cpu_ns);
        if now_ns.saturating_sub(self.slice_start_ns) >= SLICE_MIN_NS {
            self.close_slice(now_ns);
        }
    }

    fn close_slice(&mut self, now_ns: u64) {
        let cpu_ns = thread_cpu_ns();
        let wall = now_ns - self.slice_start_ns;
        self.cpu_shares.push(float(cpu_ns.saturating_sub(self.slice_cpu_ns)) / float(wall));
        self.slice_start_ns = now_ns;
        self.slice_cpu_ns = cpu_ns;
    }

    /// Returns the 99th percentile of the time from the end of one poll to the start of the next,
    /// in microseconds, or `None` before the first poll.
    pub fn loop_lag_us_p99(&self) -> Option<u64> {
        quantile_us(&self.turns_ns)
    }

    /// Returns the 99th percentile of the delay from kernel time stamp to read in microseconds, or
    /// `None` without kernel time stamps.
    pub fn kernel_to_user_us_p99(&self) -> Option<u64> {
        quantile_us(&self.kernel_to_user_ns)
    }

    /// True when at least 99.9 % of the reads of chunks with tokens have a kernel time stamp;
    /// `None` without reads.
    pub fn kernel_timestamps(&self) -> Option<bool> {
        // One read in a thousand without a stamp does not change percentiles.
        (self.reads > 0).then_some(self.reads_unstamped * 1000 <= self.reads)
    }

    /// Returns the share of reads that brought more than one chunk with tokens, of all reads that
    /// brought one, or `None` without reads.
    pub fn coalesced_read_share(&self) -> Option<f64> {
        (self.reads > 0).then(|| float(self.reads_coalesced) / float(self.reads))
    }
}

fn durations() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3)
        .expect("three digits up to an hour are within what the format allows")
}

fn quantile_us(histogram: &Histogram<u64>) -> Option<u64> {
    // Rounded up, so that a lag never looks smaller than it was.
    (!histogram.is_empty()).then(|| histogram.value_at_quantile(0.99).div_ceil(1000))
}

/// Shortest interval between two polls while chunks arrive densely, in nanoseconds. Chunks of one
/// stream within it may share a time stamp; chunks of different streams never do.
const APART_NS: u64 = 100_000;
/// Maximum interval between two polls with events at which chunks count as arriving densely, in
/// nanoseconds.
const THICK_NS: u64 = 2 * APART_NS;
/// Minimum number of streams in flight for a pause of polling: with fewer there is little to
/// gather, and each stream may be faster than the pause.
const STREAMS_MIN: usize = 8;

/// Pacing of the client's polls: the time of the last poll, and whether chunks arrive densely.
#[derive(Debug, Default)]
pub(super) struct PollPacing {
    last_ns: u64,
    thick: bool,
}

impl PollPacing {
    /// Records a poll that ended at `now_ns` that returned `events` events.
    pub(super) fn at(&mut self, now_ns: u64, events: usize) {
        self.thick = events > 0 && now_ns.saturating_sub(self.last_ns) < THICK_NS;
        self.last_ns = now_ns;
    }

    /// Returns the time until which the loop may leave the sockets of its `streams` streams unread,
    /// or `None` if it must poll at once. Only valid with kernel time stamps, which do not depend
    /// on when a socket is read.
    pub(super) fn rest_until_ns(&self, streams: usize) -> Option<u64> {
        (self.thick && streams >= STREAMS_MIN).then_some(self.last_ns + APART_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_tokens_are_counted_by_their_chunks_and_stamps() {
        let mut load = ClientLoad::start();
        for (kernel_to_user_ns, chunks) in
            [(Some(1000), 1), (Some(1000), 2), (Some(1000), 0), (None, 3), (None, 1)]
        {
            load.read(kernel_to_user_ns, chunks);
        }
        assert_eq!(load.coalesced_read_share(), Some(0.5), "two of four");
        assert_eq!(load.kernel_timestamps(), Some(false), "two of four reads had no stamp");
    }

    /// Test helper: records `polls`, pairs of time in nanoseconds and number of events, and returns
    /// the time at which the loop's pause after them ends; `None` if it makes no pause.
    fn rests(polls: &[(u64, usize)], streams: usize) -> Option<u64> {
        let mut found = PollPacing::default();
        polls.iter().for_each(|(at_ns, events)| found.at(*at_ns, *events));
        found.rest_until_ns(streams)
    }

    #[test]
    fn a_loop_rests_where_polls_that_found_something_follow_each_other_closely() {
        let (first, soon, late) = (1_000_000, 1_000_000 + THICK_NS - 1, 1_000_000 + THICK_NS);
        assert_eq!(rests(&[(first, 1), (soon, 1)], 8), Some(soon + APART_NS));
        assert_eq!(rests(&[(first, 1), (late, 1)], 8), None, "the second was long in coming");
        assert_eq!(rests(&[(first, 9)], 8), None, "one look says nothing of the next");
    }

    #[test]
    fn a_loop_that_found_nothing_waits_for_the_next_answer() {
        assert_eq!(rests(&[(1_000_000, 5), (1_000_001, 0)], 8), None);
    }

    #[test]
    fn a_few_streams_are_looked_at_as_soon_as_they_have_something() {
        assert_eq!(rests(&[(1_000_000, 1), (1_000_001, 1)], STREAMS_MIN - 1), None);
    }
}
