//! Thresholds of `--fail-if`: conditions on the metrics of a run under which a command ends with
//! exit code 1, as a CI job needs it.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use schema::measurement::Measurement;
use schema::metric::{METRICS, Metric, OF_THRESHOLDS, by_given_name, in_ms};
use schema::run::{RunRecord, ValidityVerdict};

use super::table::wrapped;

/// Metrics of the server's process, which only the program knows that starts it.
const OF_THE_PROCESS: [&str; 2] = ["startup_us", "rss_bytes_max"];

/// Flag that makes a command fail where a metric of its run is beyond a threshold.
#[derive(Debug, Args)]
pub struct ThresholdFlags {
    /// Fail where a metric of the run is above or below a value, as `ttft_ms_p99>200`,
    /// `output_tokens_per_s<100` or `requests_failed>0`; may be given several times. A metric that
    /// is INVALID or was not measured fails too, and a doubtful one is warned about. `goodput_per_s`
    /// needs latency limits. An unknown metric prints the list of all.
    #[arg(long, value_name = "CONDITION")]
    fail_if: Vec<Threshold>,
}

impl ThresholdFlags {
    /// Formats a line for each threshold that `measurement` breaks, for the end of its table; empty
    /// where it breaks none. Warns on standard error of figures that are too uncertain for one.
    pub fn broken(&self, measurement: &Measurement) -> String {
        let mut record = RunRecord::default();
        measurement.clone().fill(&mut record);
        for doubt in self.fail_if.iter().filter_map(|threshold| threshold.doubt(&record)) {
            eprintln!("warning: {doubt}");
        }
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
    METRICS.iter().chain(OF_THRESHOLDS).filter(|metric| is_measured(metric))
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
    /// Returns the verdict on the metric; on a p90 that on the p95, since only metrics of comparisons
    /// have one.
    fn verdict<'r>(&self, record: &'r RunRecord) -> Option<&'r ValidityVerdict> {
        record.validity.metrics.get(&self.metric.name.replace("_p90", "_p95"))
    }

    /// Returns the sentence that says why the figure is too uncertain for a threshold; `None` where it
    /// is not.
    fn doubt(&self, record: &RunRecord) -> Option<String> {
        let name = &self.name;
        self.metric.value(record)?;
        if self.verdict(record) == Some(&ValidityVerdict::Degraded) {
            return Some(format!("{name} is DEGRADED, so its threshold decides little"));
        }
        is_unbounded(self.metric, record).then(|| {
            format!("too few samples for {name}: send more requests, or name a lower percentile")
        })
    }

    /// Returns the sentence that says how the run `record` breaks the threshold; `None` where it
    /// does not.
    fn broken(&self, record: &RunRecord) -> Option<String> {
        let name = &self.name;
        if self.verdict(record) == Some(&ValidityVerdict::Invalid) {
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

/// True for a percentile of a latency of requests that the table of the run marks with `?`: its samples
/// are too few to bound it.
fn is_unbounded(metric: &Metric, record: &RunRecord) -> bool {
    let bound = || {
        let metrics = record.metrics.as_ref()?;
        let (latency, percentile) = metric.name.split_once("_us_")?;
        let summary = match latency {
            "ttft" => metrics.ttft_us.as_ref()?,
            "tpot" => metrics.tpot_us.as_ref()?,
            "e2e" => metrics.e2e_us.as_ref()?,
            _ => return None,
        };
        match percentile {
            "p90" => Some(summary.p90_upper),
            "p95" => Some(summary.p95_upper),
            "p99" => Some(summary.p99_upper),
            _ => None,
        }
    };
    bound() == Some(None)
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
        for text in ["ttft_ms_p99>200", "ttft_us_p99 > 200000", "e2e_ms_p90>9", "goodput_per_s<2"] {
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

    #[test]
    fn a_figure_that_is_too_uncertain_is_doubted() {
        let mut record = RunRecord::default();
        let doubt = |text: &str, record: &RunRecord| parsed(text).unwrap().doubt(record);
        assert_eq!(doubt("ttft_ms_p99>1", &record), None, "it was not measured");
        let ttft_us = Summary { p50: Some(1), p90: Some(2), p99: Some(3), ..Summary::default() };
        let ttft_us = Some(Summary { p90_upper: Some(4), ..ttft_us });
        let goodput_per_s = Some([("all".to_owned(), 1.5)].into());
        record.metrics = Some(Metrics { ttft_us, goodput_per_s, ..Metrics::default() });
        let said = doubt("ttft_ms_p99>1", &record).unwrap();
        assert!(said.starts_with("too few samples for ttft_ms_p99: "), "{said}");
        for text in ["ttft_ms_p50>1", "ttft_ms_p90>1", "goodput_per_s<2"] {
            assert_eq!(doubt(text, &record), None, "{text}");
        }
        let broken = parsed("goodput_per_s<2").unwrap().broken(&record);
        assert_eq!(broken.as_deref(), Some("goodput_per_s is 1.5, which is below 2"));
        let degraded = ("ttft_us_p95".to_owned(), ValidityVerdict::Degraded);
        record.validity.metrics = [degraded].into();
        assert!(doubt("ttft_ms_p90>1", &record).unwrap().contains("is DEGRADED"));
    }
}
