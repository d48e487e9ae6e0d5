//! `campaign.v1`: record of one campaign (release-bench, lab or GPU validation): its runs, noise
//! and verdicts.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::alternation::AlternatingComparison;
use crate::lab::LabFile;
use crate::policy::Policy;
use crate::run::RunRecord;
use crate::verdict::{Stage, Verdict};

/// Schema name of a campaign record.
pub const SCHEMA: &str = "campaign.v1";

/// `campaign.v1`: a campaign (release-bench, lab or GPU validation) with its runs and its outcome.
/// The figures of a run are in a `run.v1` record of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignRecord {
    /// Name of this schema, always `campaign.v1`.
    pub schema: String,
    /// ULID of the campaign, assigned when it is planned.
    pub id: String,
    /// SHA-256 of the record's canonical JSON without this field, lower-case hex.
    pub record_sha256: String,
    /// Words of the command line that started the campaign or, for a GPU validation, collected its
    /// results; paths are cut to their last part, and addresses and names of host and user are
    /// replaced.
    pub command: Vec<String>,
    /// Releases that ran, each once: the baseline first where there is one, then the others in the
    /// order of the campaign's variants.
    pub releases: Vec<String>,
    /// Id of the hardware that the campaign ran on.
    pub hardware: String,
    /// Runs of the campaign, each listed once: those of a release-bench or lab ordered by id, those
    /// of a GPU validation in the order of its stages.
    pub plan: Vec<PlannedRun>,
    /// Seed of the generator (SplitMix64) by which the order of the runs on each server was drawn,
    /// below 2^53; left out where the order was not random, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_order_seed: Option<u64>,
    /// Comparison policy that the verdicts or the lab's decisions follow; null for a campaign that
    /// neither compared releases nor was a lab.
    pub policy: Option<Policy>,
    /// Noise of each metric in percent, by metric name: half-width of the confidence interval of
    /// the difference between runs of one and the same release in this campaign. Null where no
    /// releases were compared or no release ran often enough to show any.
    pub noise_floor: Option<BTreeMap<String, f64>>,
    /// Verdicts on release-blocking metrics in the cells that were judged by this campaign's runs,
    /// ordered by cell and then as tables order metrics; empty where no releases were compared.
    pub verdicts: Vec<Verdict>,
    /// Durations of the campaign in microseconds, each summed over runs or jobs even where several
    /// ran at once: `wall_us` is the time spent and, except for a GPU validation,
    /// `wall_us_expected` the time that was estimated before the start.
    pub budget: BTreeMap<String, Value>,
    /// Lab that the campaign carried out; left out for other campaigns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<Box<CampaignLab>>,
    /// Alternating comparisons of the campaign's baseline and candidate, one for each model and
    /// scenario; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alternations: Vec<AlternatingComparison>,
    /// Status of the campaign: complete, or partial where a run failed, lost requests, is INVALID
    /// or has no record.
    pub status: CampaignStatus,
    /// Reason for each null field, by its dotted path, in records of suites before v0.11; left out
    /// since.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub absent: BTreeMap<String, String>,
}

impl CampaignRecord {
    /// True for a GPU validation, whose runs were measured with a bundle.
    pub fn is_validation(&self) -> bool {
        self.command.first().is_some_and(|word| word == "gpu-validation")
    }
}

/// Lab file that a campaign carried out, as a full copy, so that the campaign's runs and policy
/// always give the same rounds and the same conclusion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CampaignLab {
    /// Id of the lab: stem of its file under `suite/labs/`.
    pub id: String,
    /// SHA-256 of the lab file's bytes, lower-case hex.
    pub sha256: String,
    /// Content of the lab file, parsed.
    pub file: LabFile,
    /// Maximum number of runs that the lab was allowed to start.
    pub runs_max: u32,
}

/// Planned run: one server start that measures one scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedRun {
    /// ULID of the planned run, which is also the id of its run record.
    pub run: String,
    /// Id of the engine that the planned run measures.
    pub engine: String,
    /// Release of the engine that the planned run measures, such as `v0.10.0`.
    pub release: String,
    /// Id of the model that the planned run's server serves.
    pub model: String,
    /// Id of the scenario that the planned run measures.
    pub scenario: String,
    /// Number of the run's block within the campaign, from 0; runs of one block are next to each
    /// other in time.
    pub block: u32,
    /// Position of the run within its block, from 0, in the order in which servers are started.
    pub position: u32,
    /// Stage of the comparison: `confirm` for a run that confirms what the screen found; left out
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
}

impl PlannedRun {
    /// Builds the entry that a campaign record's list of planned runs has for the run of a run
    /// record: its ids, and its block, position and stage. Block and position are 0 for a run
    /// without a campaign.
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

/// Status of a campaign: complete, or partial where one of its runs failed, lost requests, is
/// INVALID or has no record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum CampaignStatus {
    /// Complete: every run of the campaign answered all its requests, and none is INVALID.
    #[default]
    Complete,
    /// Partial: a run of the campaign failed, lost requests, is INVALID or has no record.
    Partial,
}
