//! Time of a simulation: it passes where somebody waits, and its wall clock can be set.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use ::time::OffsetDateTime;

/// 2026-02-01, a month after the made-up records.
const BEGIN_NS: i64 = 1_769_904_000_000_000_000;

/// Steady clock and wall clock, in nanoseconds.
#[derive(Debug)]
pub struct Time {
    steady_ns: AtomicU64,
    unix_ns: AtomicI64,
}

impl Time {
    pub const fn new() -> Self {
        Self { steady_ns: AtomicU64::new(0), unix_ns: AtomicI64::new(BEGIN_NS) }
    }

    pub fn reset(&self) {
        self.steady_ns.store(0, Ordering::Relaxed);
        self.unix_ns.store(BEGIN_NS, Ordering::Relaxed);
    }

    pub fn steady_ns(&self) -> u64 {
        self.steady_ns.load(Ordering::Relaxed)
    }

    pub fn steady(&self) -> Duration {
        Duration::from_nanos(self.steady_ns())
    }

    pub fn now(&self) -> OffsetDateTime {
        let unix_ns = self.unix_ns.load(Ordering::Relaxed);
        OffsetDateTime::from_unix_timestamp_nanos(unix_ns.into()).unwrap()
    }

    pub fn pass(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap();
        self.steady_ns.fetch_add(ns, Ordering::Relaxed);
        self.unix_ns.fetch_add(i64::try_from(ns).unwrap(), Ordering::Relaxed);
    }

    /// Sets the wall clock forward or back.
    pub fn jump(&self, seconds: i64) {
        self.unix_ns.fetch_add(seconds * 1_000_000_000, Ordering::Relaxed);
    }
}
