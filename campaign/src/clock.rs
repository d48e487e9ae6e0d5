//! The clock that everything below `main` reads: the wall clock, and a steady clock for durations.

use std::thread;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

#[cfg(test)]
use crate::simulation::time::Time;

/// Clocks of the system, with the time at which the command began.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    source: Source,
    started_ns: u64,
}

/// Source of the time.
#[derive(Debug, Clone, Copy)]
enum Source {
    System,
    #[cfg(test)]
    Simulated(&'static Time),
}

impl Clock {
    /// Returns the system's clocks for a command that begins now.
    pub fn start() -> Self {
        Self::of(Source::System)
    }

    /// Returns the clocks of a simulation for a command that begins now.
    #[cfg(test)]
    pub fn simulated(time: &'static Time) -> Self {
        Self::of(Source::Simulated(time))
    }

    fn of(source: Source) -> Self {
        let clock = Self { source, started_ns: 0 };
        Self { started_ns: clock.monotonic_ns(), ..clock }
    }

    /// Returns the nanoseconds of the steady clock, as CLOCK_MONOTONIC counts them.
    pub fn monotonic_ns(self) -> u64 {
        match self.source {
            Source::System => steady_ns(),
            #[cfg(test)]
            Source::Simulated(time) => time.steady_ns(),
        }
    }

    /// Returns the time since the command began, by the steady clock.
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(self.monotonic_ns().saturating_sub(self.started_ns))
    }

    /// Waits for `duration`.
    pub fn sleep(self, duration: Duration) {
        match self.source {
            Source::System => thread::sleep(duration),
            #[cfg(test)]
            Source::Simulated(time) => time.pass(duration),
        }
    }

    /// Returns the wall-clock time in milliseconds since 1970.
    pub fn unix_ms(self) -> u64 {
        u64::try_from(self.now().unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
    }

    /// Returns the wall-clock time in seconds since 1970.
    pub fn unix_s(self) -> i64 {
        i64::try_from(self.unix_ms() / 1_000).unwrap_or(i64::MAX)
    }

    /// Returns the current date and time, in UTC, in the form of RFC 3339, to the millisecond.
    pub fn rfc3339(self) -> String {
        let now = self.now();
        let now = now.replace_millisecond(now.millisecond()).unwrap_or(now);
        now.format(&Rfc3339).unwrap_or_default()
    }

    fn now(self) -> OffsetDateTime {
        match self.source {
            Source::System => OffsetDateTime::now_utc(),
            #[cfg(test)]
            Source::Simulated(time) => time.now(),
        }
    }
}

fn steady_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}
