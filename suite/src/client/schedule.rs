//! Which request is due next: those with a time of their own in order of it, and those that wait
//! for the end of another. Decides when, never whether: what is due is never dropped.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::payload::Payload;

/// Requests that are not sent yet.
#[derive(Debug)]
pub struct Schedule {
    start_ns: u64,
    /// Time from the start and position of those with a time of their own.
    timed: VecDeque<(u64, usize)>,
    /// Time and position of those whose turn before has ended, the earliest first.
    released: BinaryHeap<Reverse<(u64, usize)>>,
    /// Wait and position of the others, by the position of the turn before.
    held: BTreeMap<usize, Vec<(u64, usize)>>,
}

/// A request and when it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    pub index: usize,
    pub at_ns: u64,
}

impl Schedule {
    /// The schedule of `payloads`, whose clock has not started.
    #[must_use]
    pub fn new(payloads: &[Payload]) -> Self {
        let mut timed = Vec::new();
        let mut held: BTreeMap<usize, Vec<(u64, usize)>> = BTreeMap::new();
        for (index, payload) in payloads.iter().enumerate() {
            let entry = (payload.send_us * 1000, index);
            match payload.after {
                Some(before) => held.entry(before).or_default().push(entry),
                None => timed.push(entry),
            }
        }
        timed.sort_unstable();
        Self { start_ns: 0, timed: timed.into(), released: BinaryHeap::new(), held }
    }

    /// Starts the clock.
    pub fn start(&mut self, now_ns: u64) {
        self.start_ns = now_ns;
    }

    /// The request to be sent next. A conversation that is under way goes on before another begins.
    #[must_use]
    pub fn next(&self, now_ns: u64) -> Option<Due> {
        let released = self.released.peek().map(|Reverse((at_ns, index))| (*at_ns, *index));
        let timed = self.timed.front().map(|(ns, index)| (self.start_ns + ns, *index));
        let due = released.filter(|(at_ns, _)| *at_ns <= now_ns);
        let next = due.or_else(|| released.into_iter().chain(timed).min())?;
        Some(Due { index: next.1, at_ns: next.0 })
    }

    /// Takes the request that `next` gave.
    pub fn take(&mut self, due: Due) {
        if self.timed.front().is_some_and(|(_, index)| *index == due.index) {
            self.timed.pop_front();
        } else {
            self.released.pop();
        }
    }

    /// A request ended, answered or not: those that wait for it are due after their wait.
    pub fn ended(&mut self, index: usize, now_ns: u64) {
        for (wait_ns, index) in self.held.remove(&index).unwrap_or_default() {
            self.released.push(Reverse((now_ns + wait_ns, index)));
        }
    }

    /// Nothing is left but what waits for requests under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.timed.is_empty() && self.released.is_empty()
    }

    /// Gives up all that is left.
    pub fn give_up(&mut self) -> Vec<usize> {
        let timed = self.timed.drain(..).map(|(_, index)| index);
        let released = self.released.drain().map(|Reverse((_, index))| index);
        let mut left: Vec<usize> = timed.chain(released).collect();
        left.extend(std::mem::take(&mut self.held).into_values().flatten().map(|entry| entry.1));
        left.sort_unstable();
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(entries: &[(u64, Option<usize>)]) -> Schedule {
        let payload = |(send_us, after): &(u64, Option<usize>)| Payload {
            bytes: vec![],
            send_us: *send_us,
            after: *after,
        };
        let mut schedule = Schedule::new(&entries.iter().map(payload).collect::<Vec<_>>());
        schedule.start(1_000_000);
        schedule
    }

    fn sent(schedule: &mut Schedule, now_ns: u64) -> Option<usize> {
        let due = schedule.next(now_ns).filter(|due| due.at_ns <= now_ns)?;
        schedule.take(due);
        Some(due.index)
    }

    #[test]
    fn times_count_from_the_start_whatever_their_order() {
        let mut schedule = schedule(&[(500, None), (0, None), (100, None)]);
        assert_eq!(schedule.next(0), Some(Due { index: 1, at_ns: 1_000_000 }));
        assert_eq!(sent(&mut schedule, 1_000_000), Some(1));
        assert_eq!(sent(&mut schedule, 1_099_999), None);
        assert_eq!(sent(&mut schedule, 1_600_000), Some(2), "late, but not lost");
        assert_eq!(sent(&mut schedule, 1_600_000), Some(0));
        assert!(schedule.is_empty());
    }

    #[test]
    fn a_turn_waits_for_the_one_before_and_then_goes_first() {
        let mut schedule = schedule(&[(0, None), (50, Some(0)), (0, None), (0, Some(1))]);
        assert_eq!(sent(&mut schedule, 1_000_000), Some(0));
        schedule.ended(0, 1_010_000);
        assert_eq!(sent(&mut schedule, 1_060_000), Some(1), "before another conversation");
        assert_eq!(sent(&mut schedule, 1_060_000), Some(2));
        assert!(schedule.is_empty(), "the last waits for one that is under way");
        schedule.ended(1, 1_070_000);
        assert_eq!(schedule.next(0), Some(Due { index: 3, at_ns: 1_070_000 }));
    }

    #[test]
    fn all_that_is_left_is_given_up() {
        let mut schedule = schedule(&[(0, None), (0, Some(0)), (9, None), (0, Some(1))]);
        assert_eq!(sent(&mut schedule, 1_000_000), Some(0));
        schedule.ended(0, 1_000_001);
        assert_eq!(schedule.give_up(), [1, 2, 3]);
        assert!(schedule.is_empty());
    }
}
