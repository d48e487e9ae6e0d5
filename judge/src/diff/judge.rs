//! Verdicts from the pairs of a campaign, in two stages. Pure: independent of records and metrics.
//!
//! The screen covers all cells and metrics and finds candidates without any correction for their
//! number, because a correction would leave no power. Fresh runs of those cells confirm or refute
//! the candidates. There Holm's step-down procedure ("A simple sequentially rejective multiple
//! test procedure", 1979) bounds the probability that a campaign without any change calls one
//! worse.

use schema::policy::PolicyFile;
use schema::verdict::{Stage, VerdictKind};

use super::estimate::Fit;

/// Evidence about one metric in one cell: the log ratios of its pairs, minimum effect and noise.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evidence {
    /// Log ratios of the screen's pairs, above zero where the candidate is worse.
    pub screen: Vec<f64>,
    /// Log ratios of the confirmation's pairs; empty where there was no confirmation.
    pub confirm: Vec<f64>,
    /// Minimum effect of the metric, in log units. The screen suspects only effects at least as
    /// large as this and the noise; to be confirmed, an effect must reach half of the larger of the
    /// two.
    pub floor: f64,
    /// Noise of the machine for the metric, in log units; 0 where it is unknown. The screen
    /// suspects only effects at least as large as this and the minimum effect; to be confirmed, an
    /// effect must reach half of the larger of the two.
    pub noise: f64,
}

/// Judgement of one metric in one cell.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judgement {
    /// Kind of the verdict: regressed, improved, unchanged, inconclusive, and so on.
    pub kind: VerdictKind,
    /// Stage that the comparison of the metric reached: estimate (nothing was tested), screen or
    /// confirmation.
    pub stage: Stage,
    /// True where the screen found an effect that looks like a change and that a confirmation must
    /// test.
    pub suspected: bool,
    /// One-sided p-value of the confirmation, adjusted by Holm's procedure; `None` without a
    /// confirmation.
    pub p_adjusted: Option<f64>,
}

/// Direction of a suspected change: worse or better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Worse,
    Better,
}

impl Evidence {
    /// Fits the log ratios of pairs with the sign turned so that values above zero mean a change in
    /// the direction `way`; `None` where there are fewer pairs than the policy or a fit needs, or a
    /// log ratio is not finite.
    fn fit(pairs: &[f64], way: Way, policy: &PolicyFile) -> Option<Fit> {
        if pairs.len() < policy.pairs_min as usize {
            return None;
        }
        let fit = Fit::of(pairs)?;
        Some(match way {
            Way::Worse => fit,
            Way::Better => fit.turned(),
        })
    }

    /// Returns the smallest effect, in log units, that the screen suspects: the minimum effect or
    /// the noise, whichever is larger. To be confirmed, an effect must reach half of it.
    fn threshold(&self) -> f64 {
        self.floor.max(self.noise)
    }

    /// Returns the direction of the change that the screen suspects: the effect is at least the
    /// threshold, and its one-sided p-value is below alpha. `None` where the screen suspects no
    /// change.
    fn candidate(&self, policy: &PolicyFile) -> Option<Way> {
        [Way::Worse, Way::Better].into_iter().find(|way| {
            Self::fit(&self.screen, *way, policy)
                .is_some_and(|fit| fit.mean >= self.threshold() && fit.p_above(0.0) < policy.alpha)
        })
    }

    /// True where the effect is shown to be within the metric's minimum effect. Noise of the machine
    /// does not widen that range. False where the pairs are too few to test.
    fn is_unchanged(&self, pairs: &[f64], policy: &PolicyFile) -> bool {
        let fit = Self::fit(pairs, Way::Worse, policy);
        fit.is_some_and(|fit| fit.is_within(self.floor, policy.alpha))
    }

    fn without_change(&self, stage: Stage, policy: &PolicyFile) -> Judgement {
        let pairs = if stage == Stage::Confirm { &self.confirm } else { &self.screen };
        let kind = match self.is_unchanged(pairs, policy) {
            true => VerdictKind::Unchanged,
            false => VerdictKind::Inconclusive,
        };
        Judgement { kind, stage, suspected: false, p_adjusted: None }
    }
}

/// Judges the evidence of one campaign together, because Holm's procedure counts all its suspected
/// changes. Judgements are in the order of `evidence`.
pub fn judge(evidence: &[Evidence], policy: &PolicyFile) -> Vec<Judgement> {
    let ways: Vec<Option<Way>> =
        evidence.iter().map(|evidence| evidence.candidate(policy)).collect();
    let mut judged: Vec<Judgement> =
        evidence.iter().map(|evidence| evidence.without_change(Stage::Screen, policy)).collect();
    for way in [Way::Worse, Way::Better] {
        let family: Vec<usize> =
            (0..evidence.len()).filter(|index| ways[*index] == Some(way)).collect();
        // A candidate whose confirmation is missing stays in the family: it would have been tested
        // too.
        let fits: Vec<Option<Fit>> = family
            .iter()
            .map(|index| Evidence::fit(&evidence[*index].confirm, way, policy))
            .collect();
        let p: Vec<f64> = fits.iter().map(|fit| fit.map_or(1.0, |fit| fit.p_above(0.0))).collect();
        for ((index, fit), p) in family.iter().zip(fits).zip(holm(&p)) {
            judged[*index] = candidate(&evidence[*index], way, fit, p, policy);
        }
    }
    judged
}

/// Judges a change that the screen suspects by `fit`, the fit of its confirmation; without one the
/// verdict is inconclusive.
fn candidate(
    evidence: &Evidence,
    way: Way,
    fit: Option<Fit>,
    p_adjusted: f64,
    policy: &PolicyFile,
) -> Judgement {
    let Some(fit) = fit else {
        let kind = VerdictKind::Inconclusive;
        return Judgement { kind, stage: Stage::Screen, suspected: true, p_adjusted: None };
    };
    // Half, because an effect that was selected for its size comes out smaller the second time.
    let confirmed = p_adjusted < policy.alpha && fit.mean >= evidence.threshold() / 2.0;
    let without = evidence.without_change(Stage::Confirm, policy);
    let kind = match (confirmed, way) {
        (true, Way::Worse) => VerdictKind::Regressed,
        (true, Way::Better) => VerdictKind::Improved,
        (false, _) => without.kind,
    };
    Judgement { kind, stage: Stage::Confirm, suspected: true, p_adjusted: Some(p_adjusted) }
}

/// Returns p-values adjusted by Holm's procedure, in the order of the given ones.
#[expect(clippy::cast_precision_loss, reason = "a campaign has few candidates")]
pub fn holm(p: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|a, b| p[*a].total_cmp(&p[*b]));
    let mut adjusted = vec![1.0; p.len()];
    let mut least: f64 = 0.0;
    for (rank, index) in order.into_iter().enumerate() {
        least = least.max(p[index] * (p.len() - rank) as f64).min(1.0);
        adjusted[index] = least;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::policy;

    const FLOOR: f64 = 0.02;

    fn of(screen: &[f64], confirm: &[f64]) -> Evidence {
        Evidence { screen: screen.to_vec(), confirm: confirm.to_vec(), floor: FLOOR, noise: 0.0 }
    }

    fn one(screen: &[f64], confirm: &[f64]) -> (VerdictKind, Stage, bool) {
        let judged = judge(&[of(screen, confirm)], &policy::standard().file);
        (judged[0].kind, judged[0].stage, judged[0].suspected)
    }

    const WORSE: [f64; 5] = [0.048, 0.052, 0.05, 0.051, 0.049];
    const SAME: [f64; 5] = [0.002, -0.002, 0.001, -0.001, 0.0];
    const WIDE: [f64; 5] = [0.05, -0.05, 0.03, -0.03, 0.0];

    #[test]
    fn a_change_is_called_so_after_both_stages_alone() {
        use VerdictKind::{Improved, Inconclusive, Regressed, Unchanged};
        let better = WORSE.map(|ratio| -ratio);
        for (what, screen, confirm, expected) in [
            ("a candidate is no verdict", &WORSE, &[][..], (Inconclusive, Stage::Screen, true)),
            ("confirmed", &WORSE, &WORSE, (Regressed, Stage::Confirm, true)),
            ("confirmed, other way", &better, &better, (Improved, Stage::Confirm, true)),
            ("not reproduced", &WORSE, &SAME, (Unchanged, Stage::Confirm, true)),
            ("neither borne out nor refuted", &WORSE, &WIDE, (Inconclusive, Stage::Confirm, true)),
            ("turned around", &WORSE, &better, (Inconclusive, Stage::Confirm, true)),
            ("inside the floor", &SAME, &[], (Unchanged, Stage::Screen, false)),
            ("too noisy to say", &WIDE, &[], (Inconclusive, Stage::Screen, false)),
            ("no candidate is confirmed", &WIDE, &WORSE, (Inconclusive, Stage::Screen, false)),
        ] {
            assert_eq!(one(screen, confirm), expected, "{what}");
        }
    }

    #[test]
    fn too_few_pairs_judge_nothing() {
        let (kind, ..) = one(&WORSE[..2], &WORSE);
        assert_eq!(kind, VerdictKind::Inconclusive);
        assert_eq!(one(&SAME[..2], &[]).0, VerdictKind::Inconclusive);
        assert_eq!(one(&[], &[]).0, VerdictKind::Inconclusive);
        assert_eq!(one(&WORSE, &WORSE[..2]), (VerdictKind::Inconclusive, Stage::Screen, true));
    }

    #[test]
    fn an_effect_below_the_floor_or_the_noise_is_no_candidate() {
        let small = WORSE.map(|ratio| ratio / 4.0);
        assert_eq!(one(&small, &small).0, VerdictKind::Unchanged);
        let noisy = Evidence { noise: 0.06, ..of(&WORSE, &WORSE) };
        let judged = judge(&[noisy], &policy::standard().file);
        assert!(!judged[0].suspected && judged[0].kind == VerdictKind::Inconclusive);
        // Noise keeps a change from being called, but never turns one into "unchanged".
        let wide = SAME.map(|ratio| ratio * 20.0);
        let noisy = Evidence { noise: 0.06, ..of(&wide, &[]) };
        let judged = judge(&[noisy], &policy::standard().file);
        assert_eq!(judged[0].kind, VerdictKind::Inconclusive);
    }

    #[test]
    fn more_candidates_take_more_evidence() {
        let borderline = [0.04, 0.005, 0.03, 0.002, 0.02];
        let policy = policy::standard().file;
        let alone = judge(&[of(&WORSE, &borderline)], &policy);
        assert_eq!(alone[0].kind, VerdictKind::Regressed, "{alone:?}");
        let many: Vec<Evidence> = (0..20).map(|_| of(&WORSE, &borderline)).collect();
        let judged = judge(&many, &policy);
        assert!(judged.iter().all(|one| one.kind == VerdictKind::Inconclusive), "{judged:?}");
        assert!(judged[0].p_adjusted > alone[0].p_adjusted);
        // A candidate whose confirmation was lost counts in the family.
        let lost = judge(&[of(&WORSE, &borderline), of(&WORSE, &[])], &policy);
        assert!(lost[0].p_adjusted > alone[0].p_adjusted, "{lost:?}");
    }

    #[test]
    fn holm_against_values_worked_out_by_hand() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        let expected = [0.03, 0.06, 0.06, 0.02];
        for (found, expected) in adjusted.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert_eq!(holm(&[]), [0.0; 0]);
    }
}
