//! One candidate of a lab beside its reference: outcomes of its runs, its score over the reference,
//! and the evidence about it after some rounds.

use std::collections::BTreeMap;

use schema::lab::{Candidate, LabStage, Objective};
use schema::metric::{Better, by_name};
use schema::policy::PolicyFile;
use serde::Serialize;

use crate::diff::estimate::{Fit, percent};
use crate::summary;

/// Outcome of one run of a lab.
#[derive(Debug, Clone, PartialEq)]
pub enum Launch {
    /// Measured: the run's status is `ok`, it is not INVALID, and it has a figure above zero for
    /// the objective's metric.
    Measured {
        /// Value of the objective's metric, in the metric's unit.
        value: f64,
        /// Values of the bounded metrics that the run has, by metric name, in each metric's unit.
        bounded: BTreeMap<String, f64>,
    },
    /// Failed: the run has no figure that can be compared.
    Failed(Failure),
}

/// Reason why a run of a lab has no figure that can be compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// Cause of the failure, as a sentence.
    pub reason: String,
    /// Share of the planned requests that were answered, from 0 to 1; `None` where it is not known.
    pub survived: Option<f64>,
}

/// Outcomes of a candidate's runs in a round: outer index is the profile, inner index the repeat.
/// After a failure the remaining runs may be missing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcomes(pub Vec<Vec<Launch>>);

impl Outcomes {
    /// Returns the failure of the first failed run, searching the profiles in their order; `None`
    /// if no run failed.
    pub fn failure(&self) -> Option<&Failure> {
        self.0.iter().flatten().find_map(|launch| match launch {
            Launch::Failed(failure) => Some(failure),
            Launch::Measured { .. } => None,
        })
    }

    /// Returns the values of the objective's metric in its unit: outer index is the profile, inner
    /// index the run. Failed runs are left out.
    pub fn figures(&self) -> Vec<Vec<f64>> {
        self.each(|launch| match launch {
            Launch::Measured { value, .. } => Some(*value),
            Launch::Failed(_) => None,
        })
    }

    /// Returns the values of a bounded metric in its unit: outer index is the profile, inner index
    /// the run. Failed runs and runs without the metric are left out.
    pub fn bounded(&self, metric: &str) -> Vec<Vec<f64>> {
        self.each(|launch| match launch {
            Launch::Measured { bounded, .. } => bounded.get(metric).copied(),
            Launch::Failed(_) => None,
        })
    }

    fn each(&self, figure: impl Fn(&Launch) -> Option<f64>) -> Vec<Vec<f64>> {
        self.0.iter().map(|launches| launches.iter().filter_map(&figure).collect()).collect()
    }
}

/// Log ratios of a candidate over its reference for the objective's metric, above zero where the
/// candidate is better.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Score {
    /// Log ratios of candidate over reference, above zero where the candidate is better: outer
    /// index is the profile, inner index the repeat.
    profiles: Vec<Vec<f64>>,
}

/// Effect of a candidate in percent, with its two-sided interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Effect {
    /// Number of pairs of runs (candidate and reference) that the effect rests on.
    pub pairs: usize,
    /// Gain in percent of the objective's metric: geometric mean of candidate / reference
    /// (reference / candidate where lower values are better), minus one.
    pub gain_pct: f64,
    /// Two-sided interval of the gain in percent, at the policy's confidence.
    pub interval_pct: (f64, f64),
}

impl Score {
    /// Returns the score of log ratios that are above zero where the candidate's figure is larger:
    /// outer index is the profile, inner index the repeat.
    pub(super) fn of(profiles: Vec<Vec<f64>>) -> Self {
        Self { profiles }
    }

    /// Adds the outcomes of one round to the score. Candidate and reference must have a figure for
    /// each run of the round.
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

    /// Returns for each repeat the mean of its log ratios over the profiles, which all have equal
    /// weight.
    #[expect(clippy::cast_precision_loss, reason = "a lab has few profiles")]
    pub fn overall(&self) -> Vec<f64> {
        let repeats = self.profiles.iter().map(Vec::len).min().unwrap_or(0);
        let mean = |repeat: usize| {
            let sum: f64 = self.profiles.iter().map(|ratios| ratios[repeat]).sum();
            sum / self.profiles.len() as f64
        };
        (0..repeats).map(mean).collect()
    }

    /// Fits the log ratios of the repeats, averaged over the profiles; `None` for fewer than two
    /// repeats or a log ratio that is not finite.
    pub fn fit(&self) -> Option<Fit> {
        Fit::of(&self.overall())
    }

    /// Returns the effect over all profiles in percent, for display; `None` for fewer than two
    /// repeats.
    pub fn effect(&self, confidence: f64) -> Option<Effect> {
        effect(&self.overall(), confidence)
    }

    /// Returns the effect under each profile in percent, for display; `None` for fewer than two
    /// repeats.
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

/// Finding of a lab stage about a candidate.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "found", rename_all = "kebab-case")]
pub enum Found {
    /// Gain: better than the reference by at least the metric's minimum effect, and not by chance.
    Gain,
    /// No gain: shown not to be better than the reference by the metric's minimum effect.
    NoGain,
    /// Dropped: in the worse half of the undecided candidates, so its stage does not run it again.
    /// It may still become a finalist.
    Dropped,
    /// Undecided: the runs of the candidate differ too much, or are too few within the budget, for
    /// a decision.
    Undecided,
    /// Screened: a configuration of a factorial design, whose runs decide only together.
    Screened,
    /// Failed: one of the candidate's runs failed, so it has no figure that can be compared.
    Failed(Failure),
    /// Out of bounds: the median of a bounded metric breaks its bound under one profile.
    OutOfBounds {
        /// Name of the metric whose bound is broken.
        metric: String,
        /// Id of the scenario (profile) under which the bound is broken.
        profile: String,
        /// Median of the bounded metric, in the metric's unit; NaN where no run has the metric.
        median: f64,
    },
    /// Not explored: nothing is known about the candidate, because the rest of the lab's budget or
    /// of the engine's limit on runs does not suffice for it, its reference failed, or a factorial
    /// design has another option of its axis.
    NotExplored {
        /// Reason why the candidate was not explored, as a sentence.
        reason: String,
    },
}

/// Result of one candidate in one stage of a lab.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Stage of the lab that the result belongs to.
    pub stage: LabStage,
    /// Candidate that the result is about.
    pub candidate: Candidate,
    /// Effect over all profiles, against the reference (the first candidate of the stage's rounds);
    /// `None` where fewer than two repeats were measured.
    pub effect: Option<Effect>,
    /// Effect under each profile, in the order of the lab's profiles; `None` for a profile in which
    /// fewer than two repeats were measured.
    pub profiles: Vec<Option<Effect>>,
    /// Finding of the stage about the candidate.
    #[serde(flatten)]
    pub found: Found,
}

/// A candidate under exploration and the evidence about it so far.
#[derive(Debug, Clone)]
pub struct Arm {
    pub candidate: Candidate,
    pub score: Score,
    /// Finding about the candidate; `None` while more runs can still decide it.
    pub found: Option<Found>,
    /// Values of each bounded metric by metric name: outer index is the profile, inner index the
    /// run.
    bounded: BTreeMap<String, Vec<Vec<f64>>>,
}

/// Parameters that every decision about a candidate shares: objective, profiles, policy, direction
/// in which the objective's metric improves, and its minimum effect.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    pub objective: &'a Objective,
    pub profiles: &'a [String],
    pub policy: &'a PolicyFile,
    pub better: Better,
    /// Minimum effect of the objective's metric, in log units: a screen calls no smaller effect a
    /// gain.
    pub floor: f64,
}

impl Arm {
    pub fn new(candidate: Candidate) -> Self {
        Self { candidate, score: Score::default(), found: None, bounded: BTreeMap::new() }
    }

    /// Adds the outcomes of one round, measured beside those of the reference, and decides the
    /// candidate where the evidence suffices or a run of either failed.
    pub fn take(&mut self, outcomes: &Outcomes, reference: &Outcomes, rules: &Rules<'_>) {
        self.found = if let Some(failure) = outcomes.failure() {
            Some(Found::Failed(failure.clone()))
        // Without a reference no ratio exists, which says nothing about the candidate.
        } else if let Some(failure) = reference.failure() {
            let reason = format!("the reference failed: {}", failure.reason);
            Some(Found::NotExplored { reason })
        } else {
            self.score.add(outcomes, reference, rules.better);
            self.remember(outcomes, rules);
            // Bounds first: a candidate that breaks one cannot be recommended, however fast it is.
            self.out_of_bounds(rules).or_else(|| self.decided(rules))
        };
    }

    fn remember(&mut self, outcomes: &Outcomes, rules: &Rules<'_>) {
        for metric in rules.objective.bounded() {
            let found = outcomes.bounded(metric);
            let kept = self.bounded.entry(metric.to_owned()).or_default();
            kept.resize(found.len(), Vec::new());
            for (kept, found) in kept.iter_mut().zip(found) {
                kept.extend(found);
            }
        }
    }

    /// Returns a finding about the first bound that a median of the candidate breaks; `None` if it
    /// keeps all. A metric that no run measured breaks its bound (its median is NaN).
    fn out_of_bounds(&self, rules: &Rules<'_>) -> Option<Found> {
        for metric in rules.objective.bounded() {
            let by_profile = self.bounded.get(metric).map_or(&[][..], Vec::as_slice);
            for (profile, values) in rules.profiles.iter().zip(by_profile) {
                let bounds = rules.objective.bounds_of(profile);
                let Some(limit) = bounds.get(metric) else { continue };
                let median = summary::of(values).map_or(f64::NAN, |summary| summary.median);
                if !is_kept(metric, median, *limit) {
                    let (metric, profile) = (metric.to_owned(), profile.clone());
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

    /// Returns the candidate's mean log ratio over the reference; negative infinity for fewer than
    /// two repeats.
    pub fn mean(&self) -> f64 {
        self.score.fit().map_or(f64::NEG_INFINITY, |fit| fit.mean)
    }

    /// Returns the candidate's result in `stage`; an open candidate is reported as undecided.
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

/// True where `value` of a metric keeps the bound `limit`; false for NaN.
pub fn is_kept(metric: &str, value: f64, limit: f64) -> bool {
    match by_name(metric).map_or(Better::Lower, |metric| metric.better) {
        Better::Higher => value >= limit,
        Better::Lower => value <= limit,
    }
}

/// Drops the worse half of the undecided candidates, so that the budget goes to the promising ones:
/// successive halving (Jamieson and Talwalkar, 2016) over repeats.
pub fn halve(arms: &mut [Arm]) {
    let mut open: Vec<&mut Arm> = arms.iter_mut().filter(|arm| arm.found.is_none()).collect();
    open.sort_by(|a, b| b.mean().total_cmp(&a.mean()));
    let kept = open.len().div_ceil(2);
    for arm in open.into_iter().skip(kept) {
        arm.found = Some(Found::Dropped);
    }
}
