//! `diff.v1`: comparison of two releases, cell by cell, as `redline-results diff --format json`
//! prints it. Plain data: `registry` decides the verdicts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::alternation::OutputsCompared;
use crate::exit::Exit;
use crate::metric::{Better, Unit};
use crate::policy::Policy;
use crate::verdict::{ALL_SCENARIOS, Cell, Verdict};

/// Schema name of a comparison of two releases.
pub const SCHEMA: &str = "diff.v1";
/// Comparison of a candidate release with a baseline release, cell by cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// Name of this schema, always `diff.v1`.
    pub schema: String,
    /// Baseline: the release that the candidate is compared with.
    pub baseline: String,
    /// Candidate: the release that is judged against the baseline.
    pub candidate: String,
    /// Note on how to read the comparison, which every output format prints beside the figures.
    pub note: String,
    /// Decision on the candidate: ship, hold or inconclusive, with its reasons in one sentence.
    /// Comparisons that earlier versions wrote have none, and read as inconclusive.
    #[serde(default)]
    pub decision: Decision,
    /// Comparisons of the outputs for the fixed prompts, one entry for each engine, hardware, model
    /// and configuration whose cells are compared.
    #[serde(default)]
    pub outputs: Vec<Outputs>,
    /// Waivers that accept a regression, a new failure or changed outputs of the comparison.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waivers: Vec<AppliedWaiver>,
    /// Share of DEGRADED runs among the baseline's runs behind the figures.
    #[serde(default)]
    pub baseline_degraded: RunShare,
    /// Share of DEGRADED runs among the candidate's runs behind the figures.
    #[serde(default)]
    pub candidate_degraded: RunShare,
    /// Comparison policy that the verdicts follow.
    pub policy: Policy,
    /// Commits between baseline and candidate; null where the git history is not available.
    pub commits: Option<Commits>,
    /// Noise in percent, by campaign id and metric name: half-width of the confidence interval of
    /// the difference between runs of one and the same release in that campaign.
    pub noise_pct: BTreeMap<String, BTreeMap<String, f64>>,
    /// Rows of metrics that alternating comparisons judge over the scenarios of a model together, in
    /// whose cell the scenario is `all scenarios`: one for each metric that is release-blocking in all
    /// of them. Left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pooled: Vec<Row>,
    /// Comparisons of the cells in which both releases have runs, one entry for each cell.
    pub cells: Vec<CellDiff>,
    /// Combined effects of release-blocking metrics, each over the cells of an engine on one
    /// hardware. A metric has one where at least three cells measured it side by side; left out
    /// where no metric has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broad: Vec<Broad>,
    /// Cells that only the baseline has runs in.
    pub baseline_only: Vec<Cell>,
    /// Cells that only the candidate has runs in.
    pub candidate_only: Vec<Cell>,
    /// Number of retracted runs that the comparison left out.
    pub retracted: usize,
}

/// Decision that a comparison of releases supports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Decision {
    /// Verdict on the candidate: ship, hold or inconclusive.
    pub verdict: DecisionKind,
    /// Reasons for the verdict in one sentence, which begins with the verdict.
    pub sentence: String,
}

/// Verdict of a comparison on the candidate release.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum DecisionKind {
    /// Ship: every release-blocking metric is decided, none regressed or failed without a waiver,
    /// and changed outputs are explained.
    Ship,
    /// Inconclusive: a release-blocking metric is undecided, or nothing was compared.
    #[default]
    Inconclusive,
    /// Hold: a release-blocking metric regressed or failed without a waiver, or outputs changed
    /// without an explanation.
    Hold,
}

impl DecisionKind {
    /// Returns the verdict as one word: `ship`, `hold` or `inconclusive`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ship => "ship",
            Self::Hold => "hold",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// Comparison of both releases' outputs for the fixed prompts of the output check, with one model in
/// one configuration on one hardware.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outputs {
    /// Id of the engine whose outputs are compared.
    pub engine: String,
    /// Id of the hardware on which the outputs were computed.
    pub hardware: String,
    /// Id of the model whose outputs are compared.
    pub model: String,
    /// Slug of the server configuration, without the hash.
    pub config: String,
    /// Result of the comparison: same, differ or not compared.
    pub change: OutputsChange,
    /// Number of fixed prompts behind the compared outputs; null where nothing was compared.
    pub prompts: Option<u64>,
    /// Requests of an alternating comparison whose outputs were compared; left out where the outputs
    /// for the fixed prompts were.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<OutputsCompared>,
    /// Share of the reference's output tokens that the candidate chooses after the same tokens, from
    /// 0 to 1; null where it was not measured.
    pub agreement: Option<f64>,
    /// Name of the reference that `agreement` compares with; null where nothing was measured.
    pub reference: Option<String>,
    /// Explanation of outputs that differ, such as a default that moved or a waiver; null where
    /// nothing explains them, and for outputs that do not differ.
    pub explanation: Option<String>,
    /// Perplexity of the fixed text with the baseline and with the candidate; left out where a side
    /// did not measure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<(f64, f64)>,
    /// Releases whose own runs gave different outputs for the same prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unstable: Vec<String>,
}

impl Outputs {
    /// True for outputs that differ between the releases without an explanation.
    pub fn is_unexplained(&self) -> bool {
        self.change == OutputsChange::Differ && self.explanation.is_none()
    }
}

/// Result of comparing the outputs of two releases.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum OutputsChange {
    /// Same: every output of the candidate is one that the baseline also gave.
    Same,
    /// Not compared: a release has no hash of its outputs, or the hashes are of different prompts or
    /// come from different sources of token ids.
    NotCompared,
    /// Differ: the candidate gave an output that the baseline never gave.
    Differ,
}

/// Waiver that accepts a regression, a new failure or changed outputs of a comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AppliedWaiver {
    /// Id of the event that waives.
    pub event: String,
    /// Title of the metric that is waived, or `Outputs`.
    pub title: String,
    /// Scenarios of the waived verdicts, as `id@rev`; empty for outputs.
    pub scenarios: Vec<String>,
    /// Reason of the waiver, in the words of its author.
    pub reason: String,
    /// Person or group that accepted it; null where the waiver's event does not say.
    #[serde(default)]
    pub accepted_by: Option<String>,
    /// Time at which the waiver ends, RFC 3339 in UTC; null where it does not end.
    pub until: Option<String>,
}

/// Number of runs, and how many of them have a property.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunShare {
    /// Number of runs that have the property.
    pub count: usize,
    /// Number of all runs.
    pub of: usize,
}

/// Effect of one release-blocking metric over the cells of an engine on a hardware that were
/// measured side by side with the same flags, with equal weight for each cell. It is informative
/// and leads to no verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Broad {
    /// Id of the engine whose cells are combined.
    pub engine: String,
    /// Id of the hardware on which the combined cells were measured.
    pub hardware: String,
    /// Name of the metric whose effects in the cells are combined.
    pub metric: String,
    /// Title of the metric as pages show it.
    pub title: String,
    /// Number of cells whose effects are combined.
    pub cells: u32,
    /// Geometric mean over the cells of candidate / baseline, minus one, in percent.
    pub effect_pct: f64,
    /// Two-sided t interval of `effect_pct`, in percent, from one effect for each cell, at the
    /// policy's confidence, such as 95 %; null where it cannot be computed.
    pub interval_pct: Option<(f64, f64)>,
    /// Two-sided p-value of the hypothesis that the metric did not shift over the combined cells;
    /// null where it cannot be computed.
    pub p: Option<f64>,
}

/// Commit hashes of the baseline and the candidate release, and the list of the commits between
/// them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Commits {
    /// Commit hash of the baseline release.
    pub baseline: String,
    /// Commit hash of the candidate release.
    pub candidate: String,
    /// Commits between baseline and candidate, newest first; commits that touch no file that the
    /// engine is built from are left out.
    pub changes: Vec<Commit>,
}

/// Commit of the engine's git history between baseline and candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Commit {
    /// Abbreviated hash of the commit.
    pub id: String,
    /// First line of the commit message.
    pub subject: String,
}

/// Comparison of baseline and candidate in one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CellDiff {
    /// Cell (engine, hardware, model, configuration, scenario) that is compared.
    pub cell: Cell,
    /// Ids of the campaigns in which both releases ran side by side; empty where they never did.
    pub campaigns: Vec<String>,
    /// Id of the newest campaign in which both releases ran side by side, whose alternating
    /// comparison decides the verdicts, or whose pairs of runs do; null where they never did.
    pub judged: Option<String>,
    /// Numbers of the baseline's runs in the cell, by outcome.
    pub baseline_runs: SideCounts,
    /// Numbers of the candidate's runs in the cell, by outcome.
    pub candidate_runs: SideCounts,
    /// Server flags that both releases report, with no value in common, and that the command line
    /// of a server sets. Where there is such a flag, the cell is not judged: the verdict on each
    /// metric except failed requests is a changed configuration.
    pub changed: Vec<FlagChange>,
    /// Server flags that both releases report, with no value in common, and that no command line of
    /// a server sets: defaults that moved between the releases. The cell is judged nevertheless,
    /// and its effects may be due to these flags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub moved: Vec<FlagChange>,
    /// Drift of the machine: how the baseline's output throughput differs from its previous campaign;
    /// left out where there is none, or the difference is within the metric's minimum effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// Remarks on the comparison of the cell, as lower-case phrases that are shown beside its
    /// table.
    pub remarks: Vec<String>,
    /// Command line that measures both releases in this cell again.
    pub command: Vec<String>,
    /// Rows of the cell's table: one for each metric that either release measured; that of failed
    /// requests only where a run failed.
    pub rows: Vec<Row>,
}

/// Difference of a baseline from its own earlier campaign, in which no release changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Drift {
    /// Id of the earlier campaign.
    pub campaign: String,
    /// Difference of the baseline's output throughput from that of the earlier campaign, in percent.
    pub effect_pct: f64,
}

/// Numbers of runs of one release in a cell, by outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SideCounts {
    /// Number of the release's runs in the cell that can be compared: all requests were answered,
    /// and the run is not INVALID.
    pub used: usize,
    /// Number of the release's runs in the cell that failed or in which requests failed, without
    /// the runs that `lost` counts.
    pub failed: usize,
    /// Number of the release's runs in the cell that were skipped, or failed because of the machine
    /// or the scheduler and not because of the engine.
    pub lost: usize,
    /// Number of the release's runs in the cell that are left out because they are INVALID.
    pub invalid: usize,
    /// Number of failed requests over all runs of the release in the cell.
    pub requests_failed: u64,
}

/// Flag whose value differs between baseline and candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlagChange {
    /// Name of the flag, without leading dashes.
    pub flag: String,
    /// Values of the flag in the baseline's runs, each as JSON text.
    pub baseline: Vec<String>,
    /// Values of the flag in the candidate's runs, each as JSON text.
    pub candidate: Vec<String>,
}

/// Row of a comparison: one metric of one cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// Title of the metric as pages show it.
    pub title: String,
    /// Unit of the values of the row's metric.
    pub unit: Unit,
    /// Direction in which the metric improves.
    pub better: Better,
    /// True when a regression of this metric blocks a release in this cell.
    pub gates: bool,
    /// True for a large change of a metric that is not release-blocking: its interval excludes zero,
    /// and its effect is at least ten times the metric's minimum effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub large: bool,
    /// Summary of the metric over the baseline's runs that the row compares; null where none of
    /// them measured the metric.
    pub baseline: Option<Summary>,
    /// Summary of the metric over the candidate's runs that the row compares; null where none of
    /// them measured the metric.
    pub candidate: Option<Summary>,
    /// Verdict on this metric of this cell.
    pub verdict: Verdict,
}

/// Summary of one metric over repeated runs, or over the starts of a gate: number, median, smallest,
/// largest and mean value, and coefficient of variation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Number of runs, or of starts, that measured the metric.
    pub n: usize,
    /// Median of the metric's values over the runs, in the metric's unit.
    pub median: f64,
    /// Smallest of the metric's values over the runs, in the metric's unit.
    pub min: f64,
    /// Largest of the metric's values over the runs, in the metric's unit.
    pub max: f64,
    /// Mean of the metric's values over the runs, in the metric's unit.
    pub mean: f64,
    /// Coefficient of variation of the metric's values: sample standard deviation / absolute mean;
    /// null for one run or a mean of zero.
    pub cv: Option<f64>,
}

impl Diff {
    /// Iterates over the rows (one metric of one cell) of all cells of the comparison, in the order
    /// of the cells and then of their tables.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.pooled.iter().chain(self.cells.iter().flat_map(|cell| &cell.rows))
    }

    /// Returns the rows that judge the scenarios of the model and configuration of `cell` together.
    pub fn pooled_of(&self, cell: &Cell) -> impl Iterator<Item = &Row> {
        let all = Cell { scenario: ALL_SCENARIOS.to_owned(), ..cell.clone() };
        self.pooled.iter().filter(move |row| row.verdict.cell == all)
    }

    /// Returns the exit code of the comparison: `Worse` for hold, `Inconclusive` for inconclusive and
    /// `Well` for ship.
    pub fn exit(&self) -> Exit {
        match self.decision.verdict {
            DecisionKind::Ship => Exit::Well,
            DecisionKind::Inconclusive => Exit::Inconclusive,
            DecisionKind::Hold => Exit::Worse,
        }
    }
}
