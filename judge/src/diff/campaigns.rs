//! Gathers what the pairs of each campaign say and has it judged, a campaign at a time: candidates
//! are counted within the campaign that found them.

use std::collections::{BTreeMap, BTreeSet};

use schema::metric::{Better, METRICS, Metric};
use schema::policy::PolicyFile;
use schema::run::RunRecord;

use super::FAILURES;
use super::cells::{Block, Blocks};
use super::estimate::{self, log_of};
use super::judge::{Evidence, Judgement, judge};

/// The pairs of a cell that are judged: those of the newest campaign that interleaved both.
#[derive(Debug)]
pub struct Pairs<'a> {
    /// Its id.
    pub campaign: String,
    /// Its blocks in that cell.
    pub blocks: Blocks<'a>,
    /// False where the sides were asked other requests, or ran with other flags.
    pub comparable: bool,
}

/// Campaign to metric to noise, in log units.
pub type Noise = BTreeMap<String, BTreeMap<&'static str, f64>>;

/// What each campaign's releases show against themselves.
#[must_use]
pub fn noise(cells: &[&Pairs<'_>], policy: &PolicyFile) -> Noise {
    let mut noise = Noise::new();
    for campaign in campaigns(cells) {
        let of: Vec<&Pairs<'_>> =
            cells.iter().copied().filter(|pairs| pairs.campaign == campaign).collect();
        let pairs = of.iter().map(|pairs| pairs.blocks.screen.len()).max().unwrap_or(0);
        let by_metric = noise.entry(campaign).or_default();
        for metric in judged_metrics() {
            let ratios: Vec<f64> =
                of.iter().flat_map(|pairs| self_ratios(metric, &pairs.blocks.screen)).collect();
            if let Some(width) = estimate::noise(&ratios, pairs, policy.confidence) {
                by_metric.insert(metric.name, width);
            }
        }
    }
    noise
}

/// A judgement, and the noise that it minded, in log units.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// What became of the metric.
    pub judgement: Judgement,
    /// None where a release was not launched often enough to show any.
    pub noise: Option<f64>,
}

/// What is judged of every metric that gates, by index of the cell and name of the metric.
#[must_use]
pub fn judgements(
    cells: &[Option<&Pairs<'_>>],
    noise: &Noise,
    policy: &PolicyFile,
) -> BTreeMap<(usize, &'static str), Judged> {
    let mut judged = BTreeMap::new();
    let known: Vec<&Pairs<'_>> = cells.iter().copied().flatten().collect();
    for campaign in campaigns(&known) {
        let noise = noise.get(&campaign);
        let mut questions = Vec::new();
        let mut evidence = Vec::new();
        for (index, pairs) in cells.iter().enumerate() {
            let Some(pairs) = pairs.filter(|pairs| pairs.campaign == campaign) else { continue };
            if !pairs.comparable {
                continue;
            }
            for metric in judged_metrics().filter(|metric| gates(metric, &pairs.blocks)) {
                let of_all = noise.and_then(|of| of.get(metric.name)).copied();
                let noise = noise_of(metric, &pairs.blocks.screen, of_all, policy);
                questions.push(((index, metric.name), noise));
                evidence.push(Evidence {
                    screen: harm(metric, &pairs.blocks.screen),
                    confirm: harm(metric, &pairs.blocks.confirm),
                    floor: log_of(metric.floor_pct),
                    noise: noise.unwrap_or(0.0),
                });
            }
        }
        let answers = judge(&evidence, policy);
        let answered = questions.into_iter().zip(answers);
        judged.extend(answered.map(|((key, noise), judgement)| (key, Judged { judgement, noise })));
    }
    judged
}

/// The noise of one cell: its own, or that of all cells where that is less, since the few launches
/// of one cell tell a spread badly.
fn noise_of(
    metric: &Metric,
    screen: &[Block<'_>],
    of_all: Option<f64>,
    policy: &PolicyFile,
) -> Option<f64> {
    let own = estimate::noise(&self_ratios(metric, screen), screen.len(), policy.confidence);
    [own, of_all].into_iter().flatten().min_by(f64::total_cmp)
}

fn campaigns(cells: &[&Pairs<'_>]) -> BTreeSet<String> {
    cells.iter().map(|pairs| pairs.campaign.clone()).collect()
}

/// Failures are judged by policy and not by statistics.
fn judged_metrics() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(|metric| metric.name != FAILURES)
}

fn gates(metric: &Metric, blocks: &Blocks<'_>) -> bool {
    let run = blocks.screen.iter().chain(&blocks.confirm).flat_map(Block::runs).next();
    metric.gates_under(run.and_then(|run| run.scenario.arrival.as_ref()))
}

/// One log ratio a block, candidate over baseline, however many launches of a side it holds.
#[must_use]
pub fn log_ratios(metric: &Metric, blocks: &[Block<'_>]) -> Vec<f64> {
    let values = |runs: &[&RunRecord]| -> Vec<f64> {
        runs.iter().filter_map(|run| metric.value(run)).collect()
    };
    let ratio = |block: &Block<'_>| {
        estimate::log_ratio(&values(&block.baseline), &values(&block.candidate))
    };
    blocks.iter().filter_map(ratio).collect()
}

/// The same, above zero where the candidate is worse.
fn harm(metric: &Metric, blocks: &[Block<'_>]) -> Vec<f64> {
    let sign = match metric.better {
        Better::Higher => -1.0,
        Better::Lower => 1.0,
    };
    log_ratios(metric, blocks).into_iter().map(|ratio| sign * ratio).collect()
}

/// Log ratios of launches of one release that follow each other: blocks go forwards and backwards
/// in turn, so the last launch of one and the first of the next are a release against itself.
fn self_ratios(metric: &Metric, blocks: &[Block<'_>]) -> Vec<f64> {
    let mut launches: Vec<&RunRecord> = blocks.iter().flat_map(Block::runs).collect();
    launches.sort_by_key(|run| {
        run.campaign.as_ref().map_or((0, 0), |slot| (slot.block, slot.position))
    });
    let block = |run: &RunRecord| run.campaign.as_ref().map_or(0, |slot| slot.block);
    let neighbours = launches.windows(2).filter(|two| {
        two[0].engine.release == two[1].engine.release && block(two[0]) + 1 == block(two[1])
    });
    neighbours
        .filter_map(|two| estimate::log_ratio(&[metric.value(two[0])?], &[metric.value(two[1])?]))
        .collect()
}
