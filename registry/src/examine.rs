//! What a file of the registry amounts to: a pure function of its path and its bytes, so that it
//! may be kept in an index. No files, no git.

use schema::canonical::sha256_hex;
use schema::path::config_slug;
use schema::run::{Kind, Level, RunRecord, Status, ValidityVerdict};
use serde::{Deserialize, Serialize};

use crate::finding::Finding;
use crate::storage::{self, Parsed};

/// A file that could be read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// `runs`, `imports`, `kernels`, `campaigns`, `events` or `pages`.
    pub kind: String,
    /// The record's id; pages have none.
    pub id: Option<String>,
    /// Of runs and imports alone.
    pub run: Option<RunFacts>,
}

/// What lists and checks ask of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// The engine's id.
    pub engine: String,
    /// The engine's version.
    pub release: String,
    /// The hardware's id.
    pub hardware: String,
    /// The model's id.
    pub model: String,
    /// Configuration slug without its hash.
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
    /// How much it weighs.
    pub level: Level,
    /// What was seen, in words.
    pub detail: Option<String>,
    /// True when the rule came after the run was judged.
    pub later: bool,
}

/// Reads and verifies the file at `path` below `results/`: what it is, and every finding.
#[must_use]
pub fn examine(path: &str, bytes: &[u8]) -> (Option<Facts>, Vec<Finding>) {
    match storage::read_with_value(path, bytes) {
        Ok((parsed, value)) => {
            let findings = storage::verify_value(path, value.as_ref(), &parsed);
            (Some(facts(&parsed)), findings)
        }
        Err(finding) => (None, vec![finding]),
    }
}

fn facts(parsed: &Parsed) -> Facts {
    let run = match parsed {
        Parsed::Run(record) => Some(run_facts(record)),
        _ => None,
    };
    Facts { kind: kind_name(parsed).to_owned(), id: parsed.id().map(str::to_owned), run }
}

fn kind_name(parsed: &Parsed) -> &'static str {
    match parsed {
        Parsed::Run(record) if record.kind == Kind::Imported => "imports",
        Parsed::Run(_) => "runs",
        Parsed::Kernels(_) => "kernels",
        Parsed::Campaign(_) => "campaigns",
        Parsed::Event(_) => "events",
        Parsed::Derived => "pages",
    }
}

/// What lists and checks ask of `record`.
#[must_use]
pub fn run_facts(record: &RunRecord) -> RunFacts {
    let figures = record.metrics.as_ref().map(|metrics| (metrics, &record.histograms));
    let stored = record.checks.iter().map(|check| (check.clone(), false));
    let later = audit::judge_later(record).into_iter().map(|check| (check, true));
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
