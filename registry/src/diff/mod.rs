//! Compares two releases, cell by cell. The one place where a verdict is made.
//!
//! A figure is never called better or worse here: that takes a screen and a confirmation on fresh
//! launches (docs/METHOD.md). What can be said from any record is said: effect and interval of
//! interleaved pairs, a changed configuration, a new failure.

pub mod cells;
pub mod estimate;
pub mod flags;
pub mod print;

use std::collections::BTreeSet;

use schema::exit::Exit;
use schema::metric::{Better, METRICS, Metric, Unit};
use schema::run::RunRecord;
use schema::verdict::{Cell, Stage, Verdict, VerdictKind};
use serde::Serialize;

use crate::release::ReleaseKey;
use crate::store::Registry;
use crate::summary::{self, Summary};
use cells::{Block, CellRuns, SideCounts};
use estimate::Estimate;
use flags::FlagChange;

/// What every output says about its figures.
pub const NOTE: &str = "Figures are estimates and are not judged: `regressed` and `improved` need a \
                        screen and a confirmation on fresh launches, which this version does not \
                        run yet. Failures and changed configurations are judged.";

/// Shown where both releases have figures that were not measured side by side.
pub const NOT_INTERLEAVED: &str = "not interleaved: shown, never judged";

/// The metric of failed requests, which has a verdict by policy and not by statistics.
const FAILURES: &str = "requests_failed";

/// A comparison that cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DiffError {
    #[error("no run of release `{name}`{of}\nhint: the registry has {known}")]
    UnknownRelease { name: String, of: String, known: String },
    #[error("`{0}` is compared with itself")]
    Same(String),
}

/// Which cells are compared; nothing given means all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub engine: Option<String>,
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

/// Two releases compared.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diff {
    pub baseline: String,
    pub candidate: String,
    pub note: &'static str,
    /// Cells that both releases have runs in, in order.
    pub cells: Vec<CellDiff>,
    /// Cells in which the candidate was not run.
    pub baseline_only: Vec<Cell>,
    /// Cells in which the baseline was not run.
    pub candidate_only: Vec<Cell>,
    /// Retracted runs that were left out.
    pub retracted: usize,
}

/// One cell of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellDiff {
    pub cell: Cell,
    /// Campaigns in which both releases ran side by side; empty when they never did.
    pub campaigns: Vec<String>,
    pub baseline_runs: SideCounts,
    pub candidate_runs: SideCounts,
    /// Flags that both sides know and that differ.
    pub changed: Vec<FlagChange>,
    /// What a reader has to know about the figures.
    pub remarks: Vec<String>,
    pub rows: Vec<Row>,
}

/// One metric of a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    pub title: &'static str,
    pub unit: Unit,
    pub better: Better,
    pub gates: bool,
    pub baseline: Option<Summary>,
    pub candidate: Option<Summary>,
    pub verdict: Verdict,
}

impl Diff {
    /// 1 for a new failure, 3 when figures are all there is or nothing was compared, else 0.
    #[must_use]
    pub fn exit(&self) -> Exit {
        let verdicts =
            || self.cells.iter().flat_map(|cell| &cell.rows).map(|row| row.verdict.verdict);
        if verdicts().any(|kind| matches!(kind, VerdictKind::NewFailure | VerdictKind::Regressed)) {
            return Exit::Worse;
        }
        let open = |kind| matches!(kind, VerdictKind::Inconclusive | VerdictKind::ChangedConfig);
        if verdicts().any(open) || verdicts().next().is_none() {
            Exit::Inconclusive
        } else {
            Exit::Well
        }
    }
}

/// Compares `candidate` with `baseline`; a release may be written with or without its `v`.
///
/// # Errors
/// A release has no runs within the filter, or both are one.
pub fn diff(
    registry: &Registry,
    baseline: &str,
    candidate: &str,
    filter: &Filter,
) -> Result<Diff, DiffError> {
    let baseline = release(registry, baseline, filter)?;
    let candidate = release(registry, candidate, filter)?;
    if baseline == candidate {
        return Err(DiffError::Same(baseline));
    }
    let standing = || registry.standing().map(|run| &run.record).filter(|run| filter.covers(run));
    let of_both = |run: &&RunRecord| [&baseline, &candidate].contains(&&run.engine.release);
    let known = registry.runs.iter().map(|run| &run.record).filter(|run| filter.covers(run));
    let retracted = known.filter(of_both).count() - standing().filter(of_both).count();
    let mut result = Diff {
        baseline: baseline.clone(),
        candidate: candidate.clone(),
        note: NOTE,
        cells: Vec::new(),
        baseline_only: Vec::new(),
        candidate_only: Vec::new(),
        retracted,
    };
    for (cell, runs) in cells::sort(standing(), &baseline, &candidate) {
        match (runs.baseline.all.is_empty(), runs.candidate.all.is_empty()) {
            (true, _) => result.candidate_only.push(cell),
            (_, true) => result.baseline_only.push(cell),
            _ => result.cells.push(compare(cell, &runs)),
        }
    }
    Ok(result)
}

/// The release as the registry writes it.
fn release(registry: &Registry, name: &str, filter: &Filter) -> Result<String, DiffError> {
    let runs = registry.runs.iter().filter(|run| filter.covers(&run.record));
    let known: BTreeSet<ReleaseKey> =
        runs.map(|run| ReleaseKey::of(&run.record.engine.release)).collect();
    let wanted = [name.to_owned(), format!("v{name}")];
    if let Some(found) = wanted.into_iter().find(|name| known.contains(&ReleaseKey::of(name))) {
        return Ok(found);
    }
    let known: Vec<String> = known.iter().map(|key| format!("`{}`", key.name())).collect();
    let known = if known.is_empty() { "no runs".to_owned() } else { known.join(", ") };
    Err(DiffError::UnknownRelease { name: name.to_owned(), of: filter.words(), known })
}

fn compare(cell: Cell, runs: &CellRuns<'_>) -> CellDiff {
    let blocks = cells::blocks(runs);
    let blocks: Vec<(String, Block<'_>)> =
        blocks.into_iter().map(|((campaign, _), block)| (campaign, block)).collect();
    let used = Used::of(runs, &blocks);
    let both = || used.baseline.iter().chain(&used.candidate).copied();
    let comparable = cells::workloads(both()).len() <= 1;
    let changed = flags::changed(&used.baseline, &used.candidate);
    let paired = !blocks.is_empty();
    let mut remarks = remarks(runs, paired, comparable);
    if !changed.is_empty() {
        let names: Vec<&str> = changed.iter().map(|change| change.flag.as_str()).collect();
        remarks.push(format!("the configuration differs in `{}`", names.join("`, `")));
    }
    let context = Context { cell: &cell, comparable, changed: !changed.is_empty() };
    let mut rows: Vec<Row> = failures(&context, runs).into_iter().collect();
    for metric in METRICS.iter().filter(|metric| metric.name != FAILURES) {
        rows.extend(figure(&context, metric, &used, &blocks));
    }
    let campaigns: BTreeSet<String> = blocks.into_iter().map(|(campaign, _)| campaign).collect();
    CellDiff {
        campaigns: campaigns.into_iter().collect(),
        baseline_runs: runs.baseline.counts(),
        candidate_runs: runs.candidate.counts(),
        changed,
        remarks,
        rows,
        cell,
    }
}

/// The runs whose figures are shown: those of the pairs where there are any, so that another day's
/// runs do not move a mean.
struct Used<'a> {
    baseline: Vec<&'a RunRecord>,
    candidate: Vec<&'a RunRecord>,
}

impl<'a> Used<'a> {
    fn of(runs: &CellRuns<'a>, blocks: &[(String, Block<'a>)]) -> Self {
        if blocks.is_empty() {
            let (baseline, candidate) = (runs.baseline.usable(), runs.candidate.usable());
            return Self { baseline, candidate };
        }
        Self {
            baseline: blocks.iter().flat_map(|(_, block)| block.baseline.clone()).collect(),
            candidate: blocks.iter().flat_map(|(_, block)| block.candidate.clone()).collect(),
        }
    }
}

struct Context<'a> {
    cell: &'a Cell,
    /// False when the sides were not asked the same requests.
    comparable: bool,
    /// True when the sides ran with different flags.
    changed: bool,
}

fn remarks(runs: &CellRuns<'_>, paired: bool, comparable: bool) -> Vec<String> {
    let mut remarks = Vec::new();
    let (baseline, candidate) = (runs.baseline.counts(), runs.candidate.counts());
    if !paired && baseline.used > 0 && candidate.used > 0 {
        remarks.push(NOT_INTERLEAVED.to_owned());
    }
    if !comparable {
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
    remarks
}

/// The row of failures; none when nothing failed on either side.
fn failures(context: &Context<'_>, runs: &CellRuns<'_>) -> Option<Row> {
    let metric = METRICS.iter().find(|metric| metric.name == FAILURES)?;
    let (before, after) = (runs.baseline.counts(), runs.candidate.counts());
    let kind = match (before.failed > 0, after.failed > 0) {
        (false, false) => return None,
        (false, true) if before.used > 0 => VerdictKind::NewFailure,
        (true, false) if after.used > 0 => VerdictKind::FixedFailure,
        _ => VerdictKind::Inconclusive,
    };
    let spread = |side: &cells::Side<'_>| summary::of_metric(metric, side.all.iter().copied());
    let (baseline, candidate) = (spread(&runs.baseline), spread(&runs.candidate));
    Some(row(context, metric, (baseline, candidate), None, kind))
}

/// The row of one metric; none when neither side knows it.
fn figure(
    context: &Context<'_>,
    metric: &'static Metric,
    used: &Used<'_>,
    blocks: &[(String, Block<'_>)],
) -> Option<Row> {
    let spread = |runs: &[&RunRecord]| summary::of_metric(metric, runs.iter().copied());
    let (baseline, candidate) = (spread(&used.baseline), spread(&used.candidate));
    if baseline.is_none() && candidate.is_none() {
        return None;
    }
    let estimate = context.comparable.then(|| estimate_of(metric, used, blocks)).flatten();
    let kind = if context.changed { VerdictKind::ChangedConfig } else { VerdictKind::Inconclusive };
    Some(row(context, metric, (baseline, candidate), estimate, kind))
}

fn estimate_of(
    metric: &Metric,
    used: &Used<'_>,
    blocks: &[(String, Block<'_>)],
) -> Option<Estimate> {
    let values = |runs: &[&RunRecord]| -> Vec<f64> {
        runs.iter().filter_map(|run| metric.value(run)).collect()
    };
    if blocks.is_empty() {
        let effect = estimate::unpaired(&values(&used.baseline), &values(&used.candidate))?;
        let alone =
            Estimate { pairs: 0, effect_pct: effect, interval_pct: None, p: None, mde_pct: None };
        return Some(alone);
    }
    // A block gives one log ratio, however many launches of a side it holds.
    let ratios: Vec<f64> = blocks
        .iter()
        .filter_map(|(_, block)| {
            let effect = estimate::unpaired(&values(&block.baseline), &values(&block.candidate))?;
            Some((effect / 100.0).ln_1p())
        })
        .collect();
    estimate::paired(&ratios)
}

fn row(
    context: &Context<'_>,
    metric: &'static Metric,
    (baseline, candidate): (Option<Summary>, Option<Summary>),
    estimate: Option<Estimate>,
    verdict: VerdictKind,
) -> Row {
    Row {
        title: metric.title,
        unit: metric.unit,
        better: metric.better,
        gates: metric.gates,
        baseline,
        candidate,
        verdict: Verdict {
            cell: context.cell.clone(),
            metric: metric.name.to_owned(),
            baseline: baseline.map(|spread| spread.mean),
            candidate: candidate.map(|spread| spread.mean),
            pairs: estimate.map_or(0, |estimate| estimate.pairs),
            effect_pct: estimate.map(|estimate| estimate.effect_pct),
            interval_pct: estimate.and_then(|estimate| estimate.interval_pct),
            p: estimate.and_then(|estimate| estimate.p),
            floor_pct: metric.floor_pct,
            mde_pct: estimate.and_then(|estimate| estimate.mde_pct),
            verdict,
            stage: Stage::Estimate,
            waiver: None,
        },
    }
}

#[cfg(test)]
mod tests;
