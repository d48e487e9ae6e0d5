//! Judgement of one metric of an alternating comparison, over fresh starts of both servers.

use schema::metric::{Better, Metric};

use crate::diff::estimate::{Fit, log_of, percent};

/// Error probability of each one-sided test, which is that of a two-sided interval of 95 %.
const ALPHA: f64 = 0.025;

/// Call about one metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// Worse: an effect of zero is excluded, and the estimate is at least half of the minimum effect.
    Worse,
    /// Better, by the same rule.
    Better,
    /// Unchanged: effects as large as the minimum effect are excluded in both directions.
    Unchanged,
    /// Open: more starts may decide it.
    Open,
}

/// State of one metric after some starts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Call about the metric.
    pub call: Call,
    /// Effect in percent, candidate over baseline; positive where the figure is larger.
    pub effect_pct: f64,
    /// Two-sided interval of the effect in percent, at a confidence of 95 %.
    pub interval_pct: (f64, f64),
    /// Largest effect for the worse, in percent and not negative, that the interval does not exclude.
    pub not_excluded_pct: f64,
}

/// Judges `metric` by the log ratios of the starts, candidate over baseline. `None` for fewer than two
/// starts or a ratio that is not finite.
pub fn stand(metric: &Metric, ratios: &[f64]) -> Option<Standing> {
    let fit = Fit::of(ratios)?;
    let bar = log_of(metric.floor_pct);
    // Above zero is worse.
    let worse = if metric.better == Better::Higher { fit.turned() } else { fit };
    let is_worse = |fit: Fit| fit.mean >= bar / 2.0 && fit.p_above(0.0) < ALPHA;
    let call = if fit.is_within(bar, ALPHA) {
        Call::Unchanged
    } else if is_worse(worse) {
        Call::Worse
    } else if is_worse(worse.turned()) {
        Call::Better
    } else {
        Call::Open
    };
    let confidence = 1.0 - 2.0 * ALPHA;
    let (low, high) = fit.interval(confidence);
    Some(Standing {
        call,
        effect_pct: percent(fit.mean),
        interval_pct: (percent(low), percent(high)),
        not_excluded_pct: percent(worse.interval(confidence).1.max(0.0)),
    })
}
