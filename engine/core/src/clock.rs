//! Clock of the process. `main` makes it and hands it down; nothing else reads the system's time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time since the process started, with the calendar time of the start.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix: Duration,
}

impl Clock {
    /// Returns a clock that starts now.
    pub fn start() -> Self {
        // A date before 1970 means that the machine has no clock; `created` then counts from 0.
        let start_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_unix }
    }

    /// Time since the process started; monotonic.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Microseconds since the process started; monotonic.
    pub fn elapsed_us(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Seconds since 1970. It advances with the monotonic clock, so that a change of the system's
    /// calendar does not make it jump.
    pub fn unix_s(&self) -> u64 {
        (self.start_unix + self.elapsed()).as_secs()
    }

    /// Nanoseconds from 1970 to the start of the process. Serves as a number that is most likely
    /// unique to this process.
    pub fn start_unix_ns(&self) -> u64 {
        u64::try_from(self.start_unix.as_nanos()).unwrap_or(u64::MAX)
    }
}
