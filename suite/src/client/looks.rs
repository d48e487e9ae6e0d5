//! Pacing of the client's polls. While chunks arrive densely, the loop pauses briefly and then
//! reads many sockets at once: waking up for every chunk costs client and server several times more
//! than reading it. Knows no socket.

/// Shortest interval between two polls, in nanoseconds. Chunks of one stream within it may share a
/// time stamp; chunks of different streams never do.
const APART_NS: u64 = 100_000;
/// Largest interval between two polls with events that counts as dense, in nanoseconds.
const THICK_NS: u64 = 2 * APART_NS;
/// Minimum number of streams for a pause: with fewer there is little to gather, and each stream may
/// be faster than the pause.
const STREAMS_MIN: usize = 8;

/// Time of the last poll, and whether chunks arrive densely.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last_ns: u64,
    thick: bool,
}

impl Looks {
    /// Records a poll at `now_ns` that returned `events` events.
    pub(super) fn at(&mut self, now_ns: u64, events: usize) {
        self.thick = events > 0 && now_ns.saturating_sub(self.last_ns) < THICK_NS;
        self.last_ns = now_ns;
    }

    /// Returns the time until which the loop may leave the sockets of `streams` unread, if it may.
    /// Only valid with kernel time stamps, which do not depend on when a socket is read.
    pub(super) fn rest_until_ns(&self, streams: usize) -> Option<u64> {
        (self.thick && streams >= STREAMS_MIN).then_some(self.last_ns + APART_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the end of the pause after polls at these times with these numbers of events.
    fn rests(looks: &[(u64, usize)], streams: usize) -> Option<u64> {
        let mut found = Looks::default();
        looks.iter().for_each(|(at_ns, events)| found.at(*at_ns, *events));
        found.rest_until_ns(streams)
    }

    #[test]
    fn a_loop_rests_where_looks_that_found_something_follow_each_other_closely() {
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
