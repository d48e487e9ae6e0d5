//! Score of a lab candidate: log ratios of its runs over those of the reference, over all
//! profiles.

use schema::metric::Better;

use super::Outcomes;
use crate::diff::estimate::{Fit, percent};

/// Log ratios of a candidate over its reference, above zero where the candidate is better.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// Log ratios by profile: outer index is the profile, inner index the repeat.
    profiles: Vec<Vec<f64>>,
}

/// Effect of a candidate in percent, with its two-sided interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Effect {
    /// Number of runs of each variant that the effect rests on.
    pub pairs: usize,
    /// Gain in percent of the objective's metric, above zero where the candidate is better.
    pub gain_pct: f64,
    /// Two-sided interval of the gain in percent, at the policy's confidence.
    pub interval_pct: (f64, f64),
}

impl Score {
    /// Adds the outcomes of one round. Candidate and reference must have a figure for each of its
    /// runs.
    pub fn add(&mut self, candidate: &Outcomes, reference: &Outcomes, better: Better) {
        let (candidate, reference) = (candidate.figures(), reference.figures());
        self.profiles.resize(candidate.len(), Vec::new());
        let pairs = candidate.iter().zip(&reference);
        for (ratios, (candidate, reference)) in self.profiles.iter_mut().zip(pairs) {
            for (candidate, reference) in candidate.iter().zip(reference) {
                let ratio = (candidate / reference).ln();
                ratios.push(if better == Better::Higher { ratio } else { -ratio });
            }
        }
    }

    /// Mean over the profiles of each repeat's log ratios: every profile weighs the same.
    #[expect(clippy::cast_precision_loss, reason = "a lab has few profiles")]
    pub fn overall(&self) -> Vec<f64> {
        let repeats = self.profiles.iter().map(Vec::len).min().unwrap_or(0);
        let mean = |repeat: usize| {
            let sum: f64 = self.profiles.iter().map(|ratios| ratios[repeat]).sum();
            sum / self.profiles.len() as f64
        };
        (0..repeats).map(mean).collect()
    }

    /// Fit of the log ratios over all profiles; `None` for fewer than two repeats.
    pub fn fit(&self) -> Option<Fit> {
        Fit::of(&self.overall())
    }

    /// Effect over all profiles in percent, for display.
    pub fn effect(&self, confidence: f64) -> Option<Effect> {
        effect(&self.overall(), confidence)
    }

    /// Effect under each profile in percent, for display.
    pub fn by_profile(&self, confidence: f64) -> Vec<Option<Effect>> {
        self.profiles.iter().map(|ratios| effect(ratios, confidence)).collect()
    }
}

fn effect(ratios: &[f64], confidence: f64) -> Option<Effect> {
    let fit = Fit::of(ratios)?;
    let (low, high) = fit.interval(confidence);
    let interval_pct = (percent(low), percent(high));
    Some(Effect { pairs: ratios.len(), gain_pct: percent(fit.mean), interval_pct })
}
