//! The clock that everything below `main` reads: the wall clock, and a steady clock for durations.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Clocks of the system, with the time at which the command began.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started_ns: u64,
}

impl Clock {
    /// Returns the system's clocks for a command that begins now.
    pub fn start() -> Self {
        Self { started_ns: steady_ns() }
    }

    /// Returns the nanoseconds of the steady clock, as CLOCK_MONOTONIC counts them.
    pub fn monotonic_ns(self) -> u64 {
        steady_ns()
    }

    /// Returns the time since the command began, by the steady clock.
    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(steady_ns().saturating_sub(self.started_ns))
    }

    /// Returns the wall-clock time in milliseconds since 1970.
    pub fn unix_ms(self) -> u64 {
        let now = OffsetDateTime::now_utc();
        u64::try_from(now.unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
    }

    /// Returns the wall-clock time in seconds since 1970.
    pub fn unix_s(self) -> i64 {
        i64::try_from(self.unix_ms() / 1_000).unwrap_or(i64::MAX)
    }

    /// Returns the current date and time, in UTC, in the form of RFC 3339, to the millisecond.
    pub fn rfc3339(self) -> String {
        let now = OffsetDateTime::now_utc();
        let now = now.replace_millisecond(now.millisecond()).unwrap_or(now);
        now.format(&Rfc3339).unwrap_or_default()
    }
}

fn steady_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |time| {
        let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
    })
}
