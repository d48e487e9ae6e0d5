//! The time of the process. Made once in `main` and handed down; nothing else asks the system.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time since the process began, and its place in the calendar.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix: Duration,
}

impl Clock {
    /// A clock that starts now.
    pub fn start() -> Self {
        // A calendar before 1970 is a machine without one; ids and `created` then count from 0.
        let start_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_unix }
    }

    /// Time since the start; never goes back.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Microseconds since the start.
    pub fn elapsed_us(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Seconds since 1970, steady between calls even where the calendar is set anew.
    pub fn unix_s(&self) -> u64 {
        (self.start_unix + self.elapsed()).as_secs()
    }

    /// Nanoseconds between 1970 and the start: a number that no other process is likely to have.
    pub fn start_unix_ns(&self) -> u64 {
        u64::try_from(self.start_unix.as_nanos()).unwrap_or(u64::MAX)
    }
}
