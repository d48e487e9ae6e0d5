//! The two clocks of the load generator. Every interval is a difference of monotonic times; the
//! wall clock only dates a record and converts the kernel's receive stamps to monotonic time.

use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Returns the current time of `CLOCK_MONOTONIC` in nanoseconds. All processes of a machine share
/// its origin, so a client's times can be compared with those in the mock server's log.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// Sleeps until the monotonic clock reaches `at_ns`, or until a signal arrives.
pub fn sleep_until(at_ns: u64) {
    let at = TimeSpec::from_duration(Duration::from_nanos(at_ns));
    // The call fails only when a signal interrupts it, and callers check for signals themselves.
    let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at);
}

/// Returns the current wall-clock time in nanoseconds since 1970. It may jump, so no interval is
/// taken from it.
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME)
}

/// Returns the CPU time that the calling thread has used so far, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time that all threads of this program have used so far, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the current wall-clock time as RFC 3339 in UTC, rounded down to the second; `None` if
/// the clock's time is no valid date.
pub fn utc_now() -> Option<String> {
    let now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(realtime_ns())).ok()?;
    now.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()
}

fn nanoseconds(clock: ClockId) -> u64 {
    // These clocks exist on every Linux, and their times are never negative.
    let Ok(time) = clock_gettime(clock) else { return 0 };
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
}
