//! The clock that everything below `main` reads, so that another one can take its place.

use std::fmt::Debug;
use std::thread;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Wall clock, and a steady clock for durations.
pub trait Clock: Debug + Send + Sync {
    /// Returns the nanoseconds of the steady clock, as CLOCK_MONOTONIC counts them.
    fn monotonic_ns(&self) -> u64;

    /// Returns the time since the command began, by the steady clock.
    fn elapsed(&self) -> Duration;

    /// Returns date and time, in UTC.
    fn wall(&self) -> OffsetDateTime;

    /// Blocks the calling thread for `duration`.
    fn sleep(&self, duration: Duration) {
        thread::sleep(duration);
    }

    /// Returns the wall-clock time in milliseconds since 1970.
    fn unix_ms(&self) -> u64 {
        u64::try_from(self.wall().unix_timestamp_nanos() / 1_000_000).unwrap_or(0)
    }

    /// Returns date and time, in UTC, in the form of RFC 3339, to the millisecond.
    fn rfc3339(&self) -> String {
        let now = self.wall();
        let now = now.replace_millisecond(now.millisecond()).unwrap_or(now);
        now.format(&Rfc3339).unwrap_or_default()
    }
}
