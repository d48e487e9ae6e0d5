//! Clock of the server process. `main` creates it and passes it down; no other code of the engine
//! reads the system's clocks.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Clock of the process: monotonic time since it was created, with the calendar time of its
/// creation.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix: Duration,
}

impl Clock {
    /// Creates the clock of the process, whose time counts from this call.
    pub fn start() -> Self {
        // A date before 1970 means that the machine has no clock; `created` then counts from 0.
        let start_unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { start: Instant::now(), start_unix }
    }

    /// Returns the monotonic time since the clock was created, which is the start of the process.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the number of microseconds since the clock was created at the start of the process;
    /// monotonic.
    pub fn elapsed_us(&self) -> u64 {
        u64::try_from(self.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Returns the Unix time: seconds since 1970. It advances with the monotonic clock, so a change
    /// of the system's calendar time does not make it jump.
    pub fn unix_s(&self) -> u64 {
        (self.start_unix + self.elapsed()).as_secs()
    }

    /// Returns the Unix time in nanoseconds at which the process started. Ids are derived from it,
    /// because two processes are unlikely to share it.
    pub fn start_unix_ns(&self) -> u64 {
        u64::try_from(self.start_unix.as_nanos()).unwrap_or(u64::MAX)
    }
}
