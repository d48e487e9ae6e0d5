//! Figures of tables: rounded text, spread, and the exact values as a tooltip.

use std::iter::successors;

use judge::diff::words::plural;
use judge::facts::failures;
use judge::summary::{Summary, finite, half_range, share_pct};
use judge::validity;
use schema::metric::{Metric, by_name};
use schema::run::{RunRecord, Status};
use serde::Serialize;

use crate::catalog::Cell;
use crate::format::{self, Scale};
use crate::outside;

/// Figure in a table cell, formatted for display.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Value of the figure, rounded to what its spread supports; `-` where there is none.
    pub text: String,
    /// Spread relative to the figure's value, as `±1.3 %`: half of the range over repeats, or the
    /// median absolute deviation of a kernel benchmark. `None` where there is none, as for a single
    /// run.
    pub spread: Option<String>,
    /// Tooltip of the figure: the exact values or what they are made from, or the reason why there
    /// is no value.
    pub title: String,
    pub missing: bool,
}

/// Head of a table's column or row of figures: title and unit of the metric.
#[derive(Debug, Clone, Serialize)]
pub struct Head {
    pub title: String,
    pub unit: String,
    /// Name of the metric, for links to the method page and for tooltips.
    pub name: String,
}

/// Summarizes `metric` over the runs that the summaries of `cell` use; `None` where no run has the
/// metric or a value is not finite.
pub fn summary(metric: &Metric, cell: &Cell) -> Option<Summary> {
    finite(metric, cell.records())
}

/// Returns the metric called `name`, which must exist, since only the tables of this program name
/// it.
///
/// # Panics
///
/// There is no such metric.
pub fn metric(name: &str) -> &'static Metric {
    by_name(name).expect("the tables of pages name metrics of `METRICS`")
}

/// Returns the metric of output throughput, by which engines are ranked.
pub fn output() -> &'static Metric {
    metric("output_tokens_per_s")
}

/// Column of a table: a metric, and the display unit that fits all of its figures.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    pub metric: &'static Metric,
    pub scale: Scale,
}

impl Column {
    /// Creates the column of `metric` for a table about `cells`.
    pub fn new<'c, 'r: 'c>(
        metric: &'static Metric,
        cells: impl IntoIterator<Item = &'c Cell<'r>>,
    ) -> Self {
        let medians = cells.into_iter().filter_map(|cell| Some(summary(metric, cell)?.median));
        Self { metric, scale: Scale::fit(metric.unit, medians.fold(0.0, f64::max)) }
    }

    /// Creates the columns of a table about `cells`, one for each metric in `names`.
    pub fn all(names: &[&str], cells: &[Cell]) -> Vec<Self> {
        names.iter().map(|name| Self::new(metric(name), cells)).collect()
    }

    pub fn head(&self) -> Head {
        let (title, name) = (self.metric.title.into(), self.metric.name.into());
        // "Output tokens /s" reads as a rate; "TTFT p50 ms" needs no preposition.
        Head { title, unit: self.scale.unit.into(), name }
    }

    /// Returns the figure of the column's metric for `cell`, or a missing figure with the reason.
    pub fn figure(&self, cell: &Cell) -> Figure {
        match summary(self.metric, cell) {
            Some(found) if cell.key.block.is_some() => Figure::published(found.median, self.scale),
            Some(found) => Figure::median(&found, self.scale),
            None => Figure::missing(&why_missing(self.metric, cell)),
        }
    }
}

impl Figure {
    /// Builds a figure without a spread from its text and its tooltip.
    pub fn plain(text: String, title: String) -> Self {
        Self { text, spread: None, title, missing: false }
    }

    /// Builds a missing figure, shown as `-`, with the reason as tooltip.
    pub fn missing(reason: &str) -> Self {
        Self { missing: true, ..Self::plain("-".into(), outside::message(reason)) }
    }

    /// Builds the figure of one measured value, rounded to three digits because there are no
    /// repeats; a missing figure for a value that is not finite.
    pub fn single(value: f64, Scale { unit, divisor }: Scale) -> Self {
        if !value.is_finite() {
            return Self::missing("no number");
        }
        let value = value / divisor;
        Self::plain(format::rounded(value, None), format!("{} {unit}", format::exactly(value)))
    }

    /// Builds the figure of one published value with up to five digits, so that a difference which
    /// the report shows can be seen. Digits beyond those of the value are left out.
    pub fn published(value: f64, scale: Scale) -> Self {
        let figure = Self::single(value, scale);
        let value = value / scale.divisor;
        let text = format::rounded(value, Some(value.abs() * 1e-4));
        let text = match text.split_once('.') {
            Some((whole, part)) if !part.contains('e') => {
                format!("{whole}.{}", part.trim_end_matches('0')).trim_end_matches('.').to_owned()
            }
            _ => text,
        };
        if figure.missing { figure } else { Self { text, ..figure } }
    }

    /// Builds the figure of a median over runs, with half of their range as its spread.
    pub fn median(summary: &Summary, scale: Scale) -> Self {
        let exact = |value: f64| format::exactly(value / scale.divisor);
        let (low, high) = (exact(summary.min), exact(summary.max));
        let exactly = format!("{} {}", exact(summary.median), scale.unit).trim_end().to_owned();
        let range = format!(", from {low} to {high} {}", scale.unit);
        let title = if summary.n == 1 { exactly } else { exactly + range.trim_end() };
        Self::with_range(summary.median, summary, scale, title)
    }

    /// Builds the figure of a mean over runs, as comparisons show it, with half of their range as
    /// its spread.
    pub fn mean(summary: &Summary, scale: Scale) -> Self {
        let exact = |value: f64| format::exactly(value / scale.divisor);
        let (mean, low, high) = (exact(summary.mean), exact(summary.min), exact(summary.max));
        let title = format!("{mean} {}, from {low} to {high}", scale.unit);
        Self::with_range(summary.mean, summary, scale, title)
    }

    /// Builds the figure of `value` with half of the range over repeats as its spread.
    fn with_range(value: f64, summary: &Summary, scale: Scale, title: String) -> Self {
        let half = half_range(summary);
        let text = format::rounded(value / scale.divisor, half.map(|half| half / scale.divisor));
        let spread = half.and_then(|half| share_pct(half, value.abs())).map(format::plus_minus);
        Self { text, spread, title, missing: false }
    }

    /// Returns the text of the figure with its spread.
    pub fn shown(&self) -> String {
        match &self.spread {
            Some(spread) => format!("{} {spread}", self.text),
            None => self.text.clone(),
        }
    }
}

/// Formats the number of runs that the figures of `cell` come from: `3`, or `3 of 4` where others of
/// the same campaign, or of a later one, have no figures.
pub fn launches(cell: &Cell) -> String {
    let (counted, all) = (cell.counted().count(), cell.current().len());
    if counted == all { all.to_string() } else { format!("{counted} of {all}") }
}

/// Builds the figure of the number of failed requests over the current runs of the cell, including
/// runs that its summaries leave out. Zero is shown only where every run that ended counted its
/// failures; else the figure is missing.
pub fn failed(cell: &Cell) -> Figure {
    let runs = cell.current();
    let counted = || runs.iter().filter(|run| run.record.counts.is_some());
    let failed: Vec<u64> = counted().filter_map(|run| failures(run.record)).collect();
    let total: u64 = failed.iter().sum();
    let (known, ended) = (failed.len(), counted().count());
    if known == 0 || (known < ended && total == 0) {
        return Figure::missing("failures not reported");
    }
    let planned = counted().filter_map(|run| run.record.counts.as_ref()?.requests_planned);
    let title = format!("of {} requests in {}", planned.sum::<u64>(), plural(ended, "run"));
    Figure::plain(format::whole(total), title)
}

/// Returns the dotted path of `metric` in a record, under which `absent` has the reason for a
/// missing value.
pub fn path_of(metric: &Metric) -> String {
    match metric.name {
        "startup_us" => "server.startup_us".to_owned(),
        "rss_bytes_max" | "gpu_bytes_max" => format!("memory.{}", metric.name),
        "requests_failed" => "counts.requests_failed".to_owned(),
        name => match name.rsplit_once('_') {
            Some((summary, statistic)) if summary.ends_with("_us") => {
                format!("metrics.{summary}.{statistic}")
            }
            _ => format!("metrics.{name}"),
        },
    }
}

/// Returns the reason under `absent` for `path`, or for the nearest group that contains it.
pub fn absent<'a>(record: &'a RunRecord, path: &str) -> Option<&'a str> {
    let mut groups = successors(Some(path), |path| Some(path.rsplit_once('.')?.0));
    groups.find_map(|path| record.absent.get(path)).map(String::as_str)
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
    if !last.is_usable() && record.metrics.is_some() {
        return format!("invalid: {}", record.validity.reasons.join("; "));
    }
    if metric.value(record).is_some_and(|value| !value.is_finite()) {
        return "no number".to_owned();
    }
    if metric.value(record).is_some() {
        let rules = validity::of_metric(metric, record).rules;
        let rules = if rules.is_empty() { "lost requests".to_owned() } else { rules.join(", ") };
        return format!("measured, and not sound: {rules}");
    }
    absent(record, &path_of(metric)).unwrap_or("not recorded").to_owned()
}

#[cfg(test)]
mod tests {
    use schema::metric::{self, METRICS};

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
        for metric in METRICS.iter().chain(metric::shown(true)) {
            let pointer = format!("/{}", path_of(metric).replace('.', "/"));
            assert!(record.pointer(&pointer).is_some(), "`{}` is not at `{pointer}`", metric.name);
        }
    }

    #[test]
    fn published_values_that_differ_look_different() {
        let text = |value| Figure::published(value, Scale::PER_SECOND).text;
        assert_eq!((text(11_527.14), text(11_532.64)), ("11,527".into(), "11,533".into()));
        assert_eq!((text(0.25), text(15.1), text(0.0)), ("0.25".into(), "15.1".into(), "0".into()));
        assert_eq!(text(f64::NAN), "-");
    }

    #[test]
    fn a_reason_is_found_above_its_path() {
        let mut record = RunRecord::default();
        record.absent.insert("metrics.itl_token_us".into(), "one chunk per answer".into());
        assert_eq!(absent(&record, "metrics.itl_token_us.p50"), Some("one chunk per answer"));
        assert_eq!(absent(&record, "metrics.ttft_us.p50"), None);
    }
}
