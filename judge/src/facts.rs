//! Facts about one run that lists, checks and rules over several runs need, without its latency
//! and throughput distributions.

use std::collections::BTreeSet;

use schema::canonical::sha256_hex;
use schema::engine::ApiFormat;
use schema::path::config_slug;
use schema::run::{Check, IdsSource, Level, RunRecord, ScenarioFacts, Status, ValidityVerdict};
use schema::scenario::Arrival;
use serde::{Deserialize, Serialize};

use crate::validity;

/// Facts about a run that lists of runs show and that the rules over several runs compare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunFacts {
    /// Id of the engine that the run measured.
    pub engine: String,
    /// Release of the engine that the run measured.
    pub release: String,
    /// Id of the hardware that the run was made on.
    pub hardware: String,
    /// Id of the model that the run's server served.
    pub model: String,
    /// Configuration slug of the server, without its hash.
    pub config: String,
    /// Scenario of the run, as `id@rev`.
    pub scenario: String,
    /// Status with which the run ended, as its record spells it.
    pub status: String,
    /// Headline verdict on the run, that of its release-blocking metrics, as a record spells it.
    pub validity: String,
    /// SHA-256 of all figures and histograms of the run; `None` for a run without figures. Two
    /// runs with the same hash are copies of each other.
    pub figures_sha256: Option<String>,
    /// Id of the campaign that the run belongs to; `None` for a run without a campaign.
    pub campaign: Option<String>,
    /// Output throughput in tokens per second; `None` for a run whose status is not `ok` or whose
    /// verdict is INVALID, and where the record has none.
    pub output_tokens_per_s: Option<f64>,
    /// Outputs of the run for the fixed prompts; `None` for a run without a hash of them.
    pub outputs: Option<OutputsDigest>,
    /// Quality rules that the run breaks.
    pub broken: Vec<Broken>,
}

/// Hash of a run's greedy outputs for the fixed prompts. Hashes compare only where both the number of
/// prompts and the source of the token ids are the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct OutputsDigest {
    /// Number of fixed prompts; `None` where the record does not state it.
    pub prompts: Option<u64>,
    /// True for token ids of the suite's own tokenizer, false for those that the engine reported.
    pub is_retokenized: bool,
    /// SHA-256 of all output token ids, lower-case hex.
    pub tokens_sha256: String,
}

/// Returns the hash of a run's outputs for the fixed prompts; `None` where the record has none.
pub fn outputs_digest(record: &RunRecord) -> Option<OutputsDigest> {
    let found = record.correctness.as_ref()?;
    Some(OutputsDigest {
        prompts: found.prompts,
        // Records that are older than the field hold ids that the engine reported.
        is_retokenized: found.ids_source == Some(IdsSource::Retokenized),
        tokens_sha256: found.tokens_sha256.clone()?,
    })
}

/// True where outputs for the same prompts, with ids of the same source, differ among `digests`.
pub fn has_other_outputs(digests: &BTreeSet<OutputsDigest>) -> bool {
    let kinds: BTreeSet<_> =
        digests.iter().map(|digest| (digest.prompts, digest.is_retokenized)).collect();
    kinds.len() < digests.len()
}

/// A quality rule that a run breaks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Broken {
    /// Id of the quality rule that the run breaks.
    pub rule: String,
    /// Severity of the broken rule on this run's hardware.
    pub level: Level,
    /// Observation that breaks the quality rule, as a sentence; `None` where its finding has none.
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
    let broken = stored.chain(later).filter(|(check, _)| !check.ok && crate::counts_today(check));
    let metrics = record.metrics.as_ref().filter(|_| is_believed(record));
    RunFacts {
        engine: record.engine.name.clone(),
        release: record.engine.release.clone(),
        hardware: record.hardware.id.clone(),
        model: record.model.id.clone(),
        config: config_slug(record),
        scenario: format!("{}@{}", record.scenario.id, record.scenario.rev),
        status: record.status.name().to_owned(),
        validity: validity::headline(record).name().to_owned(),
        figures_sha256: figures.and_then(|figures| {
            let text = serde_json::to_vec(&figures).ok()?;
            Some(sha256_hex(&text))
        }),
        campaign: record.campaign.as_ref().map(|slot| slot.id.clone()),
        output_tokens_per_s: metrics.and_then(|metrics| metrics.output_tokens_per_s),
        outputs: outputs_digest(record),
        broken: broken
            .map(|(Check { rule, level, detail, .. }, later)| Broken { rule, level, detail, later })
            .collect(),
    }
}

/// True for a run whose status is `ok` and whose verdict is not INVALID.
pub fn is_believed(record: &RunRecord) -> bool {
    record.status == Status::Ok && record.validity.verdict != ValidityVerdict::Invalid
}

/// True for a run whose status is `failed` or `partial`, or in which a request failed.
pub fn is_failed(record: &RunRecord) -> bool {
    matches!(record.status, Status::Failed | Status::Partial) || requests_failed(record) > 0
}

/// Returns the number of requests of a run that failed; 0 where the record does not state it.
pub fn requests_failed(record: &RunRecord) -> u64 {
    record.counts.as_ref().and_then(|counts| counts.requests_failed).unwrap_or(0)
}

/// Returns the number of requests of a run that failed: the stated number, or else the difference
/// between planned and answered requests. `None` where neither is known: a published report that
/// counts answered requests alone does not say that no other was sent.
pub fn failures(record: &RunRecord) -> Option<u64> {
    let counts = record.counts.as_ref()?;
    let unanswered = || Some(counts.requests_planned?.saturating_sub(counts.requests_ok?));
    counts.requests_failed.or_else(|| unanswered().filter(|lost| *lost > 0))
}

/// Use of a run's figures in summaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figures {
    /// Whole: the run has figures of all its requests.
    Whole,
    /// Partial: some requests failed or the run was interrupted, and it has figures of the requests
    /// that were answered.
    Partial,
    /// None: the run has no figures for summaries, because it failed, was skipped, is INVALID, was
    /// retracted, or measured nothing.
    None,
}

/// Returns the use of the figures of `record` in summaries.
pub fn figures(record: &RunRecord, is_retracted: bool) -> Figures {
    let is_measured = matches!(record.status, Status::Ok | Status::Partial)
        && record.validity.verdict != ValidityVerdict::Invalid;
    if is_retracted || record.metrics.is_none() || !is_measured {
        return Figures::None;
    }
    if is_failed(record) { Figures::Partial } else { Figures::Whole }
}

/// Returns the runs that summaries of a cell are made from: those with figures of all requests, or,
/// if there is none, those with partial figures. The two kinds are never mixed.
pub(crate) fn counted<T: Copy>(
    runs: &[T],
    figures: impl Fn(&T) -> Figures,
) -> impl Iterator<Item = T> {
    let is_whole = runs.iter().any(|run| figures(run) == Figures::Whole);
    let wanted = if is_whole { Figures::Whole } else { Figures::Partial };
    runs.iter().copied().filter(move |run| figures(run) == wanted)
}

/// Beginnings of the ids of scenarios whose answers all have one length. They decide for records
/// that state neither `scenario.output_tokens` nor `scenario.ignore_eos`.
const FIXED_LENGTH: &[&str] = &["balanced", "thinking", "long-input", "ladder"];

/// True when a scenario asks for the same number of tokens in all answers.
pub fn has_fixed_answers(scenario: &ScenarioFacts) -> bool {
    match (scenario.output_tokens, scenario.ignore_eos) {
        (Some(_), _) => true,
        (None, Some(_)) => false,
        (None, None) => FIXED_LENGTH.iter().any(|family| scenario.id.starts_with(family)),
    }
}

/// True when a run's requests were sent to a route of chat completions. Records of suites before
/// that route could be asked for state no route.
pub fn is_chat(scenario: &ScenarioFacts) -> bool {
    let route = scenario.route.as_deref();
    route.is_some_and(|route| ApiFormat::of_route(route) == ApiFormat::Chat)
}

/// Returns the concurrency sweep that a scenario is a level of, as `id@rev`: `ladder-c16` with 16
/// users is a level of `ladder`. `None` for other scenarios. Records have no field for it: a level
/// is a closed loop whose number of users ends the id, and an old or published record without an
/// arrival process says it by the id alone.
pub fn sweep(scenario: &ScenarioFacts) -> Option<String> {
    let (sweep, level) = concurrency_level(&scenario.id)?;
    let is_level = match &scenario.arrival {
        Some(Arrival::Closed { concurrency }) => *concurrency == level,
        Some(_) => false,
        None => true,
    };
    is_level.then(|| format!("{sweep}@{}", scenario.rev))
}

/// Splits the id of a concurrency level into its sweep and the number of users; `None` for another
/// id.
pub(crate) fn concurrency_level(id: &str) -> Option<(&str, u64)> {
    let (sweep, users) = id.rsplit_once("-c")?;
    // `parse` alone would take a sign too.
    let is_number = users.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { Some((sweep, users.parse().ok()?)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_of_one_sweep_share_its_name() {
        let sweep_of = |id: &str, rev, arrival| {
            sweep(&ScenarioFacts { id: id.into(), rev, arrival, ..ScenarioFacts::default() })
        };
        let closed = |concurrency| Some(Arrival::Closed { concurrency });
        assert_eq!(sweep_of("ladder-c16", 1, closed(16)).as_deref(), Some("ladder@1"));
        assert_eq!(sweep_of("ladder-lite-c4", 2, None).as_deref(), Some("ladder-lite@2"));
        assert_eq!(sweep_of("ladder-c16", 1, closed(4)), None);
        assert_eq!(sweep_of("ladder-c16", 1, Some(Arrival::AllAtOnce)), None);
        assert_eq!(sweep_of("long-chat", 1, None), None);
        assert_eq!(sweep_of("sharegpt", 0, closed(4)), None);
    }

    #[test]
    fn failures_are_not_known_where_only_answers_are_counted() {
        let mut record = samples::Sample::default().record();
        assert_eq!(failures(&record), Some(0));
        let counts = record.counts.as_mut().expect("counts");
        counts.requests_failed = None;
        assert_eq!(failures(&record), None);
        record.counts.as_mut().expect("counts").requests_ok = Some(30);
        assert_eq!(failures(&record), Some(2), "of 32");
    }

    #[test]
    fn partial_figures_count_only_where_no_run_is_whole() {
        let of = |runs: &[Figures]| counted(runs, |run| *run).collect::<Vec<_>>();
        let (whole, partial, none) = (Figures::Whole, Figures::Partial, Figures::None);
        assert_eq!(of(&[partial, whole, none]), [whole]);
        assert_eq!(of(&[partial, none]), [partial]);
        assert_eq!(of(&[none]), []);
    }
}
