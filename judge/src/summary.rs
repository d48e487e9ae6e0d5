//! Summary (median, mean, range, coefficient of variation) of a figure over the repeats of one
//! cell. Pages and comparisons share it.

use crate::quantile::median;
use crate::validity::value;
pub use schema::comparison::Summary;
use schema::metric::Metric;
use schema::run::RunRecord;

/// Summarizes `values` as number, median, smallest, largest, mean and coefficient of variation;
/// `None` when there are none.
#[expect(clippy::cast_precision_loss, reason = "a cell has few repeats")]
pub fn of(values: &[f64]) -> Option<Summary> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (min, max) = (*sorted.first()?, *sorted.last()?);
    let n = sorted.len();
    let median = median(values)?;
    let mean = sorted.iter().sum::<f64>() / n as f64;
    let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
    // Divided by n - 1, because the repeats are a sample of all possible runs.
    let cv = (n > 1 && mean != 0.0).then(|| (squares / (n - 1) as f64).sqrt() / mean.abs());
    Some(Summary { n, median, min, max, mean, cv })
}

/// Summarizes `metric` over those of `repeats` whose value passes the truth gate
/// ([`crate::validity::value`]); `None` when none does.
pub fn of_metric<'a>(
    metric: &Metric,
    repeats: impl IntoIterator<Item = &'a RunRecord>,
) -> Option<Summary> {
    of(&values(metric, repeats))
}

/// Returns the values of `metric` over `repeats`, without runs that lack the metric or whose value
/// does not pass the truth gate ([`crate::validity::value`]).
pub fn values<'a>(metric: &Metric, repeats: impl IntoIterator<Item = &'a RunRecord>) -> Vec<f64> {
    repeats.into_iter().filter_map(|run| value(metric, run)).collect()
}

/// Summarizes `metric` as [`of_metric`] does; `None` where no value passes, or where the smallest or
/// largest is not finite.
pub fn finite<'a>(
    metric: &Metric,
    repeats: impl IntoIterator<Item = &'a RunRecord>,
) -> Option<Summary> {
    of_metric(metric, repeats).filter(|found| found.min.is_finite() && found.max.is_finite())
}

/// Returns half of the range (largest minus smallest value) of a summary; `None` for a summary of a
/// single run.
pub fn half_range(summary: &Summary) -> Option<f64> {
    (summary.n > 1).then_some((summary.max - summary.min) / 2.0)
}

/// Returns the share of `part` in `whole`, in percent; `None` where `whole` is zero.
pub fn share_pct(part: f64, whole: f64) -> Option<f64> {
    (whole != 0.0).then(|| part / whole * 100.0)
}

/// Returns the difference of `value` from `baseline`, in percent of the baseline; `None` where the
/// baseline is zero.
pub fn difference_pct(value: f64, baseline: f64) -> Option<f64> {
    (baseline != 0.0).then(|| (value / baseline - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_of_known_values() {
        assert_eq!(of(&[]), None);
        let one = of(&[3.0]).unwrap();
        assert_eq!((one.n, one.median, one.cv), (1, 3.0, None));
        let four = of(&[4.0, 1.0, 2.0, 5.0]).unwrap();
        assert_eq!((four.median, four.min, four.max, four.mean), (3.0, 1.0, 5.0, 3.0));
        let cv = four.cv.unwrap();
        assert!((cv - (10.0_f64 / 3.0).sqrt() / 3.0).abs() < 1e-12, "{cv}");
        assert_eq!(of(&[0.0, 0.0]).unwrap().cv, None);
        assert_eq!((half_range(&one), half_range(&four)), (None, Some(2.0)));
    }

    #[test]
    fn nothing_is_compared_with_zero() {
        assert_eq!(difference_pct(1.5, 2.0), Some(-25.0));
        assert_eq!(share_pct(1.0, 4.0), Some(25.0));
        assert_eq!((difference_pct(1.0, 0.0), share_pct(1.0, 0.0)), (None, None));
    }
}
