//! Estimators of the location of a start's pairs, compared on recorded noise: how wide the interval
//! over the starts becomes with each. The choice of [`super::hodges_lehmann`] rests on it.

use schema::alternation::{Alternation, Side};

use super::covariate::{Paired, corrected};
use super::{OF_SLICE, hodges_lehmann, log_ratio, paired};
use crate::diff::estimate::{Fit, percent};
use crate::quantile::{median, quantile_of_floats};

/// Share of the values that a trimmed mean leaves out at each end.
const TRIMMED: f64 = 0.1;
/// Share of the slices of a side that are slower than its low quantile of time.
const FAST: f64 = 0.2;
/// Confidence of the intervals.
const CONFIDENCE: f64 = 0.95;

/// Name of an estimator, and how it locates the log ratios of a start.
type Estimator = (&'static str, fn(&[f64]) -> Option<f64>);

const ESTIMATORS: [Estimator; 4] = [
    ("mean", mean),
    ("mean, a tenth trimmed at each end", trimmed_mean),
    ("median", median),
    ("Hodges-Lehmann", hodges_lehmann),
];

/// Width that an estimator has on recorded noise.
#[derive(Debug, Clone, PartialEq)]
pub struct Width {
    /// Name of the estimator.
    pub estimator: &'static str,
    /// True where the pairs were corrected for steal.
    pub corrected: bool,
    /// Estimate over the starts in percent: the bias of the estimator where the variants are
    /// identical.
    pub effect_pct: f64,
    /// Half of the width of the interval over the starts in percent, at a confidence of 95 %.
    pub half_width_pct: f64,
}

/// Returns the width of each estimator of the metric `name`, without and with correction for steal,
/// over the starts of one comparison; empty where slices do not have the metric or there are fewer
/// than two starts.
pub fn widths(starts: &[&Alternation], name: &str) -> Vec<Width> {
    let Some((_, figure)) = OF_SLICE.iter().find(|(known, _)| *known == name) else {
        return Vec::new();
    };
    let paired = paired(starts, *figure);
    let as_measured = |pairs: &Vec<Paired>| pairs.iter().map(|pair| pair.log_ratio).collect();
    let plain: Vec<Vec<f64>> = paired.iter().map(as_measured).collect();
    let mut widths = Vec::new();
    for (is_corrected, pairs) in [(false, plain), (true, corrected(&paired))] {
        for (estimator, locate) in ESTIMATORS {
            let logs: Vec<f64> = pairs.iter().filter_map(|pairs| locate(pairs)).collect();
            widths.extend(width(estimator, is_corrected, &logs));
        }
    }
    let fast: Vec<f64> = starts.iter().filter_map(|start| of_fast(start, *figure)).collect();
    widths.extend(width("ratio of low quantiles", false, &fast));
    widths
}

fn width(estimator: &'static str, corrected: bool, logs: &[f64]) -> Option<Width> {
    let fit = Fit::of(logs)?;
    let (low, high) = fit.interval(CONFIDENCE);
    let half_width_pct = percent((high - low) / 2.0);
    Some(Width { estimator, corrected, effect_pct: percent(fit.mean), half_width_pct })
}

#[expect(clippy::cast_precision_loss, reason = "a start has few pairs")]
fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a start has few pairs"
)]
fn trimmed_mean(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let cut = (sorted.len() as f64 * TRIMMED).floor() as usize;
    mean(&sorted[cut..sorted.len() - cut])
}

/// Returns the log ratio of the figures that the least disturbed slices of both sides have in a
/// start: a quantile of each side that ignores which slices are pairs.
fn of_fast(
    start: &Alternation,
    figure: fn(&schema::alternation::Slice) -> Option<f64>,
) -> Option<f64> {
    let of = |side: Side| {
        let own = start.slices_of(side);
        let per_time: Vec<(u64, f64)> =
            own.filter_map(|slice| Some((slice.elapsed_us, figure(slice)?))).collect();
        let times: Vec<f64> = per_time.iter().map(|(us, _)| super::float(*us)).collect();
        let limit = quantile_of_floats(&times, FAST)?;
        let fast = per_time.iter().filter(|(us, _)| super::float(*us) <= limit);
        mean(&fast.map(|(_, figure)| *figure).collect::<Vec<f64>>())
    };
    log_ratio([of(Side::Baseline), of(Side::Candidate)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_against_values_worked_out_by_hand() {
        let values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 100.0];
        assert_eq!(mean(&values), Some(13.6));
        assert_eq!(trimmed_mean(&values), Some(4.5));
        assert_eq!((mean(&[]), trimmed_mean(&[])), (None, None));
    }

    #[test]
    fn a_disturbed_slice_widens_the_mean_and_not_the_robust_estimators() {
        let quiet = [[1000, 1000], [1010, 1000], [1000, 1010], [1000, 1000], [1005, 1000]];
        let mut disturbed = quiet;
        disturbed[2][1] = 3000;
        let starts: Vec<Alternation> = [quiet, disturbed, quiet, quiet]
            .iter()
            .map(|ms| super::super::tests::start(ms))
            .collect();
        let found = widths(&starts.iter().collect::<Vec<_>>(), "output_tokens_per_s");
        assert_eq!(found.len(), 9);
        let of = |name: &str| {
            let one = found.iter().find(|one| one.estimator == name && !one.corrected).unwrap();
            one.half_width_pct
        };
        assert!(of("mean") > 10.0, "{found:?}");
        for robust in ["median", "Hodges-Lehmann", "ratio of low quantiles"] {
            assert!(of(robust) < 1.0, "{robust}: {found:?}");
        }
        assert!(widths(&starts.iter().collect::<Vec<_>>(), "rss_bytes_max").is_empty());
    }
}
