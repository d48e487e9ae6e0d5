//! Rows and figures of the client comparison: their names, units and required values.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A row of the comparison: measurements that yield one or more figures together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Highest throughput of the client, without gaps between tokens.
    Saturated,
    /// 100 streams of 100 events per second.
    Paced,
    /// 1,000 requests at once.
    Starts,
    /// Highest load at which the reported gaps between tokens are right.
    Limit,
    /// 1,000 streams of 100 events per second.
    Spread,
    /// Time stamp of every token of 9,000 streams.
    Stamps,
    /// 1,000 requests per second.
    OpenLoop,
    /// Memory for 10,000 streams.
    Memory,
    /// Parsing an event into a sample, measured by `cargo bench`.
    Parse,
    /// Drawing 10,000 conversations.
    Prepare,
    /// Fifty correct runs, which should all be judged valid.
    Clean,
}

impl Row {
    pub const ALL: [Self; 11] = [
        Self::Saturated,
        Self::Paced,
        Self::Limit,
        Self::Starts,
        Self::Parse,
        Self::Stamps,
        Self::Spread,
        Self::OpenLoop,
        Self::Memory,
        Self::Prepare,
        Self::Clean,
    ];

    /// Figures that the row yields.
    pub fn figures(self) -> &'static [Figure] {
        match self {
            Self::Saturated => &[EVENTS_PER_CPU_S],
            Self::Paced => &[CPU_US_PER_EVENT, TTFT_ERROR_MEAN, TTFT_ERROR_P99],
            Self::Limit => &[EVENTS_PER_S_MAX],
            Self::Starts => &[STARTS_ERROR_MEAN, STARTS_ERROR_P99, STARTS_LAG_MEAN, STARTS_LAG_P99],
            Self::Parse => &[PARSE_US],
            Self::Stamps => &[STAMP_ERROR_P99, STAMP_ERROR_P999, USER_STAMP_ERROR_P99],
            Self::Spread => &[ITL_SPREAD],
            Self::OpenLoop => &[SEND_LAG_P99, RATE_ERROR],
            Self::Memory => &[STREAM_KB, PEAK_MB],
            Self::Prepare => &[PREPARE_S],
            Self::Clean => &[INVALID_RUNS, DEGRADED_RUNS],
        }
    }
}

/// A figure: one line of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Id of the figure, with the unit last.
    pub id: &'static str,
    /// Title for people, with the unit.
    pub title: &'static str,
    /// Required value; `None` if none is required.
    pub reach: Option<Reach>,
    /// Number of decimal places.
    pub digits: usize,
}

/// Bound that a figure must keep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Reach {
    AtLeast(f64),
    AtMost(f64),
}

impl Reach {
    pub fn is_kept_by(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            // Errors are signed; one below zero is as wrong as one above.
            Self::AtMost(most) => value.abs() <= most,
        }
    }
}

const fn figure(
    id: &'static str,
    title: &'static str,
    reach: Option<Reach>,
    digits: usize,
) -> Figure {
    Figure { id, title, reach, digits }
}

const fn most(value: f64) -> Option<Reach> {
    Some(Reach::AtMost(value))
}

const fn least(value: f64) -> Option<Reach> {
    Some(Reach::AtLeast(value))
}

pub const EVENTS_PER_CPU_S: Figure =
    figure("saturated_events_per_cpu_s", "events per CPU second, saturated", least(350_000.0), 0);
pub const CPU_US_PER_EVENT: Figure =
    figure("paced_cpu_us_per_event", "CPU per event, 100 streams x 100/s, us", most(12.0), 1);
pub const EVENTS_PER_S_MAX: Figure =
    figure("right_events_per_s_max", "highest load with right gaps, events/s", least(120_000.0), 0);
pub const TTFT_ERROR_MEAN: Figure =
    figure("ttft_error_ms_mean", "TTFT error, 100 streams, mean, ms", most(0.5), 2);
pub const TTFT_ERROR_P99: Figure =
    figure("ttft_error_ms_p99", "TTFT error, 100 streams, p99, ms", most(3.5), 2);
pub const STARTS_ERROR_MEAN: Figure =
    figure("starts_ttft_error_ms_mean", "TTFT error, 1,000 at once, mean, ms", most(8.0), 1);
pub const STARTS_ERROR_P99: Figure =
    figure("starts_ttft_error_ms_p99", "TTFT error, 1,000 at once, p99, ms", most(14.0), 1);
pub const STARTS_LAG_MEAN: Figure =
    figure("starts_lag_ms_mean", "its own start burst, shown as lag, mean, ms", None, 1);
pub const STARTS_LAG_P99: Figure =
    figure("starts_lag_ms_p99", "its own start burst, shown as lag, p99, ms", None, 1);
pub const PARSE_US: Figure =
    figure("parse_us_p50", "parse cost per event, median, us", most(0.6), 2);
pub const STAMP_ERROR_P99: Figure = figure(
    "stamp_error_us_p99",
    "token time error, 9,000 streams, 40,000/s, p99, us",
    most(20.0),
    1,
);
pub const STAMP_ERROR_P999: Figure =
    figure("stamp_error_us_p999", "the same, p99.9, us", most(100.0), 1);
pub const USER_STAMP_ERROR_P99: Figure =
    figure("user_stamp_error_us_p99", "the same by the client's own clock, p99, us", None, 0);
pub const ITL_SPREAD: Figure =
    figure("itl_spread_ms", "ITL spread added, 1,000 streams x 100/s, ms", most(0.1), 3);
pub const SEND_LAG_P99: Figure =
    figure("send_lag_ms_p99", "send lag, 1,000 requests/s, p99, ms", most(1.0), 2);
pub const RATE_ERROR: Figure = figure("rate_error_pct", "mean drift of the rate, %", most(0.1), 3);
pub const STREAM_KB: Figure = figure("idle_stream_kb", "memory per idle stream, KB", most(12.0), 1);
pub const PEAK_MB: Figure =
    figure("peak_mb", "memory, 10,000 streams and their samples, MB", most(250.0), 0);
pub const PREPARE_S: Figure =
    figure("prepare_s", "10,000 conversations prepared, s", most(20.0), 1);
pub const INVALID_RUNS: Figure =
    figure("invalid_runs", "sound runs called INVALID, of 50", most(0.0), 0);
pub const DEGRADED_RUNS: Figure =
    figure("degraded_runs", "sound runs called DEGRADED, of 50", None, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_an_id_of_its_own() {
        let all: Vec<&str> = Row::ALL.iter().flat_map(|r| r.figures()).map(|f| f.id).collect();
        let one_each: std::collections::BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(one_each.len(), all.len());
    }

    #[test]
    fn an_error_below_zero_is_as_wrong_as_one_above() {
        assert!(Reach::AtMost(0.5).is_kept_by(-0.5) && !Reach::AtMost(0.5).is_kept_by(-0.6));
        assert!(Reach::AtLeast(2.0).is_kept_by(2.0) && !Reach::AtLeast(2.0).is_kept_by(1.9));
    }
}
