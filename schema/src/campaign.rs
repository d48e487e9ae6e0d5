//! `campaign.v1`: one release-bench; its plan, the order of its runs, its noise and verdicts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::lab::LabFile;
use crate::run::{Absent, RunRecord};
use crate::verdict::{Stage, Verdict};

/// The schema name that a campaign record carries.
pub const SCHEMA: &str = "campaign.v1";

/// `campaign.v1`: a campaign as it was planned, and what became of it; its runs have records of
/// their own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignRecord {
    /// Always `campaign.v1`.
    pub schema: String,
    /// ULID.
    pub id: String,
    /// SHA-256 over the canonical JSON of the record without this field.
    pub record_sha256: String,
    /// The command as it was typed, without paths.
    pub command: Vec<String>,
    /// The releases that ran interleaved, baseline first; one entry without a baseline.
    pub releases: Vec<String>,
    /// Id of the machine.
    pub hardware: String,
    /// In the order in which the runs were launched.
    pub plan: Vec<PlannedRun>,
    /// By which it was judged; null where nothing was.
    pub policy: Option<Policy>,
    /// Metric to half-width in percent of the A/A blocks.
    pub noise_floor: Option<BTreeMap<String, f64>>,
    /// In the order of cells and metrics.
    pub verdicts: Vec<Verdict>,
    /// What was expected and what was used: `wall_us_expected`, `wall_us`.
    pub budget: BTreeMap<String, Value>,
    /// What it was launched to answer, where that was more than which release is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<Box<CampaignLab>>,
    /// How it ended.
    pub status: CampaignStatus,
    /// Why each null is one.
    pub absent: Absent,
}

/// The lab that a campaign answers, whole: with the campaign's runs and its policy it gives the same
/// rounds and the same conclusion for ever.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignLab {
    /// Stem of the file under `suite/labs/`.
    pub id: String,
    /// Of the file's bytes.
    pub sha256: String,
    /// What it says.
    pub file: LabFile,
    /// Launches that it was allowed.
    pub runs_max: u32,
}

/// One run of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedRun {
    /// ULID of the run's record.
    pub run: String,
    /// The engine's id.
    pub engine: String,
    /// Its version.
    pub release: String,
    /// The model's id.
    pub model: String,
    /// The scenario's id.
    pub scenario: String,
    /// From 0; its runs are next to each other in time.
    pub block: u32,
    /// From 0, in the order of launches.
    pub position: u32,
    /// `confirm` for a launch that confirms what a screen found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
}

impl PlannedRun {
    /// The place in its campaign's plan that a record says it had; that of a run of no campaign is
    /// the first.
    #[must_use]
    pub fn of(record: &RunRecord) -> Self {
        let slot = record.campaign.as_ref();
        Self {
            run: record.id.clone(),
            engine: record.engine.name.clone(),
            release: record.engine.release.clone(),
            model: record.model.id.clone(),
            scenario: record.scenario.id.clone(),
            block: slot.map_or(0, |slot| slot.block),
            position: slot.map_or(0, |slot| slot.position),
            stage: slot.and_then(|slot| slot.stage),
        }
    }
}

/// The policy that a comparison is made by: its file's id, revision and hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Policy {
    /// Stem of the file under `suite/policies/`.
    pub id: String,
    /// Revision of that file.
    pub rev: u32,
    /// Of its content.
    pub sha256: String,
}

/// Whether every run of a campaign has figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CampaignStatus {
    /// Every run has figures.
    #[default]
    Complete,
    /// Some runs failed; their records say how.
    Partial,
}
