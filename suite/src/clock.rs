//! The clocks of the suite. Intervals come from the monotonic clock only; the wall clock dates a
//! record, and relates the kernel's receive stamps to the monotonic clock.

use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_gettime, clock_nanosleep};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Nanoseconds of `CLOCK_MONOTONIC`. All processes of a machine share its origin, so that a
/// client's times can be compared with those in the emitter's log.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// Sleeps until the monotonic clock stands at `at_ns`, or a signal comes.
pub fn sleep_until(at_ns: u64) {
    let at = TimeSpec::from_duration(Duration::from_nanos(at_ns));
    // Nothing can be wrong with the request but a signal, which is the caller's to look after.
    let _ = clock_nanosleep(ClockId::CLOCK_MONOTONIC, ClockNanosleepFlags::TIMER_ABSTIME, &at);
}

/// Nanoseconds since 1970. May jump: never take an interval from it.
#[must_use]
pub fn realtime_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME)
}

/// Processor time of the calling thread, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// The wall clock as RFC 3339 in UTC, to the second.
#[must_use]
pub fn utc_now() -> Option<String> {
    let now = OffsetDateTime::from_unix_timestamp_nanos(i128::from(realtime_ns())).ok()?;
    now.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()
}

fn nanoseconds(clock: ClockId) -> u64 {
    // These clocks exist on every Linux, and none stands before its own zero.
    let Ok(time) = clock_gettime(clock) else { return 0 };
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0)
}
