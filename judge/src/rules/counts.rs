//! Quality rules over counts: every request is accounted for, and the three ways of counting
//! output tokens agree.

use schema::run::{Counts, Kind, RunRecord, Status, TokenSource};

use super::{claim, float, within};
use crate::rule::{Condition, Evidence, Family, Outcome, Rule, Scope};

/// Limits of rule W01, smallest and largest, on the ratio of output tokens counted again from the
/// text to output tokens that the server reported.
pub const RETOKENIZED_RATIO: (f64, f64) = (0.98, 1.02);

/// Largest share of the requested output tokens by which the reported output tokens may differ from
/// them.
pub const REQUESTED_SHARE: f64 = 0.001;

/// Largest share of the client's count of prompt tokens by which the server's may differ from it.
const PROMPT_TOKENS_SHARE: f64 = 0.02;

/// Limit on the share of failed requests in a run, and on the relative difference between the mean
/// prompt lengths of answered and of all requests; above either, the other requests do not
/// represent the workload.
pub const FAILED_SHARE_MAX: f64 = 0.05;

/// Quality rules over numbers of requests and tokens, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E04",
        title: "the run planned as many requests as its scenario has",
        finding: "wrong number of requests",
        why: "A shorter run is another workload: one published page compared 1,000 requests with \
              10,000 under one name.",
        scope: Scope::FIGURES,
        conditions: &[Condition::new(planned)],
        ..Rule::ERROR
    },
    Rule {
        id: "E05",
        title: "answered and failed requests add up to those planned, and a run with failures \
                says so",
        finding: "requests unaccounted for",
        why: "A client that counts only successes makes a partial run look complete.",
        scope: Scope::FIGURES,
        conditions: &[
            Condition::new(accounted).invalid(
                "accounted",
                "answered and failed requests do not add up to those planned",
            ),
            Condition::new(classified),
        ],
        ..Rule::ERROR
    },
    Rule {
        id: "W01",
        title: "output tokens counted again from the text, or from ids that decode to it, agree \
                within 2 %",
        finding: "token counts differ",
        why: "Throughput computed from the requested length instead of the text can be 20 % too \
              high.",
        scope: Scope::FIGURES,
        affects: &[Family::Throughput, Family::Tpot],
        conditions: &[Condition::new(retokenized)
            .degraded("retokenized", "the text of the answers has 2 % more or fewer tokens")],
        ..Rule::WARNING
    },
    Rule {
        id: "W10",
        title: "the server reports as many output tokens as were requested",
        finding: "wrong output length",
        why: "With end-of-sequence ignored, every answer has the requested length. Another length \
              is another workload.",
        scope: Scope { statuses: &[Status::Ok], ..Scope::MEASURED },
        conditions: &[Condition::new(output_length).invalid(
            "output-length",
            "reported and requested output tokens differ by 0.1 % or more, where end-of-sequence \
             is ignored",
        )],
        ..Rule::WARNING
    },
    Rule {
        id: "prompt-length",
        title: "the server counts as many prompt tokens as were sent",
        finding: "prompt length differs",
        why: "A prompt sent as token ids has one length. A server that counts another length \
              computed another prompt.",
        since: None,
        conditions: &[Condition::fresh(prompt_length).invalid(
            "prompt-length",
            "the server counts another length for a prompt sent as token ids",
        )],
        ..Rule::ERROR
    },
    Rule {
        id: "prompt-tokens",
        title: "client and server count as many tokens of prompts sent as text, within 2 %",
        finding: "prompt tokens differ",
        why: "A client counts prompt tokens with the tokenizer that it was given: with that of \
              another model, rates of input tokens are those of other prompts.",
        since: None,
        affects: &[Family::Throughput],
        only: &["input_tokens_per_s", "total_tokens_per_s"],
        conditions: &[Condition::fresh(prompt_tokens).degraded(
            "prompt-tokens",
            "the server counts 2 % more or fewer tokens of prompts sent as text than the client \
             (rates of input tokens alone)",
        )],
        ..Rule::WARNING
    },
    Rule {
        id: "chunk-count",
        title: "chunks and usage agree on the number of tokens of an answer",
        finding: "chunk counts differ",
        why: "Gaps between tokens are computed from the tokens of chunks.",
        since: None,
        affects: &[Family::Itl],
        conditions: &[Condition::fresh(chunk_count).degraded(
            "chunk-count",
            "the chunks of an answer hold more or fewer tokens than its usage reports",
        )],
        ..Rule::WARNING
    },
    Rule {
        id: "failures",
        title: "no request failed",
        finding: "requests failed",
        why: "Figures of a run with failures describe only the requests that were answered.",
        since: None,
        conditions: &[Condition::new(failures).degraded("failures", "a request failed")],
        ..Rule::WARNING
    },
    Rule {
        id: "many-failures",
        title: "at most 5 % of the requests failed",
        finding: "many requests failed",
        why: "With more failures, the answered requests do not represent the workload.",
        since: None,
        conditions: &[Condition::new(many_failures)
            .invalid("many-failures", "more than 5 % of all requests failed")],
        ..Rule::ERROR
    },
    Rule {
        id: "survivors",
        title: "the answered prompts are as long as the planned ones, on average",
        finding: "long prompts missing",
        why: "A server that fails long prompts is measured on short ones (survivorship bias).",
        since: None,
        conditions: &[Condition::fresh(survivors).invalid(
            "survivors",
            "the mean length of the answered prompts differs by 5 % from that of the planned ones",
        )],
        ..Rule::ERROR
    },
];

/// Returns the number of output tokens that throughput is computed from: those that the server
/// reported, or, for a tool that reports none, those that the tool counts in their place; `None` if
/// neither is recorded.
pub(super) fn credited_output(counts: &Counts) -> Option<u64> {
    counts.output_tokens_reported.or_else(|| match counts.token_source? {
        TokenSource::Usage | TokenSource::UsagePerChunk => None,
        TokenSource::Retokenized => counts.output_tokens_retokenized,
        TokenSource::Chunks => counts.output_chunks,
        TokenSource::Requested => counts.output_tokens_requested,
    })
}

/// Returns the number of output tokens in the answers: as the server reported them, or, for an
/// imported record, those that its tool computes throughput from; `None` if not recorded.
pub(super) fn answered(record: &RunRecord, counts: &Counts) -> Option<u64> {
    let published = record.kind == Kind::Imported;
    if published { credited_output(counts) } else { counts.output_tokens_reported }
}

fn planned(record: &RunRecord) -> Outcome {
    let planned = record.counts.as_ref()?.requests_planned?;
    let asked = record.scenario.requests?;
    claim(planned == asked, || format!("{planned} planned, the scenario asks for {asked}"))
}

fn accounted(record: &RunRecord) -> Outcome {
    let counts = record.counts.as_ref()?;
    let (planned, ok) = (counts.requests_planned?, counts.requests_ok?);
    let failed = counts.requests_failed?;
    claim(ok.checked_add(failed) == Some(planned), || {
        format!("{ok} ok and {failed} failed of {planned} planned")
    })
}

fn classified(record: &RunRecord) -> Outcome {
    let counts = record.counts.as_ref()?;
    let failed = counts.requests_failed?;
    if record.status == Status::Ok && failed > 0 {
        return Some(Err(format!("status is `ok` with {failed} failed requests")));
    }
    let classes = counts.failures.as_ref()?;
    let classified = classes.values().fold(0_u64, |a, b| a.saturating_add(*b));
    claim(classified == failed, || format!("{failed} requests failed, {classified} are classified"))
}

fn failures(record: &RunRecord) -> Outcome {
    let (planned, failed) = planned_and_failed(record)?;
    claim(failed == 0 || is_many(planned, failed), || figures_are_others(planned, failed))
}

fn many_failures(record: &RunRecord) -> Outcome {
    let (planned, failed) = planned_and_failed(record)?;
    claim(!is_many(planned, failed), || figures_are_others(planned, failed))
}

fn planned_and_failed(record: &RunRecord) -> Option<(u64, u64)> {
    let counts = record.counts.as_ref()?;
    Some((counts.requests_planned?, counts.requests_failed?))
}

fn is_many(planned: u64, failed: u64) -> bool {
    float(failed) > float(planned) * FAILED_SHARE_MAX
}

fn figures_are_others(planned: u64, failed: u64) -> String {
    format!("{failed} of {planned} requests failed: figures are the others'")
}

fn survivors(record: &RunRecord, evidence: &Evidence) -> Outcome {
    let (planned, failed) = planned_and_failed(record)?;
    let (all, answered) = (evidence.prompt_tokens_planned, evidence.prompt_tokens_answered);
    let alike = within(answered, all, FAILED_SHARE_MAX);
    claim(alike || failed == 0 || failed >= planned, || {
        format!("prompts have {all:.0} tokens in the plan and {answered:.0} where answered")
    })
}

fn prompt_length(_: &RunRecord, evidence: &Evidence) -> Outcome {
    let wrong = evidence.prompts_miscounted;
    claim(wrong == 0, || format!("the server counts another prompt length for {wrong} requests"))
}

fn prompt_tokens(_: &RunRecord, evidence: &Evidence) -> Outcome {
    let (own, server) = evidence.prompt_tokens_as_text?;
    claim(within(float(server), float(own), PROMPT_TOKENS_SHARE), || {
        format!(
            "the client counts {own} prompt tokens and the server {server}: is `--tokenizer` that of \
             the model?"
        )
    })
}

fn chunk_count(_: &RunRecord, evidence: &Evidence) -> Outcome {
    let wrong = evidence.chunks_miscounted;
    claim(wrong == 0, || {
        format!("chunks and usage disagree on the number of tokens of {wrong} requests")
    })
}

fn output_length(record: &RunRecord) -> Outcome {
    if record.scenario.ignore_eos == Some(false) {
        return None;
    }
    let counts = record.counts.as_ref()?;
    let (requested, reported) = (counts.output_tokens_requested?, counts.output_tokens_reported?);
    claim(within(float(reported), float(requested), REQUESTED_SHARE), || {
        format!("{requested} output tokens were requested and {reported} reported")
    })
}

fn retokenized(record: &RunRecord) -> Outcome {
    let counts = record.counts.as_ref()?;
    let reported = answered(record, counts).filter(|tokens| *tokens > 0)?;
    let again = counts.output_tokens_retokenized?;
    let (low, high) = RETOKENIZED_RATIO;
    let agrees = |tokens: u64| (low..=high).contains(&(float(tokens) / float(reported)));
    // A model may write a text in other tokens than its tokenizer makes of it, as random weights and
    // structured output do.
    claim(agrees(again) || counts.output_tokens_decoded.is_some_and(agrees), || {
        format!("{reported} output tokens were reported, and their text makes {again}")
    })
}
