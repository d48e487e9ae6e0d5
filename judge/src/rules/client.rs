//! Quality rules over the load generator: its own error is small, the measuring window was long
//! enough, and outputs were checked. The rules up to revision 7 held every wait of the client
//! against a run; they judge only records that were stored with them.

use schema::metric::{METRICS, Metric};
use schema::run::{Level, RunRecord, Status};
use schema::scenario::{Arrival, Tier};

use super::{claim, float};
use crate::rule::{Condition, Family, Outcome, Rule, Scope, on_cpu};

/// Id of the reason of a run in which the client's error bound of a metric is above the metric's
/// minimum effect.
pub const CLIENT_ERROR: &str = "client-error";

/// Largest share of one core that the client's event loop may use (95th percentile over the run).
pub const CPU_SHARE_MAX: f64 = 0.8;
/// Limits on the lag of the client's event loop, 99th percentile, in microseconds. A lag above the
/// first limit is always too long; one above the second is too long where it also exceeds
/// [`LOOP_LAG_SHARE_OF_TPOT`] of the median TPOT.
pub const LOOP_LAG_US: (u64, u64) = (5_000, 200);
/// Share of the median TPOT above which a lag of the event loop is too long, for lags above the
/// second limit of [`LOOP_LAG_US`]. It applies only where receive times are not stamped by the
/// kernel, since stamps do not depend on the loop.
pub const LOOP_LAG_SHARE_OF_TPOT: f64 = 0.02;

/// Limits on how long received bytes may wait for the client, 99th percentile, in microseconds. A
/// wait above the first limit is always too long; one above the second is too long where it also
/// exceeds [`KERNEL_GAP_SHARE_OF_TPOT`] of the median TPOT.
pub const KERNEL_GAP_US: (u64, u64) = (5_000, 1_000);
/// Share of the median TPOT above which a wait of received bytes for the client is too long, for
/// waits above the second limit of [`KERNEL_GAP_US`].
pub const KERNEL_GAP_SHARE_OF_TPOT: f64 = 0.1;
/// Largest share, of all reads with chunks, of reads that may come more than 1 ms late and bring
/// several chunks, which then share one time stamp.
pub const LATE_READ_SHARE_MAX: f64 = 0.02;
/// Share of reads that come late and bring several chunks, of all reads with chunks, above which
/// the time stamps of a run are not usable.
pub const LATE_READ_SHARE_LOST: f64 = 0.5;
/// Share of reads with more than one chunk, of all reads with chunks, above which the times of
/// single gaps between chunks are not known, only bounds of them.
pub const COALESCED_SHARE_MAX: f64 = 0.5;
/// Limit on the delay of the client's sends, 99th percentile, in microseconds. A longer delay is
/// too late where it also exceeds [`SCHEDULE_LAG_SHARE_OF_TTFT`] of the median TTFT.
pub const SCHEDULE_LAG_US_MAX: u64 = 5_000;
/// Share of the median TTFT that a send delay above [`SCHEDULE_LAG_US_MAX`] must also exceed to be
/// too late.
pub const SCHEDULE_LAG_SHARE_OF_TTFT: f64 = 0.02;
/// Ratio of the answered rate to the arrival rate from which the arrival rate, not the engine,
/// sets the throughput.
pub const ARRIVAL_SHARE: f64 = 0.95;

/// Shortest steady window, in microseconds, that retired rule E16 accepts in a scenario of the tier
/// `full` that sends all requests at once.
pub const WINDOW_US_MIN_FULL: u64 = 300_000_000;
/// Shortest steady window, in microseconds, that rule E37 accepts where it is a smaller share of the
/// run than [`WINDOW_SHARE_MIN`]. Rule E16 asked for it in all other scenarios.
pub const WINDOW_US_MIN: u64 = 60_000_000;
/// Smallest share of the run that rule E37 accepts of a steady window shorter than
/// [`WINDOW_US_MIN`].
pub const WINDOW_SHARE_MIN: f64 = 0.8;

/// Quality rules over the load generator, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E15",
        title: "the client was not the bottleneck: under 80 % of a core, loop lag under 5 ms",
        finding: "client busy",
        why: "A client that lags adds its own delay to every time it reports.",
        // Client and server share the cores: there a busy client is expected and only reported.
        level_on_cpu: Level::Warning,
        until: Some(7),
        affects: Family::LATENCIES,
        conditions: &[
            Condition::new(cpu_share).degraded(
                "cpu-share",
                "the client used more than 80 % of a core (p95 of 100 ms slices)",
            ),
            Condition::new(loop_lag).degraded(
                "loop-lag",
                "the client's event loop was late by 5 ms, or by 2 % of the time per token where \
                 the kernel gives no stamps (p99)",
            ),
        ],
        ..Rule::ERROR
    },
    Rule {
        id: "E16",
        title: "the steady state lasted 60 s, or 300 s for a full scenario that sends all \
                requests at once",
        finding: "short steady state",
        why: "A short window measures mostly ramp-up and drain.",
        scope: Scope::MEASURED_FIGURES.but_lite(),
        until: Some(9),
        successor: Some("E37"),
        conditions: &[Condition::new(window)],
        ..Rule::ERROR
    },
    Rule {
        id: "E37",
        title: "where requests arrive over time, the steady state lasted 60 s or four fifths of \
                the run",
        finding: "short steady state",
        why: "A short window measures mostly ramp-up and drain. Where all requests are sent at \
              once, both belong to the workload: its figures are those of the whole run.",
        since: Some(10),
        scope: Scope::MEASURED_FIGURES.but_lite(),
        conditions: &[Condition::new(steady_share)],
        ..Rule::ERROR
    },
    Rule {
        id: "E17",
        title: "the outputs for fixed prompts were recorded",
        finding: "outputs not checked",
        why: "A fast server may give wrong answers.",
        scope: Scope { statuses: &[Status::Ok], ..Scope::MEASURED },
        // Whether outputs were checked changes no figure: the finding is shown, and nothing is
        // excluded.
        affects: &[],
        conditions: &[Condition::new(correctness)],
        ..Rule::ERROR
    },
    Rule {
        id: "E32",
        title: "no more requests ran at once than the concurrency limit allows",
        finding: "concurrency above the limit",
        why: "A run that exceeds the limit is another load.",
        since: Some(3),
        conditions: &[Condition::new(cap)],
        ..Rule::ERROR
    },
    Rule {
        id: "W03",
        title: "the engine limits the throughput, not the arrival rate",
        finding: "limited by arrival rate",
        why: "An engine that keeps up with the arrival rate shows that rate: it may be faster, \
              and a change of its speed does not show.",
        since: Some(3),
        scope: Scope::FIGURES,
        affects: &[Family::Throughput],
        conditions: &[Condition::new(arrival_limited)],
        ..Rule::WARNING
    },
    Rule {
        id: "W14",
        title: "received bytes were read at once, chunk by chunk",
        finding: "late reads",
        why: "Chunks that wait for the client are read together and share one receive time.",
        since: Some(3),
        until: Some(7),
        affects: &[Family::Ttft, Family::Itl],
        conditions: &[
            Condition::new(kernel_gap).degraded(
                "kernel-gap",
                "received bytes waited for the client for 5 ms, or a tenth of the time per token \
                 (p99)",
            ),
            Condition::new(late_reads).degraded(
                "late-reads",
                "more than 2 % of reads brought several chunks that may have come 1 ms apart",
            ),
            Condition::new(stamps_lost)
                .invalid("stamps-lost", "more than half of all reads did (not on -lite)"),
        ],
        ..Rule::WARNING
    },
    Rule {
        id: "W15",
        title: "requests were sent when they were due",
        finding: "late sends",
        why: "Where the client sends late, the load differs from that of the scenario.",
        since: Some(3),
        until: Some(7),
        affects: &[Family::Ttft],
        conditions: &[Condition::new(schedule_lag).degraded(
            "schedule-lag",
            "requests were sent 5 ms late, and 2 % of the median TTFT (p99)",
        )],
        ..Rule::WARNING
    },
    Rule {
        id: "W18",
        title: "the client's own error is below the minimum effect of each metric",
        finding: "client error too large",
        why: "A figure that the client may have moved by more than the minimum effect cannot show \
              a difference of that size. A receive time stamped by the kernel is exact for a read \
              of one chunk, however long the bytes waited. Chunks that were read together may \
              have arrived earlier; a late send and a busy core affect other figures.",
        since: Some(8),
        conditions: &[Condition::new(client_error).degraded(
            CLIENT_ERROR,
            "the error bound of a metric is above its minimum effect (that metric alone)",
        )],
        ..Rule::WARNING
    },
    Rule {
        id: "coalesced-reads",
        title: "most reads brought one chunk",
        finding: "several chunks per read",
        why: "Chunks that were read together share one receive time, so the gaps between them are \
              only bounded.",
        since: None,
        until: Some(7),
        affects: &[Family::Itl],
        conditions: &[Condition::new(coalesced_reads)
            .degraded("coalesced-reads", "more than half of all reads brought several chunks")],
        ..Rule::WARNING
    },
];

fn client_error(record: &RunRecord) -> Outcome {
    let bounds = record.client.as_ref()?.error_pct.as_ref()?;
    let error_of = |metric: &Metric| bounds.get(metric.name).copied();
    let above = METRICS.iter().filter(|metric| error_of(metric) > Some(metric.floor_pct));
    // One cause moves all metrics of a family: the one that it moves most stands for them.
    let mut most: Vec<&Metric> = Vec::new();
    for metric in above {
        let family = Family::of(metric);
        match most.iter_mut().find(|other| family.is_some() && Family::of(other) == family) {
            Some(other) if error_of(metric) > error_of(other) => *other = metric,
            Some(_) => {}
            None => most.push(metric),
        }
    }
    let shown = |metric: &&Metric| {
        let error = match error_of(metric) {
            // Where the median is near zero, even a small error is many times the median.
            Some(error) if error > 100.0 => "over 100 %".to_owned(),
            error => format!("±{:.1} %", error.unwrap_or_default()),
        };
        format!("{} {error} (minimum effect {} %)", metric.title, metric.floor_pct)
    };
    claim(most.is_empty(), || {
        let shown: Vec<String> = most.iter().map(shown).collect();
        format!("the client may have moved a metric by its minimum effect: {}", shown.join(", "))
    })
}

fn cap(record: &RunRecord) -> Outcome {
    let cap = record.scenario.arrival.as_ref().and_then(Arrival::concurrency_max)?;
    let streams = record.client.as_ref()?.streams_max?;
    claim(streams <= cap, || format!("{streams} requests ran at once under a cap of {cap}"))
}

fn arrival_limited(record: &RunRecord) -> Outcome {
    let rate = match record.scenario.arrival.as_ref()? {
        Arrival::Constant { requests_per_s, .. }
        | Arrival::Poisson { requests_per_s, .. }
        | Arrival::Gamma { requests_per_s, .. } => *requests_per_s,
        _ => return None,
    };
    let answered = record.metrics.as_ref()?.requests_per_s?;
    claim(answered < ARRIVAL_SHARE * rate, || {
        format!("{answered:.2} requests a second were answered, {rate:.2} arrived")
    })
}

fn cpu_share(record: &RunRecord) -> Outcome {
    let share = record.client.as_ref()?.cpu_share_p95?;
    claim(share <= CPU_SHARE_MAX, || {
        format!("the client used {:.0} % of a core (p95)", share * 100.0)
    })
}

fn loop_lag(record: &RunRecord) -> Outcome {
    let client = record.client.as_ref()?;
    let lag = client.loop_lag_us_p99?;
    // The kernel's stamps do not wait for the loop.
    let tpot = tpot_p50(record).filter(|_| client.kernel_timestamps != Some(true));
    claim(!too_long(lag, LOOP_LAG_US, LOOP_LAG_SHARE_OF_TPOT, tpot), || {
        format!("the client's loop was away for {lag} us (p99)")
    })
}

fn kernel_gap(record: &RunRecord) -> Outcome {
    let gap = record.client.as_ref()?.kernel_to_user_us_p99?;
    let long = too_long(gap, KERNEL_GAP_US, KERNEL_GAP_SHARE_OF_TPOT, tpot_p50(record));
    claim(!long, || format!("arrived bytes waited {gap} us for the client"))
}

fn tpot_p50(record: &RunRecord) -> Option<u64> {
    record.metrics.as_ref()?.tpot_us.as_ref()?.p50
}

/// True for a time that is above `much`, or above both `little` and `share` of the median TPOT, all
/// in microseconds.
fn too_long(us: u64, (much, little): (u64, u64), share: f64, tpot: Option<u64>) -> bool {
    us > much || (us > little && tpot.is_some_and(|tpot| float(us) > share * float(tpot)))
}

fn schedule_lag(record: &RunRecord) -> Outcome {
    let lag = record.client.as_ref()?.schedule_lag_us_p99?;
    let ttft = record.metrics.as_ref().and_then(|metrics| metrics.ttft_us.as_ref()?.p50);
    let of_ttft = SCHEDULE_LAG_SHARE_OF_TTFT * float(ttft.unwrap_or(0));
    let late = lag > SCHEDULE_LAG_US_MAX && float(lag) > of_ttft;
    claim(!late, || format!("requests were sent {lag} us late (p99)"))
}

fn coalesced_reads(record: &RunRecord) -> Outcome {
    let share = record.client.as_ref()?.coalesced_read_share?;
    claim(share <= COALESCED_SHARE_MAX, || {
        format!("{:.0} % of reads brought several chunks: their gaps are bounds", share * 100.0)
    })
}

fn late_reads(record: &RunRecord) -> Outcome {
    let share = record.client.as_ref()?.late_read_share?;
    let late = share > LATE_READ_SHARE_MAX && !is_lost(record, share);
    claim(!late, || came_late(share))
}

fn stamps_lost(record: &RunRecord) -> Outcome {
    let share = record.client.as_ref()?.late_read_share?;
    claim(!is_lost(record, share), || came_late(share))
}

/// True where so many reads came late that the run has no usable time stamps; false for lite
/// scenarios, in which client and server share the cores and a busy client is expected.
fn is_lost(record: &RunRecord, share: f64) -> bool {
    share > LATE_READ_SHARE_LOST && record.scenario.tier != Tier::Lite
}

fn came_late(share: f64) -> String {
    let percent = share * 100.0;
    format!("the client came late to {percent:.0} % of reads, which brought several chunks")
}

fn window(record: &RunRecord) -> Outcome {
    if on_cpu(record) {
        return None;
    }
    let full =
        record.scenario.tier == Tier::Full && record.scenario.arrival == Some(Arrival::AllAtOnce);
    let least = if full { WINDOW_US_MIN_FULL } else { WINDOW_US_MIN };
    let window = record.time.as_ref()?.window_us.unwrap_or(0);
    claim(window >= least, || {
        format!(
            "{:.1} s of steady state, {} s are asked for",
            float(window) / 1e6,
            least / 1_000_000
        )
    })
}

fn steady_share(record: &RunRecord) -> Outcome {
    if on_cpu(record) || *record.scenario.arrival.as_ref()? == Arrival::AllAtOnce {
        return None;
    }
    let time = record.time.as_ref()?;
    let (window, wall) = (time.window_us.unwrap_or(0), time.wall_us?);
    let share = float(window) / float(wall.max(1));
    claim(window >= WINDOW_US_MIN || share >= WINDOW_SHARE_MIN, || {
        let (window, share) = (float(window) / 1e6, share * 100.0);
        format!("{window:.1} s of steady state are {share:.0} % of the run")
    })
}

fn correctness(record: &RunRecord) -> Outcome {
    let looked = record.correctness.as_ref().is_some_and(|correctness| {
        let prompts = correctness.prompts.is_some_and(|prompts| prompts > 0);
        let share = |agreement: f64| (0.0..=1.0).contains(&agreement);
        let sound = correctness.agreement.is_none_or(share);
        let evidence = correctness.tokens_sha256.is_some() || correctness.agreement.is_some();
        prompts && sound && evidence
    });
    claim(looked, || "the outputs of this run were not checked".to_owned())
}
