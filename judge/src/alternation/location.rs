//! Locations of log ratios that single contaminated pairs do not move. Interference only slows, but
//! it hits either side of a pair, so that contaminated ratios lie far out on both sides.

use statrs::distribution::{ContinuousCDF, Normal};

use crate::quantile::median;

/// Returns the Hodges-Lehmann estimate of location, the median of all pairwise means ("Estimates of
/// Location Based on Rank Tests", 1963); `None` without values or where one is not a number. Its
/// time grows with the square of the number of values.
pub fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    median(&walsh_averages(values)?)
}

/// Returns the two-sided interval of the Hodges-Lehmann estimate at `confidence`, by the distribution
/// of Wilcoxon's signed ranks in its normal approximation; `None` for fewer than six values, which
/// are too few for an interval of 95 %, or where one is not a number.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a start has few pairs"
)]
pub fn interval(values: &[f64], confidence: f64) -> Option<(f64, f64)> {
    let n = values.len() as f64;
    let sorted = walsh_averages(values).filter(|_| n >= 6.0)?;
    let z = Normal::standard().inverse_cdf(f64::midpoint(1.0, confidence));
    let rank = n * (n + 1.0) / 4.0 - z * (n * (n + 1.0) * (2.0 * n + 1.0) / 24.0).sqrt();
    let rank = rank.floor().max(0.0) as usize;
    Some((*sorted.get(rank)?, *sorted.get(sorted.len().checked_sub(rank + 1)?)?))
}

/// Returns the means of all pairs of values, each value paired with itself too, in ascending order;
/// `None` where a value is not a number.
fn walsh_averages(values: &[f64]) -> Option<Vec<f64>> {
    let pairs = values.iter().enumerate();
    let mut means: Vec<f64> = pairs
        .flat_map(|(index, one)| values[index..].iter().map(move |two| f64::midpoint(*one, *two)))
        .collect();
    means.sort_by(f64::total_cmp);
    (!means.iter().any(|mean| mean.is_nan())).then_some(means)
}
