//! Reasons that lie with the answers: too few, of other lengths, helped by the cache.

use judge::quantile::samples_needed;
use schema::run::{CacheState, Metrics, Summary};
use schema::scenario::Tier;

use super::{Findings, Judged, Reason};
use crate::measure::summary::float;

/// Reported tokens may differ from requested ones by this share.
const REPORTED_SHARE: f64 = 0.001;
/// Re-tokenized counts differ more, since text does not always give its tokens back.
const RETOKENIZED_SHARE: f64 = 0.02;
/// Prefix hits may miss what is expected by this share of the tokens looked up.
const HITS_SHARE: f64 = 0.01;
/// Failures up to this share leave a picture of the rest.
const FAILED_SHARE_MAX: f64 = 0.05;
/// The highest percentile that is shown.
const HIGHEST: f64 = 0.99;

pub(super) const OUTPUT_LENGTH: Reason = Reason::invalid(
    "output-length",
    "0.1 % more or fewer output tokens were reported than requested, where ends are ignored",
);
pub(super) const RETOKENIZED: Reason =
    Reason::degraded("retokenized", "the text of the answers makes 2 % more or fewer tokens");
pub(super) const PROMPT_LENGTH: Reason = Reason::invalid(
    "prompt-length",
    "the server counts another length of a prompt that it got as ids",
);
pub(super) const CHUNK_COUNT: Reason = Reason::degraded(
    "chunk-count",
    "the chunks of an answer hold other tokens than its usage says",
);
pub(super) const FAILURES: Reason = Reason::degraded("failures", "a request failed");
pub(super) const MANY_FAILURES: Reason =
    Reason::invalid("many-failures", "more than 5 % of all requests failed");
pub(super) const SURVIVORS: Reason = Reason::invalid(
    "survivors",
    "the prompts that were answered differ by 5 % in mean length from those of the plan",
);
pub(super) const CACHE_MISMATCH: Reason = Reason::invalid(
    "cache-mismatch",
    "prefix hits exceed what the plan explains by 1 % of the prompt tokens, or fall as far short \
     of what was primed",
);
pub(super) const CACHE_NOT_EMPTY: Reason =
    Reason::degraded("cache-not-empty", "the prefix cache was emptied and still held something");
// What the percentiles of so few are worth is told by the bounds beside them.
pub(super) const FEW_SAMPLES: Reason = Reason::note(
    "few-samples",
    "the answers are too few to bound the p99 with 99 % confidence (not on -lite)",
);

impl Findings {
    pub(super) fn answers(&mut self, run: &Judged<'_>) {
        self.tokens(run);
        self.survivors(run);
        self.cache(run);
        self.samples(run);
    }

    fn tokens(&mut self, run: &Judged<'_>) {
        let (counts, evidence) = (run.counts, run.evidence);
        let reported = counts.output_tokens_reported.unwrap_or(0);
        let requested = counts.output_tokens_requested.unwrap_or(0);
        let strayed = evidence.length_forced && strays(reported, requested, REPORTED_SHARE);
        self.add(&OUTPUT_LENGTH, strayed, || {
            format!("{requested} output tokens were requested and {reported} reported")
        });
        let again = counts.output_tokens_retokenized.unwrap_or(reported);
        self.add(&RETOKENIZED, strays(again, reported, RETOKENIZED_SHARE), || {
            format!("{reported} output tokens were reported, and their text makes {again}")
        });
        let wrong = evidence.prompts_miscounted;
        self.add(&PROMPT_LENGTH, wrong > 0, || {
            format!("the server counts another prompt length for {wrong} requests")
        });
        let wrong = evidence.chunks_miscounted;
        self.add(&CHUNK_COUNT, wrong > 0, || {
            format!("chunks and usage disagree on the number of tokens of {wrong} requests")
        });
    }

    fn survivors(&mut self, run: &Judged<'_>) {
        let planned = run.counts.requests_planned.unwrap_or(0);
        let failed = run.counts.requests_failed.unwrap_or(0);
        let many = float(failed) > float(planned) * FAILED_SHARE_MAX;
        let figures = || format!("{failed} of {planned} requests failed: figures are the others'");
        self.add(&FAILURES, failed > 0 && !many, figures);
        self.add(&MANY_FAILURES, many, figures);
        let (all, survivors) = run.evidence.prompt_tokens_mean;
        let others = (survivors - all).abs() > all * FAILED_SHARE_MAX;
        self.add(&SURVIVORS, others && failed > 0 && failed < planned, || {
            format!("prompts have {all:.0} tokens in the plan and {survivors:.0} where answered")
        });
    }

    fn cache(&mut self, run: &Judged<'_>) {
        let cache = run.cache;
        let not_empty =
            run.evidence.cache_asked == CacheState::Cold && cache.state == CacheState::Primed;
        self.add(&CACHE_NOT_EMPTY, not_empty, || {
            "the prefix cache was emptied, and a second order still found something".to_owned()
        });
        let (Some(hits), Some(expected)) = (cache.hit_tokens, cache.expected_hit_tokens) else {
            return;
        };
        let of = cache.query_tokens.or(run.counts.input_tokens).unwrap_or(0);
        let room = float(of) * HITS_SHARE;
        let short = cache.primed_tokens.is_some() && float(hits) + room < float(expected);
        let known = run.evidence.cache_asked != CacheState::Unknown;
        self.add(&CACHE_MISMATCH, known && float(hits) > float(expected) + room, || {
            format!("{hits} prompt tokens came from the prefix cache, {expected} could")
        });
        self.add(&CACHE_MISMATCH, short, || {
            format!("{hits} prompt tokens came from the prefix cache, {expected} should have")
        });
    }

    fn samples(&mut self, run: &Judged<'_>) {
        let Some(metrics) = run.metrics else { return };
        let answers = run.counts.requests_ok.unwrap_or(0);
        let needed = samples_needed(HIGHEST);
        let judged = run.evidence.tier != Tier::Lite;
        self.add(&FEW_SAMPLES, judged && answers < needed, || {
            format!("{answers} answers do not bound the p99, {needed} would; {}", bounds(metrics))
        });
    }
}

/// The bounds that the samples do give.
fn bounds(metrics: &Metrics) -> String {
    let ttft = metrics.ttft_us.as_ref();
    let bound = |read: fn(&Summary) -> Option<u64>| ttft.and_then(read);
    match (bound(|ttft| ttft.p95_upper), bound(|ttft| ttft.p90_upper)) {
        (Some(us), _) => format!("the p95 of TTFT is at most {us} us"),
        (None, Some(us)) => format!("the p90 of TTFT is at most {us} us"),
        (None, None) => "nor any other percentile".to_owned(),
    }
}

/// True where `found` lies further from `wanted` than `share` of it.
fn strays(found: u64, wanted: u64, share: f64) -> bool {
    float(found.abs_diff(wanted)) > float(wanted) * share
}
