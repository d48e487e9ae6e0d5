//! Quality rules over figures published elsewhere, which come without histograms: their means must
//! agree with each other, and a contradiction shows how the tool miscounted.

use schema::run::{Kind, Metrics, RunRecord, Status, TPOT_WEIGHT};
use schema::scenario::SHAREGPT_REQUESTS;

use super::counts::credited_output;
use super::{claim, float, within};
use crate::rule::{Condition, Family, Outcome, Rule, Scope};

/// Tolerated relative difference between a mean TPOT over tokens and (E2E - TTFT) / (tokens - 1).
pub const TOKEN_MEAN_SHARE: f64 = 0.01;

/// Smallest ratio of a mean TPOT over requests to (E2E - TTFT) / (tokens - 1) that rule E23
/// accepts. A mean over requests weighs short answers as much as long ones, which raises it, up to
/// 5.6 times in sound results; the lowest ratio in a sound result is 1.017.
pub const REQUEST_MEAN_SHARE_MIN: f64 = 0.75;

/// Smallest ratio of a mean ITL to (E2E - TTFT) / (tokens - 1) that rule E24 accepts. Gaps between
/// chunks can be longer than the time per token, never shorter.
pub const GAP_SHARE_MIN: f64 = 0.9;

/// Ratio of mean ITL to the time per token above which chunks are reported to hold more than one
/// token.
pub const TOKENS_PER_CHUNK_MAX: f64 = 1.02;

/// Relative difference up to which two printed figures are taken as equal.
const SAME_SHARE: f64 = 0.001;
/// Half of the last digit, in microseconds, of a time printed in milliseconds with two decimals.
const PRINTED_US: f64 = 5.0;

const PUBLISHED: Scope =
    Scope { kinds: &[Kind::Imported], statuses: &[Status::Ok, Status::Partial], ..Scope::ALL };

/// Quality rules over figures published elsewhere, ordered by id.
pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "E23",
        title: "mean TPOT agrees with (E2E - TTFT) / (tokens - 1)",
        finding: "TPOT contradicts E2E",
        why: "A client that misses chunks, or that counts the wait for the first token, prints \
              another quantity under this name: one page compared both kinds in its headline.",
        since: Some(2),
        scope: PUBLISHED,
        affects: &[Family::Tpot],
        conditions: &[Condition::new(tpot)],
        ..Rule::ERROR
    },
    Rule {
        id: "E24",
        title: "mean ITL is at least (E2E - TTFT) / (tokens - 1)",
        finding: "ITL contradicts E2E",
        why: "The gaps between chunks fill the time from the first to the last token. A smaller \
              mean, or none, shows that the client missed chunks.",
        since: Some(2),
        scope: PUBLISHED,
        affects: &[Family::Itl],
        conditions: &[Condition::new(gaps)],
        ..Rule::ERROR
    },
    Rule {
        id: "E25",
        title: "all planned requests succeeded",
        finding: "requests failed",
        why: "The requests that fail are often the slow or the long ones, so the figures of the \
              others alone look better (survivorship bias).",
        since: Some(2),
        scope: PUBLISHED,
        conditions: &[Condition::new(survivors)],
        ..Rule::ERROR
    },
    Rule {
        id: "W12",
        title: "chunks hold one token each",
        finding: "ITL is per chunk",
        why: "Where mean ITL is above the time per token, a chunk holds several tokens, and ITL \
              is a time per chunk.",
        since: Some(2),
        scope: PUBLISHED,
        affects: &[Family::Itl],
        conditions: &[Condition::new(chunk_tokens)],
        ..Rule::WARNING
    },
    Rule {
        id: "W13",
        title: "a ShareGPT run has the 10,000 requests of `sharegpt`",
        finding: "other sample size",
        why: "A sample of another size is another workload: lengths differ, and ramp-up and drain \
              take another share of the run.",
        since: Some(2),
        scope: PUBLISHED,
        conditions: &[Condition::new(sample)],
        ..Rule::WARNING
    },
];

/// Mean answer length, TTFT and E2E of a published result, in tokens and microseconds.
struct Times {
    /// Mean number of output tokens per answer.
    tokens: f64,
    ttft: f64,
    e2e: f64,
}

impl Times {
    fn of(record: &RunRecord, metrics: &Metrics) -> Option<Self> {
        let counts = record.counts.as_ref()?;
        let tokens =
            float(credited_output(counts)?) / float(counts.requests_ok.filter(|n| *n > 0)?);
        let (ttft, e2e) = (metrics.ttft_us.as_ref()?.mean?, metrics.e2e_us.as_ref()?.mean?);
        (tokens > 1.0).then(|| Self { tokens, ttft: float(ttft), e2e: float(e2e) })
    }

    /// Returns the mean time per token after the first, in microseconds: (E2E - TTFT) / (tokens -
    /// 1).
    fn per_token(&self) -> f64 {
        (self.e2e - self.ttft) / (self.tokens - 1.0)
    }
}

fn same(left: f64, right: f64) -> bool {
    within(left, right, SAME_SHARE) || (left - right).abs() <= PRINTED_US
}

fn ms(us: f64) -> String {
    format!("{:.2} ms", us / 1e3)
}

fn tpot(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let times = Times::of(record, metrics)?;
    let (tpot, due) = (float(metrics.tpot_us.as_ref()?.mean?), times.per_token());
    let holds = if mean_over_tokens(record) {
        within(tpot, due, TOKEN_MEAN_SHARE)
    } else {
        let includes_first = same(tpot, times.e2e / times.tokens);
        let equal = within(tpot, due, TOKEN_MEAN_SHARE);
        // A mean over requests may be far above the due value, but one that equals E2E / tokens
        // includes the first token's wait.
        equal || tpot >= REQUEST_MEAN_SHARE_MIN * due && !includes_first
    };
    claim(holds, || {
        let what = diagnosis(metrics, &times, tpot);
        format!("{what}: mean TPOT is {}, E2E and TTFT give {}", ms(tpot), ms(due))
    })
}

fn mean_over_tokens(record: &RunRecord) -> bool {
    let definitions = record.source.as_ref().map(|source| &source.definitions);
    definitions.and_then(|known| known.get(TPOT_WEIGHT)).and_then(|weight| weight.as_str())
        == Some("token")
}

/// Returns words for the quantity that the figure printed as TPOT really is, for a TPOT that E2E
/// and TTFT contradict.
fn diagnosis(metrics: &Metrics, times: &Times, tpot: f64) -> String {
    let median = |summary: &Option<schema::run::Summary>| summary.as_ref()?.p50.map(float);
    let first = |tpot: f64, ttft: f64| tpot > 0.0 && same(tpot, ttft / times.tokens);
    let tokens = times.tokens;
    if same(tpot, times.e2e / tokens) {
        return format!("TPOT includes TTFT (it is E2E / {tokens:.1} tokens)");
    }
    if first(tpot, times.ttft) {
        return format!("only the first chunk was counted (TPOT is TTFT / {tokens:.1} tokens)");
    }
    let medians = median(&metrics.tpot_us).zip(median(&metrics.ttft_us));
    if medians.is_some_and(|(tpot, ttft)| first(tpot, ttft)) {
        return format!(
            "only the first chunk was counted in most answers (median TPOT is median TTFT / \
             {tokens:.1} tokens)"
        );
    }
    if tpot < times.per_token() {
        return "not all chunks were counted".to_owned();
    }
    "TPOT is not the time per token after the first".to_owned()
}

fn gaps(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let due = Times::of(record, metrics)?.per_token();
    let gaps = metrics.itl_chunk_us.as_ref().or(metrics.itl_token_us.as_ref())?;
    let mean = float(gaps.mean?);
    claim(mean >= GAP_SHARE_MIN * due, || {
        let what = match (gaps.mean, gaps.p50) {
            (Some(0), _) => "no gap was seen: only the first chunk was counted",
            (_, Some(0)) => {
                "half of the gaps are zero: in most answers only the first chunk was counted"
            }
            _ => "not all gaps were seen",
        };
        format!("{what}; mean ITL is {}, E2E and TTFT give {}", ms(mean), ms(due))
    })
}

fn survivors(record: &RunRecord) -> Outcome {
    let counts = record.counts.as_ref()?;
    let ok = counts.requests_ok?;
    let asked = counts.requests_planned.or_else(|| ok.checked_add(counts.requests_failed?))?;
    claim(ok >= asked, || {
        let input = counts.input_tokens.filter(|_| ok > 0).map_or_else(String::new, |tokens| {
            format!(", with {:.0} prompt tokens each", float(tokens) / float(ok))
        });
        format!(
            "survivorship: {ok} of {asked} requests succeeded, and all figures are theirs{input}"
        )
    })
}

fn chunk_tokens(record: &RunRecord) -> Outcome {
    let metrics = record.metrics.as_ref()?;
    let due = Times::of(record, metrics).filter(|times| times.per_token() > 0.0)?.per_token();
    let ratio = float(metrics.itl_chunk_us.as_ref()?.mean?) / due;
    claim(ratio <= TOKENS_PER_CHUNK_MAX, || {
        format!("mean ITL is {ratio:.3} times the time per token: so many tokens a chunk")
    })
}

fn sample(record: &RunRecord) -> Outcome {
    let (scenario, requests) = (&record.scenario, record.scenario.requests?);
    let is_sharegpt = match &scenario.dataset {
        Some(dataset) => dataset.eq_ignore_ascii_case("sharegpt"),
        // Records from before the field state it by the id that the import made of it.
        None => scenario.id.starts_with("sharegpt"),
    };
    if !is_sharegpt {
        return None;
    }
    claim(requests == SHAREGPT_REQUESTS, || {
        format!(
            "a different workload: {requests} requests of ShareGPT, `sharegpt` has \
             {SHAREGPT_REQUESTS}"
        )
    })
}
