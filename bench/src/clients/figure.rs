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

type Text = &'static str;

const fn unbound(row: Row, id: Text, title: Text, digits: usize) -> Figure {
    Figure { row, id, title, reach: None, digits }
}

const fn most(row: Row, id: Text, title: Text, value: f64, digits: usize) -> Figure {
    Figure { reach: Some(Reach::AtMost(value)), ..unbound(row, id, title, digits) }
}

const fn least(row: Row, id: Text, title: Text, value: f64, digits: usize) -> Figure {
    Figure { reach: Some(Reach::AtLeast(value)), ..unbound(row, id, title, digits) }
}

/// All figures, in the order of the table.
pub const FIGURES: [Figure; 21] = [
    least(
        Row::Saturated,
        "saturated_events_per_cpu_s",
        "events per CPU second, saturated",
        350_000.0,
        0,
    ),
    most(Row::Paced, "paced_cpu_us_per_event", "CPU per event, 100 streams x 100/s, us", 12.0, 1),
    most(Row::Paced, "ttft_error_ms_mean", "TTFT error, 100 streams, mean, ms", 0.5, 2),
    most(Row::Paced, "ttft_error_ms_p99", "TTFT error, 100 streams, p99, ms", 3.5, 2),
    least(
        Row::Limit,
        "right_events_per_s_max",
        "highest load with right gaps, events/s",
        120_000.0,
        0,
    ),
    most(Row::Starts, "starts_ttft_error_ms_mean", "TTFT error, 1,000 at once, mean, ms", 8.0, 1),
    most(Row::Starts, "starts_ttft_error_ms_p99", "TTFT error, 1,000 at once, p99, ms", 14.0, 1),
    unbound(Row::Starts, "starts_lag_ms_mean", "its own start burst, shown as lag, mean, ms", 1),
    unbound(Row::Starts, "starts_lag_ms_p99", "its own start burst, shown as lag, p99, ms", 1),
    most(Row::Parse, "parse_us_p50", "parse cost per event, median, us", 0.6, 2),
    most(
        Row::Stamps,
        "stamp_error_us_p99",
        "token time error, 9,000 streams, 40,000/s, p99, us",
        20.0,
        1,
    ),
    most(Row::Stamps, "stamp_error_us_p999", "the same, p99.9, us", 100.0, 1),
    unbound(
        Row::Stamps,
        "user_stamp_error_us_p99",
        "the same by the client's own clock, p99, us",
        0,
    ),
    most(Row::Spread, "itl_spread_ms", "ITL spread added, 1,000 streams x 100/s, ms", 0.1, 3),
    most(Row::OpenLoop, "send_lag_ms_p99", "send lag, 1,000 requests/s, p99, ms", 1.0, 2),
    most(Row::OpenLoop, "rate_error_pct", "mean drift of the rate, %", 0.1, 3),
    most(Row::Memory, "idle_stream_kb", "memory per idle stream, KB", 12.0, 1),
    most(Row::Memory, "peak_mb", "memory, 10,000 streams and their samples, MB", 250.0, 0),
    most(Row::Prepare, "prepare_s", "10,000 conversations prepared, s", 20.0, 1),
    most(Row::Clean, "invalid_runs", "sound runs called INVALID, of 50", 0.0, 0),
    unbound(Row::Clean, "degraded_runs", "sound runs called DEGRADED, of 50", 0),
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
