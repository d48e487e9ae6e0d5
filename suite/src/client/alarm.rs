//! A timer that wakes the client's loop when the next request is nearly due. The loop's own wait
//! counts whole milliseconds, which is too coarse at a thousand requests a second, and going round
//! without waiting would take a core.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// The key of the alarm's events, which is no connection's.
pub(super) const ALARM: u64 = u64::MAX;

#[derive(Debug)]
pub(super) struct Alarm {
    timer: TimerFd,
    set_ns: u64,
}

impl Alarm {
    /// An alarm that `epoll` will see.
    pub(super) fn new(epoll: &Epoll) -> Result<Self, Errno> {
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        // Once for each time that it goes off: nobody reads it.
        let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        epoll.add(&timer, EpollEvent::new(events, ALARM))?;
        Ok(Self { timer, set_ns: 0 })
    }

    /// Sets it to `at_ns` of the monotonic clock.
    pub(super) fn set(&mut self, at_ns: u64) -> Result<(), Errno> {
        if at_ns == self.set_ns {
            return Ok(());
        }
        self.set_ns = at_ns;
        let at = TimeSpec::from_duration(Duration::from_nanos(at_ns));
        self.timer.set(Expiration::OneShot(at), TimerSetTimeFlags::TFD_TIMER_ABSTIME)
    }
}
