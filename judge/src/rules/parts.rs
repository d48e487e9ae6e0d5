//! Quality rules over the parts that a record gives for a whole: parts of TTFT, time slices of a
//! run, samples of its distributions. Parts that do not add up to the whole were measured on
//! something else.

use schema::run::{Metrics, RunRecord, Slice, Status, Summary, TokenSource};

use super::figures::RATE_SHARE;
use super::{claim, float, within};
use crate::quantile::Bins;
use crate::rule::{Condition, Family, Outcome, Rule, Scope};

/// Rounding error of a stored mean, in microseconds, which is a whole number.
const ROUNDING_US: f64 = 1.0;

/// Quality rules over parts that must add up to a whole, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E26",
        title: "the parts of TTFT add up to TTFT",
        finding: "TTFT parts do not add up",
        why: "With a part missing or counted twice, a delay of the client is attributed to the \
              server, or the reverse.",
        since: Some(3),
        affects: &[Family::Ttft],
        conditions: &[Condition::new(ttft_parts)],
        ..Rule::ERROR
    },
    Rule {
        id: "E27",
        title: "no latency is shorter when counted from the scheduled send than from the actual \
                one",
        finding: "sent before schedule",
        why: "A request is never sent early. A clock that says so hides the wait for a slow \
              server (coordinated omission).",
        since: Some(3),
        affects: &[Family::Ttft, Family::E2e],
        conditions: &[Condition::new(scheduled)],
        ..Rule::ERROR
    },
    Rule {
        id: "E28",
        title: "the time slices of a run are consecutive and cover all of it",
        finding: "time slices incomplete",
        why: "Tokens or requests outside every slice were counted elsewhere, or not at all.",
        since: Some(3),
        affects: &[Family::Throughput],
        conditions: &[Condition::new(slices)],
        ..Rule::ERROR
    },
    Rule {
        id: "E29",
        title: "each distribution has as many samples as requests and chunks allow",
        finding: "samples missing",
        why: "Samples that were dropped are usually the slow ones.",
        since: Some(3),
        affects: Family::LATENCIES,
        conditions: &[Condition::new(sampled)],
        ..Rule::ERROR
    },
    Rule {
        id: "E30",
        title: "a partial run says what is missing",
        finding: "missing part not stated",
        why: "Otherwise the figures of a part of a run pass for those of the whole.",
        since: Some(3),
        scope: Scope { statuses: &[Status::Partial], ..Scope::MEASURED },
        conditions: &[Condition::new(partial)],
        ..Rule::ERROR
    },
    Rule {
        id: "E31",
        title: "the stated source of tokens per chunk agrees with the counts",
        finding: "tokens per chunk uncertain",
        why: "Gaps between tokens are only as good as the number of tokens in each chunk.",
        since: Some(3),
        until: Some(11),
        successor: Some("E38"),
        affects: &[Family::Itl],
        conditions: &[Condition::new(|record| chunk_source(record, true))],
        ..Rule::ERROR
    },
    Rule {
        id: "E38",
        title: "the stated source of tokens per chunk agrees with the counts of the run",
        finding: "tokens per chunk uncertain",
        why: "Gaps between tokens are only as good as the number of tokens in each chunk. A run \
              states the source of one of its answers: where the suite's tokenizer counted the \
              tokens of others, chunks may outnumber them.",
        since: Some(12),
        affects: &[Family::Itl],
        conditions: &[Condition::new(|record| chunk_source(record, false))],
        ..Rule::ERROR
    },
];

fn ttft_parts(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let parts = metrics.ttft_parts_us.as_ref()?;
    let mean = |summary: &Summary| summary.mean.map(float);
    let sent = mean(&parts.send)? + mean(&parts.server)?;
    let before = [&parts.queue, &parts.schedule_lag, &parts.connect].into_iter().chain(&parts.tls);
    let due = before.map(mean).sum::<Option<f64>>()? + sent;
    let rounding_us = parts.named().len() as f64 * ROUNDING_US;
    let wholes = [
        ("TTFT", sent, mean(metrics.ttft_us.as_ref()?)),
        ("TTFT from the schedule", due, metrics.ttft_scheduled_us.as_ref().and_then(mean)),
    ];
    let wrong = wholes.into_iter().find_map(|(name, parts, whole)| {
        let whole = whole?;
        let holds = (parts - whole).abs() <= rounding_us;
        (!holds).then(|| format!("mean {name} is {whole:.0} us, its parts make {parts:.0}"))
    });
    Some(wrong.map_or(Ok(()), Err))
}

fn scheduled(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let pairs = [
        ("TTFT", metrics.ttft_us.as_ref(), metrics.ttft_scheduled_us.as_ref()),
        ("E2E", metrics.e2e_us.as_ref(), metrics.e2e_scheduled_us.as_ref()),
    ];
    let known = pairs.iter().filter_map(|(name, sent, due)| Some((name, (*sent)?, (*due)?)));
    let mut known = known.peekable();
    known.peek()?;
    // Every request's scheduled latency is at least its actual one, so the same holds of every
    // order statistic.
    let wrong = known.find_map(|(name, sent, due)| {
        let figures = [
            ("mean", sent.mean, due.mean),
            ("p50", sent.p50, due.p50),
            ("p99", sent.p99, due.p99),
            ("max", sent.max, due.max),
        ];
        figures.into_iter().find_map(|(figure, sent, due)| {
            let (sent, due) = (sent?, due?);
            (float(due) + ROUNDING_US < float(sent)).then(|| {
                format!("{name} {figure} is {due} us from the schedule and {sent} us from the send")
            })
        })
    });
    Some(wrong.map_or(Ok(()), Err))
}

fn slices(record: &RunRecord) -> Outcome {
    let slices = record.metrics.as_ref()?.slices.as_ref()?;
    let counts = record.counts.as_ref()?;
    let wall_us = record.time.as_ref()?.wall_us?;
    let mut end_us = 0;
    for slice in slices {
        // Rounding to whole microseconds can leave a gap of one.
        if slice.start_us.abs_diff(end_us) > 1 {
            let start_us = slice.start_us;
            return Some(Err(format!(
                "a slice begins at {start_us} us, the last ends at {end_us}"
            )));
        }
        end_us = slice.start_us.saturating_add(slice.length_us);
    }
    if end_us.abs_diff(wall_us) > 1 {
        return Some(Err(format!("the slices end at {end_us} us, the run at {wall_us}")));
    }
    let sum = |read: fn(&Slice) -> u64| slices.iter().map(read).fold(0, u64::saturating_add);
    let (sent, ended) = (sum(|slice| slice.requests_sent), sum(|slice| slice.requests_ended));
    if let Some(ok) = counts.requests_ok.filter(|ok| *ok != sent || *ok != ended) {
        return Some(Err(format!(
            "{ok} requests were answered, the slices have {sent} and {ended}"
        )));
    }
    let (tokens, reported) = (sum(|slice| slice.output_tokens), counts.output_tokens_reported?);
    claim(within(float(tokens), float(reported), RATE_SHARE), || {
        format!("{reported} output tokens were reported, the slices have {tokens}")
    })
}

fn sampled(record: &RunRecord) -> Outcome {
    let (histograms, counts) = (record.histograms.as_ref()?, record.counts.as_ref()?);
    let ok = counts.requests_ok?;
    let gaps = counts.output_chunks.map(|chunks| chunks.saturating_sub(ok));
    let mut seen = false;
    for (name, histogram) in histograms.named() {
        // A text that is no histogram is a finding of rule E07.
        let Some(Ok(bins)) = histogram.map(Bins::decode) else { continue };
        seen = true;
        let samples = bins.samples;
        let (least, most) = match name {
            "ttft_scheduled_us" | "e2e_scheduled_us" => (ok, ok),
            "tpot_us" | "queue_us" | "connect_us" | "schedule_lag_us" => (0, ok),
            "itl_chunk_us" => (gaps.unwrap_or(0), gaps.unwrap_or(u64::MAX)),
            "itl_token_us" => (0, counts.output_tokens_reported.unwrap_or(u64::MAX)),
            _ => continue,
        };
        if !(least..=most).contains(&samples) {
            let due = if least == most { least.to_string() } else { format!("at most {most}") };
            return Some(Err(format!("`{name}` has {samples} samples, {due} are due")));
        }
    }
    seen.then_some(Ok(()))
}

fn partial(record: &RunRecord) -> Outcome {
    let failed = record.counts.as_ref().and_then(|counts| counts.requests_failed);
    let told = record.failure.is_some() || failed.is_some_and(|failed| failed > 0);
    claim(told, || "status is `partial`, with no failure and no failed request".to_owned())
}

/// Judges the source of tokens per chunk. `is_of_all` is true where it is taken for that of every
/// answer, as by rule E31. A suite before v0.12 states `chunks` also where a single answer had as
/// many chunks as tokens, among others that its own tokenizer had counted and that had more.
fn chunk_source(record: &RunRecord, is_of_all: bool) -> Outcome {
    let counts = record.counts.as_ref()?;
    let source = counts.chunk_token_source?;
    let is_of_all = is_of_all || counts.output_tokens_retokenized.is_none();
    let gaps = |metrics: &Metrics| metrics.itl_token_us.is_some();
    let broken = match source {
        TokenSource::Usage | TokenSource::Requested => {
            Some("the count of a whole answer says nothing of its chunks")
        }
        TokenSource::Retokenized if counts.output_tokens_retokenized.is_none() => {
            Some("chunks were counted again from text that was not")
        }
        TokenSource::UsagePerChunk | TokenSource::Retokenized | TokenSource::Chunks => None,
    };
    let silent = record.metrics.as_ref().is_some_and(|metrics| !gaps(metrics));
    let several = counts.output_chunks.zip(counts.output_tokens_reported);
    let broken = broken
        .or_else(|| silent.then_some("the tokens of chunks are known, the gaps between them not"))
        .or_else(|| {
            several
                .filter(|(chunks, tokens)| chunks > tokens && source == TokenSource::Chunks)
                .filter(|_| is_of_all)
                .map(|_| "chunks are tokens, and there are more of them")
        });
    Some(broken.map_or(Ok(()), |why| Err(why.to_owned())))
}
