//! Facts about one run that lists, checks and rules over several runs need, without its latency
//! and throughput distributions.

use schema::canonical::sha256_hex;
use schema::path::config_slug;
use schema::run::{Level, RunRecord, Status, ValidityVerdict};
use serde::{Deserialize, Serialize};

/// Facts about a run for lists and for the rules that compare several runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// Id of the engine that was measured.
    pub engine: String,
    /// Version of the engine that was measured.
    pub release: String,
    /// Id of the hardware that the run was made on.
    pub hardware: String,
    /// Id of the model that was served.
    pub model: String,
    /// Configuration slug of the server, without its hash.
    pub config: String,
    /// Scenario of the run, as `id@rev`.
    pub scenario: String,
    /// Status with which the run ended, as its record spells it.
    pub status: String,
    /// Validity verdict of the run's client, as its record spells it.
    pub validity: String,
    /// SHA-256 of all figures and histograms of the run; `None` for a run without figures. Two
    /// runs with the same hash are copies of each other.
    pub figures_sha256: Option<String>,
    /// Id of the campaign that the run belongs to.
    pub campaign: Option<String>,
    /// Output throughput in tokens per second; `None` for a run that failed or whose verdict is
    /// INVALID.
    pub output_tokens_per_s: Option<f64>,
    /// Quality rules that the run breaks.
    pub broken: Vec<Broken>,
}

/// A quality rule that a run breaks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Broken {
    /// Id of the quality rule that the run breaks.
    pub rule: String,
    /// Severity of the broken rule on this run's hardware.
    pub level: Level,
    /// Observation that breaks the rule, as a sentence.
    pub detail: Option<String>,
    /// True when the rule was added after the run had been judged and its findings stored.
    pub later: bool,
}

/// Extracts the facts of `record` for lists and checks, including findings of rules that are newer
/// than the record.
pub fn run_facts(record: &RunRecord) -> RunFacts {
    let figures = record.metrics.as_ref().map(|metrics| (metrics, &record.histograms));
    let stored = record.checks.iter().map(|check| (check.clone(), false));
    // A record stores findings of its own revision only; newer rules are applied on reading.
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
