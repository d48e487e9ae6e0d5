//! Collects the evidence of each campaign's pairs and judges it campaign by campaign, because
//! Holm's correction counts the candidates within the campaign that found them.

use std::collections::{BTreeMap, BTreeSet};

use schema::metric::{Better, METRICS, Metric};
use schema::policy::PolicyFile;
use schema::run::RunRecord;

use super::FAILURES;
use super::cells::{Block, Blocks};
use super::estimate::{self, log_of};
use super::judge::{Evidence, Judgement, judge};
use crate::summary::values;

/// Pairs of runs in one cell: those of the newest campaign that interleaved both releases. They are
/// judged if they are comparable.
#[derive(Debug)]
pub struct Pairs<'a> {
    /// Id of the campaign that interleaved both releases.
    pub campaign: String,
    /// Blocks of the campaign in this cell.
    pub blocks: Blocks<'a>,
    /// False where the two releases were sent different requests, or ran with different values of a
    /// flag that a command line sets; such pairs are not judged.
    pub comparable: bool,
}

/// Noise by campaign id and metric name: half the width, in log units, of the confidence interval
/// of the log ratio between runs of one and the same release.
pub type Noise = BTreeMap<String, BTreeMap<&'static str, f64>>;

/// Computes the noise of each campaign and metric: how much a release differs from itself between
/// runs in neighboring blocks of the screen. A metric without such runs is left out.
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

/// Judgement of a metric, with the noise that it took into account.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// Judgement of the metric: kind of verdict, stage, adjusted p-value.
    pub judgement: Judgement,
    /// Noise of the metric in log units; `None` where no release ran often enough to show any.
    pub noise: Option<f64>,
}

/// Judges every release-blocking metric, except failed requests, in the cells whose pairs are
/// comparable. Returns the judgements by index of the cell in `cells` and name of the metric.
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
        // All at once, because Holm's correction depends on their number.
        let answers = judge(&evidence, policy);
        let answered = questions.into_iter().zip(answers);
        judged.extend(answered.map(|((key, noise), judgement)| (key, Judged { judgement, noise })));
    }
    judged
}

/// Returns the noise of a metric in one cell, in log units: the cell's own, or `of_all` (over all
/// cells of the campaign) where that is smaller, because the few runs of one cell estimate it
/// badly. `None` where neither is known.
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

/// Returns the metrics to which statistics apply: all except failed requests, which are judged by
/// policy.
fn judged_metrics() -> impl Iterator<Item = &'static Metric> {
    METRICS.iter().filter(|metric| metric.name != FAILURES)
}

fn gates(metric: &Metric, blocks: &Blocks<'_>) -> bool {
    let run = blocks.screen.iter().chain(&blocks.confirm).flat_map(Block::runs).next();
    metric.gates_under(run.and_then(|run| run.scenario.arrival.as_ref()))
}

/// Returns the log ratios of candidate over baseline, one per block, however many runs of a release
/// the block has. Blocks in which a release lacks the metric, or has a value that is not positive,
/// are left out.
pub fn log_ratios(metric: &Metric, blocks: &[Block<'_>]) -> Vec<f64> {
    let values = |runs: &[&RunRecord]| values(metric, runs.iter().copied());
    let ratio = |block: &Block<'_>| {
        estimate::log_ratio(&values(&block.baseline), &values(&block.candidate))
    };
    blocks.iter().filter_map(ratio).collect()
}

/// Returns the log ratios of candidate over baseline, one per block as in [`log_ratios`], with the
/// sign turned so that a value above zero means that the candidate is worse.
fn harm(metric: &Metric, blocks: &[Block<'_>]) -> Vec<f64> {
    let sign = match metric.better {
        Better::Higher => -1.0,
        Better::Lower => 1.0,
    };
    log_ratios(metric, blocks).into_iter().map(|ratio| sign * ratio).collect()
}

/// Returns the log ratios, later over earlier, of neighboring runs of one release in successive
/// blocks. The order within blocks alternates, so the last run of one block and the first run of
/// the next block are of the same release.
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
