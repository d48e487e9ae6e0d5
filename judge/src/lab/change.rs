//! Change of any metric between two configurations of a lab that ran next to each other. A lab
//! decides by its objective alone; these changes show what that costs.

use std::collections::BTreeMap;

use schema::metric::{Better, Metric};
use schema::policy::PolicyFile;
use schema::run::RunRecord;

use super::arm::Score;
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
    use schema::metric::by_name;

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
