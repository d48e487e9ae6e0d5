//! Change of any metric between two configurations of a lab that ran next to each other. A lab
//! decides by its objective alone; these changes show what that costs.

use std::collections::BTreeMap;

use schema::metric::{Better, Metric, by_name};
use schema::policy::PolicyFile;
use schema::run::RunRecord;

use super::arm::Score;
use crate::pareto::are_on_frontier;
use crate::summary;
use crate::validity::value;

/// Runs of a candidate and of its reference under one profile.
pub type Sides<'a> = (Vec<&'a RunRecord>, Vec<&'a RunRecord>);

/// Change of one metric from the reference to the candidate, in percent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Number of pairs of runs under each profile that the change rests on.
    pub pairs: usize,
    /// Geometric mean of candidate / reference, minus one, in percent.
    pub pct: f64,
    /// Two-sided interval of the change in percent, at the policy's confidence.
    pub interval_pct: (f64, f64),
    /// True for an improvement, false for a change for the worse; `None` where the interval contains
    /// zero.
    pub is_better: Option<bool>,
}

/// Computes the change of `metric` over `profiles`, which have equal weight, from the runs of each
/// block; `None` for fewer than two pairs under some profile.
pub fn change(metric: &Metric, profiles: &[Sides<'_>], policy: &PolicyFile) -> Option<Change> {
    let ratios = profiles.iter().map(|sides| log_ratios(metric, sides)).collect();
    let effect = Score::of(ratios).effect(policy.confidence)?;
    let (low, high) = effect.interval_pct;
    let rises = (low > 0.0).then_some(true).or_else(|| (high < 0.0).then_some(false));
    Some(Change {
        pairs: effect.pairs,
        pct: effect.gain_pct,
        interval_pct: effect.interval_pct,
        is_better: rises.map(|rises| rises == (metric.better == Better::Higher)),
    })
}

/// Configuration of a lab under one profile, for its Pareto frontier.
#[derive(Debug, Clone)]
pub struct Compared<'a> {
    /// True where the configuration was measured and keeps the bounds of the lab.
    pub is_eligible: bool,
    /// Runs of the configuration and of its reference, and the index of the reference among the
    /// configurations; `None` for the baseline.
    pub beside: Option<(Sides<'a>, usize)>,
}

/// Returns for each configuration of `all` whether no other is at least as good in throughput and
/// speed for one user (1 / TPOT) and better in one: by its changes from the baseline, because
/// figures of runs that were not made beside each other differ by the drift of the machine. False for
/// a configuration that is not eligible or has no such changes.
pub fn frontier(all: &[Compared<'_>]) -> Vec<bool> {
    let point = |index: usize| {
        let from = change_from_baseline(all, index, all.len());
        from.filter(|_| all[index].is_eligible)
    };
    are_on_frontier(&(0..all.len()).map(point).collect::<Vec<_>>())
}

/// Returns the mean log ratios of a configuration over the baseline, in speed for one user and in
/// throughput: those over its reference, and those of the reference. Follows at most `steps`
/// references.
fn change_from_baseline(all: &[Compared<'_>], index: usize, steps: usize) -> Option<(f64, f64)> {
    let Some((sides, reference)) = &all.get(index)?.beside else { return Some((0.0, 0.0)) };
    let (speed, throughput) = change_from_baseline(all, *reference, steps.checked_sub(1)?)?;
    let ratio = |name: &str| {
        let ratios = log_ratios(by_name(name)?, sides);
        summary::of(&ratios).map(|ratios| ratios.mean)
    };
    // A shorter time per token is a higher speed.
    Some((speed - ratio("tpot_us_p50")?, throughput + ratio("output_tokens_per_s")?))
}

/// True where every run of candidate and reference reports the same effective configuration: the
/// candidate's options are the defaults, and its change is the noise of the lab.
pub fn is_default(profiles: &[Sides<'_>]) -> bool {
    let runs = profiles.iter().flat_map(|(candidate, reference)| candidate.iter().chain(reference));
    let hashes: Vec<Option<&str>> =
        runs.map(|run| run.server.as_ref()?.config_sha256.as_deref()).collect();
    let is_known = hashes.first().is_some_and(Option::is_some);
    is_known && hashes.windows(2).all(|two| two[0] == two[1])
}

/// Returns the log ratios of candidate over reference of those blocks in which both have a figure
/// above zero that passes the truth gate, in the order of blocks.
fn log_ratios(metric: &Metric, (candidate, reference): &Sides<'_>) -> Vec<f64> {
    let by_block = |runs: &[&RunRecord]| -> BTreeMap<u32, f64> {
        let figure = |run: &&RunRecord| {
            let found = value(metric, run).filter(|value| *value > 0.0)?;
            Some((run.campaign.as_ref()?.block, found))
        };
        runs.iter().filter_map(figure).collect()
    };
    let reference = by_block(reference);
    let candidate = by_block(candidate);
    candidate.iter().filter_map(|(block, of)| Some((of / reference.get(block)?).ln())).collect()
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id};

    use super::*;
    use crate::diff::policy::standard;

    fn runs(position: u32, speed: f64, blocks: std::ops::Range<u32>) -> Vec<RunRecord> {
        let run = |block: u32| {
            Sample {
                campaign: (campaign_id(1), block, position),
                serial: u64::from(block * 2 + position) + 1,
                seed: 7,
                speed: speed * (1.0 + 0.002 * f64::from(block % 3)),
                ..Sample::default()
            }
            .record()
        };
        blocks.map(run).collect()
    }

    #[test]
    fn throughput_that_doubles_halves_the_latency_and_both_are_better() {
        let (slow, fast) = (runs(0, 1.0, 0..4), runs(1, 2.0, 0..4));
        let sides = (fast.iter().collect(), slow.iter().collect());
        let of = |name: &str| {
            let metric = by_name(name).expect("a metric");
            change(metric, std::slice::from_ref(&sides), &standard().file).expect("a change")
        };
        let (output, tpot) = (of("output_tokens_per_s"), of("tpot_us_p50"));
        assert_eq!((output.pairs, output.is_better, tpot.is_better), (4, Some(true), Some(true)));
        assert!((output.pct - 100.0).abs() < 3.0, "{output:?}");
        assert!((tpot.pct + 50.0).abs() < 2.0, "{tpot:?}");
    }

    fn pair<'a>(of: &'a [RunRecord], reference: &'a [RunRecord]) -> Sides<'a> {
        (of.iter().collect(), reference.iter().collect())
    }

    #[test]
    fn a_frontier_is_that_of_changes_beside_the_reference_and_not_of_figures_apart() {
        // The machine was slower while the options ran than while the engines did.
        let (engine, baseline) = (runs(1, 1.2, 0..4), runs(0, 1.3, 0..4));
        let (plain, option) = (runs(0, 0.6, 4..8), runs(1, 0.7, 4..8));
        let all = |is_eligible: bool| {
            let engine = Some((pair(&engine, &baseline), 0));
            let option = Some((pair(&option, &plain), 1));
            frontier(&[
                Compared { is_eligible: true, beside: None },
                Compared { is_eligible, beside: engine },
                Compared { is_eligible, beside: option },
            ])
        };
        // Over the baseline: 0.92 times, and 0.92 * 1.17 = 1.08 times.
        assert_eq!(all(true), [false, false, true]);
        assert_eq!(all(false), [true, false, false], "what breaks a bound hides nothing");
    }

    #[test]
    fn an_option_that_is_the_default_is_known_by_its_effective_configuration() {
        let (mut option, plain) = (runs(1, 1.0, 0..3), runs(0, 1.0, 0..3));
        let all =
            |option: &[RunRecord]| is_default(&[(option.iter().collect(), plain.iter().collect())]);
        assert!(all(&option));
        let server = option[1].server.as_mut().expect("a server");
        server.config_sha256 = Some("0".repeat(64));
        assert!(!all(&option), "one run was configured otherwise");
        assert!(!is_default(&[]));
    }

    #[test]
    fn only_runs_of_one_block_are_a_pair() {
        let (slow, fast) = (runs(0, 1.0, 0..4), runs(1, 2.0, 3..7));
        let sides = (fast.iter().collect(), slow.iter().collect());
        let metric = by_name("output_tokens_per_s").expect("a metric");
        assert_eq!(change(metric, &[sides], &standard().file), None, "one pair has no interval");
        assert_eq!(change(metric, &[], &standard().file), None);
    }
}
