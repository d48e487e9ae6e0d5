//! The metrics that tables and diffs show: name, unit and which way is better.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::run::{Metrics, RunRecord, Summary};

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    Higher,
    Lower,
}

/// Unit of a metric's stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    PerSecond,
    Microseconds,
    Bytes,
    Count,
}

/// One metric of a run.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Dotted path below `metrics`, or a full path where it lives elsewhere in the record.
    pub name: &'static str,
    /// Heading on pages, without the unit.
    pub title: &'static str,
    pub unit: Unit,
    pub better: Better,
    /// True for the few metrics that a release is gated on.
    pub gates: bool,
    /// Smallest effect in percent that is ever called a change (`reference`: docs/METHOD.md).
    pub floor_pct: f64,
    read: Read,
}

impl Metric {
    /// The metric's value in `record`; `None` when the run did not measure it.
    #[must_use]
    pub fn value(&self, record: &RunRecord) -> Option<f64> {
        (self.read)(record)
    }
}

/// Finds a metric by its name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

type Read = fn(&RunRecord) -> Option<f64>;

/// Every metric that tables and diffs show, in the order in which they are shown.
pub const METRICS: &[Metric] = &[
    rate("requests_per_s", "Requests", false, |r| metrics(r)?.requests_per_s),
    rate("input_tokens_per_s", "Input tokens", false, |r| metrics(r)?.input_tokens_per_s),
    rate("output_tokens_per_s", "Output tokens", true, |r| metrics(r)?.output_tokens_per_s),
    rate("total_tokens_per_s", "Total tokens", false, |r| metrics(r)?.total_tokens_per_s),
    time("ttft_us_mean", "TTFT mean", false, 5.0, |r| int(metrics(r)?.ttft_us.as_ref()?.mean)),
    time("ttft_us_p50", "TTFT p50", true, 5.0, |r| int(metrics(r)?.ttft_us.as_ref()?.p50)),
    time("ttft_us_p95", "TTFT p95", false, 5.0, |r| int(metrics(r)?.ttft_us.as_ref()?.p95)),
    time("ttft_us_p99", "TTFT p99", false, 5.0, |r| int(metrics(r)?.ttft_us.as_ref()?.p99)),
    time("tpot_us_mean", "TPOT mean", false, 3.0, |r| int(metrics(r)?.tpot_us.as_ref()?.mean)),
    time("tpot_us_p50", "TPOT p50", true, 3.0, |r| int(metrics(r)?.tpot_us.as_ref()?.p50)),
    time("tpot_us_p95", "TPOT p95", false, 3.0, |r| int(metrics(r)?.tpot_us.as_ref()?.p95)),
    time("tpot_us_p99", "TPOT p99", false, 3.0, |r| int(metrics(r)?.tpot_us.as_ref()?.p99)),
    time("itl_token_us_mean", "ITL mean", false, 3.0, |r| int(itl(r)?.mean)),
    time("itl_token_us_p50", "ITL p50", false, 3.0, |r| int(itl(r)?.p50)),
    time("itl_token_us_p95", "ITL p95", false, 3.0, |r| int(itl(r)?.p95)),
    time("itl_token_us_p99", "ITL p99", false, 3.0, |r| int(itl(r)?.p99)),
    time("e2e_us_mean", "E2E mean", false, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.mean)),
    time("e2e_us_p50", "E2E p50", false, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.p50)),
    time("e2e_us_p95", "E2E p95", false, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.p95)),
    time("e2e_us_p99", "E2E p99", false, 3.0, |r| int(metrics(r)?.e2e_us.as_ref()?.p99)),
    time("startup_us", "Start-up", false, 10.0, |r| int(r.server.as_ref()?.startup_us)),
    Metric {
        name: "rss_bytes_max",
        title: "Peak memory",
        unit: Unit::Bytes,
        better: Better::Lower,
        gates: true,
        floor_pct: 1.0,
        read: |r| int(r.memory.as_ref()?.rss_bytes_max),
    },
    Metric {
        name: "requests_failed",
        title: "Failed requests",
        unit: Unit::Count,
        better: Better::Lower,
        gates: true,
        floor_pct: 0.0,
        read: |r| int(r.counts.as_ref()?.requests_failed),
    },
];

const fn rate(name: &'static str, title: &'static str, gates: bool, read: Read) -> Metric {
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
    gates: bool,
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
    fn names_are_unique_and_found() {
        for (index, metric) in METRICS.iter().enumerate() {
            assert!(METRICS[..index].iter().all(|other| other.name != metric.name));
            assert_eq!(by_name(metric.name).map(|found| found.title), Some(metric.title));
        }
    }
}
