//! Mean, standard deviation and percentiles of a run's samples, by the conventions of the field's
//! benchmark clients: the deviation is that of the population.

use judge::quantile::quantile;
use schema::run::Summary;
use statrs::distribution::{Binomial, DiscreteCDF};

/// Confidence of the upper bounds on percentiles, from 0 to 1.
pub const CONFIDENCE: f64 = 0.99;

/// Summarizes `samples` in nanoseconds, one for each request, as a summary in microseconds with
/// upper confidence bounds of p90, p95 and p99. The bounds require independent samples, so there
/// must not be several of one request. `None` without samples.
pub fn summarize_requests(mut samples: Vec<u64>) -> Option<Summary> {
    samples.sort_unstable();
    let upper = |share| {
        let beyond = samples_beyond(samples.len() as u64, share)?;
        let rank = samples.len().checked_sub(1)?.checked_sub(usize::try_from(beyond).ok()?)?;
        Some(whole_us(float(samples[rank])))
    };
    let (p90_upper, p95_upper, p99_upper) = (upper(0.90), upper(0.95), upper(0.99));
    Some(Summary { p90_upper, p95_upper, p99_upper, ..summarize(samples)? })
}

/// Returns how many of `samples` samples may lie above an upper bound of the `share` quantile with
/// [`CONFIDENCE`]: the largest k with `P(at most k of n lie beyond the quantile) <= 1 -
/// CONFIDENCE`. `None` if that is zero, because MLPerf Inference requires at least one
/// (`loadgen/early_stopping.cc`).
pub fn samples_beyond(samples: u64, share: f64) -> Option<u64> {
    let beyond = Binomial::new(1.0 - share, samples).ok()?;
    // The inverse is the smallest k at which the probability is reached.
    let reached = beyond.inverse_cdf(1.0 - CONFIDENCE);
    reached.checked_sub(1).filter(|most| *most > 0)
}

/// Summarizes `samples` in nanoseconds, in any order, as a summary in microseconds; `None` without
/// samples.
pub fn summarize(mut samples: Vec<u64>) -> Option<Summary> {
    samples.sort_unstable();
    let max = *samples.last()?;
    let mean = mean(&samples);
    let squares: f64 = samples.iter().map(|sample| (float(*sample) - mean).powi(2)).sum();
    let deviation = (squares / float(samples.len() as u64)).sqrt();
    let at = |share| quantile(&samples, share).map(whole_us);
    Some(Summary {
        mean: Some(whole_us(mean)),
        std: Some(whole_us(deviation)),
        p50: at(0.50),
        p90: at(0.90),
        p95: at(0.95),
        p99: at(0.99),
        max: Some(whole_us(float(max))),
        ..Summary::default()
    })
}

/// Returns the mean of `samples`; zero without samples.
pub fn mean(samples: &[u64]) -> f64 {
    let sum: u128 = samples.iter().map(|sample| u128::from(*sample)).sum();
    #[expect(clippy::cast_precision_loss, reason = "a sum of times keeps 53 bits of itself")]
    let sum = sum as f64;
    sum / float(samples.len().max(1) as u64)
}

/// Converts a count or a time to a float; all are far below 2^53, so the conversion is exact.
#[expect(clippy::cast_precision_loss, reason = "times and counts of a run are far below 2^53")]
pub fn float(value: u64) -> f64 {
    value as f64
}

/// Rounds a count or a time, which is not negative, to the nearest integer.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "far below 2^53")]
pub fn whole(value: f64) -> u64 {
    value.round() as u64
}

fn whole_us(ns: f64) -> u64 {
    whole(ns / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_summary_is_in_whole_microseconds_with_the_populations_deviation() {
        let summary = summarize(vec![4000, 2000, 4000, 4000, 5000, 5000, 7000, 9000]).unwrap();
        assert_eq!((summary.mean, summary.std, summary.max), (Some(5), Some(2), Some(9)));
        assert_eq!(summary.p50, Some(5), "4.5 us, rounded away from zero");
        assert_eq!(summarize(Vec::new()), None);
    }

    #[test]
    fn a_percentile_is_bounded_from_the_sample_floor_on() {
        for share in [0.9, 0.95, 0.99] {
            let floor = judge::quantile::samples_needed(share);
            assert_eq!(samples_beyond(floor - 1, share), None, "{share}");
            assert_eq!(samples_beyond(floor, share), Some(1), "{share}");
        }
        let thousand = summarize_requests((1..=1000).map(|us| us * 1000).collect()).unwrap();
        let beyond = samples_beyond(1000, 0.99).unwrap();
        assert_eq!(thousand.p99_upper, Some(1000 - beyond));
        assert!(thousand.p99 < thousand.p99_upper && thousand.p99_upper < thousand.max);
        let few = summarize_requests(vec![1000; 100]).unwrap();
        assert_eq!((few.p90_upper, few.p95_upper, few.p99_upper), (Some(1), None, None));
    }

    proptest! {
        #[test]
        fn percentiles_are_monotone_and_within_the_samples(
            samples in prop::collection::vec(0_u64..1_000_000, 1..50)
        ) {
            let (least, most) = (samples.iter().min(), samples.iter().max());
            let ends = [least, most].map(|end| Some(whole_us(float(*end.unwrap()))));
            let summary = summarize(samples.clone()).unwrap();
            let all = [ends[0], summary.p50, summary.p90, summary.p95, summary.p99, ends[1]];
            prop_assert!(all.is_sorted() && summary.max == ends[1], "{:?}", all);
        }
    }
}
