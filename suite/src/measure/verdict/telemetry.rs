//! Reasons that lie with the machine and with what the server counted: seen beside the load.

use judge::rules::{
    STEAL_SHARE_MAX, STEAL_WALL_US_MIN, THROTTLED_SHARE_MAX, counts_stray, held_down,
};
use schema::run::Telemetry;

use super::{Findings, Judged, Reason};

pub(super) const SERVER_COUNT: Reason = Reason::degraded(
    "server-count",
    "the server's counter of output tokens grew by 1 % and 16 tokens more or less than its \
     answers hold: others used it, or it counts otherwise",
);
pub(super) const STEAL: Reason = Reason::degraded(
    "steal",
    "the hypervisor gave others more than 2 % of the cores' time (in a run of 1 s or more)",
);
pub(super) const THROTTLED: Reason = Reason::degraded(
    "throttled",
    "heat or the hardware held a GPU's clocks down at more than 1 % of the looks",
);
// The limit is a setting of the machine, and stands in the record.
pub(super) const POWER_LIMITED: Reason =
    Reason::note("power-limited", "a GPU was at its power limit at more than 1 % of the looks");

impl Findings {
    pub(super) fn telemetry(&mut self, run: &Judged<'_>) {
        let Some(telemetry) = run.telemetry else { return };
        self.server_count(run, telemetry);
        let steal = telemetry.host.as_ref().and_then(|host| host.cpu_steal_share).unwrap_or(0.0);
        let stolen = steal > STEAL_SHARE_MAX && run.evidence.wall_us >= STEAL_WALL_US_MIN;
        self.add(&STEAL, stolen, || {
            format!("the hypervisor gave others {:.1} % of the cores' time", steal * 100.0)
        });
        let worst = held_down(telemetry).unwrap_or(0.0);
        self.add(&THROTTLED, worst > THROTTLED_SHARE_MAX, || {
            format!("heat or the hardware slowed a GPU at {:.0} % of the looks", worst * 100.0)
        });
        let gpus = telemetry.gpus.iter().flatten().filter(|gpu| gpu.worked);
        let limits = gpus.filter_map(|gpu| gpu.throttled.as_ref()).map(|held| held.power_share);
        let limited = limits.fold(0.0, f64::max);
        self.add(&POWER_LIMITED, limited > THROTTLED_SHARE_MAX, || {
            format!("a GPU was at its power limit at {:.0} % of the looks", limited * 100.0)
        });
    }

    /// Only where every request was answered: what the others produced, only the server knows.
    fn server_count(&mut self, run: &Judged<'_>, telemetry: &Telemetry) {
        let counted = telemetry.server.as_ref().and_then(|server| server.output_tokens);
        let (Some(counted), Some(reported)) = (counted, run.counts.output_tokens_reported) else {
            return;
        };
        let strayed = counts_stray(counted, reported);
        self.add(&SERVER_COUNT, strayed && run.counts.requests_failed == Some(0), || {
            format!("the server counted {counted} output tokens, and its answers hold {reported}")
        });
    }
}
