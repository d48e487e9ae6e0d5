//! Estimates from log ratios of pairs: effect, t interval, p-values and minimum detectable effect.
//! Pure arithmetic; [`super::judge`] decides what they mean.

use schema::policy::PolicyFile;
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Number of minimum effects from which on the change of a metric that is not release-blocking is
/// large enough to be shown beside the release-blocking ones.
const LARGE: f64 = 10.0;

/// Mean of two or more log ratios with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fit {
    /// Mean of the log ratios of the pairs.
    pub mean: f64,
    /// Standard error of the mean: sample standard deviation over the root of the number of pairs.
    error: f64,
    t: StudentsT,
}

impl Fit {
    /// Fits log ratios of pairs; `None` for fewer than two, or where one is not finite.
    #[expect(clippy::cast_precision_loss, reason = "a campaign has few pairs")]
    pub fn of(log_ratios: &[f64]) -> Option<Self> {
        if log_ratios.len() < 2 || log_ratios.iter().any(|ratio| !ratio.is_finite()) {
            return None;
        }
        let n = log_ratios.len() as f64;
        let mean = log_ratios.iter().sum::<f64>() / n;
        let squares: f64 = log_ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
        let error = (squares / (n - 1.0) / n).sqrt();
        Some(Self { mean, error, t: StudentsT::new(0.0, 1.0, n - 1.0).ok()? })
    }

    /// Returns the fit with the sign of the log ratios turned, as if baseline and candidate were
    /// swapped.
    pub fn turned(self) -> Self {
        Self { mean: -self.mean, ..self }
    }

    /// Returns the one-sided p-value of the hypothesis that the true mean log ratio is at most
    /// `bound`; a small one shows that it is above.
    pub fn p_above(&self, bound: f64) -> f64 {
        let distance = self.mean - bound;
        if self.error > 0.0 {
            self.t.sf(distance / self.error)
        } else {
            // Without any spread either nothing changed, or chance cannot explain the change.
            f64::from(distance <= 0.0)
        }
    }

    /// Tests equivalence: true where two one-sided tests at `alpha` (Schuirmann, 1987) show that the
    /// true mean log ratio lies between `-bound` and `bound`, that is, the interval of 1 - 2 alpha
    /// lies inside.
    pub fn is_within(&self, bound: f64, alpha: f64) -> bool {
        [*self, self.turned()].iter().all(|fit| fit.p_above(-bound) < alpha)
    }

    /// Returns the two-sided p-value of the hypothesis that the true mean log ratio is zero.
    pub fn p(&self) -> f64 {
        let of_size = Self { mean: self.mean.abs(), ..*self };
        (2.0 * of_size.p_above(0.0)).min(1.0)
    }

    /// Returns the two-sided t interval of the mean log ratio at `confidence`, in log units.
    pub fn interval(&self, confidence: f64) -> (f64, f64) {
        let reach = self.t.inverse_cdf(f64::midpoint(1.0, confidence)) * self.error;
        (self.mean - reach, self.mean + reach)
    }

    /// Returns the reach to each side of the prediction interval for the mean of `new` further
    /// values with the same scatter: `t((1 + confidence) / 2) * s * sqrt(1 / n + 1 / new)`.
    pub fn prediction(&self, confidence: f64, new: f64) -> f64 {
        // The standard error is s / sqrt(n).
        let n = self.t.freedom() + 1.0;
        self.t.inverse_cdf(f64::midpoint(1.0, confidence)) * self.error * (1.0 + n / new).sqrt()
    }

    /// Returns the minimum detectable effect, in log units, of as many pairs with the same scatter
    /// at the given power: `(t((1 + confidence) / 2) + t(power)) * s / sqrt(n)` with n - 1 degrees
    /// of freedom, the usual approximation of the noncentral t.
    pub fn detectable(&self, confidence: f64, power: f64) -> f64 {
        let quantiles = self.t.inverse_cdf(f64::midpoint(1.0, confidence));
        (quantiles + self.t.inverse_cdf(power)) * self.error
    }
}

/// Effect of candidate over baseline in percent, with its statistics. A statistic is `None` where
/// the pairs are too few for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Number of pairs of runs (in a shift over cells, of cells) that the estimate rests on; 0 for
    /// values that were not measured in pairs.
    pub pairs: u32,
    /// Effect in percent: geometric mean of the ratios candidate / baseline, minus one; without
    /// pairs, ratio of the geometric means, minus one.
    pub effect_pct: f64,
    /// Two-sided interval of the effect in percent, at the policy's confidence; `None` where the
    /// pairs are too few.
    pub interval_pct: Option<(f64, f64)>,
    /// Two-sided p-value of the hypothesis that there is no effect; `None` where the pairs are too
    /// few.
    pub p: Option<f64>,
    /// Minimum detectable effect, in percent, of as many pairs with the same scatter; `None` where
    /// the pairs are too few.
    pub mde_pct: Option<f64>,
    /// Cliff's delta between the baseline's and the candidate's values; `None` where it was not
    /// computed, or a set has fewer than two values or contains NaN.
    pub cliffs_delta: Option<f64>,
}

impl Estimate {
    /// Returns an estimate that has an effect and no statistics about its certainty.
    pub const fn alone(pairs: u32, effect_pct: f64) -> Self {
        Self { pairs, effect_pct, interval_pct: None, p: None, mde_pct: None, cliffs_delta: None }
    }

    /// True for a large change: the interval excludes zero, and the ratio of the releases is at least
    /// that of ten times `min_effect_pct`, the metric's minimum effect in percent.
    pub fn is_large(&self, min_effect_pct: f64) -> bool {
        let excludes_zero = self.interval_pct.is_some_and(|(low, high)| low > 0.0 || high < 0.0);
        // On the logarithm, so that a metric that halves is as large a change as one that doubles.
        excludes_zero && log_of(self.effect_pct).abs() >= log_of(LARGE * min_effect_pct)
    }
}

/// Converts a log ratio to a change in percent.
pub fn percent(log_ratio: f64) -> f64 {
    log_ratio.exp_m1() * 100.0
}

/// Converts a change in percent to a log ratio.
pub fn log_of(percent: f64) -> f64 {
    (percent / 100.0).ln_1p()
}

/// Estimates the effect from log ratios of pairs: their geometric mean, with a t interval on the
/// logs, p-value and minimum detectable effect if there are two pairs or more; Cliff's delta is
/// left `None`. `None` without pairs, or where a log ratio is not finite.
#[expect(clippy::cast_precision_loss, reason = "a campaign has few pairs")]
pub fn paired(log_ratios: &[f64], policy: &PolicyFile) -> Option<Estimate> {
    if log_ratios.is_empty() || log_ratios.iter().any(|ratio| !ratio.is_finite()) {
        return None;
    }
    let mean = log_ratios.iter().sum::<f64>() / log_ratios.len() as f64;
    let pairs = u32::try_from(log_ratios.len()).ok()?;
    let effect_pct = percent(mean);
    let alone = Estimate::alone(pairs, effect_pct);
    let Some(fit) = Fit::of(log_ratios) else { return Some(alone) };
    let (low, high) = fit.interval(policy.confidence);
    Some(Estimate {
        interval_pct: Some((percent(low), percent(high))),
        p: Some(fit.p()),
        mde_pct: Some(percent(fit.detectable(policy.confidence, policy.power))),
        ..alone
    })
}

/// Returns the change in percent between the geometric means of two sets of values that were not
/// measured in pairs. `None` where a set is empty or has a value that is not positive.
pub fn unpaired(baseline: &[f64], candidate: &[f64]) -> Option<f64> {
    log_ratio(baseline, candidate).map(percent)
}

/// Returns the mean log of the candidate's values minus that of the baseline's; `None` where a set
/// is empty or has a value that is not positive.
#[expect(clippy::cast_precision_loss, reason = "a cell has few repeats")]
pub fn log_ratio(baseline: &[f64], candidate: &[f64]) -> Option<f64> {
    let mean_log = |values: &[f64]| {
        let positive = !values.is_empty() && values.iter().all(|value| *value > 0.0);
        positive.then(|| values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64)
    };
    Some(mean_log(candidate)? - mean_log(baseline)?)
}

/// Returns Cliff's delta ("Dominance statistics: ordinal analyses to answer ordinal questions",
/// 1993): over all combinations of a baseline's and a candidate's value, the share in which the
/// candidate's is larger minus the share in which it is smaller. `None` where a set has fewer than
/// two values or contains NaN.
#[expect(clippy::cast_precision_loss, reason = "a cell has few repeats")]
pub fn cliffs_delta(baseline: &[f64], candidate: &[f64]) -> Option<f64> {
    let is_set = |values: &[f64]| values.len() > 1 && !values.iter().any(|value| value.is_nan());
    if !is_set(baseline) || !is_set(candidate) {
        return None;
    }
    let couples = baseline.iter().flat_map(|old| candidate.iter().map(move |new| (old, new)));
    let sum: i64 = couples.map(|(old, new)| i64::from(new > old) - i64::from(new < old)).sum();
    Some(sum as f64 / (baseline.len() * candidate.len()) as f64)
}

/// Returns the noise of a campaign: half the width of the interval, in log units, that a release
/// shows against itself in `pairs` pairs: `t((1 + confidence) / 2) * s / sqrt(pairs)`, where s is
/// the root mean square of log ratios between runs of one release, whose true mean is zero. `None`
/// without such ratios or for zero pairs.
#[expect(clippy::cast_precision_loss, reason = "a campaign has few launches")]
pub fn noise(log_ratios: &[f64], pairs: usize, confidence: f64) -> Option<f64> {
    let count = log_ratios.len() as f64;
    let squares: f64 = log_ratios.iter().map(|ratio| ratio.powi(2)).sum();
    let t = StudentsT::new(0.0, 1.0, count).ok()?;
    let width =
        t.inverse_cdf(f64::midpoint(1.0, confidence)) * (squares / count / pairs as f64).sqrt();
    width.is_finite().then_some(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::policy;

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-3 * right.abs().max(1e-3)
    }

    fn paired(log_ratios: &[f64]) -> Option<Estimate> {
        super::paired(log_ratios, &policy::standard().file)
    }

    #[test]
    fn five_pairs_against_values_worked_out_by_hand() {
        // Mean 0.02, s = 0.015811, s / sqrt 5 = 0.0070711; t(0.975, 4) = 2.776445,
        // t(0.8, 4) = 0.940965; t = 2.828427, two-sided p = 0.047421.
        let found = paired(&[0.0, 0.01, 0.02, 0.03, 0.04]).unwrap();
        assert!(near(found.effect_pct, 100.0 * 0.02_f64.exp_m1()), "{found:?}");
        let (low, high) = found.interval_pct.unwrap();
        assert!(near(low, 100.0 * (0.02 - 0.019_632_5_f64).exp_m1()), "{found:?}");
        assert!(near(high, 100.0 * (0.02 + 0.019_632_5_f64).exp_m1()), "{found:?}");
        assert!(near(found.p.unwrap(), 0.047_421), "{found:?}");
        assert!(near(found.mde_pct.unwrap(), 100.0 * 0.026_286_f64.exp_m1()), "{found:?}");
        let fit = Fit::of(&[0.0, 0.01, 0.02, 0.03, 0.04]).unwrap();
        assert!(near(fit.p_above(0.0), 0.023_711) && near(fit.p_above(0.02), 0.5), "{fit:?}");
    }

    #[test]
    fn one_pair_has_an_effect_and_no_interval() {
        let found = paired(&[0.1]).unwrap();
        assert_eq!(
            (found.pairs, found.interval_pct, found.p, found.mde_pct),
            (1, None, None, None)
        );
        assert_eq!(paired(&[]), None);
        assert_eq!(paired(&[f64::NEG_INFINITY]), None);
    }

    #[test]
    fn pairs_without_spread_do_not_divide_by_zero() {
        let same = paired(&[0.0; 3]).unwrap();
        assert_eq!(
            (same.p, same.interval_pct, same.mde_pct),
            (Some(1.0), Some((0.0, 0.0)), Some(0.0))
        );
        assert_eq!(paired(&[0.5; 3]).unwrap().p, Some(0.0));
    }

    #[test]
    fn swapping_the_sides_turns_the_effect_around() {
        let logs = [0.013, -0.004, 0.02];
        let there = paired(&logs).unwrap();
        let back = paired(&logs.map(|log| -log)).unwrap();
        let product = (1.0 + there.effect_pct / 100.0) * (1.0 + back.effect_pct / 100.0);
        assert!(near(product, 1.0) && near(there.p.unwrap(), back.p.unwrap()));
    }

    #[test]
    fn cliffs_delta_against_values_worked_out_by_hand() {
        let same = [1.0, 2.0, 3.0];
        for (what, baseline, candidate, expected) in [
            ("apart", &same[..], &[4.0, 5.0][..], Some(1.0)),
            ("apart, the other way", &[4.0, 5.0], &same, Some(-1.0)),
            // Nine couples: three are equal, three above and three below.
            ("against itself", &same, &same, Some(0.0)),
            // Six couples: four are above, one is below, one is equal.
            ("in one another", &same, &[2.0, 3.5], Some(0.5)),
            ("one launch is no set", &same, &[2.0], None),
            ("nothing to compare", &[], &same, None),
            ("no number", &same, &[2.0, f64::NAN], None),
        ] {
            assert_eq!(cliffs_delta(baseline, candidate), expected, "{what}");
        }
    }

    #[test]
    fn unpaired_sides_give_a_ratio_alone() {
        assert!(near(unpaired(&[100.0, 100.0], &[110.0]).unwrap(), 10.0));
        assert_eq!(unpaired(&[], &[1.0]), None);
        assert_eq!(unpaired(&[0.0], &[1.0]), None);
    }

    #[test]
    fn noise_against_a_value_worked_out_by_hand() {
        // s = 0.02 over 4 ratios; t(0.975, 4) = 2.776445; 5 pairs.
        let found = noise(&[0.02, -0.02, 0.02, -0.02], 5, 0.95).unwrap();
        assert!(near(found, 2.776_445 * 0.02 / 5.0_f64.sqrt()), "{found}");
        assert_eq!(noise(&[], 5, 0.95), None);
    }
}
