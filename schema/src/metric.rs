//! Metrics that tables and comparisons show: name, unit, better direction, scenarios in which a
//! regression blocks a release, and the minimum effect of a metric, below which no change is
//! suspected.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{Metrics, RunRecord, Summary};
use crate::scenario::Arrival;

/// Direction in which a metric improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Higher: an increase of the metric is an improvement, as for throughput.
    Higher,
    /// Lower: a decrease of the metric is an improvement, as for latency.
    Lower,
}

/// Scenarios in which a metric is release-blocking: its regression ends a comparison with exit code
/// 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gates {
    /// Never: the metric is shown, and its regression blocks no release in any scenario.
    Never,
    /// Always: a regression of the metric blocks a release in every scenario.
    Always,
    /// Closed loop: the metric is release-blocking only in scenarios where a fixed number of users
    /// send one request after the other. Where all requests arrive at once, a latency is mostly
    /// queue time.
    ClosedLoop,
}

/// Unit of a metric's stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Unit of a rate: number of tokens or requests per second.
    PerSecond,
    /// Unit of a time: microseconds.
    Microseconds,
    /// Unit of a memory size: bytes.
    Bytes,
    /// Unit of a plain count, such as a number of failed requests.
    Count,
}

/// Definition of a metric of a run.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Name of the metric in verdicts, events and commands, such as `ttft_us_p50`.
    pub name: &'static str,
    /// Title of the metric on pages, without the unit.
    pub title: &'static str,
    /// Unit of the metric's stored values.
    pub unit: Unit,
    /// Direction in which the metric improves.
    pub better: Better,
    /// Scenarios in which the metric is release-blocking.
    pub gates: Gates,
    /// Minimum effect in percent: the screen of a comparison suspects no smaller difference, and a
    /// confirmation must measure at least half of the minimum effect and half of the noise
    /// (docs/method/comparisons.md).
    pub floor_pct: f64,
    read: Read,
}

impl Metric {
    /// Returns the metric's value in `record`, or `None` where the run did not measure it.
    pub fn value(&self, record: &RunRecord) -> Option<f64> {
        (self.read)(record)
    }

    /// True where the metric is release-blocking for scenarios with this arrival process; `None` is
    /// a process that is not known, which counts as no closed loop.
    pub fn gates_under(&self, arrival: Option<&Arrival>) -> bool {
        match self.gates {
            Gates::Never => false,
            Gates::Always => true,
            Gates::ClosedLoop => matches!(arrival, Some(Arrival::Closed { .. })),
        }
    }
}

/// Returns the metric with this name, or `None` where no metric has it.
pub fn by_name(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// Returns the metric that a user calls `name`, with the number of its stored units in one unit of
/// that name: a time may be given in milliseconds, as `ttft_ms_p99`. `None` where no metric is called
/// so.
pub fn by_given_name(name: &str) -> Option<(&'static Metric, f64)> {
    let all = || METRICS.iter().chain(OF_THRESHOLDS);
    let stored = all().find(|metric| metric.name == name).map(|metric| (metric, 1.0));
    let in_ms = || all().find(|metric| in_ms(metric) == name);
    stored.or_else(|| Some((in_ms()?, 1000.0)))
}

/// Returns the name of a metric with times in milliseconds, the unit of latency limits.
pub fn in_ms(metric: &Metric) -> String {
    metric.name.replacen("_us_", "_ms_", 1)
}

type Read = fn(&RunRecord) -> Option<f64>;

/// Every metric that tables and comparisons show, in display order.
pub const METRICS: &[Metric] = &[
    rate("requests_per_s", "Requests", Gates::Never, |r| metrics(r)?.requests_per_s),
    rate("input_tokens_per_s", "Input tokens", Gates::Never, |r| metrics(r)?.input_tokens_per_s),
    rate("output_tokens_per_s", "Output tokens", Gates::Always, |r| {
        metrics(r)?.output_tokens_per_s
    }),
    rate("total_tokens_per_s", "Total tokens", Gates::Never, |r| metrics(r)?.total_tokens_per_s),
    time("ttft_us_mean", "TTFT mean", Gates::Never, 5.0, |r| {
        int(metrics(r)?.ttft_us.as_ref()?.mean)
    }),
    time("ttft_us_p50", "TTFT p50", Gates::ClosedLoop, 5.0, |r| {
        int(metrics(r)?.ttft_us.as_ref()?.p50)
    }),
    time("ttft_us_p95", "TTFT p95", Gates::Never, 5.0, |r| int(metrics(r)?.ttft_us.as_ref()?.p95)),
    time("ttft_us_p99", "TTFT p99", Gates::Never, 5.0, |r| int(metrics(r)?.ttft_us.as_ref()?.p99)),
    time("tpot_us_mean", "TPOT mean", Gates::Never, 3.0, |r| {
        int(metrics(r)?.tpot_us.as_ref()?.mean)
    }),
    time("tpot_us_p50", "TPOT p50", Gates::ClosedLoop, 3.0, |r| {
        int(metrics(r)?.tpot_us.as_ref()?.p50)
    }),
    time("tpot_us_p95", "TPOT p95", Gates::Never, 3.0, |r| int(metrics(r)?.tpot_us.as_ref()?.p95)),
    time("tpot_us_p99", "TPOT p99", Gates::Never, 3.0, |r| int(metrics(r)?.tpot_us.as_ref()?.p99)),
    time("itl_token_us_mean", "ITL mean", Gates::Never, 3.0, |r| int(itl(r)?.mean)),
    time("itl_token_us_p50", "ITL p50", Gates::Never, 3.0, |r| int(itl(r)?.p50)),
    time("itl_token_us_p95", "ITL p95", Gates::Never, 3.0, |r| int(itl(r)?.p95)),
    time("itl_token_us_p99", "ITL p99", Gates::Never, 3.0, |r| int(itl(r)?.p99)),
    time("e2e_us_mean", "E2E mean", Gates::Never, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.mean)),
    time("e2e_us_p50", "E2E p50", Gates::Never, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.p50)),
    time("e2e_us_p95", "E2E p95", Gates::Never, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.p95)),
    time("e2e_us_p99", "E2E p99", Gates::Never, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.p99)),
    time("startup_us", "Start-up", Gates::Never, 10.0, |r| int(r.server.as_ref()?.startup_us)),
    MEMORY,
    Metric {
        name: "requests_failed",
        title: "Failed requests",
        unit: Unit::Count,
        better: Better::Lower,
        gates: Gates::Always,
        // Any additional failure is a change.
        floor_pct: 0.0,
        read: |r| int(r.counts.as_ref()?.requests_failed),
    },
];

/// Metrics that thresholds on a run may name and comparisons do not show.
pub const OF_THRESHOLDS: &[Metric] = &[
    time("ttft_us_p90", "TTFT p90", Gates::Never, 5.0, |r| int(metrics(r)?.ttft_us.as_ref()?.p90)),
    time("tpot_us_p90", "TPOT p90", Gates::Never, 3.0, |r| int(metrics(r)?.tpot_us.as_ref()?.p90)),
    time("itl_token_us_p90", "ITL p90", Gates::Never, 3.0, |r| int(itl(r)?.p90)),
    time("e2e_us_p90", "E2E p90", Gates::Never, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.p90)),
    rate("goodput_per_s", "Goodput", Gates::Never, |r| {
        metrics(r)?.goodput_per_s.as_ref()?.get("all").copied()
    }),
];

/// Metric of the peak resident memory of the server's process.
const MEMORY: Metric = Metric {
    name: "rss_bytes_max",
    title: "Peak memory",
    unit: Unit::Bytes,
    better: Better::Lower,
    gates: Gates::Always,
    floor_pct: 1.0,
    read: |r| int(r.memory.as_ref()?.rss_bytes_max),
};

/// Peak resident memory of the server's process, as tables about a machine with GPUs call it.
static HOST_MEMORY: Metric = Metric { title: "Peak host memory", ..MEMORY };

/// Peak memory in use on the GPUs that worked. Comparisons do not judge it, because a server takes
/// the memory that it is given.
static GPU_MEMORY: Metric = Metric {
    name: "gpu_bytes_max",
    title: "Peak GPU memory",
    gates: Gates::Never,
    read: |r| int(r.memory.as_ref()?.gpu_bytes_max),
    ..MEMORY
};

/// Metrics of peak memory on a machine with GPUs, the decisive one first.
static WITH_GPU: [&Metric; 2] = [&GPU_MEMORY, &HOST_MEMORY];
/// Metric of peak memory on a machine without a GPU.
static WITHOUT_GPU: [&Metric; 1] = [&MEMORY];

/// Returns the metrics of peak memory that tables show, the decisive one first: on a machine with
/// GPUs that of the GPUs and that of the host.
pub fn of_memory(has_gpu: bool) -> &'static [&'static Metric] {
    if has_gpu { &WITH_GPU } else { &WITHOUT_GPU }
}

/// Returns the metrics that tables about a machine show, in display order: [`METRICS`], with the
/// memory of [`of_memory`].
pub fn shown(has_gpu: bool) -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().flat_map(move |metric| match metric.name == MEMORY.name {
        true => of_memory(has_gpu).to_vec(),
        false => vec![metric],
    })
}

const fn rate(name: &'static str, title: &'static str, gates: Gates, read: Read) -> Metric {
    Metric {
        name,
        title,
        unit: Unit::PerSecond,
        better: Better::Higher,
        gates,
        floor_pct: 2.0,
        read,
    }
}

const fn time(
    name: &'static str,
    title: &'static str,
    gates: Gates,
    floor_pct: f64,
    read: Read,
) -> Metric {
    Metric { name, title, unit: Unit::Microseconds, better: Better::Lower, gates, floor_pct, read }
}

fn metrics(record: &RunRecord) -> Option<&Metrics> {
    record.metrics.as_ref()
}

fn itl(record: &RunRecord) -> Option<&Summary> {
    metrics(record)?.itl_token_us.as_ref()
}

#[expect(clippy::cast_precision_loss, reason = "times and sizes of a run are far below 2^53")]
fn int(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_gate_where_the_queue_is_not_measured() {
        let gating = |arrival: Option<Arrival>| -> Vec<&str> {
            let gates = METRICS.iter().filter(|metric| metric.gates_under(arrival.as_ref()));
            gates.map(|metric| metric.name).collect()
        };
        let always = ["output_tokens_per_s", "rss_bytes_max", "requests_failed"];
        assert_eq!(gating(Some(Arrival::AllAtOnce)), always);
        assert_eq!(gating(None), always);
        let closed = gating(Some(Arrival::Closed { concurrency: 4 }));
        assert!(closed.contains(&"ttft_us_p50") && closed.contains(&"tpot_us_p50"), "{closed:?}");
        assert_eq!(closed.len(), 5);
    }

    #[test]
    fn on_a_machine_with_gpus_their_memory_stands_before_that_of_the_host() {
        let titles = |has_gpu| -> Vec<&str> {
            let memory = shown(has_gpu).filter(|metric| metric.unit == Unit::Bytes);
            memory.map(|metric| metric.title).collect()
        };
        assert_eq!(titles(false), ["Peak memory"]);
        assert_eq!(titles(true), ["Peak GPU memory", "Peak host memory"]);
        assert_eq!(shown(false).count(), METRICS.len());
        let (gpu_bytes_max, rss_bytes_max) = (Some(70 << 30), Some(1 << 30));
        let memory = Some(crate::run::Memory { rss_bytes_max, gpu_bytes_max });
        let record = RunRecord { memory, ..RunRecord::default() };
        let values: Vec<_> = of_memory(true).iter().map(|metric| metric.value(&record)).collect();
        assert_eq!(values, [int(gpu_bytes_max), int(rss_bytes_max)]);
    }

    #[test]
    fn names_are_unique_and_found() {
        for (index, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[..index].iter().all(|other| other.name != metric.name));
            assert_eq!(by_name(metric.name).map(|found| found.title), Some(metric.title));
            let given = by_given_name(&in_ms(metric)).map(|(found, unit)| (found.name, unit));
            let unit = if metric.name.contains("_us_") { 1000.0 } else { 1.0 };
            assert_eq!(given, Some((metric.name, unit)));
        }
    }
}
