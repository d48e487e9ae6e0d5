//! Reasons that lie with the client: it was busy, late, or did not see when bytes came.

use judge::rules::{
    CPU_SHARE_MAX, KERNEL_GAP_SHARE_OF_TPOT, KERNEL_GAP_US, LATE_READ_SHARE_MAX,
    LOOP_LAG_SHARE_OF_TPOT, LOOP_LAG_US_MAX, SCHEDULE_LAG_SHARE_OF_TTFT, SCHEDULE_LAG_US_MAX,
};
use schema::run::{Metrics, Summary};
use schema::scenario::Tier;

use super::{Findings, Judged, Reason};
use crate::measure::summary::float;

/// Lags of the loop that never mind, in microseconds (p99).
const LOOP_LAG_US: (u64, u64) = (LOOP_LAG_US_MAX, 200);
/// Above this share of reads with more than one chunk, gaps are bounds and not measurements.
const COALESCED_SHARE_MAX: f64 = 0.5;
const STAMPS_LOST_SHARE_MAX: f64 = 0.5;

pub(super) const CPU_SHARE: Reason = Reason::degraded(
    "cpu-share",
    "the client used more than 80 % of a core (p95 of 100 ms slices)",
);
pub(super) const LOOP_LAG: Reason = Reason::degraded(
    "loop-lag",
    "the client's loop was away for 5 ms, or 2 % of the time per token where the kernel gives \
     no stamps (p99)",
);
pub(super) const KERNEL_GAP: Reason = Reason::degraded(
    "kernel-gap",
    "arrived bytes waited for the client for 5 ms, or a tenth of the time per token (p99)",
);
pub(super) const SCHEDULE_LAG: Reason = Reason::degraded(
    "schedule-lag",
    "requests were sent 5 ms late, and 2 % of the median TTFT (p99)",
);
pub(super) const COALESCED_READS: Reason =
    Reason::degraded("coalesced-reads", "more than half of all reads brought several chunks");
pub(super) const LATE_READS: Reason = Reason::degraded(
    "late-reads",
    "more than 2 % of reads brought several chunks that may have come 1 ms apart",
);
pub(super) const STAMPS_LOST: Reason =
    Reason::invalid("stamps-lost", "more than half of all reads did (not on -lite)");

impl Findings {
    pub(super) fn client(&mut self, run: &Judged<'_>) {
        let (client, metrics) = (run.client, run.metrics);
        let p50 = |read: fn(&Metrics) -> &Option<Summary>| {
            metrics.and_then(|metrics| read(metrics).as_ref()?.p50).map(float)
        };
        let share = client.cpu_share_p95.unwrap_or(0.0);
        self.add(&CPU_SHARE, share > CPU_SHARE_MAX, || {
            format!("the client used {:.0} % of a core (p95)", share * 100.0)
        });
        let tpot = p50(|metrics| &metrics.tpot_us);
        let lag = client.loop_lag_us_p99.unwrap_or(0);
        // The kernel's stamps do not wait for the loop.
        let minds = tpot.filter(|_| client.kernel_timestamps != Some(true));
        self.add(&LOOP_LAG, too_much(lag, LOOP_LAG_US, LOOP_LAG_SHARE_OF_TPOT, minds), || {
            format!("the client's loop was away for {lag} us (p99)")
        });
        let gap = client.kernel_to_user_us_p99.unwrap_or(0);
        self.add(&KERNEL_GAP, too_much(gap, KERNEL_GAP_US, KERNEL_GAP_SHARE_OF_TPOT, tpot), || {
            format!("arrived bytes waited {gap} us for the client (p99)")
        });
        let lag = client.schedule_lag_us_p99.unwrap_or(0);
        let of_ttft = p50(|metrics| &metrics.ttft_us).unwrap_or(0.0) * SCHEDULE_LAG_SHARE_OF_TTFT;
        self.add(&SCHEDULE_LAG, lag > SCHEDULE_LAG_US_MAX && float(lag) > of_ttft, || {
            format!("requests were sent {lag} us late (p99)")
        });
        self.reads(run);
    }

    fn reads(&mut self, run: &Judged<'_>) {
        let share = run.client.coalesced_read_share.unwrap_or(0.0);
        self.add(&COALESCED_READS, share > COALESCED_SHARE_MAX, || {
            format!("{:.0} % of reads brought several chunks: their gaps are bounds", share * 100.0)
        });
        let share = run.client.late_read_share.unwrap_or(0.0);
        // There client and server share the cores, and a busy client is expected.
        let lost = share > STAMPS_LOST_SHARE_MAX && run.evidence.tier != Tier::Lite;
        let figures = || {
            let percent = share * 100.0;
            format!("the client came late to {percent:.0} % of reads, which brought several chunks")
        };
        self.add(&LATE_READS, share > LATE_READ_SHARE_MAX && !lost, figures);
        self.add(&STAMPS_LOST, lost, figures);
    }
}

/// Always above the first bound, never below the second, between them by its share of `tpot`.
fn too_much(us: u64, (much, little): (u64, u64), share: f64, tpot: Option<f64>) -> bool {
    let of_tpot = tpot.map_or(f64::INFINITY, |tpot| tpot * share);
    us > much || (us > little && float(us) > of_tpot)
}
