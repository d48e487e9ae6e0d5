//! Rows and figures of the client comparison, with the bounds that Redline's figures must keep; the
//! results, kept in a file between calls so that rows can be measured one at a time; and their
//! Markdown table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::clients::tool::Tool;
use campaign::files::{read_text, write_whole};
use campaign::stop::Stop;
use judge::summary::{self, Summary};

/// Row of the client comparison (`--row`): a measurement that yields one or more figures, each of
/// which is one line of the printed table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Row {
    /// Throughput of the client in events per CPU second, with 100 streams that have no gap between
    /// tokens.
    Saturated,
    /// CPU time per event, and mean and p99 of the error of the reported TTFT, with 100 streams of
    /// 100 events per second.
    Paced,
    /// Mean and p99 of the error of the reported TTFT, and of the lag of the sends, with 1,000
    /// requests sent at once.
    Starts,
    /// Highest load, in events per second, at which the client reports the gaps between tokens
    /// correctly.
    Limit,
    /// Reported minus true standard deviation of ITL, with 1,000 streams of 100 events per second.
    Spread,
    /// Quantiles of the error of the times that Redline records for the tokens of 9,000 streams.
    Stamps,
    /// p99 of the send lag, and error of the request rate in percent, with 1,000 requests per
    /// second in open loop.
    OpenLoop,
    /// Memory of the client per idle stream, and its peak memory with 10,000 streams whose samples
    /// it keeps.
    Memory,
    /// Time to parse an event into a sample, measured by `cargo bench`.
    Parse,
    /// Time to sample a workload of 10,000 conversations with `redline-bench plan`.
    Prepare,
    /// Numbers of runs, of fifty without a fault, that Redline's load generator judges invalid and
    /// degraded; all of them should be valid.
    Clean,
}

/// Figure of the client comparison: one line of its table.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figure {
    /// Row of the client comparison in whose measurement the figure is obtained.
    pub row: Row,
    /// Id of the figure, with the unit last.
    pub id: &'static str,
    /// Name of the figure as the table prints it, with the unit.
    pub title: &'static str,
    /// Bound that the median of the figure over the repeats must keep for Redline's load generator;
    /// `None` if there is no bound.
    pub reach: Option<Reach>,
    /// Number of decimal places with which the table prints the figure.
    pub digits: usize,
}

/// Bound on a figure of Redline's load generator: either the least allowed value, or the largest
/// allowed magnitude.
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

/// Figures of the client comparison, in the order of its table.
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

const SCHEMA: &str = "client-bench.v1";

/// Content of the results file of the client comparison, with the results by row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub schema: String,
    pub rows: BTreeMap<Row, RowResult>,
}

/// Results of one row of the client comparison, with the date, commit and machine of the
/// measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Time at which the row was measured, RFC 3339 in UTC.
    pub measured_at: String,
    pub commit: Option<String>,
    /// True when the working tree had changes beyond the commit when the row was measured.
    pub dirty: bool,
    pub cpu: String,
    pub kernel: String,
    /// Values by figure id and then by client id; each list has one value per repeat in which the
    /// client reported it.
    pub values: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
    /// Reasons why clients were left out of the row, or failed in one of its repeats, by client id.
    pub absent: BTreeMap<String, String>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { schema: SCHEMA.to_owned(), rows: BTreeMap::new() }
    }
}

impl Kept {
    /// Reads the results file at `path`; returns an empty content if there is no such file.
    ///
    /// # Errors
    /// The file cannot be read or does not contain the results of a client comparison.
    pub fn open(path: &Path) -> Result<Self, Stop> {
        if !path.is_file() {
            return Ok(Self::default());
        }
        let read: Result<Self, _> = serde_json::from_str(&read_text(path)?);
        read.map_err(|error| {
            Stop::wrong_use(format!("`{}` holds no figures of clients: {error}", path.display()))
                .with_hint("remove it, and measure again")
        })
    }

    /// Writes the client comparison's results to the file at `path`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Stop> {
        // This data always has a JSON form.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        Ok(write_whole(path, format!("{text}\n").as_bytes())?)
    }
}

impl RowResult {
    /// Returns the summary of a client's values of a figure over the repeats; `None` if the client
    /// has none.
    pub fn repeats(&self, figure: &str, tool: &str) -> Option<Summary> {
        summary::of(self.values.get(figure)?.get(tool)?)
    }

    /// Returns the sentence that states date, commit, processor and kernel of a row's measurement.
    pub fn provenance(&self) -> String {
        let commit = self.commit.as_deref();
        let commit = commit.map_or("an unknown commit", |id| id.get(..10).unwrap_or(id));
        let changes = if self.dirty { " with changes" } else { "" };
        let day = self.measured_at.get(..10).unwrap_or("an unknown day");
        let (cpu, kernel) = (&self.cpu, &self.kernel);
        format!("Measured on {day} at {commit}{changes}: {cpu}, Linux {kernel}.")
    }

    /// Adds a client's values of one repeat, given by figure id, to the row's results.
    pub fn add(&mut self, tool: &str, values: BTreeMap<&'static str, f64>) {
        for (figure, value) in values {
            let by_tool = self.values.entry(figure.to_owned()).or_default();
            by_tool.entry(tool.to_owned()).or_default().push(value);
        }
    }
}

/// Renders the measured rows of the client comparison as a Markdown table, followed by date, commit
/// and machine.
pub fn render(kept: &Kept) -> String {
    let tools = Tool::ALL.map(Tool::id);
    let mut text = format!("| | wanted | {} |\n|---|---|", tools.join(" | "));
    text += &"---|".repeat(tools.len());
    text.push('\n');
    for figure in &FIGURES {
        text += &kept.rows.get(&figure.row).map_or(String::new(), |row| line(figure, row));
    }
    text + "\n" + &provenance(kept)
}

fn line(figure: &Figure, result: &RowResult) -> String {
    let number = |value: f64| grouped(value, figure.digits);
    let wanted = figure.reach.map(|reach| match reach {
        Reach::AtLeast(value) => format!(">= {}", number(value)),
        Reach::AtMost(value) => format!("<= {}", number(value)),
    });
    let cell = |tool: Tool| {
        let Some(repeats) = result.repeats(figure.id, tool.id()) else { return String::new() };
        let kept = figure.reach.is_none_or(|reach| reach.is_kept_by(repeats.median));
        spread(&repeats, figure.digits, tool != Tool::Redline || kept)
    };
    let cells = Tool::ALL.map(cell);
    format!("| {} | {} | {} |\n", figure.title, wanted.unwrap_or_default(), cells.join(" | "))
}

/// Formats median and range of a figure's repeats; `kept` false marks a median beyond its bound.
pub fn spread(repeats: &Summary, digits: usize, kept: bool) -> String {
    let [median, least, most] =
        [repeats.median, repeats.min, repeats.max].map(|value| grouped(value, digits));
    let mark = if kept { "" } else { " (missed)" };
    match least == most {
        true => format!("{least}{mark}"),
        false => format!("{median}{mark} [{least} to {most}]"),
    }
}

/// Formats a number with `digits` decimals and thousands separators, such as `1,234.5`; one that
/// rounds to zero has no sign.
pub fn grouped(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let is_zero = text.chars().all(|digit| matches!(digit, '0' | '.'));
    let sign = if value < 0.0 && !is_zero { "-" } else { "" };
    format!("{sign}{grouped}{rest}")
}

/// Formats one line for each different sentence of date, machine and commit among the measured
/// rows, then one line for each client that was left out of a row or failed in it.
fn provenance(kept: &Kept) -> String {
    // These are sets, because rows that were measured together share their sentence.
    let mut places = BTreeSet::new();
    let mut lines = BTreeSet::new();
    for (row, result) in &kept.rows {
        places.insert(format!("{}\n", result.provenance()));
        for (tool, reason) in &result.absent {
            let row = crate::name_of(*row);
            lines.insert(format!("Not had: {tool}, `{row}`: {reason}.\n"));
        }
    }
    places.into_iter().chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn kept() -> Kept {
        let mut result = RowResult {
            measured_at: "2026-01-02T03:04:05Z".to_owned(),
            commit: Some("0123456789abcdef".to_owned()),
            cpu: "A CPU".to_owned(),
            kernel: "6.1".to_owned(),
            ..RowResult::default()
        };
        for value in [350_000.4, 420_000.0, 340_000.0] {
            result.add("redline-bench", [("saturated_events_per_cpu_s", value)].into());
        }
        result.add("floor", [("saturated_events_per_cpu_s", 500_000.0)].into());
        result.absent.insert("aiperf".to_owned(), "left out".to_owned());
        let mut paced = RowResult { dirty: true, ..result.clone() };
        paced.values.clear();
        paced.absent.clear();
        let values = [
            ("paced_cpu_us_per_event", 13.26),
            ("ttft_error_ms_mean", -0.004),
            ("ttft_error_ms_p99", -3.6),
        ];
        paced.add("redline-bench", values.into());
        Kept { rows: [(Row::Saturated, result), (Row::Paced, paced)].into(), ..Kept::default() }
    }

    #[test]
    fn a_table_has_medians_ranges_and_what_was_missed() {
        expect![[r#"
            | | wanted | redline-bench | sglang-bench | aiperf | floor |
            |---|---|---|---|---|---|
            | events per CPU second, saturated | >= 350,000 | 350,000 [340,000 to 420,000] |  |  | 500,000 |
            | CPU per event, 100 streams x 100/s, us | <= 12.0 | 13.3 (missed) |  |  |  |
            | TTFT error, 100 streams, mean, ms | <= 0.50 | 0.00 |  |  |  |
            | TTFT error, 100 streams, p99, ms | <= 3.50 | -3.60 (missed) |  |  |  |

            Measured on 2026-01-02 at 0123456789 with changes: A CPU, Linux 6.1.
            Measured on 2026-01-02 at 0123456789: A CPU, Linux 6.1.
            Not had: aiperf, `saturated`: left out.
        "#]]
        .assert_eq(&render(&kept()));
    }

    #[test]
    fn numbers_are_grouped_in_threes() {
        for (value, digits, text) in
            [(1234.5, 1, "1,234.5"), (-0.004, 2, "0.00"), (-1e6, 0, "-1,000,000"), (12.0, 0, "12")]
        {
            assert_eq!(grouped(value, digits), text);
        }
    }

    #[test]
    fn every_figure_has_an_id_of_its_own() {
        let all: Vec<&str> = FIGURES.iter().map(|figure| figure.id).collect();
        let one_each: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(one_each.len(), all.len());
    }

    #[test]
    fn an_error_below_zero_is_as_wrong_as_one_above() {
        assert!(Reach::AtMost(0.5).is_kept_by(-0.5) && !Reach::AtMost(0.5).is_kept_by(-0.6));
        assert!(Reach::AtLeast(2.0).is_kept_by(2.0) && !Reach::AtLeast(2.0).is_kept_by(1.9));
    }
}
