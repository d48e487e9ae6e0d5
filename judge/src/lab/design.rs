//! Two-level fractional factorial design of resolution IV: which factors are on in which run, which
//! pairs of factors the design cannot tell apart, and estimates by least squares from the runs that
//! were measured. Knows numbers alone, no servers.
//!
//! Sources: Box, Hunter and Hunter, "Statistics for Experimenters" (second edition, 2005), chapter
//! 6; Montgomery, "Design and Analysis of Experiments", chapter 8.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::quantile::median;
use crate::summary;

/// Number of runs that a screening has at least: a design of fewer configurations repeats them.
const RUNS_MIN: u32 = 16;

/// Largest number of factors whose design has every combination: 16 for four factors.
const FULL_MAX: usize = 4;

/// Two-level design for a number of factors. Runs are counted from 0; in run 0 every factor is off.
///
/// A factor has a word of bits, and is on in those runs whose number shares an odd number of bits
/// with it. The effect of two factors together is then that of a factor whose word is the exclusive
/// or of theirs. All words have the highest bit, so that the exclusive or of two is the word of no
/// factor: no main effect is aliased with a pair (resolution IV). The second half of the runs is the
/// fold-over of the first, with each factor switched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Design {
    /// Number of configurations: a power of two.
    pub runs: u32,
    words: Vec<u32>,
}

/// Pair of factors, by their indices.
pub type Pair = (usize, usize);

/// Effects that the measured runs of a design show.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimates {
    /// Main effect of each factor: change of the response from off to on, averaged over the other
    /// factors. `None` where the measured runs cannot decide it.
    pub factors: Vec<Option<f64>>,
    /// Interaction of pairs: half of the change that the second factor makes to the effect of the
    /// first. Pairs in one list have one estimate, the sum of theirs; `None` where the measured
    /// runs cannot decide it. Largest first.
    pub pairs: Vec<(Vec<Pair>, Option<f64>)>,
}

impl Design {
    /// Returns the design for `factors` factors, at least one: every combination for up to 4
    /// factors, 16 configurations for up to 8, and twice as many factors for each doubling.
    pub fn of(factors: usize) -> Self {
        let mut bits = factors.clamp(1, FULL_MAX);
        while 1_usize << bits < 2 * factors {
            bits += 1;
        }
        let highest = 1_u32 << (bits - 1);
        let mut words: Vec<u32> = (highest..2 * highest).collect();
        // A word of two bits or more is orthogonal to a linear drift of the machine over the runs in
        // their order (Daniel and Wilcoxon, Technometrics 8, 1966), so the only word of one bit is
        // the last to be used.
        words.sort_by_key(|word| Reverse(word.count_ones()));
        words.truncate(factors);
        if factors == FULL_MAX + 1 {
            // The half of all combinations of five factors has resolution V: no two pairs are
            // aliased.
            words[FULL_MAX] = words[..FULL_MAX].iter().fold(0, |all, word| all ^ word);
        }
        Self { runs: 2 * highest, words }
    }

    /// Returns the number of times that each configuration runs, so that a screening has 16 runs or
    /// more.
    pub fn repeats(&self) -> u32 {
        (RUNS_MIN / self.runs).max(1)
    }

    /// True where `factor` is on in `run`.
    pub fn is_on(&self, run: u32, factor: usize) -> bool {
        (run & self.words[factor]).count_ones() % 2 == 1
    }

    /// Returns the pairs of factors in groups that the design cannot tell apart.
    pub fn groups(&self) -> Vec<Vec<Pair>> {
        let mut groups: BTreeMap<u32, Vec<Pair>> = BTreeMap::new();
        for (second, word) in self.words.iter().enumerate() {
            for (first, other) in self.words[..second].iter().enumerate() {
                groups.entry(word ^ other).or_default().push((first, second));
            }
        }
        groups.into_values().collect()
    }

    /// True where all factors of `on` were on in one of the `measured` runs, each two of them
    /// together: those that never were may be what a server refuses.
    pub fn was_measured(&self, measured: &[(u32, f64)], on: &[usize]) -> bool {
        let together = |first: usize, second: usize| {
            measured.iter().any(|(run, _)| self.is_on(*run, first) && self.is_on(*run, second))
        };
        on.iter().all(|first| on.iter().all(|second| together(*first, *second)))
    }

    /// Estimates the effects from the `measured` runs, each a number and a response, by least
    /// squares: main effects in a model of all main effects, and each interaction in that model
    /// with this interaction added. Where all runs were measured, an estimate is the difference of
    /// two means.
    pub fn estimates(&self, measured: &[(u32, f64)]) -> Estimates {
        let response = responses(measured);
        let columns = self.columns(measured);
        let model = model(&columns, measured.len());
        let interaction = |pairs: Vec<Pair>| {
            let (first, second) = pairs[0];
            let both = columns[first].iter().zip(&columns[second]);
            let column: Vec<f64> = both.map(|(first, second)| first * second).collect();
            let half = coefficient(&column, model.iter(), &response);
            (pairs, half.map(|half| 2.0 * half))
        };
        let mut pairs: Vec<_> = self.groups().into_iter().map(interaction).collect();
        let factors = main_effects(&model, &response);
        let size = |effect: &Option<f64>| effect.unwrap_or(f64::NEG_INFINITY);
        pairs.sort_by(|(_, a), (_, b)| size(b).total_cmp(&size(a)));
        Estimates { factors, pairs }
    }

    /// Predicts the response of a run in which the factors `on` are on, from the main effects of the
    /// `measured` runs; `None` where these cannot decide the effect of one of them.
    pub fn predicted(&self, measured: &[(u32, f64)], on: &[usize]) -> Option<f64> {
        let response = responses(measured);
        let columns = self.columns(measured);
        let effects = main_effects(&model(&columns, measured.len()), &response);
        let mut predicted = summary::of(&response)?.mean;
        for (factor, (effect, column)) in effects.into_iter().zip(&columns).enumerate() {
            let is_on = on.contains(&factor);
            match effect {
                Some(effect) => {
                    let mean = summary::of(column)?.mean;
                    predicted += effect / 2.0 * (level(is_on) - mean);
                }
                None if is_on => return None,
                None => {}
            }
        }
        Some(predicted)
    }

    /// Returns the levels of each factor in the `measured` runs: 1 where it is on, else -1.
    fn columns(&self, measured: &[(u32, f64)]) -> Vec<Vec<f64>> {
        let levels = |factor: usize| -> Vec<f64> {
            measured.iter().map(|(run, _)| level(self.is_on(*run, factor))).collect()
        };
        (0..self.words.len()).map(levels).collect()
    }
}

impl Estimates {
    /// Returns Lenth's pseudo standard error of an effect ("Quick and easy analysis of unreplicated
    /// factorials", Technometrics 31, 1989), which takes most effects for noise; 0 where most are
    /// zero.
    pub fn error(&self) -> f64 {
        let effects = self.factors.iter().chain(self.pairs.iter().map(|(_, effect)| effect));
        let sizes: Vec<f64> = effects.flatten().map(|effect| effect.abs()).collect();
        let typical = 1.5 * median(&sizes).unwrap_or(0.0);
        let quiet: Vec<f64> = sizes.into_iter().filter(|size| *size < 2.5 * typical).collect();
        1.5 * median(&quiet).unwrap_or(0.0)
    }
}

fn responses(measured: &[(u32, f64)]) -> Vec<f64> {
    measured.iter().map(|(_, response)| *response).collect()
}

/// Returns the columns of the model of all main effects: that of the mean, then those of the factors.
fn model(columns: &[Vec<f64>], runs: usize) -> Vec<Vec<f64>> {
    let mut model = vec![vec![1.0; runs]];
    model.extend(columns.iter().cloned());
    model
}

/// Estimates the main effect of each factor in the model of all of them.
fn main_effects(model: &[Vec<f64>], response: &[f64]) -> Vec<Option<f64>> {
    let effect = |index: usize| {
        let others = model.iter().enumerate().filter(|(other, _)| *other != index);
        let half = coefficient(&model[index], others.map(|(_, other)| other), response);
        half.map(|half| 2.0 * half)
    };
    (1..model.len()).map(effect).collect()
}

fn level(is_on: bool) -> f64 {
    if is_on { 1.0 } else { -1.0 }
}

/// Share of a column's length below which its remainder is the rounding of a sum of the others.
const ROUNDING: f64 = 1e-9;

/// Returns the coefficient of `column` in the least-squares fit of `response` by `column` and
/// `others`; `None` where `column` is a sum of multiples of `others`, so that the response cannot be
/// attributed.
fn coefficient<'a>(
    column: &[f64],
    others: impl Iterator<Item = &'a Vec<f64>>,
    response: &[f64],
) -> Option<f64> {
    let mut basis: Vec<Vec<f64>> = Vec::new();
    for other in others {
        let rest = remainder(other, &basis);
        if dot(&rest, &rest) > ROUNDING * dot(other, other) {
            basis.push(rest);
        }
    }
    let rest = remainder(column, &basis);
    let size = dot(&rest, &rest);
    (size > ROUNDING * dot(column, column)).then(|| dot(&rest, response) / size)
}

/// Returns what is left of `column` without its projections on `basis`, whose columns are orthogonal
/// (Gram-Schmidt).
fn remainder(column: &[f64], basis: &[Vec<f64>]) -> Vec<f64> {
    let mut rest = column.to_vec();
    for of in basis {
        let share = dot(&rest, of) / dot(of, of);
        rest.iter_mut().zip(of).for_each(|(value, of)| *value -= share * of);
    }
    rest
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    /// Every run of a design with its response.
    fn measured(design: &Design, response: impl Fn(&[bool]) -> f64) -> Vec<(u32, f64)> {
        let on = |run: u32| -> Vec<bool> {
            (0..design.words.len()).map(|factor| design.is_on(run, factor)).collect()
        };
        (0..design.runs).map(|run| (run, response(&on(run)))).collect()
    }

    #[test]
    fn a_design_has_as_few_runs_as_resolution_iv_allows_and_sixteen_at_least() {
        for (factors, runs, repeats) in [
            (1, 2, 8),
            (2, 4, 4),
            (3, 8, 2),
            (4, 16, 1),
            (5, 16, 1),
            (8, 16, 1),
            (9, 32, 1),
            (16, 32, 1),
            (17, 64, 1),
            (32, 64, 1),
        ] {
            let design = Design::of(factors);
            assert_eq!((design.runs, design.repeats()), (runs, repeats), "{factors} factors");
            assert!((0..factors).all(|factor| !design.is_on(0, factor)), "run 0 has no option");
        }
    }

    #[test]
    fn main_effects_are_orthogonal_to_each_other_and_to_every_pair() {
        for factors in 1..=32 {
            let design = Design::of(factors);
            let all = measured(&design, |_| 0.0);
            let columns = design.columns(&all);
            for (index, column) in columns.iter().enumerate() {
                assert_eq!(column.iter().sum::<f64>(), 0.0, "{factors}: as often on as off");
                for (first, one) in columns.iter().enumerate() {
                    let is_other = first != index;
                    assert!(!is_other || dot(column, one) == 0.0, "{factors}: {index}, {first}");
                    for (second, other) in columns.iter().enumerate().skip(first + 1) {
                        let both: Vec<f64> = one.iter().zip(other).map(|(a, b)| a * b).collect();
                        let pair = (first, second);
                        assert_eq!(dot(column, &both), 0.0, "{factors}: {index} and {pair:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn only_pairs_are_aliased_with_pairs_and_of_up_to_five_factors_none() {
        for (factors, most) in [(2, 1), (3, 1), (4, 1), (5, 1), (8, 4), (16, 8)] {
            let groups = Design::of(factors).groups();
            assert_eq!(groups.iter().map(Vec::len).max(), Some(most), "{factors} factors");
            let pairs: usize = groups.iter().map(Vec::len).sum();
            assert_eq!(pairs, factors * (factors - 1) / 2);
        }
    }

    #[test]
    fn a_linear_drift_moves_no_estimate_of_seven_factors() {
        let design = Design::of(7);
        let drift: Vec<(u32, f64)> = (0..design.runs).map(|run| (run, f64::from(run))).collect();
        let estimates = design.estimates(&drift);
        assert!(estimates.factors.iter().all(|effect| near(effect.unwrap(), 0.0)), "{estimates:?}");
    }

    #[test]
    fn two_factors_that_lose_alone_and_win_together_are_seen() {
        // In log units: 0.27 and 0.5 % lost, and 2.1 % gained, of eight factors.
        let response = |on: &[bool]| match (on[2], on[6]) {
            (true, true) => 0.021,
            (true, false) => -0.0027,
            (false, true) => -0.005,
            (false, false) => 0.0,
        };
        let design = Design::of(8);
        let runs = measured(&design, response);
        let estimates = design.estimates(&runs);
        let (pairs, interaction) = &estimates.pairs[0];
        assert!(pairs.contains(&(2, 6)) && pairs.len() == 4, "{estimates:?}");
        assert!(near(interaction.unwrap(), (0.021 + 0.0027 + 0.005) / 2.0), "{estimates:?}");
        assert!(near(estimates.factors[2].unwrap(), (0.021 - 0.0027 + 0.005) / 2.0));
        let both = estimates.factors[2].unwrap() + estimates.factors[6].unwrap();
        assert!(near(both, 0.021), "both on against both off, whatever the others are");
        assert!(near(estimates.factors[0].unwrap(), 0.0));
    }

    #[test]
    fn a_run_that_failed_is_left_out_and_the_rest_still_decides() {
        let design = Design::of(5);
        let mut runs = measured(&design, |on| if on[1] { 0.1 } else { 0.0 });
        runs.remove(6);
        let estimates = design.estimates(&runs);
        assert!(near(estimates.factors[1].unwrap(), 0.1), "{estimates:?}");
        assert!(estimates.pairs.iter().all(|(_, effect)| near(effect.unwrap(), 0.0)));
        let predicted = design.predicted(&runs, &[1]).unwrap();
        assert!(near(predicted, 0.1), "{predicted}");
    }

    #[test]
    fn what_no_server_takes_is_undecidable_and_the_others_are_not() {
        let design = Design::of(5);
        let mut runs = measured(&design, |on| if on[1] { 0.1 } else { 0.0 });
        runs.retain(|(run, _)| !design.is_on(*run, 3));
        let estimates = design.estimates(&runs);
        assert_eq!(estimates.factors[3], None);
        assert!(near(estimates.factors[1].unwrap(), 0.1), "{estimates:?}");
        assert_eq!(design.predicted(&runs, &[1, 3]), None);
        assert!(design.was_measured(&runs, &[0, 1, 4]) && !design.was_measured(&runs, &[1, 3]));
        // A pair that is refused leaves both factors decided, and the pair not.
        let mut runs = measured(&design, |on| if on[1] { 0.1 } else { 0.0 });
        runs.retain(|(run, _)| !(design.is_on(*run, 1) && design.is_on(*run, 3)));
        let estimates = design.estimates(&runs);
        assert!(near(estimates.factors[1].unwrap(), 0.1), "{estimates:?}");
        let of_pair = |(pairs, _): &&(Vec<Pair>, Option<f64>)| pairs.contains(&(1, 3));
        assert_eq!(estimates.pairs.iter().find(of_pair).unwrap().1, None);
        assert!(!design.was_measured(&runs, &[1, 3]));
        assert!(design.estimates(&[]).factors.iter().all(Option::is_none));
    }

    #[test]
    fn the_error_of_an_effect_is_that_of_the_small_ones() {
        let of = |sizes: &[f64]| {
            let factors = sizes.iter().map(|size| Some(*size)).collect();
            Estimates { factors, pairs: Vec::new() }.error()
        };
        // The median of all sizes is 1, and 9 is above 2.5 times 1.5 times that.
        assert!(near(of(&[1.0, -1.0, 1.0, 0.5, 9.0]), 1.5), "the median of four is 1");
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[0.0, 0.0, 3.0]), 0.0);
    }
}
