//! Figures of tables: rounded text, spread, and the exact values as a tooltip.

use judge::summary::Summary;
use schema::metric::Metric;
use schema::run::{RunRecord, Status};
use serde::Serialize;

use crate::catalog::Cell;
use crate::format::{self, Scale};
use crate::outside;

/// A figure in a table cell.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Value, rounded to what the spread supports; `-` where there is none.
    pub text: String,
    /// Half of the range over repeats, relative to the value: `±1.3 %`; `None` for a single run.
    pub spread: Option<String>,
    /// Exact values; for a missing figure, the reason.
    pub title: String,
    pub missing: bool,
}

/// Head of a column or row of figures.
#[derive(Debug, Clone, Serialize)]
pub struct Head {
    pub title: String,
    pub unit: String,
    /// Name of the metric, for links to the method page and for tooltips.
    pub name: String,
}

/// Half of the range over repeats, shown as `±` in every table; `None` for a single run.
pub fn half_range(summary: &Summary) -> Option<f64> {
    (summary.n > 1).then_some((summary.max - summary.min) / 2.0)
}

/// Summary of `metric` over the runs of `cell` that count; `None` where one of the values is not
/// finite.
pub fn summary(metric: &Metric, cell: &Cell) -> Option<Summary> {
    let found = judge::summary::of_metric(metric, cell.counted().map(|run| run.record))?;
    (found.min.is_finite() && found.max.is_finite()).then_some(found)
}

/// Scale that fits `metric` over all of `cells`, so that a column has one unit.
pub fn scale(metric: &Metric, cells: &[&Cell]) -> Scale {
    let medians = cells.iter().filter_map(|cell| summary(metric, cell)).map(|found| found.median);
    Scale::fit(metric.unit, medians.fold(0.0, f64::max))
}

impl Head {
    /// Builds the head of a column of `metric` on `scale`.
    pub fn of(metric: &Metric, scale: Scale) -> Self {
        // "Output tokens /s" reads as a rate; "TTFT p50 ms" needs no preposition.
        Self { title: metric.title.into(), unit: scale.unit.into(), name: metric.name.into() }
    }
}

impl Figure {
    /// Builds the figure of `metric` for `cell` on `scale`.
    pub fn of(metric: &Metric, scale: Scale, cell: &Cell) -> Self {
        let Some(found) = summary(metric, cell) else {
            return Self::missing(&why_missing(metric, cell));
        };
        Self::median(&found, scale)
    }

    /// Builds the figure of a median over runs.
    pub fn median(summary: &Summary, scale: Scale) -> Self {
        let half = half_range(summary);
        let share = half.filter(|_| summary.median != 0.0).map(|half| half / summary.median.abs());
        let exact = |value: f64| format::exactly(value / scale.divisor);
        let exactly = format!("{} {}", exact(summary.median), scale.unit).trim_end().to_owned();
        let range =
            format!(", from {} to {} {}", exact(summary.min), exact(summary.max), scale.unit);
        let title = if summary.n == 1 { exactly } else { exactly + range.trim_end() };
        Self {
            text: format::rounded(summary.median / scale.divisor, half.map(|h| h / scale.divisor)),
            spread: share.map(|share| format::plus_minus(share * 100.0)),
            title,
            missing: false,
        }
    }

    /// Text of the figure with its spread.
    pub fn shown(&self) -> String {
        match &self.spread {
            Some(spread) => format!("{} {spread}", self.text),
            None => self.text.clone(),
        }
    }

    /// Builds the figure of a mean over runs, as comparisons show it.
    pub fn mean(summary: &Summary, scale: Scale) -> Self {
        let half = half_range(summary);
        let share = half.filter(|_| summary.mean != 0.0).map(|half| half / summary.mean.abs());
        let exact = |value: f64| format::exactly(value / scale.divisor);
        let (mean, low, high) = (exact(summary.mean), exact(summary.min), exact(summary.max));
        Self {
            text: format::rounded(summary.mean / scale.divisor, half.map(|h| h / scale.divisor)),
            spread: share.map(|share| format::plus_minus(share * 100.0)),
            title: format!("{mean} {unit}, from {low} to {high}", unit = scale.unit),
            missing: false,
        }
    }

    /// Builds a missing figure with its reason.
    pub fn missing(reason: &str) -> Self {
        Self { text: "-".into(), spread: None, title: outside::message(reason), missing: true }
    }

    /// Builds the figure of one measured value, without repeats to round it by.
    pub fn single(value: f64, scale: Scale) -> Self {
        if !value.is_finite() {
            return Self::missing("no number");
        }
        Self {
            text: format::rounded(value / scale.divisor, None),
            spread: None,
            title: format!("{} {}", format::exactly(value / scale.divisor), scale.unit),
            missing: false,
        }
    }

    /// Builds the figure of one time, in milliseconds.
    pub fn milliseconds(us: u64) -> Self {
        Self::single(format::as_f64(us), Scale { unit: "ms", divisor: 1e3 })
    }

    /// Builds the figure of a count.
    pub fn count(value: u64, title: String) -> Self {
        Self { text: format::whole(value), spread: None, title, missing: false }
    }
}

/// Path of `metric` in a record, under which `absent` gives the reason for a missing value.
pub fn path_of(metric: &Metric) -> String {
    match metric.name {
        "startup_us" => "server.startup_us".to_owned(),
        "rss_bytes_max" => "memory.rss_bytes_max".to_owned(),
        "requests_failed" => "counts.requests_failed".to_owned(),
        name => match name.rsplit_once('_') {
            Some((summary, statistic)) if summary.ends_with("_us") => {
                format!("metrics.{summary}.{statistic}")
            }
            _ => format!("metrics.{name}"),
        },
    }
}

/// Reason under `absent` for `path`, or for the nearest group that contains it.
pub fn absent<'a>(record: &'a RunRecord, path: &str) -> Option<&'a str> {
    let mut path = path;
    loop {
        if let Some(reason) = record.absent.get(path) {
            return Some(reason);
        }
        path = path.rsplit_once('.')?.0;
    }
}

fn why_missing(metric: &Metric, cell: &Cell) -> String {
    let Some(last) = cell.runs.last() else { return "not run".to_owned() };
    let record = last.record;
    if let Some(reason) = &last.retracted {
        return format!("retracted: {reason}");
    }
    if let (Status::Failed | Status::Skipped, Some(failure)) = (record.status, &record.failure) {
        return format!("{}: {}", super::words::class(failure.class), failure.message);
    }
    if !last.usable && record.metrics.is_some() {
        return format!("invalid: {}", record.validity.reasons.join("; "));
    }
    if metric.value(record).is_some_and(|value| !value.is_finite()) {
        return "no number".to_owned();
    }
    absent(record, &path_of(metric)).unwrap_or("not recorded").to_owned()
}

#[cfg(test)]
mod tests {
    use schema::metric::METRICS;

    use super::*;

    #[test]
    fn every_metric_has_a_path_that_a_record_knows() {
        let record = serde_json::to_value(RunRecord {
            server: Some(schema::run::ServerFacts::default()),
            memory: Some(schema::run::Memory::default()),
            counts: Some(schema::run::Counts::default()),
            metrics: Some(schema::run::Metrics {
                ttft_us: Some(schema::run::Summary::default()),
                tpot_us: Some(schema::run::Summary::default()),
                itl_token_us: Some(schema::run::Summary::default()),
                e2e_us: Some(schema::run::Summary::default()),
                ..schema::run::Metrics::default()
            }),
            ..RunRecord::default()
        })
        .expect("a record is JSON");
        for metric in METRICS {
            let pointer = format!("/{}", path_of(metric).replace('.', "/"));
            assert!(record.pointer(&pointer).is_some(), "`{}` is not at `{pointer}`", metric.name);
        }
    }

    #[test]
    fn a_reason_is_found_above_its_path() {
        let mut record = RunRecord::default();
        record.absent.insert("metrics.itl_token_us".into(), "one chunk per answer".into());
        assert_eq!(absent(&record, "metrics.itl_token_us.p50"), Some("one chunk per answer"));
        assert_eq!(absent(&record, "metrics.ttft_us.p50"), None);
    }
}
