//! Estimators of the location of a start's pairs, and covariates of the pairs, compared on recorded
//! noise: how wide the interval over the starts becomes with each. The choice of
//! [`super::hodges_lehmann`] and of the correction for steal rests on it.

use schema::alternation::{Alternation, Side};

use super::covariate::{Covariate, Paired, bandwidth, clock, corrected, steal};
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
    (CHOSEN, hodges_lehmann),
];

/// Name of the estimator that judges.
const CHOSEN: &str = "Hodges-Lehmann";

/// Covariates that do not correct the judgement: the name of the correction for each alone, and of
/// that for steal first and then for what is left.
const OTHERS: [(&str, &str, Covariate); 2] = [
    ("memory bandwidth", "steal, then memory bandwidth", bandwidth),
    ("clock", "steal, then clock", clock),
];

/// Width that an estimator has on recorded noise.
#[derive(Debug, Clone, PartialEq)]
pub struct Width {
    /// Name of the estimator.
    pub estimator: &'static str,
    /// Covariates that the pairs were corrected for, as `steal`; `nothing` where they were not.
    pub corrected_for: &'static str,
    /// Estimate over the starts in percent: the bias of the estimator where the variants are
    /// identical.
    pub effect_pct: f64,
    /// Half of the width of the interval over the starts in percent, at a confidence of 95 %.
    pub half_width_pct: f64,
}

/// Returns the width of each estimator of the metric `name`, without and with correction for steal,
/// and of the estimator that judges with other corrections, over the starts of one comparison; empty
/// where slices do not have the metric or there are fewer than two starts.
pub fn widths(starts: &[&Alternation], name: &str) -> Vec<Width> {
    let Some((_, figure)) = OF_SLICE.iter().find(|(known, _)| *known == name) else {
        return Vec::new();
    };
    let by = |covariate| paired(starts, *figure, covariate);
    let of_steal = by(steal);
    let as_measured = |pairs: &Vec<Paired>| pairs.iter().map(|pair| pair.log_ratio).collect();
    let plain: Vec<Vec<f64>> = of_steal.iter().map(as_measured).collect();
    let by_steal = corrected(&of_steal);
    let mut widths = Vec::new();
    for (corrected_for, pairs) in [("nothing", &plain), ("steal", &by_steal)] {
        for (estimator, locate) in ESTIMATORS {
            widths.extend(located((estimator, locate), corrected_for, pairs));
        }
    }
    let chosen = (CHOSEN, hodges_lehmann as fn(&[f64]) -> Option<f64>);
    for (alone, after_steal, covariate) in OTHERS {
        let own = by(covariate);
        widths.extend(located(chosen, alone, &corrected(&own)));
        widths.extend(located(chosen, after_steal, &corrected(&with_logs(&own, &by_steal))));
    }
    let fast: Vec<f64> = starts.iter().filter_map(|start| of_fast(start, *figure)).collect();
    widths.extend(width("ratio of low quantiles", "nothing", &fast));
    widths
}

/// Returns the pairs with other log ratios, those of the same pairs in `logs`.
fn with_logs(starts: &[Vec<Paired>], logs: &[Vec<f64>]) -> Vec<Vec<Paired>> {
    let with = |(pair, log): (&Paired, &f64)| Paired { log_ratio: *log, ..*pair };
    let of_start = |(pairs, logs): (&Vec<Paired>, &Vec<f64>)| {
        pairs.iter().zip(logs).map(with).collect::<Vec<Paired>>()
    };
    starts.iter().zip(logs).map(of_start).collect()
}

/// Returns the width of an estimator over the log ratios of the pairs of each start.
fn located(
    (estimator, locate): Estimator,
    corrected_for: &'static str,
    starts: &[Vec<f64>],
) -> Option<Width> {
    let logs: Vec<f64> = starts.iter().filter_map(|pairs| locate(pairs)).collect();
    width(estimator, corrected_for, &logs)
}

fn width(estimator: &'static str, corrected_for: &'static str, logs: &[f64]) -> Option<Width> {
    let fit = Fit::of(logs)?;
    let (low, high) = fit.interval(CONFIDENCE);
    let half_width_pct = percent((high - low) / 2.0);
    Some(Width { estimator, corrected_for, effect_pct: percent(fit.mean), half_width_pct })
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
        assert_eq!(found.len(), 13);
        let of = |name: &str| {
            let one = found.iter().find(|one| one.estimator == name).unwrap();
            assert_eq!(one.corrected_for, "nothing");
            one.half_width_pct
        };
        assert!(of("mean") > 10.0, "{found:?}");
        for robust in ["median", "Hodges-Lehmann", "ratio of low quantiles"] {
            assert!(of(robust) < 1.0, "{robust}: {found:?}");
        }
        assert!(widths(&starts.iter().collect::<Vec<_>>(), "rss_bytes_max").is_empty());
    }

    #[test]
    fn a_covariate_explains_what_depends_on_it_and_nothing_else() {
        // Each slice is as fast as the memory was before it, and in half of the pairs steal takes a
        // tenth more from the candidate, independently of the memory.
        let slow = [[100, 140], [100, 130], [100, 150], [125, 100], [100, 100], [100, 140]];
        let quiet = [[100, 100], [100, 105], [103, 100], [100, 100], [100, 104], [101, 100]];
        let mut starts: Vec<Alternation> =
            [slow, slow, quiet, quiet].iter().map(|ms| super::super::tests::start(ms)).collect();
        for (number, start) in starts.iter_mut().enumerate() {
            for (index, slice) in start.slices.iter_mut().enumerate() {
                slice.memory_mb_per_s = 1_000_000_000 / slice.elapsed_us;
                let is_stolen = slice.variant == Side::Candidate && (index / 2 + number) % 2 == 0;
                if is_stolen {
                    slice.steal_us = Some(slice.elapsed_us / 10);
                    slice.elapsed_us = slice.elapsed_us * 11 / 10;
                }
            }
        }
        let found = widths(&starts.iter().collect::<Vec<_>>(), "output_tokens_per_s");
        let of = |corrected_for: &str| {
            let own = found.iter().filter(|one| one.estimator == CHOSEN);
            own.clone().find(|one| one.corrected_for == corrected_for).unwrap().half_width_pct
        };
        assert!(of("steal, then memory bandwidth") < 0.2, "{found:?}");
        assert!(of("nothing") > 1.0 && of("steal") > 1.0, "{found:?}");
        // The clock was the same before all slices.
        assert_eq!((of("clock"), of("steal, then clock")), (of("nothing"), of("steal")));
    }
}
