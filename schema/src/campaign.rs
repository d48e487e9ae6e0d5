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
    pub id: String,
    pub record_sha256: String,
    /// The command as it was typed, without paths.
    pub command: Vec<String>,
    /// The releases that ran interleaved, baseline first; one entry without a baseline.
    pub releases: Vec<String>,
    pub hardware: String,
    /// In the order in which the runs were launched.
    pub plan: Vec<PlannedRun>,
    pub policy: Option<Policy>,
    /// Metric to half-width in percent of the A/A blocks.
    pub noise_floor: Option<BTreeMap<String, f64>>,
    pub verdicts: Vec<Verdict>,
    /// What was expected and what was used: `wall_us_expected`, `wall_us`.
    pub budget: BTreeMap<String, Value>,
    /// What it was launched to answer, where that was more than which release is faster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<Box<CampaignLab>>,
    pub status: CampaignStatus,
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
    pub file: LabFile,
    /// Launches that it was allowed.
    pub runs_max: u32,
}

/// One run of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedRun {
    /// ULID of the run's record.
    pub run: String,
    pub engine: String,
    pub release: String,
    pub model: String,
    pub scenario: String,
    pub block: u32,
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
    pub id: String,
    pub rev: u32,
    pub sha256: String,
}

/// Whether every run of a campaign has figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CampaignStatus {
    #[default]
    Complete,
    /// Some runs failed; their records say how.
    Partial,
}
