//! From log ratios of pairs to an effect, an interval and the smallest effect that could have been
//! seen. Pure arithmetic; what it means is decided elsewhere.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Two-sided confidence of the interval.
pub const CONFIDENCE: f64 = 0.95;
/// Power at which the smallest detectable effect is stated.
pub const POWER: f64 = 0.8;

/// An effect in percent, candidate over baseline. `None` where the pairs are too few.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub pairs: u32,
    pub effect_pct: f64,
    pub interval_pct: Option<(f64, f64)>,
    /// Two-sided p of no effect.
    pub p: Option<f64>,
    pub mde_pct: Option<f64>,
}

/// A log ratio in percent of change.
#[must_use]
pub fn percent(log_ratio: f64) -> f64 {
    log_ratio.exp_m1() * 100.0
}

/// The geometric mean ratio of the pairs with a t interval on their logs; `None` without pairs.
///
/// The smallest detectable effect is `(t(1 - alpha/2) + t(power)) * s / sqrt(n)` with n - 1
/// degrees of freedom, the usual approximation of the noncentral t.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a campaign has few pairs")]
pub fn paired(log_ratios: &[f64]) -> Option<Estimate> {
    if log_ratios.is_empty() || log_ratios.iter().any(|ratio| !ratio.is_finite()) {
        return None;
    }
    let n = log_ratios.len() as f64;
    let mean = log_ratios.iter().sum::<f64>() / n;
    let pairs = u32::try_from(log_ratios.len()).ok()?;
    let effect_pct = percent(mean);
    let alone = Estimate { pairs, effect_pct, interval_pct: None, p: None, mde_pct: None };
    let Ok(t) = StudentsT::new(0.0, 1.0, n - 1.0) else { return Some(alone) };
    let squares: f64 = log_ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt();
    let reach = t.inverse_cdf(f64::midpoint(1.0, CONFIDENCE));
    let p = if error > 0.0 {
        2.0 * t.sf((mean / error).abs())
    } else {
        // Pairs without any spread: either nothing changed, or chance cannot explain it.
        f64::from(mean == 0.0)
    };
    Some(Estimate {
        interval_pct: Some((percent(mean - reach * error), percent(mean + reach * error))),
        p: Some(p),
        mde_pct: Some(percent((reach + t.inverse_cdf(POWER)) * error)),
        ..alone
    })
}

/// The ratio of geometric means of two sides that did not run in pairs: an effect and nothing
/// else. `None` where a side is empty or has a value that is not positive.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "a cell has few repeats")]
pub fn unpaired(baseline: &[f64], candidate: &[f64]) -> Option<f64> {
    let mean_log = |values: &[f64]| {
        let positive = !values.is_empty() && values.iter().all(|value| *value > 0.0);
        positive.then(|| values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64)
    };
    Some(percent(mean_log(candidate)? - mean_log(baseline)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-3 * right.abs().max(1e-3)
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
        assert!(near(product, 1.0) && there.p == back.p);
    }

    #[test]
    fn unpaired_sides_give_a_ratio_alone() {
        assert!(near(unpaired(&[100.0, 100.0], &[110.0]).unwrap(), 10.0));
        assert_eq!(unpaired(&[], &[1.0]), None);
        assert_eq!(unpaired(&[0.0], &[1.0]), None);
    }
}
