//! Timer that wakes the client's loop just before the next request is due. The timeout of
//! `epoll_wait` counts whole milliseconds, which is too coarse at a thousand requests a second, and
//! polling without waiting would use a whole core.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// Key of the alarm's events in epoll, which no connection has.
pub(super) const ALARM: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Alarm {
    timer: TimerFd,
    set_ns: u64,
}

impl Alarm {
    /// Creates an alarm and registers it with `epoll`.
    pub(super) fn new(epoll: &Epoll) -> Result<Self, Errno> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        // Edge-triggered: one event for each expiry, since the timer is never read.
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&timer, EpollEvent::new(events, ALARM))?;
        Ok(Self { timer, set_ns: 0 })
    }

    /// Sets the alarm to `at_ns` on the monotonic clock.
    pub(super) fn set(&mut self, at_ns: u64) -> Result<(), Errno> {
        if at_ns == self.set_ns {
            return Ok(());
        }
        self.set_ns = at_ns;
        let at = TimeSpec::from_duration(Duration::from_nanos(at_ns));
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }
}
