//! Reduces many telemetry samples to the few numbers of a record: distributions and short time
//! series. Those of the server's own counters are queue lengths, KV pages, tokens, prefix cache hits
//! and preemptions.

use schema::telemetry::{Series, ServerTelemetry, Spread};

use super::{Counters, Watch};
use crate::measure::summary::{float, whole};

/// Most points in a time series. A longer run has more samples per point, not more points.
const POINTS_MAX: usize = 32;

/// How the samples of one point in a time series are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// Sums the values, for the growth of a counter.
    Sum,
    /// Averages the values, for a gauge.
    Mean,
}

/// One quantity of a time series: its name, how samples are combined, and one value per sample.
pub(super) type Column = (&'static str, Together, Vec<f64>);

/// Growth of a counter between two samples; `None` if it decreased, as after a restart of the
/// server.
pub(super) fn growth(before: f64, after: f64) -> Option<u64> {
    counted(after - before)
}

/// Nearest whole number of a counter or of a mean of counters; `None` if negative.
pub(super) fn counted(value: f64) -> Option<u64> {
    (value >= 0.0).then(|| whole(value))
}

/// Ratio of `part` to `of`, rounded to four decimals; finer digits say nothing about a machine.
pub(super) fn share(part: u64, of: u64) -> f64 {
    (float(part) / float(of.max(1)) * 1e4).round() / 1e4
}

/// Distribution of `values`: mean, and percentiles by nearest rank. `None` without values.
pub(super) fn spread(values: impl IntoIterator<Item = u64>) -> Option<Spread> {
    let mut sorted: Vec<u64> = values.into_iter().collect();
    sorted.sort_unstable();
    let max = *sorted.last()?;
    let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
    let mean = mean(&sorted.iter().map(|value| float(*value)).collect::<Vec<_>>());
    Some(Spread { mean: (mean * 100.0).round() / 100.0, p5: at(5), p50: at(50), p95: at(95), max })
}

/// Time series of `columns`, reduced to at most 32 points. `at_us` holds the time of each sample
/// and each column one value per sample. `None` for fewer than two samples.
pub(super) fn series(at_us: &[u64], columns: Vec<Column>) -> Option<Series> {
    if at_us.len() < 2 {
        return None;
    }
    let looks = at_us.len().div_ceil(POINTS_MAX);
    let point = |together: Together, values: &[f64]| match together {
        Together::Sum => counted(values.iter().sum()).unwrap_or(0),
        Together::Mean => counted(mean(values)).unwrap_or(0),
    };
    let column = |(name, together, values): Column| {
        let points = values.chunks(looks).map(|values| point(together, values)).collect();
        (name.to_owned(), points)
    };
    let last = |looks: &[u64]| looks.last().copied().unwrap_or(0);
    // Quantities that were zero all along are left out to keep records small.
    let moved = |column: &(String, Vec<u64>)| column.1.iter().any(|value| *value > 0);
    Some(Series {
        // Each point has the time of its last sample.
        at_us: at_us.chunks(looks).map(last).collect(),
        columns: columns.into_iter().map(column).filter(moved).collect(),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1) as u64)
}

const GAUGES: [&str; 3] = ["requests_running", "requests_waiting", "kv_pages_used"];
const COUNTERS: [&str; 5] =
    ["prompt_tokens", "output_tokens", "prefix_query_tokens", "prefix_hit_tokens", "preemptions"];

impl Watch<'_> {
    /// Telemetry from the server's counters; `None` if it reported none of them.
    pub(super) fn server_facts(&self, start_ns: u64) -> Option<ServerTelemetry> {
        let reported = self.looks.iter().filter_map(|look| {
            Some((look.at_ns.saturating_sub(start_ns) / 1000, look.server.as_ref()?))
        });
        let (at_us, counters): (Vec<u64>, Vec<&Counters>) = reported.unzip();
        if counters.iter().all(|counters| counters.is_empty()) {
            return None;
        }
        // Gauges are taken only from samples during the run, when the load was present.
        let during = self.looks.get(1..self.looks.len().saturating_sub(1)).unwrap_or_default();
        let gauge = |name: &str| -> Option<Spread> {
            let seen = during.iter().filter_map(|look| look.server.as_ref()?.get(name).copied());
            spread(seen.filter_map(counted))
        };
        let [requests_running, requests_waiting, kv_pages_used] = GAUGES.map(gauge);
        let [prompt, output, query, hit, preemptions] = COUNTERS.map(|name| self.grown(name));
        let pages = counters.last().and_then(|counters| counters.get("kv_pages").copied());
        Some(ServerTelemetry {
            requests_running,
            requests_waiting,
            kv_pages_used,
            kv_pages: pages.and_then(counted),
            prompt_tokens: prompt,
            output_tokens: output,
            prefix_query_tokens: query,
            prefix_hit_tokens: hit,
            preemptions,
            series: server_series(&at_us, &counters),
        })
    }
}

/// Time series of the server's counters, from the second sample on; the first, taken before the run,
/// is the counters' baseline. `at_us` are the times of the samples since the clock started.
fn server_series(at_us: &[u64], samples: &[&Counters]) -> Option<Series> {
    let values = |name: &str| -> Option<Vec<f64>> {
        samples.iter().map(|counters| counters.get(name).copied()).collect()
    };
    let gauges = GAUGES.iter().filter_map(|name| {
        let values = values(name)?.split_off(1);
        Some((*name, Together::Mean, values))
    });
    let counters = COUNTERS.iter().filter_map(|name| {
        let values = values(name)?;
        let grown = values.windows(2).map(|pair| growth(pair[0], pair[1]).unwrap_or(0));
        Some((*name, Together::Sum, grown.map(float).collect()))
    });
    series(at_us.get(1..)?, gauges.chain(counters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_of_nearest_ranks() {
        let of = |values: &[u64]| spread(values.iter().copied());
        assert_eq!(of(&[]), None);
        let one = Spread { mean: 7.0, p5: 7, p50: 7, p95: 7, max: 7 };
        assert_eq!(of(&[7]), Some(one));
        let hundred: Vec<u64> = (1..=100).rev().collect();
        let expected = Spread { mean: 50.5, p5: 5, p50: 50, p95: 95, max: 100 };
        assert_eq!(of(&hundred), Some(expected));
    }

    #[test]
    fn a_long_run_has_no_more_points_and_loses_no_count() {
        for looks in [2_u64, 31, 32, 33, 64, 65, 30_000] {
            let at_us: Vec<u64> = (1..=looks).map(|look| look * 1_000_000).collect();
            let ones = vec![1.0; at_us.len()];
            let columns = vec![
                ("grown", Together::Sum, ones.clone()),
                ("kept", Together::Mean, ones),
                ("still", Together::Sum, vec![0.0; at_us.len()]),
            ];
            let found = series(&at_us, columns).unwrap();
            assert!(found.at_us.len() <= POINTS_MAX && found.at_us.len() >= 2, "{looks}");
            assert_eq!(found.at_us.last(), at_us.last());
            assert!(found.columns.values().all(|column| column.len() == found.at_us.len()));
            assert_eq!(found.columns["grown"].iter().sum::<u64>(), looks, "growth adds up");
            assert!(found.columns["kept"].iter().all(|kept| *kept == 1), "a mean stays");
            assert_eq!(found.columns.len(), 2, "what was zero all along is left out");
        }
        assert_eq!(series(&[1], vec![("grown", Together::Sum, vec![1.0])]), None);
    }
}
