//! Comparison of two releases, cell by cell: the one place where verdicts on releases are made.
//!
//! A figure is called better or worse only after an alternating comparison, or a screen and a
//! confirmation on fresh runs of interleaved pairs (docs/method/comparisons.md), never from stored
//! figures of different campaigns. A changed configuration and a new failure are reported from any record.
//!
//! Reading order: [`cells`] (runs to pairs), [`estimate`] (pairs to figures), [`judge`] (figures
//! to verdicts, pure), [`campaigns`] (which pairs are judged together), `in_turns` (alternating
//! comparisons), [`outputs`] (tokens, not speed), [`decision`] (ship, hold or inconclusive),
//! [`waivers`] (accepted regressions), [`published`] (releases that others measured), [`broad`] (all
//! cells at once), [`drift`] (a baseline against itself), [`improvement`] (effects on one axis).

pub mod broad;
pub mod campaigns;
pub mod caveats;
pub mod cells;
pub mod decision;
pub mod drift;
pub mod estimate;
pub mod flags;
pub mod grouped;
pub mod improvement;
mod in_turns;
pub mod judge;
pub mod junit;
pub mod outputs;
pub mod policy;
pub mod published;
pub mod report;
pub mod waivers;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};

pub use schema::comparison::{CellDiff, Diff, FlagChange, Row, SideCounts};
use schema::comparison::{Decision, DecisionKind, RunShare, SCHEMA};
use schema::metric::{METRICS, Metric};
use schema::run::{RunRecord, ValidityVerdict};
use schema::scenario::id_of;
use schema::verdict::{Cell, Stage, Verdict, VerdictKind};

use crate::order::ReleaseKey;
use crate::records::{QueryError, Registry};
use crate::summary::{self, Summary};
use crate::validity;
use campaigns::{Judged, Noise, Pairs};
use cells::CellRuns;
use estimate::Estimate;
use flags::Differing;
use in_turns::InTurns;
use judge::Judgement;
use policy::Standard;

/// Text of the remark on a cell in which both releases have figures that were not measured side by
/// side.
pub const NOT_INTERLEAVED: &str = "not interleaved: shown, never judged";

/// Name of the metric of failed requests, which is judged by policy and not by statistics.
const FAILURES: &str = "requests_failed";

/// Filter of a comparison. Without any field set, all cells are compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Id of the engine to compare; `None` for all engines.
    pub engine: Option<String>,
    /// Id of the hardware to compare on; `None` for all hardware.
    pub hardware: Option<String>,
}

impl Filter {
    fn covers(&self, run: &RunRecord) -> bool {
        self.engine.as_ref().is_none_or(|engine| *engine == run.engine.name)
            && self.hardware.as_ref().is_none_or(|hardware| *hardware == run.hardware.id)
    }

    fn words(&self) -> String {
        let engine = self.engine.iter().map(|engine| format!(" of `{engine}`"));
        let hardware = self.hardware.iter().map(|hardware| format!(" on `{hardware}`"));
        engine.chain(hardware).collect()
    }
}

/// Compares `candidate` with `baseline`. Releases may be written with or without their leading
/// `v`.
///
/// # Errors
///
/// A release has no runs within the filter, or both names mean one release.
pub fn diff(
    registry: &Registry,
    baseline: &str,
    candidate: &str,
    filter: &Filter,
) -> Result<Diff, QueryError> {
    let baseline = release(registry, baseline, filter)?;
    let candidate = release(registry, candidate, filter)?;
    if baseline == candidate {
        return Err(QueryError(format!("`{baseline}` is compared with itself")));
    }
    let of_both = |run: &&RunRecord| {
        filter.covers(run) && [&baseline, &candidate].contains(&&run.engine.release)
    };
    let gone = registry.runs.iter().filter(|run| registry.retracted.contains_key(&run.record.id));
    let retracted = gone.map(|run| &run.record).filter(of_both).count();
    let standing = registry.of_releases().map(|run| &run.record).filter(of_both);
    let (mut baseline_only, mut candidate_only) = (Vec::new(), Vec::new());
    let mut compared = Vec::new();
    for (cell, runs) in cells::sort(standing, &baseline) {
        match (runs.baseline.all.is_empty(), runs.candidate.all.is_empty()) {
            (true, _) => candidate_only.push(cell),
            (_, true) => baseline_only.push(cell),
            _ => compared.push(Compared::of(cell, runs)),
        }
    }
    let policy = policy::standard();
    let noise = {
        let pairs: Vec<&Pairs<'_>> = compared.iter().filter_map(|c| c.pairs.as_ref()).collect();
        campaigns::noise(&pairs, &policy.file)
    };
    let mut cells = judged(&compared, &noise, &policy, (&baseline, &candidate));
    let turns: Vec<Option<InTurns<'_>>> =
        compared.iter().map(|compared| InTurns::of(compared, registry)).collect();
    for (cell, found) in cells.iter_mut().zip(&turns) {
        found.iter().for_each(|found| found.judge(cell));
    }
    let behind: Vec<_> = compared.iter().map(Compared::behind).collect();
    let in_percent = |noise: BTreeMap<&str, f64>| -> BTreeMap<String, f64> {
        noise.into_iter().map(|(name, log)| (name.to_owned(), estimate::percent(log))).collect()
    };
    let mut diff = Diff {
        schema: SCHEMA.to_owned(),
        baseline,
        candidate,
        note: note(&policy),
        decision: Decision { verdict: DecisionKind::Inconclusive, sentence: String::new() },
        outputs: outputs::of(&compared),
        waivers: Vec::new(),
        baseline_degraded: degraded(behind.iter().flat_map(|(baseline, _)| baseline)),
        candidate_degraded: degraded(behind.iter().flat_map(|(_, candidate)| candidate)),
        policy: policy.quoted,
        commits: None,
        broad: broad::of(&cells, &policy.file),
        noise_pct: noise.into_iter().map(|(id, noise)| (id, in_percent(noise))).collect(),
        pooled: in_turns::pooled(&cells, &turns),
        cells,
        baseline_only,
        candidate_only,
        retracted,
    };
    diff.decision = decision::of(&diff);
    Ok(diff)
}

/// Counts the runs whose headline verdict is DEGRADED.
fn degraded<'a>(runs: impl Iterator<Item = &'a &'a RunRecord>) -> RunShare {
    let mut share = RunShare::default();
    for run in runs {
        share.of += 1;
        share.count += usize::from(validity::headline(run) == ValidityVerdict::Degraded);
    }
    share
}

/// Finds the release `name`, given with or without a leading `v`, and returns its name as the
/// registry writes it; an error where no run within `filter` is of that release.
fn release(registry: &Registry, name: &str, filter: &Filter) -> Result<String, QueryError> {
    let runs = registry.runs.iter().filter(|run| filter.covers(&run.record));
    let known: BTreeSet<ReleaseKey> =
        runs.map(|run| ReleaseKey::of(&run.record.engine.release)).collect();
    let wanted = [name.to_owned(), format!("v{name}")];
    if let Some(found) = wanted.into_iter().find(|name| known.contains(&ReleaseKey::of(name))) {
        return Ok(found);
    }
    let known: Vec<String> = known.iter().map(|key| format!("`{}`", key.name())).collect();
    let known = if known.is_empty() { "no runs".to_owned() } else { known.join(", ") };
    let of = filter.words();
    Err(QueryError(format!("no run of release `{name}`{of}\nhint: the registry has {known}")))
}

/// Returns the note about policy and method that every output of a comparison prints.
fn note(policy: &Standard) -> String {
    let Standard { file, quoted } = policy;
    format!(
        "Policy {}@{}: figures are those of whole runs, in which the releases alternate. What changed \
         is decided in turns: both servers of a start answer slices of the same requests while the \
         other one is frozen. Where a campaign compared no slices, a screen of {} pairs of runs and \
         a confirmation of {} more, on fresh server starts, have to agree. Figures of different \
         campaigns are shown and not judged.",
        quoted.id, quoted.rev, file.screen_pairs, file.confirm_pairs
    )
}

/// Cell in which both releases have runs, with its runs, pairs and differing flags.
struct Compared<'a> {
    cell: Cell,
    runs: CellRuns<'a>,
    campaigns: Vec<String>,
    /// Pairs of runs in the cell, which are judged if they are comparable; `None` where both
    /// releases never ran side by side.
    pairs: Option<Pairs<'a>>,
    /// Number of the cell's blocks whose runs were made on different machines.
    torn: usize,
    differing: Differing,
    /// False where the two releases were sent different requests.
    same_workload: bool,
}

impl<'a> Compared<'a> {
    fn of(cell: Cell, runs: CellRuns<'a>) -> Self {
        let blocks = cells::blocks(&runs);
        let torn = blocks.values().map(|blocks| blocks.torn).sum();
        let mut paired = blocks;
        // A campaign all of whose blocks are torn has no pairs, so an older one is judged instead.
        paired.retain(|_, blocks| !blocks.screen.is_empty() || !blocks.confirm.is_empty());
        let campaigns = paired.keys().cloned().collect();
        let newest = paired.into_iter().next_back();
        let (baseline, candidate) = match &newest {
            None => (runs.baseline.usable(), runs.candidate.usable()),
            Some((_, blocks)) => {
                let every = || blocks.screen.iter().chain(&blocks.confirm);
                (
                    every().flat_map(|block| block.baseline.clone()).collect(),
                    every().flat_map(|block| block.candidate.clone()).collect(),
                )
            }
        };
        let differing = flags::differing(&baseline, &candidate);
        let both = baseline.into_iter().chain(candidate);
        let same_workload = cells::workloads(both).len() <= 1;
        let comparable = same_workload && differing.asked.is_empty();
        let pairs = newest.map(|(campaign, blocks)| Pairs { campaign, blocks, comparable });
        Self { cell, runs, campaigns, pairs, torn, differing, same_workload }
    }

    /// Returns the baseline's and the candidate's runs behind the figures of a stage: the runs of
    /// the stage's pairs where the cell has pairs, so that another day's runs do not move a mean;
    /// else all usable runs.
    fn used(&self, stage: Stage) -> (Vec<&'a RunRecord>, Vec<&'a RunRecord>) {
        match &self.pairs {
            None => (self.runs.baseline.usable(), self.runs.candidate.usable()),
            Some(pairs) => {
                let blocks = pairs.blocks.of(stage).iter();
                let sides = blocks.map(|block| (block.baseline.clone(), block.candidate.clone()));
                let (baseline, candidate): (Vec<_>, Vec<_>) = sides.unzip();
                (baseline.concat(), candidate.concat())
            }
        }
    }

    /// Returns the baseline's and the candidate's runs behind the figures of all stages.
    fn behind(&self) -> (Vec<&'a RunRecord>, Vec<&'a RunRecord>) {
        let (mut baseline, mut candidate) = self.used(Stage::Screen);
        if self.pairs.is_some() {
            let confirming = self.used(Stage::Confirm);
            baseline.extend(confirming.0);
            candidate.extend(confirming.1);
        }
        (baseline, candidate)
    }

    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let (baseline, candidate) = (self.runs.baseline.counts(), self.runs.candidate.counts());
        if self.pairs.is_none() && baseline.used > 0 && candidate.used > 0 {
            remarks.push(NOT_INTERLEAVED.to_owned());
        }
        if let [older @ .., _] = self.campaigns.as_slice()
            && !older.is_empty()
        {
            let older = older.join("`, `");
            remarks
                .push(format!("older campaigns compared it too: `{older}`; the newest is judged"));
        }
        if self.torn > 0 {
            let torn = self.torn;
            remarks.push(format!("{torn} blocks left out: their runs are of different machines"));
        }
        if !self.same_workload {
            remarks.push("the workloads differ: shown, not compared".to_owned());
        }
        for (side, counts) in [("baseline", baseline), ("candidate", candidate)] {
            if counts.invalid > 0 {
                remarks.push(format!("{side}: {} INVALID runs left out", counts.invalid));
            }
            if counts.lost > 0 {
                remarks.push(format!("{side}: {} runs lost to the machine", counts.lost));
            }
        }
        let asked = &self.differing.asked;
        if !asked.is_empty() {
            let names: Vec<&str> = asked.iter().map(|change| change.flag.as_str()).collect();
            remarks.push(format!("the configuration differs in `{}`", names.join("`, `")));
        }
        remarks
    }

    /// Returns the command line that measures both releases in the cell again.
    fn command(&self, (baseline, candidate): (&str, &str)) -> Vec<String> {
        let Cell { engine, model, scenario, .. } = &self.cell;
        let mut words = vec!["cargo", "xtask", "release-bench", candidate, "--baseline", baseline];
        if engine != "redline" {
            words.extend(["--engine", engine]);
        }
        words.extend(["--model", model, "--scenario", id_of(scenario)]);
        words.into_iter().map(str::to_owned).collect()
    }
}

fn judged(
    compared: &[Compared<'_>],
    noise: &Noise,
    policy: &Standard,
    releases: (&str, &str),
) -> Vec<CellDiff> {
    let pairs: Vec<Option<&Pairs<'_>>> = compared.iter().map(|c| c.pairs.as_ref()).collect();
    let judgements = campaigns::judgements(&pairs, noise, &policy.file);
    let of_cell = |(index, cell): (usize, &Compared<'_>)| {
        let campaign = cell.pairs.as_ref().map(|pairs| pairs.campaign.clone());
        let rows = METRICS.iter().filter_map(|metric| match metric.name {
            FAILURES => failures(cell, metric),
            name => {
                let judged = judgements.get(&(index, name)).copied();
                figure(cell, metric, judged, policy)
            }
        });
        CellDiff {
            rows: rows.collect(),
            cell: cell.cell.clone(),
            campaigns: cell.campaigns.clone(),
            judged: campaign,
            baseline_runs: cell.runs.baseline.counts(),
            candidate_runs: cell.runs.candidate.counts(),
            changed: cell.differing.asked.clone(),
            moved: cell.differing.moved.clone(),
            drift: cell.pairs.as_ref().and_then(|pairs| drift::of(&cell.runs, &pairs.campaign)),
            remarks: cell.remarks(),
            command: cell.command(releases),
        }
    };
    compared.iter().enumerate().map(of_cell).collect()
}

/// Builds the row of failed requests; `None` when no run of either release failed.
fn failures(cell: &Compared<'_>, metric: &'static Metric) -> Option<Row> {
    let (before, after) = (cell.runs.baseline.counts(), cell.runs.candidate.counts());
    let kind = match (before.failed > 0, after.failed > 0) {
        (false, false) => return None,
        (false, true) if before.used > 0 => VerdictKind::NewFailure,
        (true, false) if after.used > 0 => VerdictKind::FixedFailure,
        _ => VerdictKind::Inconclusive,
    };
    let spread = |side: &cells::Side<'_>| summary::of_metric(metric, side.all.iter().copied());
    let sides = (spread(&cell.runs.baseline), spread(&cell.runs.candidate));
    let judgement = estimated(kind);
    Some(row(cell, metric, sides, None, (judgement, None)))
}

/// Builds the row of one metric; `None` when neither release has a value of it.
fn figure(
    cell: &Compared<'_>,
    metric: &'static Metric,
    judged: Option<Judged>,
    policy: &Standard,
) -> Option<Row> {
    let kind = match cell.differing.asked.is_empty() {
        true => VerdictKind::Inconclusive,
        false => VerdictKind::ChangedConfig,
    };
    let unjudged = Judged { judgement: estimated(kind), noise: None };
    let Judged { judgement, noise } = judged.unwrap_or(unjudged);
    let used = cell.used(judgement.stage);
    let values = |runs: &[&RunRecord]| summary::values(metric, runs.iter().copied());
    let values = (values(&used.0), values(&used.1));
    let sides = (summary::of(&values.0), summary::of(&values.1));
    if sides.0.is_none() && sides.1.is_none() {
        return None;
    }
    let estimate = match &cell.pairs {
        _ if !cell.same_workload => None,
        Some(pairs) => {
            let ratios = campaigns::log_ratios(metric, pairs.blocks.of(judgement.stage));
            estimate::paired(&ratios, &policy.file)
        }
        // Runs that were not made side by side give an effect without an interval.
        None => estimate::unpaired(&values.0, &values.1)
            .map(|effect_pct| Estimate::alone(0, effect_pct)),
    };
    let cliffs_delta = estimate::cliffs_delta(&values.0, &values.1);
    let estimate = estimate.map(|estimate| Estimate { cliffs_delta, ..estimate });
    Some(row(cell, metric, sides, estimate, (judgement, noise)))
}

/// Returns a judgement that rests on no statistics: for failed requests, metrics that are not
/// release-blocking, and cells without comparable pairs.
fn estimated(kind: VerdictKind) -> Judgement {
    Judgement { kind, stage: Stage::Estimate, suspected: false, p_adjusted: None }
}

fn row(
    cell: &Compared<'_>,
    metric: &'static Metric,
    (baseline, candidate): (Option<Summary>, Option<Summary>),
    estimate: Option<Estimate>,
    (judgement, noise): (Judgement, Option<f64>),
) -> Row {
    let any = cell.runs.baseline.all.iter().chain(&cell.runs.candidate.all).next();
    let gates = metric.gates_under(any.and_then(|run| run.scenario.arrival.as_ref()));
    Row {
        title: metric.title.to_owned(),
        unit: metric.unit,
        better: metric.better,
        gates,
        large: !gates && estimate.is_some_and(|estimate| estimate.is_large(metric.floor_pct)),
        baseline,
        candidate,
        verdict: Verdict {
            cell: cell.cell.clone(),
            metric: metric.name.to_owned(),
            baseline: baseline.map(|spread| spread.mean),
            candidate: candidate.map(|spread| spread.mean),
            pairs: estimate.map_or(0, |estimate| estimate.pairs),
            effect_pct: estimate.map(|estimate| estimate.effect_pct),
            interval_pct: estimate.and_then(|estimate| estimate.interval_pct),
            deciding_interval_pct: None,
            p: estimate.and_then(|estimate| estimate.p),
            p_adjusted: judgement.p_adjusted,
            cliffs_delta: estimate.and_then(|estimate| estimate.cliffs_delta),
            floor_pct: metric.floor_pct,
            noise_pct: noise.map(estimate::percent),
            mde_pct: estimate.and_then(|estimate| estimate.mde_pct),
            alternation: None,
            together: None,
            verdict: judgement.kind,
            stage: judgement.stage,
            suspected: judgement.suspected,
            waiver: None,
        },
    }
}

#[cfg(test)]
mod tests;
