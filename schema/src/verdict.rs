//! Verdicts: what a comparison of two releases concludes about one metric of one cell.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Scenario in the cell of a verdict about scenarios of a model together.
pub const ALL_SCENARIOS: &str = "all scenarios";

/// Cell of a comparison: engine, hardware, model, configuration and scenario, which must be equal
/// for baseline and candidate.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Cell {
    /// Id of the engine of the cell's runs.
    pub engine: String,
    /// Id of the hardware of the cell's runs.
    pub hardware: String,
    /// Id of the model that the cell's runs serve.
    pub model: String,
    /// Slug of the server configuration of the cell's runs, without the hash of the configuration.
    pub config: String,
    /// Scenario of the cell's runs, as `id@rev`.
    pub scenario: String,
}

impl Cell {
    /// Returns the cell as `engine/hardware/model/config/scenario@rev`, the form in events and
    /// commands.
    pub fn key(&self) -> String {
        self.parts().join("/")
    }

    /// True when each part of `pattern` equals the cell's part or is `*`.
    pub fn matches(&self, pattern: &str) -> bool {
        let parts: Vec<&str> = pattern.split('/').collect();
        let equal = |(part, own): (&&str, &str)| *part == "*" || *part == own;
        parts.len() == 5 && parts.iter().zip(self.parts()).all(equal)
    }

    fn parts(&self) -> [&str; 5] {
        [&self.engine, &self.hardware, &self.model, &self.config, &self.scenario]
    }
}

/// True for a cell pattern: five non-empty parts `engine/hardware/model/config/scenario@rev`, with
/// `*` for any.
pub fn is_cell_pattern(pattern: &str) -> bool {
    let parts: Vec<&str> = pattern.split('/').collect();
    parts.len() == 5 && parts.iter().all(|part| !part.is_empty())
}

/// Verdict on one metric of one cell, baseline against candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Cell that the verdict is about.
    pub cell: Cell,
    /// Name of the metric that the verdict is about.
    pub metric: String,
    /// Mean of the metric's values over the baseline's runs behind the verdict, in the metric's
    /// unit; null where none measured the metric.
    pub baseline: Option<f64>,
    /// Mean of the metric's values over the candidate's runs behind the verdict, in the metric's
    /// unit; null where none measured the metric.
    pub candidate: Option<f64>,
    /// Number of pairs from which the effect is computed: of runs, or in an alternating comparison
    /// of slices; 0 where no pairs were compared.
    pub pairs: u32,
    /// Effect in percent: geometric mean of candidate / baseline over the pairs of runs, or over the
    /// starts of an alternating comparison, minus one; in a cell without pairs, ratio of the
    /// geometric means over all usable runs, minus one. Null where no ratio can be computed, and for
    /// failed requests.
    pub effect_pct: Option<f64>,
    /// t interval of the effect in percent, from the log ratios of the pairs of runs, or of the
    /// starts of an alternating comparison, at the policy's confidence, such as 95 %; in an
    /// alternating comparison, over all its looks together. Null with fewer than two of them or
    /// without an effect.
    pub interval_pct: Option<(f64, f64)>,
    /// Interval of the effect in percent that decides in an alternating comparison whether the metric
    /// changed: its error probability is divided over all release-blocking metrics and looks of the
    /// campaign, so that it is wider than `interval_pct`. A change is called where it excludes zero.
    /// Left out where the verdict comes from pairs of runs, for other metrics, and where the starts are
    /// too few.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deciding_interval_pct: Option<(f64, f64)>,
    /// Two-sided p-value of the hypothesis that there is no effect; null with fewer than two pairs,
    /// without an effect, or in an alternating comparison.
    pub p: Option<f64>,
    /// One-sided p-value of the confirmation, adjusted by Holm over all suspected changes of the
    /// campaign in the same direction; left out without a confirmation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_adjusted: Option<f64>,
    /// Cliff's delta, from -1 to 1: over all combinations of a baseline run and a candidate run,
    /// the share with the larger value at the candidate minus the share with the smaller one. It is
    /// shown and does not affect the verdict; left out where it cannot be computed, as for a single
    /// run of a release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cliffs_delta: Option<f64>,
    /// Minimum effect of the metric in percent: the screen suspects no smaller effect, and a
    /// confirmation or an alternating comparison must measure at least half of this minimum.
    pub floor_pct: f64,
    /// Noise in percent: half-width of the confidence interval of the difference between runs of
    /// one and the same release in this campaign. The screen suspects no smaller effect, and a
    /// confirmation must measure at least half of the noise. Left out where no release ran often
    /// enough to show any, or the metric is not judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_pct: Option<f64>,
    /// Minimum detectable effect in percent: the smallest effect that as many pairs of runs, or
    /// starts of an alternating comparison, with the same scatter would show with the power of the
    /// policy, such as 80 %; null with fewer than two of them or without an effect.
    pub mde_pct: Option<f64>,
    /// Conclusion about the metric, such as regressed, improved, unchanged or inconclusive.
    pub verdict: VerdictKind,
    /// Stage that the judgement of the metric reached: estimate, screen, confirmation or alternating
    /// comparison.
    pub stage: Stage,
    /// Extent of the alternating comparison behind the verdict; left out where the verdict comes
    /// from pairs of runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alternation: Option<Extent>,
    /// Scenarios that the verdict is about, where it is about several together; left out for a verdict
    /// about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together: Option<Together>,
    /// True when the screen suspected a change, which a confirmation must then confirm or refute.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspected: bool,
    /// Waiver that accepts the regression or new failure of this verdict, as text with its reason,
    /// end and event id; null where none applies.
    pub waiver: Option<String>,
}

impl Verdict {
    /// True for a verdict about scenarios of a model together.
    pub fn is_together(&self) -> bool {
        self.cell.scenario == ALL_SCENARIOS
    }

    /// Returns the scenario that the verdict is about, or how many of the model's scenarios it is about
    /// together: `all 3 scenarios together`, `5 of 7 scenarios together`.
    pub fn scenario(&self) -> String {
        match &self.together {
            None => self.cell.scenario.clone(),
            Some(Together { scenarios, of }) if scenarios.len() == *of => {
                format!("all {of} scenarios together")
            }
            Some(Together { scenarios, of }) => {
                format!("{} of {of} scenarios together", scenarios.len())
            }
        }
    }

    /// True when the verdict is a regression or a new failure, and is not waived.
    pub fn fails(&self) -> bool {
        self.waiver.is_none()
            && matches!(self.verdict, VerdictKind::Regressed | VerdictKind::NewFailure)
    }
}

/// Conclusion of a comparison about one metric of one cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// Regressed: the candidate is worse beyond chance by at least half the minimum effect, in an
    /// alternating comparison; or the screen of pairs of runs suspected it, and the confirmation
    /// measured at least half the minimum effect and at least half the noise.
    Regressed,
    /// Improved: as for a regression, in the other direction.
    Improved,
    /// Unchanged: two one-sided tests at the policy's error probability show that the effect lies
    /// within the minimum effect (the 90 % interval does, for a probability of 5 %).
    Unchanged,
    /// Inconclusive: the runs do not suffice for a conclusion, or the metric is shown and not
    /// judged.
    Inconclusive,
    /// Changed configuration: a flag that a server's command line sets has different values at the
    /// baseline and at the candidate, so the metric is not judged.
    ChangedConfig,
    /// New failure: runs or requests failed at the candidate and none did at the baseline, and the
    /// baseline has usable runs.
    NewFailure,
    /// Fixed failure: runs or requests failed at the baseline and none did at the candidate, and
    /// the candidate has usable runs.
    FixedFailure,
}

/// Scenarios of a model that a verdict of an alternating comparison is about together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Together {
    /// Scenarios whose starts are judged, as `id@rev`, in the order of time: those that had ended when
    /// the metric was decided, or all where it is undecided.
    pub scenarios: Vec<String>,
    /// Number of scenarios of the model that the campaign compared in turns.
    pub of: usize,
}

/// Extent of an alternating comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Extent {
    /// Number of fresh starts of both servers whose figures are judged.
    pub starts: u32,
    /// Number of slices in these starts, two for each pair.
    pub slices: u32,
    /// Time that the comparison had taken when the metric was decided, or has taken where it is
    /// undecided, in microseconds.
    pub spent_us: u64,
    /// Time that the comparison was allowed to take, in microseconds.
    pub budget_us: u64,
}

/// Stage that the judgement of a metric reached, or that a run belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Estimate: the effect and its interval are stated, and no change is claimed.
    Estimate,
    /// Screen: the first pairs, which are run in every cell.
    Screen,
    /// Confirmation: fresh pairs, which are run in cells with a suspected change.
    Confirm,
    /// Alternating comparison: both servers of a start answer slices of the requests in turns.
    Alternate,
}
