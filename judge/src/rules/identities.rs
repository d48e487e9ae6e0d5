//! Quality rules over identities between latencies that hold for any engine, so that a broken one
//! shows a fault of the client: a stream that arrived in one piece, a TPOT that includes the first
//! token, queue time read as latency.

use schema::run::{Counts, Metrics, RunRecord, Status};
use schema::scenario::Arrival;

use super::counts::answered;
use super::{claim, float, within};
use crate::facts::has_fixed_answers;
use crate::quantile::Bins;
use crate::rule::{Condition, Evidence, Family, Outcome, Rule, Scope};

/// Tolerated relative difference between the two sides of an identity between latencies.
pub const IDENTITY_SHARE: f64 = 0.01;

/// Rounding error, in microseconds, of a mean that is stored as an integer.
const ROUNDING_US: f64 = 0.5;

/// Share of the mean E2E latency above which a mean TTFT is taken for time in the queue.
pub const QUEUE_SHARE: f64 = 0.5;

/// Quality rules over identities between latencies, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E19",
        title: "mean TPOT is (mean E2E - mean TTFT) / (tokens - 1) where all answers have the \
                same length",
        finding: "TPOT contradicts E2E",
        why: "A TPOT that includes the first token, or that was computed from a single chunk, \
              breaks this identity.",
        scope: Scope { statuses: &[Status::Ok], ..Scope::ALL },
        affects: &[Family::Tpot],
        conditions: &[Condition::new(tpot).invalid(
            "tpot-identity",
            "mean TPOT is not (E2E - TTFT) / (n - 1) within 1 %, where all answers have n tokens",
        )],
        ..Rule::ERROR
    },
    Rule {
        id: "E20",
        title: "the gaps between tokens add up to E2E - TTFT",
        finding: "gaps do not add up",
        why: "Gaps that do not add up are incomplete, or were taken from another clock.",
        scope: Scope { statuses: &[Status::Ok], ..Scope::ALL },
        affects: &[Family::Itl],
        conditions: &[
            Condition::fresh(exact_gaps).invalid(
                "gap-identity",
                "the gaps between tokens do not add up to E2E - TTFT within 1 %",
            ),
            Condition::new(token_gaps),
        ],
        ..Rule::ERROR
    },
    Rule {
        id: "E21",
        title: "mean concurrency is the sum of E2E over wall time, and at most the concurrency \
                limit",
        finding: "concurrency contradicts times",
        why: "Little's law: otherwise requests, times and duration do not belong to one run.",
        scope: Scope { statuses: &[Status::Ok], ..Scope::ALL },
        affects: &[Family::Throughput, Family::E2e],
        conditions: &[
            Condition::new(littles_law),
            Condition::new(concurrency).invalid(
                "concurrency",
                "more requests ran at once than the concurrency limit allows",
            ),
        ],
        ..Rule::ERROR
    },
    Rule {
        id: "E22",
        title: "TTFT is above zero and at most E2E",
        finding: "implausible TTFT",
        why: "A first token at time zero, or after the last token, was not timed.",
        scope: Scope::FIGURES,
        affects: &[Family::Ttft],
        conditions: &[
            Condition::new(first_token).invalid("first-token", "the median TTFT is zero"),
            Condition::new(within_e2e),
        ],
        ..Rule::ERROR
    },
    Rule {
        id: "W02",
        title: "tokens arrived one by one",
        finding: "tokens arrived in bursts",
        why: "Where the mean gap is above the p99, or the median gap is zero, tokens arrived in \
              bursts: ITL says nothing, and TPOT is still valid.",
        scope: Scope::FIGURES,
        affects: &[Family::Itl],
        conditions: &[Condition::new(chunked)],
        ..Rule::WARNING
    },
    Rule {
        id: "W04",
        title: "TTFT is mostly prefill, not queueing",
        finding: "TTFT is mostly queueing",
        why: "When all requests arrive at once, a TTFT of more than half of E2E is time in the \
              queue. It depends on the number of requests more than on the engine.",
        scope: Scope::FIGURES,
        affects: &[Family::Ttft, Family::E2e],
        conditions: &[Condition::new(queue_time)],
        ..Rule::WARNING
    },
];

/// Returns the mean time from the first to the last token of a request, in microseconds; `None`
/// where the record lacks mean TTFT or E2E.
fn streaming_us(metrics: &Metrics) -> Option<f64> {
    let e2e = metrics.e2e_us.as_ref()?.mean?;
    let ttft = metrics.ttft_us.as_ref()?.mean?;
    Some(float(e2e) - float(ttft))
}

fn token_gaps(record: &RunRecord) -> Outcome {
    let (counts, metrics) = (record.counts.as_ref()?, record.metrics.as_ref()?);
    let gaps = Bins::decode(record.histograms.as_ref()?.itl_token_us.as_ref()?).ok()?.samples;
    let mean = float(metrics.itl_token_us.as_ref()?.mean?);
    let due = streaming_us(metrics)? * float(counts.requests_ok?);
    let sum = mean * float(gaps);
    let holds = within(sum, due, IDENTITY_SHARE) || (sum - due).abs() <= ROUNDING_US * float(gaps);
    claim(holds, || {
        format!(
            "{gaps} gaps of {mean:.0} us make {:.3} s, E2E - TTFT make {:.3} s",
            sum / 1e6,
            due / 1e6
        )
    })
}

fn first_token(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let ttft = metrics.ttft_us.as_ref()?;
    let zero = ttft.p50 == Some(0) || ttft.mean == Some(0);
    claim(!zero, || "the median or mean TTFT is zero".to_owned())
}

fn within_e2e(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let (ttft, e2e) = (metrics.ttft_us.as_ref()?, metrics.e2e_us.as_ref()?);
    // Every request's TTFT is at most its E2E, so the same holds of every order statistic.
    let pairs = [
        ("mean", ttft.mean, e2e.mean),
        ("p50", ttft.p50, e2e.p50),
        ("p99", ttft.p99, e2e.p99),
        ("max", ttft.max, e2e.max),
    ];
    let late = pairs.iter().find_map(|(name, first, last)| {
        let (first, last) = ((*first)?, (*last)?);
        (first > last).then(|| format!("TTFT {name} is {first} us, E2E {name} is {last} us"))
    });
    Some(late.map_or(Ok(()), Err))
}

fn chunked(record: &RunRecord) -> Outcome {
    let gaps = record.metrics.as_ref()?.itl_chunk_us.as_ref()?;
    if gaps.p50 == Some(0) {
        return Some(Err("the median gap between chunks is zero".to_owned()));
    }
    let (mean, p99) = (gaps.mean?, gaps.p99?);
    claim(mean <= p99, || format!("the mean gap of {mean} us is above the p99 of {p99} us"))
}

fn queue_time(record: &RunRecord) -> Outcome {
    if record.scenario.arrival != Some(Arrival::AllAtOnce) {
        return None;
    }
    let metrics = record.metrics.as_ref()?;
    let ttft = float(metrics.ttft_us.as_ref()?.mean?);
    let e2e = float(metrics.e2e_us.as_ref()?.mean.filter(|mean| *mean > 0)?);
    claim(ttft <= QUEUE_SHARE * e2e, || {
        format!("TTFT is {:.0} % of E2E: read it as queue time", 100.0 * ttft / e2e)
    })
}

fn tpot(record: &RunRecord) -> Outcome {
    let (counts, metrics) = (record.counts.as_ref()?, record.metrics.as_ref()?);
    let tokens = answer_length(record, counts)?;
    let tpot = float(metrics.tpot_us.as_ref()?.mean?);
    let due = streaming_us(metrics)? / (tokens - 1.0);
    // The share is of the exact times; rounding to whole microseconds comes on top of it.
    let holds = (tpot - due).abs() <= IDENTITY_SHARE * due.abs() + 2.0 * ROUNDING_US;
    claim(holds, || format!("mean TPOT is {tpot:.0} us, E2E and TTFT give {due:.0} us"))
}

/// Returns the number of tokens of every answer; `None` where the record does not show that all
/// answers have the same, requested length of two tokens or more.
fn answer_length(record: &RunRecord, counts: &Counts) -> Option<f64> {
    let scenario = &record.scenario;
    let (ok, reported) = (counts.requests_ok?, answered(record, counts)?);
    let fixed = has_fixed_answers(scenario)
        && scenario.output_tokens.is_none_or(|tokens| ok.checked_mul(tokens) == Some(reported));
    let whole = ok > 0 && reported.is_multiple_of(ok) && reported / ok > 1;
    let as_requested = counts.output_tokens_requested == Some(reported);
    (fixed && whole && as_requested).then(|| float(reported / ok))
}

fn exact_gaps(_: &RunRecord, evidence: &Evidence) -> Outcome {
    let (gaps, decode) = evidence.decode_ns?;
    claim(within(float(gaps), float(decode), IDENTITY_SHARE), || {
        let (gaps, decode) = (gaps / 1000, decode / 1000);
        format!("the gaps between tokens add up to {gaps} us, E2E - TTFT to {decode} us")
    })
}

/// Checks Little's law: mean concurrency is the sum of E2E over wall time.
fn littles_law(record: &RunRecord) -> Outcome {
    let (counts, metrics) = (record.counts.as_ref()?, record.metrics.as_ref()?);
    let mean = metrics.concurrency_mean?;
    let wall_us = float(record.time.as_ref()?.wall_us.filter(|wall| *wall > 0)?);
    let due = float(metrics.e2e_us.as_ref()?.mean?) * float(counts.requests_ok?) / wall_us;
    claim(within(mean, due, IDENTITY_SHARE), || {
        format!("mean concurrency is {mean:.2}, E2E over wall time gives {due:.2}")
    })
}

fn concurrency(record: &RunRecord) -> Outcome {
    let mean = record.metrics.as_ref()?.concurrency_mean?;
    let cap = float(record.scenario.arrival.as_ref().and_then(Arrival::concurrency_max)?);
    claim(mean <= cap * (1.0 + IDENTITY_SHARE), || {
        format!("mean concurrency is {mean:.2} under a cap of {cap:.0}")
    })
}
