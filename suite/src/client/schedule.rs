//! Schedule of a run: which request is due next, those with fixed send times in order and those
//! that wait for the end of an earlier turn. A due request is delayed at most, never dropped. An
//! alarm wakes the client's loop when the next request is nearly due.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::payload::Payload;

/// Schedule of a run's requests that have not been sent yet.
#[derive(Debug)]
pub struct Schedule {
    /// Time at which the run starts, in nanoseconds of the monotonic clock; send times count from
    /// it.
    pub start_ns: u64,
    /// Requests with fixed send times: nanoseconds from the run's start, and the request's index.
    timed: VecDeque<(u64, usize)>,
    /// Requests whose earlier turn has ended: due time in nanoseconds of the monotonic clock and
    /// the request's index, earliest first.
    released: BinaryHeap<Reverse<(u64, usize)>>,
    /// Requests that wait for the end of an earlier turn, by that turn's index: time to wait after
    /// its end, in nanoseconds, and the waiting request's index.
    held: BTreeMap<usize, Vec<(u64, usize)>>,
}

/// Request that is next in the schedule: its index, and the time at which it is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    pub index: usize,
    pub at_ns: u64,
}

impl Schedule {
    /// Creates the schedule of `payloads`, for a run that has not started.
    pub fn new(payloads: &[Payload]) -> Self {
        let mut timed = Vec::new();
        let mut held: BTreeMap<usize, Vec<(u64, usize)>> = BTreeMap::new();
        for (index, payload) in payloads.iter().enumerate() {
            let entry = (payload.send_us.saturating_mul(1000), index);
            match payload.after {
                Some(before) => held.entry(before).or_default().push(entry),
                None => timed.push(entry),
            }
        }
        timed.sort_unstable();
        Self { start_ns: 0, timed: timed.into(), released: BinaryHeap::new(), held }
    }

    /// Returns the request to send next, which may not be due yet; `None` if no request is left or
    /// all wait for the end of an earlier turn. A due turn of a conversation that has begun
    /// precedes other requests.
    pub fn next(&self, now_ns: u64) -> Option<Due> {
        let released = self.released.peek().map(|Reverse((at_ns, index))| (*at_ns, *index));
        let timed = self.timed.front();
        let timed = timed.map(|(ns, index)| (self.start_ns.saturating_add(*ns), *index));
        // A due turn of a running conversation precedes a timed request that is due earlier.
        let due = released.filter(|(at_ns, _)| *at_ns <= now_ns);
        let next = due.or_else(|| released.into_iter().chain(timed).min())?;
        Some(Due { index: next.1, at_ns: next.0 })
    }

    /// Removes the request `due`, which `next` returned, from the schedule.
    pub fn take(&mut self, due: Due) {
        if self.timed.front().is_some_and(|(_, index)| *index == due.index) {
            self.timed.pop_front();
        } else {
            self.released.pop();
        }
    }

    /// Records the end of the request with index `index`, answered or failed: requests that wait
    /// for it become due after their think time.
    pub fn ended(&mut self, index: usize, now_ns: u64) {
        for (wait_ns, index) in self.held.remove(&index).unwrap_or_default() {
            self.released.push(Reverse((now_ns.saturating_add(wait_ns), index)));
        }
    }

    /// True when the schedule has no request left that could be sent; remaining ones wait for the
    /// end of one in flight.
    pub fn is_empty(&self) -> bool {
        self.timed.is_empty() && self.released.is_empty()
    }

    /// Removes all remaining requests from the schedule and returns their indexes in ascending
    /// order.
    pub fn give_up(&mut self) -> Vec<usize> {
        let timed = self.timed.drain(..).map(|(_, index)| index);
        let released = self.released.drain().map(|Reverse((_, index))| index);
        let mut left: Vec<usize> = timed.chain(released).collect();
        left.extend(std::mem::take(&mut self.held).into_values().flatten().map(|entry| entry.1));
        left.sort_unstable();
        left
    }
}

/// Key of the alarm's events in epoll, which no connection has.
pub(super) const ALARM: u64 = u64::MAX;

/// Timer that wakes the client's loop just before the next request is due. The timeout of
/// `epoll_wait` counts whole milliseconds, which is too coarse at a thousand requests a second, and
/// polling without waiting would use a whole core.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: TimerFd,
    set_ns: u64,
}

impl Alarm {
    /// Creates the timer that wakes the client's loop, and registers it with `epoll`.
    pub(super) fn new(epoll: &Epoll) -> Result<Self, Errno> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        // Edge-triggered: one event for each expiry, since the timer is never read.
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&timer, EpollEvent::new(events, ALARM))?;
        Ok(Self { timer, set_ns: 0 })
    }

    /// Sets the timer that wakes the client's loop to `at_ns`, in nanoseconds of the monotonic
    /// clock.
    pub(super) fn set(&mut self, at_ns: u64) -> Result<(), Errno> {
        if at_ns == self.set_ns {
            return Ok(());
        }
        self.set_ns = at_ns;
        let at = TimeSpec::from_duration(Duration::from_nanos(at_ns));
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
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
            output_tokens: 1,
        };
        let mut schedule = Schedule::new(&entries.iter().map(payload).collect::<Vec<_>>());
        schedule.start_ns = 1_000_000;
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
