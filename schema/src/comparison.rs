//! `diff.v1`: two releases compared, cell by cell, as `redline-results diff --format json` prints
//! it. What a verdict rests on is decided in `registry`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::campaign::Policy;
use crate::exit::Exit;
use crate::metric::{Better, Unit};
use crate::verdict::{Cell, Verdict, VerdictKind};

/// The schema name that a comparison carries.
pub const SCHEMA: &str = "diff.v1";

/// Two releases compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// Always `diff.v1`.
    pub schema: String,
    /// The release that is compared with.
    pub baseline: String,
    /// The release that is judged.
    pub candidate: String,
    /// What every output says about its figures.
    pub note: String,
    /// The policy by which figures are judged.
    pub policy: Policy,
    /// What changed in the engine between the two; `None` where the history is not at hand.
    pub commits: Option<Commits>,
    /// Campaign to metric to the effect in percent that a release showed against itself.
    pub noise_pct: BTreeMap<String, BTreeMap<String, f64>>,
    /// Cells that both releases have runs in, in order.
    pub cells: Vec<CellDiff>,
    /// What each metric did over all cells of a machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broad: Vec<Broad>,
    /// Cells in which the candidate was not run.
    pub baseline_only: Vec<Cell>,
    /// Cells in which the baseline was not run.
    pub candidate_only: Vec<Cell>,
    /// Retracted runs that were left out.
    pub retracted: usize,
}

/// One metric over all cells of an engine on a hardware that were measured side by side, each cell
/// counted once. It informs and is no verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Broad {
    /// The engine's id.
    pub engine: String,
    /// The hardware's id.
    pub hardware: String,
    /// The metric's name.
    pub metric: String,
    /// As pages write it.
    pub title: String,
    /// How many there are.
    pub cells: u32,
    /// Geometric mean over the cells of candidate / baseline, minus one, in percent.
    pub effect_pct: f64,
    /// 95 % t interval over the cells, in percent.
    pub interval_pct: Option<(f64, f64)>,
    /// Two-sided p of no shift.
    pub p: Option<f64>,
}

/// The commits that lead from the baseline to the candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Commits {
    /// Of the release that is compared with.
    pub baseline: String,
    /// Of the release that is judged.
    pub candidate: String,
    /// Those that touch what the engine is built from, the newest first.
    pub changes: Vec<Commit>,
}

/// One commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Commit {
    /// Its hash, shortened.
    pub id: String,
    /// First line of its message.
    pub subject: String,
}

/// One cell of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellDiff {
    /// Which.
    pub cell: Cell,
    /// Campaigns in which both releases ran side by side; empty when they never did.
    pub campaigns: Vec<String>,
    /// The newest of them, whose pairs are judged.
    pub judged: Option<String>,
    /// Of the release that is compared with.
    pub baseline_runs: SideCounts,
    /// Of the release that is judged.
    pub candidate_runs: SideCounts,
    /// Flags that both sides know, that differ, and that a command of either side names: such a cell
    /// is not judged.
    pub changed: Vec<FlagChange>,
    /// Flags that both sides know, that differ, and that no command names: defaults that the release
    /// moved. Such a cell is judged, and what it gained or lost may be theirs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<FlagChange>,
    /// What a reader has to know about the figures.
    pub remarks: Vec<String>,
    /// The command that measures both releases in this cell again.
    pub command: Vec<String>,
    /// One for each metric that either side knows.
    pub rows: Vec<Row>,
}

/// How many runs of a side ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SideCounts {
    /// Runs whose figures are used.
    pub used: usize,
    /// Runs that failed, or in which requests failed.
    pub failed: usize,
    /// Runs that the machine and not the engine failed, or that were skipped.
    pub lost: usize,
    /// Runs whose client is not to be believed.
    pub invalid: usize,
    /// Failed requests over all runs.
    pub requests_failed: u64,
}

/// A flag whose value differs between the sides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlagChange {
    /// Without dashes in front.
    pub flag: String,
    /// The values that the baseline's runs had, as JSON.
    pub baseline: Vec<String>,
    /// The values that the candidate's runs had, as JSON.
    pub candidate: Vec<String>,
}

/// One metric of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// As pages write the metric's name.
    pub title: String,
    /// Of the figures.
    pub unit: Unit,
    /// Which way.
    pub better: Better,
    /// True where the metric gates a release in this cell.
    pub gates: bool,
    /// Null where no run of it knows the figure.
    pub baseline: Option<Summary>,
    /// Null where no run of it knows the figure.
    pub candidate: Option<Summary>,
    /// What is said of it.
    pub verdict: Verdict,
}

/// Spread of one figure over repeats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Number of repeats that know the figure.
    pub n: usize,
    /// Over the repeats, in the metric's unit.
    pub median: f64,
    /// The least of them.
    pub min: f64,
    /// The greatest of them.
    pub max: f64,
    /// Their mean.
    pub mean: f64,
    /// Sample standard deviation over the mean; `None` for one repeat or a mean of zero.
    pub cv: Option<f64>,
}

impl Diff {
    /// Every row, in order.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.cells.iter().flat_map(|cell| &cell.rows)
    }

    /// The answer: "worse" for a regression or a new failure that nobody waived; inconclusive where
    /// a metric that gates was not judged, or nothing was compared; else well.
    #[must_use]
    pub fn exit(&self) -> Exit {
        let gates = || self.rows().filter(|row| row.gates).map(|row| &row.verdict);
        if gates().any(Verdict::fails) {
            return Exit::Worse;
        }
        let open = |kind| matches!(kind, VerdictKind::Inconclusive | VerdictKind::ChangedConfig);
        if gates().any(|verdict| open(verdict.verdict)) || gates().next().is_none() {
            Exit::Inconclusive
        } else {
            Exit::Well
        }
    }
}
