//! Alternating comparison of two variants: from slices of fresh starts to an estimate with an
//! interval.
//!
//! The model has two levels. Within a start, pairs of slices scatter because neighbors of the
//! machine slow single slices; between starts, layout of memory and address space move all slices
//! of a start. Each start gives one estimate, a location of its pairs that single contaminated
//! slices do not move, and the interval comes from the scatter of these estimates alone, so that it
//! contains both levels.

pub mod compare;
mod covariate;
mod decision;
pub mod estimators;
mod location;
pub mod pooled;
pub mod replay;
pub mod text;

use schema::alternation::{
    AlternatingComparison, Alternation, OutputsCompared, Side, Slice, Start, StartedServer, Tail,
};
use schema::metric::{METRICS, Metric};

pub use decision::{
    Call, Course, Judged, STARTS_MIN, at_the_end, is_decided, is_over, judge, judge_course,
    metrics, share_us,
};
pub use location::{hodges_lehmann, interval};

use covariate::{Covariate, Paired, corrected};

use crate::diff::estimate;
use crate::quantile::median;

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
const OF_START: [Figure<Tail>; 2] = [
    ("ttft_us_p99", |tail| tail.ttft_us_p99.map(float)),
    ("tpot_us_p99", |tail| tail.tpot_us_p99.map(float)),
];

/// Figures of a server that do not come from requests.
const OF_SERVER: [Figure<StartedServer>; 2] = [
    ("startup_us", |server| server.startup_us.map(float)),
    ("rss_bytes_max", |server| server.rss_bytes_max.map(float)),
];

/// True where an alternating comparison measures the metric `name`.
pub fn measures(name: &str) -> bool {
    let of_requests = OF_SLICE.iter().map(|(known, _)| known);
    let others = OF_START.iter().map(|(known, _)| known);
    let of_server = OF_SERVER.iter().map(|(known, _)| known);
    of_requests.chain(others).chain(of_server).any(|known| *known == name)
}

/// Returns the log ratios of a metric, candidate over baseline, one for each of `starts` that has it.
/// Those of slices are locations of pairs that are corrected for steal.
pub fn of_starts(starts: &[Start], name: &str) -> Vec<f64> {
    by_start(starts, name).into_iter().flatten().collect()
}

/// Returns the log ratios of a metric as [`of_starts`] does, with `None` for each of `starts` that
/// does not have it.
pub fn by_start(starts: &[Start], name: &str) -> Vec<Option<f64>> {
    if let Some((_, figure)) = OF_SERVER.iter().find(|(known, _)| *known == name) {
        let servers = starts.iter().map(|start| Side::BOTH.map(|side| start.server(side)));
        return servers.map(|servers| log_ratio(servers.map(figure))).collect();
    }
    let found: Vec<&Alternation> =
        starts.iter().filter_map(|start| start.alternation.as_ref()).collect();
    let mut ratios = by_alternation(&found, name).into_iter();
    let of_start = |start: &Start| start.alternation.as_ref().and_then(|_| ratios.next().flatten());
    starts.iter().map(of_start).collect()
}

/// Returns the log ratios of a metric of requests as [`of_starts`] does, one for each of the starts
/// that has it.
pub fn of_slices(starts: &[&Alternation], name: &str) -> Vec<f64> {
    by_alternation(starts, name).into_iter().flatten().collect()
}

/// Returns the log ratio of a metric of requests in each of `starts`; empty where requests do not
/// have the metric `name`.
fn by_alternation(starts: &[&Alternation], name: &str) -> Vec<Option<f64>> {
    if let Some((_, figure)) = OF_START.iter().find(|(known, _)| *known == name) {
        let tails = starts.iter().map(|found| Side::BOTH.map(|side| found.tail(side)));
        return tails.map(|tails| log_ratio(tails.map(figure))).collect();
    }
    of_pairs(starts, name).iter().map(|pairs| hodges_lehmann(pairs)).collect()
}

/// Returns the log ratios of the pairs of each start, corrected for steal; empty where slices do not
/// have the metric `name`.
pub fn of_pairs(starts: &[&Alternation], name: &str) -> Vec<Vec<f64>> {
    let Some((_, figure)) = OF_SLICE.iter().find(|(known, _)| *known == name) else {
        return Vec::new();
    };
    corrected(&paired(starts, *figure, covariate::steal))
}

/// Returns the log ratios of the pairs of each start with the difference of a covariate.
fn paired(
    starts: &[&Alternation],
    figure: fn(&Slice) -> Option<f64>,
    covariate: Covariate,
) -> Vec<Vec<Paired>> {
    let paired = |pair: [&Slice; 2]| {
        let [baseline, candidate] = pair.map(covariate);
        let covariate =
            baseline.zip(candidate).map_or(0.0, |(baseline, candidate)| candidate - baseline);
        Some(Paired { log_ratio: log_ratio(pair.map(figure))?, covariate })
    };
    let of_start = |found: &&Alternation| pairs(found).into_iter().filter_map(paired).collect();
    starts.iter().map(of_start).collect()
}

/// Returns the figures of a metric of one side, one for each start that has it, in the metric's unit;
/// within a start, the median over the slices.
pub fn figures_of(comparison: &AlternatingComparison, side: Side, name: &str) -> Vec<f64> {
    comparison.starts.iter().filter_map(|start| figure(start, side, name)).collect()
}

/// Returns the figure of one side in one start.
fn figure(start: &Start, side: Side, name: &str) -> Option<f64> {
    if let Some((_, figure)) = OF_SERVER.iter().find(|(known, _)| *known == name) {
        return figure(start.server(side));
    }
    let found = start.alternation.as_ref()?;
    if let Some((_, figure)) = OF_START.iter().find(|(known, _)| *known == name) {
        return figure(found.tail(side));
    }
    let (_, figure) = OF_SLICE.iter().find(|(known, _)| *known == name)?;
    median(&found.slices_of(side).filter_map(figure).collect::<Vec<f64>>())
}

/// Counts what failed at the baseline and at the candidate: starts in which the server did not
/// answer, and requests.
pub fn failures(comparison: &AlternatingComparison) -> [u64; 2] {
    Side::BOTH.map(|side| {
        let of_start = |start: &Start| {
            let own = start.alternation.iter().flat_map(|found| found.slices_of(side));
            u64::from(start.server(side).failure.is_some())
                + own.map(|slice| slice.requests_failed).sum::<u64>()
        };
        comparison.starts.iter().map(of_start).sum()
    })
}

/// Adds the comparison of outputs over all starts.
pub fn outputs(comparison: &AlternatingComparison) -> OutputsCompared {
    let found = comparison.starts.iter().filter_map(|start| start.alternation.as_ref());
    found.fold(OutputsCompared::default(), |all, found| all.with(found.outputs))
}

/// Returns the metrics of requests, which `redline-bench alternate` shows, in the order of tables.
pub fn of_requests() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(|metric| {
        measures(metric.name) && !OF_SERVER.iter().any(|(name, _)| *name == metric.name)
    })
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

#[expect(clippy::cast_precision_loss, reason = "microseconds and bytes are far below 2^53")]
fn float(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests;
