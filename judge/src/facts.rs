//! The facts of a run that lists, checks and rules over several runs need, without its figures.

use schema::canonical::sha256_hex;
use schema::path::config_slug;
use schema::run::{Level, RunRecord, Status, ValidityVerdict};
use serde::{Deserialize, Serialize};

/// What lists and checks ask of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// The engine's id.
    pub engine: String,
    /// The engine's version.
    pub release: String,
    /// Id of the hardware.
    pub hardware: String,
    /// The model's id.
    pub model: String,
    /// Slug of the configuration, without its hash.
    pub config: String,
    /// `id@rev`.
    pub scenario: String,
    /// How it ended, by the word of its record.
    pub status: String,
    /// The verdict on its client, by the word of its record.
    pub validity: String,
    /// Hash of all its figures; `None` for a run without any.
    pub figures_sha256: Option<String>,
    /// Id of its campaign.
    pub campaign: Option<String>,
    /// `None` for a run that failed, or is not to be believed.
    pub output_tokens_per_s: Option<f64>,
    /// Quality rules that it breaks.
    pub broken: Vec<Broken>,
}

/// A quality rule that a run breaks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Broken {
    /// Id of the rule.
    pub rule: String,
    /// Level of the rule: error or warning.
    pub level: Level,
    /// Message of the request's failure.
    pub detail: Option<String>,
    /// True when the rule came after the run was judged.
    pub later: bool,
}

/// What lists and checks ask of `record`.
#[must_use]
pub fn run_facts(record: &RunRecord) -> RunFacts {
    let figures = record.metrics.as_ref().map(|metrics| (metrics, &record.histograms));
    let stored = record.checks.iter().map(|check| (check.clone(), false));
    let later = crate::findings_later(record).into_iter().map(|check| (check, true));
    let broken = stored.chain(later).filter(|(check, _)| !check.ok);
    let believed =
        record.status == Status::Ok && record.validity.verdict != ValidityVerdict::Invalid;
    let metrics = record.metrics.as_ref().filter(|_| believed);
    RunFacts {
        engine: record.engine.name.clone(),
        release: record.engine.release.clone(),
        hardware: record.hardware.id.clone(),
        model: record.model.id.clone(),
        config: config_slug(record),
        scenario: format!("{}@{}", record.scenario.id, record.scenario.rev),
        status: record.status.name().to_owned(),
        validity: record.validity.verdict.name().to_owned(),
        figures_sha256: figures.and_then(|figures| {
            let text = serde_json::to_vec(&figures).ok()?;
            Some(sha256_hex(&text))
        }),
        campaign: record.campaign.as_ref().map(|slot| slot.id.clone()),
        output_tokens_per_s: metrics.and_then(|metrics| metrics.output_tokens_per_s),
        broken: broken
            .map(|(check, later)| Broken {
                rule: check.rule,
                level: check.level,
                detail: check.detail,
                later,
            })
            .collect(),
    }
}
