//! What a comparison of two releases says about one metric of one cell.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is compared: everything that must be equal on both sides.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct Cell {
    /// The engine's id.
    pub engine: String,
    /// The hardware's id.
    pub hardware: String,
    /// The model's id.
    pub model: String,
    /// Configuration slug without its hash.
    pub config: String,
    /// `id@rev`.
    pub scenario: String,
}

impl Cell {
    /// `engine/hardware/model/config/scenario@rev`, as events and commands name a cell.
    #[must_use]
    pub fn key(&self) -> String {
        self.parts().join("/")
    }

    /// True when each part of `pattern` is the cell's, or `*`.
    #[must_use]
    pub fn matches(&self, pattern: &str) -> bool {
        let parts: Vec<&str> = pattern.split('/').collect();
        let equal = |(part, own): (&&str, &str)| *part == "*" || *part == own;
        parts.len() == 5 && parts.iter().zip(self.parts()).all(equal)
    }

    fn parts(&self) -> [&str; 5] {
        [&self.engine, &self.hardware, &self.model, &self.config, &self.scenario]
    }
}

/// True for five parts of which none is empty: `engine/hardware/model/config/scenario@rev`, with
/// `*` for any.
#[must_use]
pub fn is_cell_pattern(pattern: &str) -> bool {
    let parts: Vec<&str> = pattern.split('/').collect();
    parts.len() == 5 && parts.iter().all(|part| !part.is_empty())
}

/// One metric of one cell, baseline against candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Where.
    pub cell: Cell,
    /// Its name.
    pub metric: String,
    /// Mean over the runs of the baseline, in the metric's unit.
    pub baseline: Option<f64>,
    /// The same of the candidate.
    pub candidate: Option<f64>,
    /// Pairs of launches behind the interval.
    pub pairs: u32,
    /// Geometric mean of candidate / baseline, minus one, in percent.
    pub effect_pct: Option<f64>,
    /// 95 % t interval on the log ratios, in percent.
    pub interval_pct: Option<(f64, f64)>,
    /// Two-sided p of no effect.
    pub p: Option<f64>,
    /// Of a confirmation: one-sided p, adjusted by Holm over the campaign's candidates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_adjusted: Option<f64>,
    /// Cliff's delta, from -1 to 1: over all couples of a baseline's and a candidate's launch, the
    /// share in which the candidate's figure is the larger less the share in which it is the
    /// smaller. It is shown, and part of no verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cliffs_delta: Option<f64>,
    /// The metric's own floor: nothing smaller is called a change.
    pub floor_pct: f64,
    /// What a release showed against itself in this campaign; nothing smaller is called a change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub noise_pct: Option<f64>,
    /// Smallest effect that these pairs would have found with 80 % power.
    pub mde_pct: Option<f64>,
    /// What is said.
    pub verdict: VerdictKind,
    /// How far the judgement went.
    pub stage: Stage,
    /// True where the screen found a change; a confirmation bears it out or does not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub suspected: bool,
    /// Why a verdict that would fail a release is accepted, and until when.
    pub waiver: Option<String>,
}

impl Verdict {
    /// True where the verdict fails a release.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.waiver.is_none()
            && matches!(self.verdict, VerdictKind::Regressed | VerdictKind::NewFailure)
    }
}

/// What is said of a metric of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// Worse by the floor or more, and not by chance.
    Regressed,
    /// Better by the floor or more, and not by chance.
    Improved,
    /// The 90 % interval lies inside the floor.
    Unchanged,
    /// The launches cannot tell.
    Inconclusive,
    /// The sides ran with other flags.
    ChangedConfig,
    /// Requests failed that did not before.
    NewFailure,
    /// Requests no longer fail.
    FixedFailure,
}

/// How far the judgement went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Effect and interval only; nothing is claimed from them.
    Estimate,
    /// The first pairs, in every cell.
    Screen,
    /// Fresh launches of a cell with a suspect.
    Confirm,
}
