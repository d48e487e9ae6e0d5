//! Thresholds of `--fail-if`: conditions on the metrics of a run under which a command ends with
//! exit code 1, as a CI job needs it.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use schema::measurement::Measurement;
use schema::metric::{METRICS, Metric, by_given_name, in_ms};
use schema::run::{RunRecord, ValidityVerdict};

use super::table::wrapped;

/// Metrics of the server's process, which only the program knows that starts it.
const OF_THE_PROCESS: [&str; 2] = ["startup_us", "rss_bytes_max"];

/// Flag that makes a command fail where a metric of its run is beyond a threshold.
#[derive(Debug, Args)]
pub struct ThresholdFlags {
    /// Fail where a metric of the run is above or below a value, as `ttft_ms_p99>200`,
    /// `output_tokens_per_s<100` or `requests_failed>0`; may be given several times. A metric that
    /// is INVALID or was not measured fails too. An unknown metric prints the list of all.
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Threshold>,
}

impl ThresholdFlags {
    /// Formats a line for each threshold that `measurement` breaks, for the end of its table; empty
    /// where it breaks none.
    pub fn broken(&self, measurement: &Measurement) -> String {
        let mut record = RunRecord::default();
        measurement.clone().fill(&mut record);
        let broken = self.fail_if.iter().filter_map(|threshold| threshold.broken(&record));
        let lines = broken.flat_map(|sentence| wrapped("threshold      ", &sentence));
        lines.map(|line| line + "\n").collect()
    }
}

/// Condition on a metric under which a run fails.
#[derive(Clone, Debug)]
struct Threshold {
    metric: &'static Metric,
    /// Name of the metric as it was given, in milliseconds or microseconds where it is a time.
    name: String,
    /// Number of the metric's stored units in the unit of `name` and `limit`.
    unit: f64,
    /// True where values above the limit fail, false where values below it do.
    is_above: bool,
    limit: f64,
}

impl FromStr for Threshold {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no condition: give `METRIC>VALUE` or `METRIC<VALUE`, such as \
                 `ttft_ms_p99>200`"
            )
        };
        let at = text.find(['<', '>']).ok_or_else(wrong)?;
        let (name, limit) = (text[..at].trim(), text[at + 1..].trim());
        let limit: f64 = limit.parse().map_err(|_| wrong())?;
        if !limit.is_finite() {
            return Err(wrong());
        }
        let found = by_given_name(name).filter(|(metric, _)| is_measured(metric));
        let (metric, unit) = found.ok_or_else(|| unknown(name))?;
        Ok(Self {
            metric,
            name: name.to_owned(),
            unit,
            is_above: text[at..].starts_with('>'),
            limit,
        })
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<String> = measured().map(in_ms).collect();
    format!(
        "no metric is called `{name}`\nhint: the metrics are {}; a time may also be given in \
         microseconds, as `ttft_us_p99`",
        names.join(", ")
    )
}

/// Iterates over the metrics that a measurement has.
fn measured() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(|metric| is_measured(metric))
}

fn is_measured(metric: &Metric) -> bool {
    !OF_THE_PROCESS.contains(&metric.name)
}

impl fmt::Display for Threshold {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.is_above { "above" } else { "below" };
        write!(formatter, "{side} {}", self.limit)
    }
}

impl Threshold {
    /// Returns the sentence that says how the run `record` breaks the threshold; `None` where it
    /// does not.
    fn broken(&self, record: &RunRecord) -> Option<String> {
        let name = &self.name;
        let verdict = record.validity.metrics.get(self.metric.name);
        if verdict == Some(&ValidityVerdict::Invalid) {
            return Some(format!("{name} was not measured validly and may be {self}"));
        }
        let Some(value) = self.metric.value(record) else {
            return Some(format!("{name} was not measured and may be {self}"));
        };
        let value = value / self.unit;
        let is_broken = if self.is_above { value > self.limit } else { value < self.limit };
        let shown = (value * 1000.0).round() / 1000.0;
        is_broken.then(|| format!("{name} is {shown}, which is {self}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use schema::run::{Counts, Metrics, Summary, Validity};

    fn parsed(text: &str) -> Result<Threshold, String> {
        text.parse()
    }

    fn broken(text: &str, measurement: &Measurement) -> String {
        ThresholdFlags { fail_if: vec![parsed(text).unwrap()] }.broken(measurement)
    }

    #[test]
    fn conditions_name_a_metric_of_the_run_and_a_number() {
        for text in ["ttft_ms_p99>200", "ttft_us_p99 > 200000", "output_tokens_per_s<99.5"] {
            assert!(parsed(text).is_ok(), "{text}");
        }
        for text in ["ttft_ms_p99", "ttft_ms_p99>=200", "ttft_ms_p99>", "requests_failed>inf"] {
            assert!(parsed(text).unwrap_err().contains("is no condition"), "{text}");
        }
        for text in ["ttft_p99>1", "rss_bytes_max>1", ">1"] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains("no metric is called"), "{text}");
            assert!(error.contains("ttft_ms_p99") && error.contains("requests_failed"), "{error}");
            assert!(!error.contains("startup"), "{error}");
        }
    }

    #[test]
    fn a_value_beyond_its_limit_breaks_the_threshold() {
        let ttft_us = Some(Summary { p99: Some(312_400), ..Summary::default() });
        let mut measurement = Measurement {
            counts: Some(Counts { requests_failed: Some(0), ..Counts::default() }),
            metrics: Some(Metrics {
                output_tokens_per_s: Some(88.5),
                ttft_us,
                ..Metrics::default()
            }),
            ..Measurement::default()
        };
        let cases = [
            ("ttft_ms_p99>312", "threshold      ttft_ms_p99 is 312.4, which is above 312\n"),
            ("ttft_us_p99>312000", "threshold      ttft_us_p99 is 312400, which is above 312000\n"),
            ("ttft_ms_p99>312.4", ""),
            ("ttft_ms_p99<312.4", ""),
            (
                "output_tokens_per_s<100",
                "threshold      output_tokens_per_s is 88.5, which is below 100\n",
            ),
            ("requests_failed>0", ""),
            ("tpot_ms_p50>50", "threshold      tpot_ms_p50 was not measured and may be above 50\n"),
        ];
        for (text, expected) in cases {
            assert_eq!(broken(text, &measurement), expected, "{text}");
        }
        measurement.validity = Validity {
            metrics: [("ttft_us_p99".to_owned(), ValidityVerdict::Invalid)].into(),
            ..Validity::default()
        };
        let expected = "threshold      ttft_ms_p99 was not measured validly and may be above 500\n";
        assert_eq!(broken("ttft_ms_p99>500", &measurement), expected);
    }
}
