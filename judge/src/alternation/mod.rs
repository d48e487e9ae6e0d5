//! Alternating comparison of two variants: from slices of fresh starts to an estimate with an
//! interval.
//!
//! The model has two levels. Within a start, pairs of slices scatter because neighbors of the
//! machine slow single slices; between starts, layout of memory and address space move all slices
//! of a start. Each start gives one estimate, a location of its pairs that single contaminated
//! slices do not move, and the interval comes from the scatter of these estimates alone, so that it
//! contains both levels.

mod decision;
mod location;

use std::collections::BTreeMap;

use schema::alternation::{Alternation, Side, Slice};
use schema::metric::{Metric, by_name};
use schema::run::Histograms;

pub use decision::{Call, Standing, stand};
pub use location::{hodges_lehmann, interval};

use crate::diff::estimate;
use crate::quantile::Bins;

/// Name of a metric, and how its figure is read.
type Figure<Of> = (&'static str, fn(&Of) -> Option<f64>);

/// Metrics that each slice has, with the figure of a slice.
const OF_SLICE: [Figure<Slice>; 4] = [
    ("output_tokens_per_s", Slice::output_tokens_per_s),
    ("ttft_us_p50", |slice| slice.ttft_us_p50.map(float)),
    ("tpot_us_p50", |slice| slice.tpot_us_p50.map(float)),
    ("itl_token_us_p99", |slice| slice.itl_us_p99.map(float)),
];

/// Percentiles over all requests of a start: the slices have too few.
const OF_START: [Figure<Histograms>; 2] = [
    ("ttft_us_p99", |all| percentile(all.ttft_us.as_ref()?, 0.99)),
    ("tpot_us_p99", |all| percentile(all.tpot_us.as_ref()?, 0.99)),
];

/// Computes the log ratios of one start, candidate over baseline, by metric name.
pub fn of_start(start: &Alternation) -> BTreeMap<&'static str, f64> {
    let mut ratios = BTreeMap::new();
    for (name, _) in OF_SLICE {
        ratios.extend(hodges_lehmann(&pair_ratios(name, start)).map(|log| (name, log)));
    }
    if let (Some(baseline), Some(candidate)) = (&start.baseline, &start.candidate) {
        for (name, figure) in OF_START {
            ratios.extend(log_ratio([baseline, candidate].map(figure)).map(|log| (name, log)));
        }
    }
    ratios
}

/// Returns the log ratios, candidate over baseline, of the pairs of one start for the metric `name`;
/// empty where slices do not have the metric.
pub fn pair_ratios(name: &str, start: &Alternation) -> Vec<f64> {
    let figure = OF_SLICE.iter().find(|(known, _)| *known == name).map(|(_, figure)| figure);
    let pairs = pairs(start);
    let ratios =
        figure.map(|figure| pairs.iter().filter_map(move |pair| log_ratio(pair.map(figure))));
    ratios.into_iter().flatten().collect()
}

/// Returns the metrics that an alternating comparison judges, in the order of its tables.
pub fn metrics() -> impl Iterator<Item = &'static Metric> {
    let names = OF_SLICE.iter().map(|(name, _)| *name);
    names.chain(OF_START.iter().map(|(name, _)| *name)).filter_map(by_name)
}

/// Returns the slices of baseline and candidate of each pair in which every request was answered.
fn pairs<'a>(start: &'a Alternation) -> Vec<[&'a Slice; 2]> {
    let pairs = start.slices.chunks_exact(2);
    let answered = pairs.filter(|pair| pair.iter().all(|slice| slice.requests_failed == 0));
    let by_side = |pair: &'a [Slice]| {
        let of = |side| pair.iter().find(|slice| slice.variant == side);
        Some([of(Side::Baseline)?, of(Side::Candidate)?])
    };
    answered.filter_map(by_side).collect()
}

fn log_ratio([baseline, candidate]: [Option<f64>; 2]) -> Option<f64> {
    estimate::log_ratio(&[baseline?], &[candidate?])
}

fn percentile(histogram: &schema::histogram::HdrHistogram, share: f64) -> Option<f64> {
    let bounds = Bins::decode(histogram).ok()?.quantile(share)?;
    Some(f64::midpoint(bounds.0, bounds.1))
}

#[expect(clippy::cast_precision_loss, reason = "microseconds and bytes are far below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests;
