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

/// A figure: one line of the table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Row whose measurement yields the figure.
    pub row: Row,
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
    row: Row,
    id: &'static str,
    title: &'static str,
    reach: Option<Reach>,
    digits: usize,
) -> Figure {
    Figure { row, id, title, reach, digits }
}

const fn most(value: f64) -> Option<Reach> {
    Some(Reach::AtMost(value))
}

const fn least(value: f64) -> Option<Reach> {
    Some(Reach::AtLeast(value))
}

/// All figures, in the order of the table.
pub const FIGURES: [Figure; 21] = [
    figure(
        Row::Saturated,
        "saturated_events_per_cpu_s",
        "events per CPU second, saturated",
        least(350_000.0),
        0,
    ),
    figure(
        Row::Paced,
        "paced_cpu_us_per_event",
        "CPU per event, 100 streams x 100/s, us",
        most(12.0),
        1,
    ),
    figure(Row::Paced, "ttft_error_ms_mean", "TTFT error, 100 streams, mean, ms", most(0.5), 2),
    figure(Row::Paced, "ttft_error_ms_p99", "TTFT error, 100 streams, p99, ms", most(3.5), 2),
    figure(
        Row::Limit,
        "right_events_per_s_max",
        "highest load with right gaps, events/s",
        least(120_000.0),
        0,
    ),
    figure(
        Row::Starts,
        "starts_ttft_error_ms_mean",
        "TTFT error, 1,000 at once, mean, ms",
        most(8.0),
        1,
    ),
    figure(
        Row::Starts,
        "starts_ttft_error_ms_p99",
        "TTFT error, 1,000 at once, p99, ms",
        most(14.0),
        1,
    ),
    figure(
        Row::Starts,
        "starts_lag_ms_mean",
        "its own start burst, shown as lag, mean, ms",
        None,
        1,
    ),
    figure(Row::Starts, "starts_lag_ms_p99", "its own start burst, shown as lag, p99, ms", None, 1),
    figure(Row::Parse, "parse_us_p50", "parse cost per event, median, us", most(0.6), 2),
    figure(
        Row::Stamps,
        "stamp_error_us_p99",
        "token time error, 9,000 streams, 40,000/s, p99, us",
        most(20.0),
        1,
    ),
    figure(Row::Stamps, "stamp_error_us_p999", "the same, p99.9, us", most(100.0), 1),
    figure(
        Row::Stamps,
        "user_stamp_error_us_p99",
        "the same by the client's own clock, p99, us",
        None,
        0,
    ),
    figure(
        Row::Spread,
        "itl_spread_ms",
        "ITL spread added, 1,000 streams x 100/s, ms",
        most(0.1),
        3,
    ),
    figure(Row::OpenLoop, "send_lag_ms_p99", "send lag, 1,000 requests/s, p99, ms", most(1.0), 2),
    figure(Row::OpenLoop, "rate_error_pct", "mean drift of the rate, %", most(0.1), 3),
    figure(Row::Memory, "idle_stream_kb", "memory per idle stream, KB", most(12.0), 1),
    figure(Row::Memory, "peak_mb", "memory, 10,000 streams and their samples, MB", most(250.0), 0),
    figure(Row::Prepare, "prepare_s", "10,000 conversations prepared, s", most(20.0), 1),
    figure(Row::Clean, "invalid_runs", "sound runs called INVALID, of 50", most(0.0), 0),
    figure(Row::Clean, "degraded_runs", "sound runs called DEGRADED, of 50", None, 0),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_an_id_of_its_own() {
        let all: Vec<&str> = FIGURES.iter().map(|figure| figure.id).collect();
        let one_each: std::collections::BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(one_each.len(), all.len());
    }

    #[test]
    fn an_error_below_zero_is_as_wrong_as_one_above() {
        assert!(Reach::AtMost(0.5).is_kept_by(-0.5) && !Reach::AtMost(0.5).is_kept_by(-0.6));
        assert!(Reach::AtLeast(2.0).is_kept_by(2.0) && !Reach::AtLeast(2.0).is_kept_by(1.9));
    }
}
