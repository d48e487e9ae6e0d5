//! What the launches of a candidate say beside those of its reference, over all profiles.

use schema::metric::Better;

use super::Outcomes;
use crate::diff::estimate::{Fit, percent};

/// Log ratios of a candidate over its reference, above zero where the candidate is better.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// Under each profile, one a repeat.
    profiles: Vec<Vec<f64>>,
}

/// An effect in percent with its two-sided interval.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Effect {
    /// Launches of each side that it rests on.
    pub pairs: usize,
    /// Above zero where the candidate is better.
    pub gain_pct: f64,
    /// Of the policy's confidence.
    pub interval_pct: (f64, f64),
}

impl Score {
    /// Adds what a round found. Both have a figure in each of its launches.
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

    /// The mean over profiles of each repeat's log ratios.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a lab has few profiles")]
    pub fn overall(&self) -> Vec<f64> {
        let repeats = self.profiles.iter().map(Vec::len).min().unwrap_or(0);
        let mean = |repeat: usize| {
            let sum: f64 = self.profiles.iter().map(|ratios| ratios[repeat]).sum();
            sum / self.profiles.len() as f64
        };
        (0..repeats).map(mean).collect()
    }

    /// Over all profiles; none where nothing was measured twice.
    #[must_use]
    pub fn fit(&self) -> Option<Fit> {
        Fit::of(&self.overall())
    }

    /// Over all profiles, for people.
    #[must_use]
    pub fn effect(&self, confidence: f64) -> Option<Effect> {
        effect(&self.overall(), confidence)
    }

    /// Under each profile, for people.
    #[must_use]
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
