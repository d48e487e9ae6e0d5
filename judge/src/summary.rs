//! Summary (median, mean, range, coefficient of variation) of a figure over the repeats of one
//! cell. Pages and comparisons share it.

use crate::quantile::median;
pub use schema::comparison::Summary;
use schema::metric::Metric;
use schema::run::RunRecord;

/// Returns the summary of `values`; `None` when there are none.
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

/// Returns the summary of `metric` over `repeats`; `None` when no repeat has the metric.
pub fn of_metric<'a>(
    metric: &Metric,
    repeats: impl IntoIterator<Item = &'a RunRecord>,
) -> Option<Summary> {
    let values: Vec<f64> = repeats.into_iter().filter_map(|run| metric.value(run)).collect();
    of(&values)
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
    }
}
