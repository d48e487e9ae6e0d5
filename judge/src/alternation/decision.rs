//! Judgement of one metric of an alternating comparison, over fresh starts of both servers.

use schema::metric::Better;

use crate::diff::estimate::{Fit, percent};

/// One look: the error probabilities that it may spend on one metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// Error probability of calling an identical variant worse; the same for better.
    pub change: f64,
    /// Error probability of calling a variant unchanged whose effect is the minimum effect.
    pub unchanged: f64,
}

impl Look {
    /// The only look at a comparison, with the error probabilities of a two-sided interval of 95 %.
    pub const ONLY: Self = Self { change: 0.025, unchanged: 0.025 };
}

/// Call about one metric at one look.
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

/// State of one metric at one look.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Call about the metric.
    pub call: Call,
    /// Number of fresh starts of both servers that the estimate rests on.
    pub starts: usize,
    /// Effect in percent, candidate over baseline; positive where the figure is larger.
    pub effect_pct: f64,
    /// Two-sided interval of the effect in percent, at the error probability with which the look
    /// calls a metric unchanged.
    pub interval_pct: (f64, f64),
    /// Largest effect for the worse, in percent and not negative, that the interval does not exclude.
    pub not_excluded_pct: f64,
}

/// Judges one metric at one look. `ratios` are the log ratios of the starts, candidate over
/// baseline, `better` the metric's direction, and `bar` its minimum effect in log units. `None` for
/// fewer than two starts or a ratio that is not finite.
pub fn stand(ratios: &[f64], better: Better, bar: f64, look: Look) -> Option<Standing> {
    let fit = Fit::of(ratios)?;
    // Above zero is worse.
    let worse = if better == Better::Higher { fit.turned() } else { fit };
    let is_within =
        worse.turned().p_above(-bar) < look.unchanged && worse.p_above(-bar) < look.unchanged;
    let is_worse = |fit: Fit| fit.mean >= bar / 2.0 && fit.p_above(0.0) < look.change;
    let call = if is_within {
        Call::Unchanged
    } else if is_worse(worse) {
        Call::Worse
    } else if is_worse(worse.turned()) {
        Call::Better
    } else {
        Call::Open
    };
    let confidence = 1.0 - 2.0 * look.unchanged;
    let (low, high) = fit.interval(confidence);
    Some(Standing {
        call,
        starts: ratios.len(),
        effect_pct: percent(fit.mean),
        interval_pct: (percent(low), percent(high)),
        not_excluded_pct: percent(worse.interval(confidence).1.max(0.0)),
    })
}
