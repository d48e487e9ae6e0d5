//! Load of the client's own loop during a run: CPU share, loop lag and read delays, as evidence
//! that the client did not limit the figures.

use hdrhistogram::Histogram;

use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::measure::summary::float;

/// Minimum length of the time slices over which the CPU share is computed, except a run's last, in
/// nanoseconds.
const SLICE_NS: u64 = 100_000_000;
/// Minimum length of a run's last time slice for its CPU share to be computed, in nanoseconds; a
/// shorter one is left out.
const SLICE_MIN_NS: u64 = 10_000_000;
/// Time in nanoseconds for which bytes may wait in the socket before their read counts as late.
/// Chunks of a late read may share a time stamp that is wrong by more than that.
const LATE_NS: u64 = 1_000_000;
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
    /// Number of reads of more than one chunk with tokens whose bytes waited, or may have waited,
    /// longer than [`LATE_NS`].
    reads_late: u64,
    /// Shares of one CPU core that the client's loop used, one value for each time slice in order.
    pub cpu_shares: Vec<f64>,
    slice_start_ns: u64,
    slice_cpu_ns: u64,
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
            reads_late: 0,
            cpu_shares: Vec::new(),
            slice_start_ns: monotonic_ns(),
            slice_cpu_ns: thread_cpu_ns(),
            streams_max: 0,
        }
    }

    /// Records that the client's loop spent `ns` nanoseconds between two polls.
    pub fn turn(&mut self, ns: u64) {
        self.turns_ns.saturating_record(ns);
    }

    /// Records a read of `chunks` token-bearing chunks that arrived at most `waited_ns` before it;
    /// a read without such chunks is not recorded.
    pub fn read(&mut self, kernel_to_user_ns: Option<u64>, chunks: u32, waited_ns: u64) {
        // A read without tokens affects no figure.
        if chunks == 0 {
            return;
        }
        self.reads += 1;
        self.reads_coalesced += u64::from(chunks > 1);
        // A client that was scheduled late cannot tell from its own clock; the kernel's stamp shows
        // it.
        let late = waited_ns.max(kernel_to_user_ns.unwrap_or(0)) > LATE_NS;
        self.reads_late += u64::from(chunks > 1 && late);
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

    /// Closes the last time slice of the CPU share at the end of the run, if it is at least 10 ms
    /// long.
    pub fn finish(&mut self) {
        let now_ns = monotonic_ns();
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
        self.share(self.reads_coalesced)
    }

    /// Returns the share of reads that brought more than one chunk with tokens and came, or may
    /// have come, more than 1 ms after the bytes, of all reads that brought one; `None` without
    /// reads.
    pub fn late_read_share(&self) -> Option<f64> {
        self.share(self.reads_late)
    }

    fn share(&self, reads: u64) -> Option<f64> {
        (self.reads > 0).then(|| float(reads) / float(self.reads))
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
    fn only_reads_of_several_chunks_that_waited_are_late() {
        let mut load = ClientLoad::start();
        let long = 2 * LATE_NS;
        for (kernel_to_user_ns, chunks, waited_ns) in [
            (Some(1000), 1, long),
            (Some(long), 1, long),
            (Some(1000), 2, 1000),
            (Some(1000), 0, long),
            (Some(1000), 2, long),
            (Some(long), 3, 1000),
            (None, 3, long),
            (None, 3, 0),
        ] {
            load.read(kernel_to_user_ns, chunks, waited_ns);
        }
        assert_eq!(load.late_read_share(), Some(3.0 / 7.0));
        assert_eq!(load.coalesced_read_share(), Some(5.0 / 7.0));
        assert_eq!(load.kernel_timestamps(), Some(false), "two of seven reads had no stamp");
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
