//! When the client's loop looks for answers. Where they come thick it leaves the sockets alone for a
//! moment, and then finds many at one time: to be woken for every chunk by itself costs it, and the
//! sender, several times what reading it does. Knows no socket.

/// Shortest time from one look to the next. Chunks of one stream that come within it may share a
/// stamp; those of different streams never do.
const APART_NS: u64 = 100_000;
/// Two looks this close together say that the next answer is not far.
const THICK_NS: u64 = 2 * APART_NS;
/// With fewer streams there is little to gather, and each may be faster than that.
const STREAMS_MIN: usize = 8;

/// When it looked, and whether answers came thick.
#[derive(Debug, Default)]
pub(super) struct Looks {
    last_ns: u64,
    thick: bool,
}

impl Looks {
    /// The loop looked at `now_ns` and found `events`.
    pub(super) fn at(&mut self, now_ns: u64, events: usize) {
        self.thick = events > 0 && now_ns.saturating_sub(self.last_ns) < THICK_NS;
        self.last_ns = now_ns;
    }

    /// Until when the sockets of `streams` may be left alone, if they may. Only for a client whose
    /// stamps are the kernel's: they do not depend on when it looks.
    pub(super) fn rest_until_ns(&self, streams: usize) -> Option<u64> {
        (self.thick && streams >= STREAMS_MIN).then_some(self.last_ns + APART_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the loop rests after looks at these times that found so many events.
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
