//! Comparison of two engines measured in interleaved blocks: the ratio of a metric with its
//! interval. It gives no verdict, because two engines differ in more than a release.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use schema::metric::Metric;
use schema::policy::PolicyFile;
use schema::run::{PromptForm, RunRecord};
use schema::verdict::Cell;
use serde::Serialize;

use crate::best::Setup;
use crate::diff::campaigns::log_ratios;
use crate::diff::cells::{Block, CellRuns, Side, blocks, cell_of, workloads};
use crate::diff::estimate::{log_ratio, paired};
use crate::facts::figures;
use crate::newest::newest;
use crate::order::{self, ReleaseKey};

/// Interleaved blocks of one campaign in which both engines answered every request of the same
/// workload.
#[derive(Debug, Clone)]
pub struct InTurns<'a> {
    /// Id of the campaign that interleaved both engines.
    pub campaign: String,
    blocks: Vec<Block<'a>>,
}

/// Ratio of a metric of the first engine to that of the second, with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ratio {
    /// Number of pairs: interleaved blocks in which both engines have a positive value of the
    /// metric.
    pub pairs: u32,
    /// Geometric mean, over the pairs, of the first engine's metric divided by the second's.
    pub mean: f64,
    /// Interval of the ratio: a t interval on the logs at the confidence of the comparison policy;
    /// `None` for a single pair.
    pub interval: Option<(f64, f64)>,
}

impl<'a> InTurns<'a> {
    /// Returns the blocks of the newest campaign that ran both engines interleaved on one workload;
    /// `None` where no campaign did. Runs whose status is not `ok`, in which requests failed, or
    /// whose verdict is INVALID are left out.
    pub fn newest(ours: &[&'a RunRecord], theirs: &[&'a RunRecord]) -> Option<Self> {
        let side = |runs: &[&'a RunRecord]| Side { all: runs.to_vec() };
        let runs = CellRuns { baseline: side(theirs), candidate: side(ours) };
        // Ids of campaigns are ULIDs, so they sort by time.
        blocks(&runs).into_iter().rev().find_map(|(campaign, found)| {
            let mut blocks = [found.screen, found.confirm].concat();
            blocks.retain(|block| workloads(block.runs()).len() == 1);
            (!blocks.is_empty()).then_some(Self { campaign, blocks })
        })
    }

    /// True when `run` is part of one of the interleaved blocks.
    pub fn holds(&self, run: &RunRecord) -> bool {
        self.blocks.iter().flat_map(Block::runs).any(|paired| paired.id == run.id)
    }

    /// Returns the ratio of `metric` of the first engine to that of the second; `None` where no
    /// block has a positive value of both.
    pub fn ratio(&self, metric: &Metric, policy: &PolicyFile) -> Option<Ratio> {
        of_logs(&log_ratios(metric, &self.blocks), policy)
    }
}

/// Ratio of two configurations that one campaign measured in interleaved blocks.
#[derive(Debug, Clone, PartialEq)]
pub struct Paired {
    /// Id of the campaign that interleaved both.
    pub campaign: String,
    /// Ratio of the first configuration's metric to the second's.
    pub ratio: Ratio,
}

/// Returns the ratio of `metric` between two configurations of one scenario, from the newest campaign
/// among `runs` that interleaved them; `None` where none did. `runs` must not be retracted.
pub fn interleaved(
    runs: &[&RunRecord],
    (ours, theirs): (&Setup, &Setup),
    metric: &Metric,
    policy: &PolicyFile,
) -> Option<Paired> {
    let of = |setup: &Setup| -> Vec<&RunRecord> {
        runs.iter().copied().filter(|run| setup.covers(run)).collect()
    };
    let in_turns = InTurns::newest(&of(ours), &of(theirs))?;
    let ratio = in_turns.ratio(metric, policy)?;
    Some(Paired { campaign: in_turns.campaign, ratio })
}

/// Scenario that two engines answered, with the runs of each that are compared.
#[derive(Debug, Clone)]
pub struct Match<'a> {
    /// Scenario that both engines answered, as `id@rev`.
    pub scenario: String,
    /// Compared runs of the first engine, in one configuration.
    pub ours: Vec<&'a RunRecord>,
    /// Compared runs of the second engine, in one configuration.
    pub theirs: Vec<&'a RunRecord>,
    /// Interleaved blocks that the compared runs are from; `None` where the engines did not run
    /// interleaved, and the runs of each engine's newest campaign are compared.
    pub in_turns: Option<InTurns<'a>>,
}

/// Selects the latest releases of two engines that have a scenario in common, and returns the runs
/// to compare in each such scenario, in page order; nothing where the engines share no scenario.
/// The given runs must all be usable, and of one model on one hardware.
pub fn latest<'a>(ours: &[&'a RunRecord], theirs: &[&'a RunRecord]) -> Vec<Match<'a>> {
    let (ours, theirs) = (by_release(ours), by_release(theirs));
    let pairs = ours.values().rev().flat_map(|our| theirs.values().rev().map(move |t| (our, t)));
    let mut found = pairs.map(|(our, their)| matches(our, their));
    found.find(|found| !found.is_empty()).unwrap_or_default()
}

/// Runs of one release by cell, whether prompts are sent as text, and kind of record.
type ByCell<'a> = BTreeMap<(Cell, bool, &'static str), Vec<&'a RunRecord>>;

fn by_release<'a>(runs: &[&'a RunRecord]) -> BTreeMap<ReleaseKey, ByCell<'a>> {
    let mut releases: BTreeMap<ReleaseKey, ByCell<'a>> = BTreeMap::new();
    for run in runs {
        let is_text = run.scenario.prompt_form == Some(PromptForm::Text);
        let cells = releases.entry(ReleaseKey::of(&run.engine.release)).or_default();
        cells.entry((cell_of(run), is_text, run.kind.name())).or_default().push(run);
    }
    releases
}

/// Returns one match for each scenario that two releases share. Of several configurations, the two
/// that ran interleaved in the latest campaign are taken, else the first by name.
fn matches<'a>(ours: &ByCell<'a>, theirs: &ByCell<'a>) -> Vec<Match<'a>> {
    let mut found = Vec::new();
    for ((our, is_text, _), our_runs) in ours {
        let same = |their: &Cell, text: bool| (&their.scenario, text) == (&our.scenario, *is_text);
        for ((their, ..), their_runs) in
            theirs.iter().filter(|((cell, text, _), _)| same(cell, *text))
        {
            let newest = Match::newest(&our.scenario, our_runs, their_runs);
            found.push((&our.config, &their.config, newest));
        }
    }
    found.sort_by(|(a_ours, a_theirs, a), (b_ours, b_theirs, b)| {
        let turns = |found: &Match| Reverse(found.in_turns.as_ref().map(|t| t.campaign.clone()));
        order::scenarios(&a.scenario, &b.scenario)
            .then_with(|| turns(a).cmp(&turns(b)))
            .then_with(|| order::natural(a_ours, b_ours))
            .then_with(|| order::natural(a_theirs, b_theirs))
    });
    // Keeps the first match of each scenario, which is the latest interleaved one.
    found.dedup_by(|(.., later), (.., first)| later.scenario == first.scenario);
    found.into_iter().map(|(.., found)| found).collect()
}

impl<'a> Match<'a> {
    fn newest(scenario: &str, ours: &[&'a RunRecord], theirs: &[&'a RunRecord]) -> Self {
        let in_turns = InTurns::newest(ours, theirs);
        let of = |runs: &[&'a RunRecord]| match &in_turns {
            Some(turns) => runs.iter().copied().filter(|run| turns.holds(run)).collect(),
            None => newest(runs, |run| (*run, figures(run, false))),
        };
        Self { scenario: scenario.to_owned(), ours: of(ours), theirs: of(theirs), in_turns }
    }
}

/// Returns the ratio of figures that were measured in pairs, in the order of the pairs; `None`
/// where there is no pair, or a figure is not positive.
pub fn ratio_of_pairs(ours: &[f64], theirs: &[f64], policy: &PolicyFile) -> Option<Ratio> {
    let pairs = ours.iter().zip(theirs);
    let logs = pairs.map(|(ours, theirs)| log_ratio(&[*theirs], &[*ours]));
    of_logs(&logs.collect::<Option<Vec<f64>>>()?, policy)
}

/// Computes the ratio from the log ratio of each pair; `None` without pairs, or where a log ratio
/// is not finite.
fn of_logs(log_ratios: &[f64], policy: &PolicyFile) -> Option<Ratio> {
    let found = paired(log_ratios, policy)?;
    let ratio_of = |percent: f64| 1.0 + percent / 100.0;
    let interval = found.interval_pct.map(|(low, high)| (ratio_of(low), ratio_of(high)));
    Some(Ratio { pairs: found.pairs, mean: ratio_of(found.effect_pct), interval })
}

#[cfg(test)]
mod tests {
    use samples::{Sample, campaign_id};
    use schema::metric::by_name;

    use super::*;
    use crate::diff::policy;

    /// Builds, for tests, the run of one engine in a block of the campaign with the number
    /// `campaign`.
    fn run(engine: &str, campaign: u64, block: u32, speed: f64) -> RunRecord {
        let serial = campaign * 100 + u64::from(block) * 2 + u64::from(engine == "theirs");
        Sample {
            engine: engine.to_owned(),
            campaign: (campaign_id(campaign), block, u32::from(engine == "theirs")),
            serial,
            seed: 7,
            speed,
            ..Sample::default()
        }
        .record()
    }

    fn ratio(ours: &[&RunRecord], theirs: &[&RunRecord]) -> Option<Ratio> {
        let metric = by_name("output_tokens_per_s").expect("a metric");
        InTurns::newest(ours, theirs)?.ratio(metric, &policy::standard().file)
    }

    #[test]
    fn a_ratio_is_taken_block_by_block_in_the_newest_campaign() {
        // The machine is twice as fast in the second block; the older campaign has another ratio.
        let ours = [run("ours", 1, 0, 9.0), run("ours", 2, 0, 3.0), run("ours", 2, 1, 6.0)];
        let theirs = [run("theirs", 1, 0, 1.0), run("theirs", 2, 0, 1.0), run("theirs", 2, 1, 2.0)];
        let (ours, theirs) = (ours.each_ref(), theirs.each_ref());
        let found = ratio(&ours, &theirs).expect("a ratio");
        let (low, high) = found.interval.expect("an interval");
        assert_eq!(found.pairs, 2);
        assert!((found.mean - 3.0).abs() < 0.01, "{found:?}");
        assert!(low <= found.mean && found.mean <= high && high - low < 1.0, "{found:?}");
        let in_turns = InTurns::newest(&ours, &theirs).expect("blocks");
        assert_eq!(in_turns.campaign, campaign_id(2));
        assert_eq!(ours.map(|run| in_turns.holds(run)), [false, true, true]);
    }

    #[test]
    fn engines_are_compared_by_the_latest_releases_that_share_a_scenario() {
        let mut ours = [run("ours", 1, 0, 9.0), run("ours", 2, 0, 3.0), run("ours", 2, 1, 3.0)];
        ours[2].engine.release = "v99.0.0".into();
        ours[2].scenario.id = "another".into();
        let theirs = [run("theirs", 1, 0, 1.0), run("theirs", 2, 0, 1.0)];
        let found = latest(&ours.each_ref(), &theirs.each_ref());
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].ours, [&ours[1]], "only the runs of the newest campaign count");
        assert_eq!(found[0].theirs, [&theirs[1]]);
        assert!(latest(&ours.each_ref()[2..], &theirs.each_ref()).is_empty());
    }

    #[test]
    fn engines_that_never_ran_interleaved_are_compared_by_their_newest_campaigns() {
        let ours = [run("ours", 1, 0, 9.0), run("ours", 3, 0, 3.0), run("ours", 3, 1, 3.0)];
        let theirs = [run("theirs", 2, 0, 1.0), run("theirs", 4, 0, 1.0)];
        let found = latest(&ours.each_ref(), &theirs.each_ref());
        assert!(found[0].in_turns.is_none());
        assert_eq!(found[0].ours, [&ours[1], &ours[2]], "campaign 1 is history");
        assert_eq!(found[0].theirs, [&theirs[1]]);
    }

    #[test]
    fn figures_of_pairs_have_the_same_ratio_as_their_records() {
        let policy = policy::standard().file;
        let found = ratio_of_pairs(&[3.0, 6.0], &[1.0, 2.0], &policy).expect("a ratio");
        assert!(found.pairs == 2 && (found.mean - 3.0).abs() < 1e-12, "{found:?}");
        assert_eq!(ratio_of_pairs(&[3.0, 0.0], &[1.0, 2.0], &policy), None);
        assert_eq!(ratio_of_pairs(&[], &[], &policy), None);
    }

    #[test]
    fn what_did_not_run_in_one_block_or_was_asked_otherwise_is_no_pair() {
        let ours = run("ours", 1, 0, 2.0);
        assert_eq!(ratio(&[&ours], &[&run("theirs", 2, 0, 1.0)]), None);
        assert_eq!(ratio(&[&ours], &[&run("theirs", 1, 1, 1.0)]), None);
        let mut other = run("theirs", 1, 0, 1.0);
        let single = ratio(&[&ours], &[&other]).map(|found| found.interval);
        assert_eq!(single, Some(None), "one pair has no interval");
        other.scenario.manifest_sha256 = Some("another".into());
        assert_eq!(ratio(&[&ours], &[&other]), None);
    }
}
