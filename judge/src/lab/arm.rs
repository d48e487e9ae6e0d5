//! One candidate beside its reference, and what is known of it after some rounds.

use std::collections::BTreeMap;

use schema::lab::{Candidate, LabStage, Objective};
use schema::metric::{Better, by_name};
use schema::policy::PolicyFile;
use serde::Serialize;

use super::outcome::{Failure, Outcomes};
use super::score::{Effect, Score};
use crate::summary;

/// What a stage found of a candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "found", rename_all = "kebab-case")]
pub enum Found {
    /// Better than its reference by the metric's floor at least, and not by chance.
    Gain,
    /// No better than its reference by the metric's floor.
    NoGain,
    /// In the worse half of those of which nothing was known yet.
    Dropped,
    /// Its launches differ too much to say.
    Undecided,
    /// One of its launches has no figure.
    Failed(Failure),
    /// The median of a bounded metric under a profile.
    OutOfBounds {
        /// Name of the metric that is bounded.
        metric: String,
        /// Id of the scenario.
        profile: String,
        /// In the metric's unit.
        median: f64,
    },
    /// Nothing was launched, or nothing to compare it with was measured.
    NotExplored {
        /// In words.
        reason: String,
    },
}

/// A line of a lab: a candidate in a stage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The stage.
    pub stage: LabStage,
    /// The candidate.
    pub candidate: Candidate,
    /// Over all profiles, against the first candidate of its rounds.
    pub effect: Option<Effect>,
    /// Under each profile.
    pub profiles: Vec<Option<Effect>>,
    /// Verdict on this metric of this cell.
    #[serde(flatten)]
    pub found: Found,
}

/// A candidate of which more is to be known.
#[derive(Debug, Clone)]
pub struct Arm {
    pub candidate: Candidate,
    pub score: Score,
    /// None while nothing is decided.
    pub found: Option<Found>,
    /// Bounded metrics: under each profile, all launches.
    bounded: BTreeMap<String, Vec<Vec<f64>>>,
}

/// What every decision on an arm needs.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    pub objective: &'a Objective,
    pub profiles: &'a [String],
    pub policy: &'a PolicyFile,
    pub better: Better,
    /// Smallest effect, in log units, that is called a gain.
    pub floor: f64,
}

impl Arm {
    #[must_use]
    pub fn new(candidate: Candidate) -> Self {
        Self { candidate, score: Score::default(), found: None, bounded: BTreeMap::new() }
    }

    /// Takes what a round found beside its reference, and decides where that suffices.
    pub fn take(&mut self, outcomes: &Outcomes, reference: &Outcomes, rules: &Rules<'_>) {
        self.found = if let Some(failure) = outcomes.failure() {
            Some(Found::Failed(failure.clone()))
        } else if let Some(failure) = reference.failure() {
            let reason = format!("the reference failed: {}", failure.reason);
            Some(Found::NotExplored { reason })
        } else {
            self.score.add(outcomes, reference, rules.better);
            self.remember(outcomes, rules);
            self.out_of_bounds(rules).or_else(|| self.decided(rules))
        };
    }

    fn remember(&mut self, outcomes: &Outcomes, rules: &Rules<'_>) {
        for metric in rules.objective.bounds.keys() {
            let found = outcomes.bounded(metric);
            let kept = self.bounded.entry(metric.clone()).or_default();
            kept.resize(found.len(), Vec::new());
            for (kept, found) in kept.iter_mut().zip(found) {
                kept.extend(found);
            }
        }
    }

    /// The first bound that a median does not keep. A metric that no launch measured keeps none.
    fn out_of_bounds(&self, rules: &Rules<'_>) -> Option<Found> {
        for (metric, limit) in &rules.objective.bounds {
            let better = by_name(metric).map_or(Better::Lower, |metric| metric.better);
            let by_profile = self.bounded.get(metric).map_or(&[][..], Vec::as_slice);
            for (profile, values) in rules.profiles.iter().zip(by_profile) {
                let median = summary::of(values).map_or(f64::NAN, |summary| summary.median);
                let is_kept = match better {
                    Better::Higher => median >= *limit,
                    Better::Lower => median <= *limit,
                };
                if !is_kept {
                    let (metric, profile) = (metric.clone(), profile.clone());
                    return Some(Found::OutOfBounds { metric, profile, median });
                }
            }
        }
        None
    }

    fn decided(&self, rules: &Rules<'_>) -> Option<Found> {
        let Rules { policy, floor, .. } = *rules;
        let fit = self.score.fit()?;
        if fit.mean >= floor && fit.p_above(0.0) < policy.alpha {
            Some(Found::Gain)
        } else {
            (fit.turned().p_above(-floor) < policy.alpha).then_some(Found::NoGain)
        }
    }

    /// Mean log ratio; lowest where there is none.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.score.fit().map_or(f64::NEG_INFINITY, |fit| fit.mean)
    }

    /// The arm as a line, with what is left open called so.
    #[must_use]
    pub fn row(&self, stage: LabStage, policy: &PolicyFile) -> Row {
        Row {
            stage,
            candidate: self.candidate.clone(),
            effect: self.score.effect(policy.confidence),
            profiles: self.score.by_profile(policy.confidence),
            found: self.found.clone().unwrap_or(Found::Undecided),
        }
    }
}

/// Successive halving (Jamieson and Talwalkar, 2016) over repeats: of the arms of which nothing is
/// decided, the worse half is not launched again.
pub fn halve(arms: &mut [Arm]) {
    let mut open: Vec<&mut Arm> = arms.iter_mut().filter(|arm| arm.found.is_none()).collect();
    open.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
    let kept = open.len().div_ceil(2);
    for arm in open.into_iter().skip(kept) {
        arm.found = Some(Found::Dropped);
    }
}
