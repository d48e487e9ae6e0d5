//! Screening of a lab's options by a factorial design, whose factors are the axes of an engine: from
//! the outcomes of its configurations to the candidates that are worth confirming.

use std::collections::BTreeSet;

use schema::lab::{Axis, Candidate, Combine, FACTORS_MAX, LabFile, LabOption};
use schema::metric::Better;
use serde::Serialize;

use super::arm::{Outcomes, Rules, is_kept};
use super::candidates::axes;
use super::design::{Design, Estimates, Pair};
use crate::diff::estimate::percent;
use crate::summary;

/// Number of pairs that are confirmed at least, where there are so many.
const PAIRS_MIN: usize = 3;

/// Factorial design of the options of one engine.
#[derive(Debug)]
pub struct Factorial<'a> {
    engine: usize,
    /// Axes of the engine, each with the option that it has where it is on.
    factors: Vec<(&'a Axis, &'a LabOption)>,
    pub design: Design,
}

/// Effects that a factorial design of a lab shows on the objective's metric.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Screening {
    /// Number of configurations of the design.
    pub planned: usize,
    /// Number of configurations without a failed run, from which the effects are estimated.
    pub measured: usize,
    /// Lenth's pseudo standard error of an effect, in percent.
    pub error_pct: f64,
    /// Effects of single options in the order of axes, then of pairs, the largest first.
    pub effects: Vec<Contrast>,
}

/// Effect of one option, or of pairs that a factorial design cannot tell apart.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Contrast {
    /// Candidates whose effect it is: one with one option, or some with two options each.
    pub candidates: Vec<Candidate>,
    /// Effect in percent, above zero where it is an improvement. Of an option: its change, averaged
    /// over the other options. Of a pair: half of what the second option adds to the change by the
    /// first. `None` where the measured configurations cannot decide it.
    pub gain_pct: Option<f64>,
}

/// Responses of the configurations without a failed run: number of the configuration in the design,
/// and the mean logarithm of a metric.
type Responses = Vec<(u32, f64)>;

/// Bound of the objective under one profile: metric, limit, and responses of that metric.
type Bounded<'a> = (&'a str, f64, Responses);

impl<'a> Factorial<'a> {
    /// Returns the design of the options of `engine`; `None` for a lab that wants no design, for an
    /// engine without axes, and for one with more axes than a lab file may have.
    pub fn of(lab: &'a LabFile, engine: usize) -> Option<Self> {
        if lab.combine != Combine::Factorial {
            return None;
        }
        let factors: Vec<_> =
            axes(lab, engine).filter_map(|axis| Some((axis, axis.high_option()?))).collect();
        let is_sound = (1..=FACTORS_MAX).contains(&factors.len());
        is_sound.then(|| Self { engine, design: Design::of(factors.len()), factors })
    }

    /// Returns the number of runs of the design under one profile.
    pub fn runs(&self) -> u32 {
        self.design.runs * self.design.repeats()
    }

    /// Returns the configurations of the design in the order of its runs; the first has no option.
    pub fn candidates(&self) -> Vec<Candidate> {
        let of_run = |run: u32| {
            let on = (0..self.factors.len()).filter(|factor| self.design.is_on(run, *factor));
            self.candidate(&on.collect::<Vec<_>>())
        };
        (0..self.design.runs).map(of_run).collect()
    }

    /// Returns the candidate that has the option of every axis.
    pub fn all(&self) -> Candidate {
        self.candidate(&(0..self.factors.len()).collect::<Vec<_>>())
    }

    /// Returns the options of the axes that are not in the design, each with the name of the one that
    /// is.
    pub fn left_out(&self) -> Vec<(Candidate, &'a str)> {
        let of_axis = |&(axis, high): &(&'a Axis, &'a LabOption)| {
            let others = axis.options.iter().filter(move |option| option.name != high.name);
            others.map(move |option| {
                let options = [(axis.name.clone(), option.name.clone())].into();
                (Candidate { engine: self.engine, options }, high.name.as_str())
            })
        };
        self.factors.iter().flat_map(of_axis).collect()
    }

    /// Returns the number of candidates that are confirmed at most: the best option, the best
    /// combination, and as many pairs as the design cannot tell apart, or three.
    pub fn confirmed(&self) -> usize {
        let (factors, groups) = (self.factors.len(), self.design.groups());
        let pairs: usize = groups.iter().map(Vec::len).sum();
        let aliased = groups.iter().map(Vec::len).max().unwrap_or(0);
        let all = factors + pairs + usize::from(factors > 2);
        all.min(aliased.max(PAIRS_MIN) + 2)
    }

    /// Estimates the effects from the outcomes of the configurations, in the order of
    /// [`Self::candidates`], and selects the candidates that are worth confirming, the best option
    /// first. None is selected that is estimated to change the objective's metric by less than
    /// `least` (log units), that is estimated to break a bound, or whose options, or two of them,
    /// were in no configuration without a failed run.
    pub fn screened(
        &self,
        outcomes: &[Outcomes],
        rules: &Rules<'_>,
        least: f64,
    ) -> (Screening, Vec<Candidate>) {
        let sign = if rules.better == Better::Higher { 1.0 } else { -1.0 };
        let measured = responses(outcomes, |of| Some(sign * mean_log(of.figures().concat())?));
        let estimates = self.design.estimates(&measured);
        let bounded = bounded(outcomes, rules);
        let is_worth_it = |on: &[usize]| {
            gain(&estimates, on).is_some_and(|gain| gain > least)
                && self.design.was_measured(&measured, on)
                && bounded.iter().all(|bound| self.is_kept(bound, on))
        };
        let selected = self.selected(&estimates, is_worth_it);
        let selected = selected.iter().map(|on| self.candidate(on)).collect();
        let screening = Screening {
            planned: outcomes.len(),
            measured: measured.len(),
            error_pct: percent(estimates.error()),
            effects: self.contrasts(&estimates),
        };
        (screening, selected)
    }

    /// Returns the factors of each selected candidate: the best option, the best combination, the
    /// pairs that interact most, and then further options until there are [`Self::confirmed`].
    fn selected(
        &self,
        estimates: &Estimates,
        is_worth_it: impl Fn(&[usize]) -> bool,
    ) -> Vec<Vec<usize>> {
        let mut best: Vec<usize> = (0..self.factors.len()).collect();
        let effect = |factor: &usize| estimates.factors[*factor].unwrap_or(f64::NEG_INFINITY);
        best.sort_by(|a, b| effect(b).total_cmp(&effect(a)));
        // An option whose effect is smaller than its error would only make the command longer.
        let error = estimates.error();
        let mut together = Vec::new();
        for factor in best.iter().copied().filter(|factor| effect(factor) > error) {
            together.push(factor);
            if !is_worth_it(&together) {
                together.pop();
            }
        }
        together.sort_unstable();
        let mut pairs = estimates.pairs.clone();
        for (aliased, _) in &mut pairs {
            // Aliased pairs have one estimate, so the main effects of their options order them.
            let both = |(first, second): &Pair| effect(first) + effect(second);
            aliased.sort_by(|a, b| both(b).total_cmp(&both(a)));
        }
        let pairs = pairs.into_iter().flat_map(|(aliased, _)| aliased);
        let mut wanted: Vec<Vec<usize>> = best.iter().map(|factor| vec![*factor]).collect();
        let further = wanted.split_off(1);
        wanted.extend((together.len() > 1).then_some(together));
        wanted.extend(pairs.map(|(first, second)| vec![first, second]));
        wanted.extend(further);
        let mut seen = BTreeSet::new();
        wanted.retain(|on| is_worth_it(on) && seen.insert(on.clone()));
        wanted.truncate(self.confirmed());
        wanted
    }

    /// True where a configuration with the options of the factors `on` is estimated to keep a bound,
    /// or where the measured configurations cannot decide it: the confirmation decides it then.
    fn is_kept(&self, (metric, limit, measured): &Bounded<'_>, on: &[usize]) -> bool {
        let predicted = self.design.predicted(measured, on);
        predicted.is_none_or(|predicted| is_kept(metric, predicted.exp(), *limit))
    }

    fn contrasts(&self, estimates: &Estimates) -> Vec<Contrast> {
        let contrast = |on: Vec<Vec<usize>>, effect: Option<f64>| Contrast {
            candidates: on.iter().map(|on| self.candidate(on)).collect(),
            gain_pct: effect.map(percent),
        };
        let factors = estimates.factors.iter().enumerate();
        let singles = factors.map(|(factor, effect)| contrast(vec![vec![factor]], *effect));
        let pairs = estimates.pairs.iter().map(|(pairs, effect)| {
            let on = pairs.iter().map(|(first, second)| vec![*first, *second]);
            contrast(on.collect(), *effect)
        });
        singles.chain(pairs).collect()
    }

    fn candidate(&self, on: &[usize]) -> Candidate {
        let options = on.iter().map(|factor| {
            let (axis, high) = self.factors[*factor];
            (axis.name.clone(), high.name.clone())
        });
        Candidate { engine: self.engine, options: options.collect() }
    }
}

/// Estimates the change of the objective's metric, in log units, if the options of the factors `on`
/// are switched on, averaged over the other options; `None` where it cannot be decided.
fn gain(estimates: &Estimates, on: &[usize]) -> Option<f64> {
    on.iter().map(|factor| estimates.factors[*factor]).sum()
}

/// Returns the response of each configuration whose outcomes have no failed run and for which `read`
/// finds one.
fn responses(outcomes: &[Outcomes], read: impl Fn(&Outcomes) -> Option<f64>) -> Responses {
    let of = |(run, outcomes): (u32, &Outcomes)| {
        let is_whole = outcomes.failure().is_none();
        Some((run, read(outcomes).filter(|_| is_whole)?))
    };
    (0..).zip(outcomes).filter_map(of).collect()
}

/// Returns the bounds of the objective with the responses of their metrics under each profile.
fn bounded<'a>(outcomes: &[Outcomes], rules: &Rules<'a>) -> Vec<Bounded<'a>> {
    let mut bounded = Vec::new();
    for (index, profile) in rules.profiles.iter().enumerate() {
        for (metric, limit) in rules.objective.bounds_of(profile) {
            let of_profile = |outcomes: &Outcomes| {
                outcomes.bounded(metric).get(index).cloned().and_then(mean_log)
            };
            bounded.push((metric, limit, responses(outcomes, of_profile)));
        }
    }
    bounded
}

/// Returns the mean logarithm of values; `None` without values or where one is not above zero.
fn mean_log(values: Vec<f64>) -> Option<f64> {
    let logs: Vec<f64> = values.into_iter().map(f64::ln).collect();
    summary::of(&logs).map(|logs| logs.mean).filter(|mean| mean.is_finite())
}
