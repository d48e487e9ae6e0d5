//! Quality rules over counts: every request is accounted for, and the three ways of counting
//! output tokens agree.

use schema::run::{Counts, Kind, Level, RunRecord, Status, TokenSource};

use super::{claim, float, within};
use crate::rule::{Finding, Rule, Scope};

/// Smallest and largest ratio of output tokens counted again from the text to output tokens that
/// the server reported.
pub const RETOKENIZED_RATIO: (f64, f64) = (0.98, 1.02);

/// Share by which reported output tokens may differ from the requested ones.
pub const REQUESTED_SHARE: f64 = 0.001;

pub(super) const PLANNED: Rule = Rule {
    id: "E04",
    title: "as many requests were planned as the scenario asks for",
    why: "A shortened run is another workload: a published page compared 1,000 requests with \
          10,000 under one name.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::FIGURES,
    look: planned,
};

pub(super) const ACCOUNTED: Rule = Rule {
    id: "E05",
    title: "requests that succeeded and failed add up, and a run with failures says so",
    why: "A client that counts successes alone makes a partial run look complete.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::FIGURES,
    look: accounted,
};

pub(super) const RETOKENIZED: Rule = Rule {
    id: "W01",
    title: "output tokens counted again from the text agree within 2 %",
    why: "Throughput credited from a requested length rather than from text can be 20 % too high.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 1,
    scope: Scope::FIGURES,
    look: retokenized,
};

pub(super) const REQUESTED: Rule = Rule {
    id: "W10",
    title: "the server reports as many output tokens as were requested",
    why: "With end-of-sequence ignored every answer has its requested length; another length is \
          another workload.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 1,
    scope: Scope { statuses: &[Status::Ok], ..Scope::MEASURED },
    look: requested,
};

/// Number of output tokens that throughput is credited with: those that the server reported, or,
/// for a tool that reports none, those that the tool counts in their place.
pub(super) fn credited_output(counts: &Counts) -> Option<u64> {
    counts.output_tokens_reported.or_else(|| match counts.token_source? {
        TokenSource::Usage | TokenSource::UsagePerChunk => None,
        TokenSource::Retokenized => counts.output_tokens_retokenized,
        TokenSource::Chunks => counts.output_chunks,
        TokenSource::Requested => counts.output_tokens_requested,
    })
}

/// Number of output tokens in the answers: as the server reported them, or, for an imported
/// record, as its tool credits them.
pub(super) fn answered(record: &RunRecord, counts: &Counts) -> Option<u64> {
    let published = record.kind == Kind::Imported;
    if published { credited_output(counts) } else { counts.output_tokens_reported }
}

fn planned(record: &RunRecord) -> Finding {
    let planned = record.counts.as_ref()?.requests_planned?;
    let asked = record.scenario.requests?;
    Some(claim(planned == asked, || format!("{planned} planned, the scenario asks for {asked}")))
}

fn accounted(record: &RunRecord) -> Finding {
    let counts = record.counts.as_ref()?;
    let (planned, ok) = (counts.requests_planned?, counts.requests_ok?);
    let failed = counts.requests_failed?;
    if ok.checked_add(failed) != Some(planned) {
        return Some(Err(format!("{ok} ok and {failed} failed of {planned} planned")));
    }
    if record.status == Status::Ok && failed > 0 {
        return Some(Err(format!("status is `ok` with {failed} failed requests")));
    }
    let classified: Option<u64> = counts
        .failures
        .as_ref()
        .map(|classes| classes.values().fold(0_u64, |a, b| a.saturating_add(*b)));
    Some(claim(classified.is_none_or(|classified| classified == failed), || {
        format!("{failed} requests failed, {} are classified", classified.unwrap_or(0))
    }))
}

fn retokenized(record: &RunRecord) -> Finding {
    let counts = record.counts.as_ref()?;
    let reported = answered(record, counts).filter(|tokens| *tokens > 0)?;
    let again = counts.output_tokens_retokenized?;
    let ratio = float(again) / float(reported);
    let (low, high) = RETOKENIZED_RATIO;
    Some(claim((low..=high).contains(&ratio), || {
        format!("{again} tokens in the text, {reported} reported (ratio {ratio:.3})")
    }))
}

fn requested(record: &RunRecord) -> Finding {
    let counts = record.counts.as_ref()?;
    let (requested, reported) = (counts.output_tokens_requested?, counts.output_tokens_reported?);
    Some(claim(within(float(reported), float(requested), REQUESTED_SHARE), || {
        format!("{reported} output tokens reported, {requested} requested")
    }))
}
