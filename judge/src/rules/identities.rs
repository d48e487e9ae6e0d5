//! Quality rules over identities between latencies that hold for any engine, so that a broken one
//! shows a fault of the client: a stream that arrived in one piece, a TPOT that includes the first
//! token, queue time read as latency.

use schema::run::{Counts, Level, Metrics, RunRecord, Status};
use schema::scenario::Arrival;

use super::counts::answered;
use super::{claim, float, within};
use crate::quantile::Bins;
use crate::rule::{Finding, Rule, Scope};

/// Share by which the two sides of an identity may differ.
pub const IDENTITY_SHARE: f64 = 0.01;

/// Rounding error, in microseconds, of a mean that is stored as an integer.
const ROUNDING_US: f64 = 0.5;

/// Share of E2E above which a TTFT counts as time in the queue.
pub const QUEUE_SHARE: f64 = 0.5;

/// Scenario families whose answers all have one length (range ratio 1.0).
const FIXED_LENGTH: &[&str] = &["balanced", "thinking", "long-input", "ladder"];

pub(super) const TPOT: Rule = Rule {
    id: "E19",
    title: "mean TPOT is (mean E2E - mean TTFT) / (tokens - 1) where all answers have one length",
    why: "A TPOT that contains the first token, or that saw one chunk only, breaks this.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope { statuses: &[Status::Ok], ..Scope::ALL },
    look: tpot,
};

pub(super) const TOKEN_GAPS: Rule = Rule {
    id: "E20",
    title: "the gaps between tokens add up to E2E - TTFT",
    why: "Gaps that do not add up were dropped, or taken from another clock.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope { statuses: &[Status::Ok], ..Scope::ALL },
    look: token_gaps,
};

pub(super) const CONCURRENCY: Rule = Rule {
    id: "E21",
    title: "mean concurrency is the sum of E2E over wall time, and no more than the cap",
    why: "Little's law: otherwise requests, times and duration are not those of one run.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope { statuses: &[Status::Ok], ..Scope::ALL },
    look: concurrency,
};

pub(super) const FIRST_TOKEN: Rule = Rule {
    id: "E22",
    title: "TTFT is above zero and within E2E",
    why: "A first token that comes at once, or after the last, was not timed.",
    level: Level::Error,
    level_on_cpu: Level::Error,
    since: 1,
    scope: Scope::FIGURES,
    look: first_token,
};

pub(super) const CHUNKED: Rule = Rule {
    id: "W02",
    title: "tokens arrived one by one",
    why: "Where the mean gap exceeds the p99, or the median is zero, the stream came in lumps and \
          ITL says nothing; TPOT still holds.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 1,
    scope: Scope::FIGURES,
    look: chunked,
};

pub(super) const QUEUE_TIME: Rule = Rule {
    id: "W04",
    title: "TTFT is mostly prefill, not time in the queue",
    why: "When all requests arrive at once, a TTFT of more than half of E2E is queue time; it \
          sizes the queue, not the engine.",
    level: Level::Warning,
    level_on_cpu: Level::Warning,
    since: 1,
    scope: Scope::FIGURES,
    look: queue_time,
};

fn tpot(record: &RunRecord) -> Finding {
    let (counts, metrics) = (record.counts.as_ref()?, record.metrics.as_ref()?);
    let tokens = answer_length(record, counts)?;
    let tpot = float(metrics.tpot_us.as_ref()?.mean?);
    let due = streaming_us(metrics)? / (tokens - 1.0);
    let holds = within(tpot, due, IDENTITY_SHARE) || (tpot - due).abs() <= 2.0 * ROUNDING_US;
    Some(claim(holds, || format!("mean TPOT is {tpot:.0} us, E2E and TTFT give {due:.0} us")))
}

/// Number of tokens of every answer; `None` when answers differ in length or have fewer than two
/// tokens.
fn answer_length(record: &RunRecord, counts: &Counts) -> Option<f64> {
    let id = &record.scenario.id;
    let fixed = FIXED_LENGTH.iter().any(|family| id.starts_with(family));
    let (ok, reported) = (counts.requests_ok?, answered(record, counts)?);
    let whole = ok > 0 && reported.is_multiple_of(ok) && reported / ok > 1;
    let as_asked = counts.output_tokens_requested == Some(reported);
    (fixed && whole && as_asked).then(|| float(reported / ok))
}

/// Mean time from the first to the last token of a request, in microseconds.
fn streaming_us(metrics: &Metrics) -> Option<f64> {
    let e2e = metrics.e2e_us.as_ref()?.mean?;
    let ttft = metrics.ttft_us.as_ref()?.mean?;
    Some(float(e2e) - float(ttft))
}

fn token_gaps(record: &RunRecord) -> Finding {
    let (counts, metrics) = (record.counts.as_ref()?, record.metrics.as_ref()?);
    let gaps = Bins::decode(record.histograms.as_ref()?.itl_token_us.as_ref()?).ok()?.samples();
    let mean = float(metrics.itl_token_us.as_ref()?.mean?);
    let due = streaming_us(metrics)? * float(counts.requests_ok?);
    let sum = mean * float(gaps);
    let holds = within(sum, due, IDENTITY_SHARE) || (sum - due).abs() <= ROUNDING_US * float(gaps);
    Some(claim(holds, || {
        format!(
            "{gaps} gaps of {mean:.0} us make {:.3} s, E2E - TTFT make {:.3} s",
            sum / 1e6,
            due / 1e6
        )
    }))
}

fn concurrency(record: &RunRecord) -> Finding {
    let (counts, metrics) = (record.counts.as_ref()?, record.metrics.as_ref()?);
    let mean = metrics.concurrency_mean?;
    let wall_us = float(record.time.as_ref()?.wall_us.filter(|wall| *wall > 0)?);
    let due = float(metrics.e2e_us.as_ref()?.mean?) * float(counts.requests_ok?) / wall_us;
    if !within(mean, due, IDENTITY_SHARE) {
        return Some(Err(format!(
            "mean concurrency is {mean:.2}, E2E over wall time gives {due:.2}"
        )));
    }
    let Some(cap) = record.scenario.arrival.as_ref().and_then(Arrival::concurrency_max) else {
        return Some(Ok(()));
    };
    let cap = float(cap);
    Some(claim(mean <= cap * (1.0 + IDENTITY_SHARE), || {
        format!("mean concurrency is {mean:.2} under a cap of {cap:.0}")
    }))
}

fn first_token(record: &RunRecord) -> Finding {
    let metrics = record.metrics.as_ref()?;
    let ttft = metrics.ttft_us.as_ref()?;
    if ttft.p50 == Some(0) || ttft.mean == Some(0) {
        return Some(Err("the median or mean TTFT is zero".to_owned()));
    }
    let e2e = metrics.e2e_us.as_ref()?;
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

fn chunked(record: &RunRecord) -> Finding {
    let gaps = record.metrics.as_ref()?.itl_chunk_us.as_ref()?;
    if gaps.p50 == Some(0) {
        return Some(Err("the median gap between chunks is zero".to_owned()));
    }
    let (mean, p99) = (gaps.mean?, gaps.p99?);
    Some(claim(mean <= p99, || format!("the mean gap of {mean} us is above the p99 of {p99} us")))
}

fn queue_time(record: &RunRecord) -> Finding {
    if record.scenario.arrival != Some(Arrival::AllAtOnce) {
        return None;
    }
    let metrics = record.metrics.as_ref()?;
    let ttft = float(metrics.ttft_us.as_ref()?.mean?);
    let e2e = float(metrics.e2e_us.as_ref()?.mean.filter(|mean| *mean > 0)?);
    Some(claim(ttft <= QUEUE_SHARE * e2e, || {
        format!("TTFT is {:.0} % of E2E: read it as queue time", 100.0 * ttft / e2e)
    }))
}
