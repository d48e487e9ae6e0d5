//! Reasons that lie with the figures: what must hold between them whatever the server does.

use schema::run::{Metrics, Summary};

use super::{Findings, Judged, Reason};
use crate::measure::summary::float;

/// Identities hold to this share.
const SHARE: f64 = 0.01;
/// Rates follow from counts to this share.
const RATE_SHARE: f64 = 0.001;

pub(super) const ACCOUNTED: Reason =
    Reason::invalid("accounted", "requests answered and failed are not those planned");
pub(super) const TPOT: Reason = Reason::invalid(
    "tpot-identity",
    "mean TPOT is not (E2E - TTFT) / (n - 1) within 1 %, where all answers have n tokens",
);
pub(super) const GAPS: Reason = Reason::invalid(
    "gap-identity",
    "the gaps between tokens do not add up to E2E - TTFT within 1 %",
);
pub(super) const RATES: Reason = Reason::invalid(
    "rate-identity",
    "output tokens over the run's length are not the rate within 0.1 %",
);
pub(super) const FIRST_TOKEN: Reason = Reason::invalid("first-token", "the median TTFT is zero");
pub(super) const PERCENTILES: Reason =
    Reason::invalid("percentiles", "a percentile is below a lower one");
pub(super) const PEAK: Reason = Reason::invalid("peak", "the best second is below the mean one");
pub(super) const CONCURRENCY: Reason =
    Reason::invalid("concurrency", "more requests ran at one time than the cap allows");

impl Findings {
    pub(super) fn identities(&mut self, run: &Judged<'_>) {
        let counts = run.counts;
        let (planned, ok) = (counts.requests_planned, counts.requests_ok);
        let sum = ok.zip(counts.requests_failed).map(|(ok, failed)| ok + failed);
        self.add(&ACCOUNTED, sum != planned, || {
            format!("{planned:?} requests were planned, {sum:?} answered or failed")
        });
        if let Some(metrics) = run.metrics {
            self.times(run, metrics);
            self.rates(run, metrics);
        }
    }

    fn times(&mut self, run: &Judged<'_>, metrics: &Metrics) {
        let mean = |summary: &Option<Summary>| summary.as_ref().and_then(|summary| summary.mean);
        if let (Some(e2e), Some(ttft), Some(tpot), Some(n)) = (
            mean(&metrics.e2e_us),
            mean(&metrics.ttft_us),
            mean(&metrics.tpot_us),
            run.evidence.fixed_output.filter(|n| *n > 1),
        ) {
            let decode = float(e2e.saturating_sub(ttft)) / float(n - 1);
            // Whole microseconds are what is stored.
            let off = (decode - float(tpot)).abs() > decode * SHARE + 1.0;
            self.add(&TPOT, off, || {
                format!("mean TPOT is {tpot} us, and E2E less TTFT gives {decode:.0} us a token")
            });
        }
        if let Some((gaps, decode)) = run.evidence.decode_ns {
            let off = float(gaps.abs_diff(decode)) > float(decode) * SHARE;
            self.add(&GAPS, off, || {
                let (gaps, decode) = (gaps / 1000, decode / 1000);
                format!("the gaps between tokens add up to {gaps} us, E2E less TTFT to {decode}")
            });
        }
        let zero = metrics.ttft_us.as_ref().is_some_and(|ttft| ttft.p50 == Some(0));
        self.add(&FIRST_TOKEN, zero, || "the median TTFT is zero".to_owned());
        let falling = metrics
            .summaries()
            .into_iter()
            .find_map(|(name, summary)| (!rises(summary?)).then_some(name));
        self.add(&PERCENTILES, falling.is_some(), || {
            format!("the percentiles of `{}` do not rise", falling.unwrap_or_default())
        });
    }

    fn rates(&mut self, run: &Judged<'_>, metrics: &Metrics) {
        let wall_s = float(run.evidence.wall_us) / 1e6;
        let Some(rate) = metrics.output_tokens_per_s else { return };
        let tokens = float(run.counts.output_tokens_reported.unwrap_or(0));
        let off = (rate * wall_s - tokens).abs() > tokens * RATE_SHARE;
        self.add(&RATES, off, || {
            format!("{tokens:.0} output tokens in {wall_s:.3} s are not {rate:.1} a second")
        });
        let peak = metrics.output_tokens_per_s_peak.unwrap_or(f64::INFINITY);
        // The best of the whole seconds that cover the run has at least their mean.
        let least = rate * wall_s / wall_s.ceil();
        self.add(&PEAK, peak < least * (1.0 - SHARE), || {
            format!("the best second has {peak:.0} tokens, the mean one {rate:.0}")
        });
        let mean = metrics.concurrency_mean.unwrap_or(0.0);
        let cap = run.evidence.concurrency_max.map_or(f64::INFINITY, float);
        self.add(&CONCURRENCY, mean > cap * (1.0 + SHARE), || {
            format!("{mean:.2} requests ran at one time, {cap:.0} may")
        });
    }
}

fn rises(summary: &Summary) -> bool {
    let steps = [summary.p50, summary.p90, summary.p95, summary.p99, summary.max];
    steps.into_iter().flatten().is_sorted()
}
