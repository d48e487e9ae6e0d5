//! May the numbers be believed? VALID, DEGRADED or INVALID, with every reason.
//!
//! DEGRADED: the client or the server strayed, within what a reader can allow for. INVALID: the
//! numbers are not what they say they are. The registry's quality rules judge a record again, and
//! by more than the client knows.

use schema::run::{CacheFacts, ClientFacts, Counts, Metrics, Summary, Validity, ValidityVerdict};

use super::summary::float;

/// Share of a core above which the client may have set the number.
const CPU_SHARE_MAX: f64 = 0.8;
/// Loop lag in microseconds that is always too much, and that is never.
const LOOP_LAG_US: (u64, u64) = (5_000, 200);
/// Loop lag as a share of the time per output token.
const LOOP_LAG_SHARE: f64 = 0.02;
/// Sends later than this, in microseconds, and than this share of the median TTFT are late.
const SCHEDULE_LAG_US: u64 = 5_000;
const SCHEDULE_LAG_SHARE: f64 = 0.02;
/// Above this share of reads with more than one chunk, gaps are bounds and not measurements.
const COALESCED_SHARE_MAX: f64 = 0.5;
/// Reported tokens may differ from requested ones by this share.
const REPORTED_SHARE: f64 = 0.001;
/// Re-tokenized counts differ more, since text does not always give its tokens back.
const RETOKENIZED_SHARE: f64 = 0.02;
/// Prefix hits may exceed what the manifest predicts by this share of the tokens looked up.
const HITS_SHARE: f64 = 0.01;
/// Failures up to this share leave a picture of the rest.
const FAILED_SHARE_MAX: f64 = 0.05;
/// Identities hold to this share.
const IDENTITY_SHARE: f64 = 0.01;

/// What is judged, beside the groups of the record.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Mean prompt length of all requests, and of those that were answered.
    pub prompt_tokens_mean: (f64, f64),
    /// Prompts of which the server counts another length, where they go as ids.
    pub prompts_miscounted: u64,
    /// Requests whose chunks hold other numbers of tokens than their usage says.
    pub chunks_miscounted: u64,
    /// Every answer is asked to have this many tokens; none where lengths differ.
    pub fixed_output: Option<u64>,
    /// Length of the run.
    pub wall_us: u64,
}

#[derive(Default)]
struct Findings {
    degraded: Vec<String>,
    invalid: Vec<String>,
}

/// Judges a run.
#[must_use]
pub fn verdict(
    counts: &Counts,
    metrics: Option<&Metrics>,
    client: &ClientFacts,
    cache: &CacheFacts,
    evidence: &Evidence,
) -> Validity {
    let mut findings = Findings::default();
    findings.client(client, metrics);
    findings.tokens(counts, evidence);
    findings.survivors(counts, evidence);
    findings.cache(cache);
    if let Some(metrics) = metrics {
        findings.identities(metrics, evidence);
    }
    let verdict = match (findings.invalid.is_empty(), findings.degraded.is_empty()) {
        (false, _) => ValidityVerdict::Invalid,
        (true, false) => ValidityVerdict::Degraded,
        (true, true) => ValidityVerdict::Valid,
    };
    Validity { verdict, reasons: [findings.invalid, findings.degraded].concat() }
}

impl Findings {
    fn degraded(&mut self, found: bool, reason: impl FnOnce() -> String) {
        if found {
            self.degraded.push(reason());
        }
    }

    fn invalid(&mut self, found: bool, reason: impl FnOnce() -> String) {
        if found {
            self.invalid.push(reason());
        }
    }

    fn client(&mut self, client: &ClientFacts, metrics: Option<&Metrics>) {
        let p50 = |read: fn(&Metrics) -> &Option<Summary>| {
            metrics.and_then(|metrics| read(metrics).as_ref()?.p50).map(float)
        };
        let share = client.cpu_share_p95.unwrap_or(0.0);
        self.degraded(share > CPU_SHARE_MAX, || {
            format!("the client used {:.0} % of a core (p95)", share * 100.0)
        });
        let lag = client.loop_lag_us_p99.unwrap_or(0);
        let of_tpot =
            p50(|metrics| &metrics.tpot_us).map_or(f64::INFINITY, |tpot| tpot * LOOP_LAG_SHARE);
        let (much, little) = LOOP_LAG_US;
        self.degraded(lag > much || (lag > little && float(lag) > of_tpot), || {
            format!("the client's loop was away for {lag} us (p99)")
        });
        let lag = client.schedule_lag_us_p99.unwrap_or(0);
        let of_ttft = p50(|metrics| &metrics.ttft_us).unwrap_or(0.0) * SCHEDULE_LAG_SHARE;
        self.degraded(lag > SCHEDULE_LAG_US && float(lag) > of_ttft, || {
            format!("requests were sent {lag} us late (p99)")
        });
        let share = client.coalesced_read_share.unwrap_or(0.0);
        self.degraded(share > COALESCED_SHARE_MAX, || {
            format!("{:.0} % of reads brought several chunks: their gaps are bounds", share * 100.0)
        });
    }

    fn tokens(&mut self, counts: &Counts, evidence: &Evidence) {
        let reported = counts.output_tokens_reported.unwrap_or(0);
        let requested = counts.output_tokens_requested.unwrap_or(0);
        self.invalid(strays(reported, requested, REPORTED_SHARE), || {
            format!("{requested} output tokens were requested and {reported} reported")
        });
        if let Some(retokenized) = counts.output_tokens_retokenized {
            self.degraded(strays(retokenized, reported, RETOKENIZED_SHARE), || {
                format!(
                    "{reported} output tokens were reported, and their text makes {retokenized}"
                )
            });
        }
        let wrong = evidence.prompts_miscounted;
        self.invalid(wrong > 0, || {
            format!("the server counts another prompt length for {wrong} requests")
        });
        let wrong = evidence.chunks_miscounted;
        self.degraded(wrong > 0, || {
            format!("chunks and usage disagree on the number of tokens of {wrong} requests")
        });
    }

    fn survivors(&mut self, counts: &Counts, evidence: &Evidence) {
        let planned = counts.requests_planned.unwrap_or(0);
        let failed = counts.requests_failed.unwrap_or(0);
        if failed == 0 {
            return;
        }
        let reason = format!("{failed} of {planned} requests failed: figures are the others'");
        if float(failed) > float(planned) * FAILED_SHARE_MAX {
            self.invalid.push(reason);
        } else {
            self.degraded.push(reason);
        }
        let (all, survivors) = evidence.prompt_tokens_mean;
        self.invalid((survivors - all).abs() > all * FAILED_SHARE_MAX && failed < planned, || {
            format!("prompts have {all:.0} tokens in the plan and {survivors:.0} where answered")
        });
    }

    fn cache(&mut self, cache: &CacheFacts) {
        if let (Some(query), Some(hits), Some(expected)) =
            (cache.query_tokens, cache.hit_tokens, cache.expected_hit_tokens)
        {
            self.invalid(float(hits) > float(expected) + float(query) * HITS_SHARE, || {
                format!("{hits} prompt tokens came from the prefix cache, {expected} could")
            });
        }
    }

    /// What must hold between the figures whatever the server does.
    fn identities(&mut self, metrics: &Metrics, evidence: &Evidence) {
        let mean = |summary: &Option<Summary>| summary.as_ref().and_then(|summary| summary.mean);
        if let (Some(e2e), Some(ttft), Some(tpot), Some(n)) = (
            mean(&metrics.e2e_us),
            mean(&metrics.ttft_us),
            mean(&metrics.tpot_us),
            evidence.fixed_output.filter(|n| *n > 1),
        ) {
            let decode = float(e2e.saturating_sub(ttft)) / float(n - 1);
            // Whole microseconds are what is stored.
            let off = (decode - float(tpot)).abs() > decode * IDENTITY_SHARE + 1.0;
            self.invalid(off, || {
                format!("mean TPOT is {tpot} us, and E2E less TTFT gives {decode:.0} us a token")
            });
        }
        let zero = metrics.ttft_us.as_ref().is_some_and(|ttft| ttft.p50 == Some(0));
        self.invalid(zero, || "the median TTFT is zero".to_owned());
        if let (Some(mean), Some(peak)) =
            (metrics.output_tokens_per_s, metrics.output_tokens_per_s_peak)
        {
            // The best of the whole seconds that cover the run has at least their mean.
            let wall_s = float(evidence.wall_us) / 1e6;
            let least = mean * wall_s / wall_s.ceil();
            self.invalid(peak < least * (1.0 - IDENTITY_SHARE), || {
                format!("the best second has {peak:.0} tokens, the mean one {mean:.0}")
            });
        }
    }
}

/// True where `found` lies further from `wanted` than `share` of it.
fn strays(found: u64, wanted: u64, share: f64) -> bool {
    float(found.abs_diff(wanted)) > float(wanted) * share
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Run {
        counts: Counts,
        metrics: Metrics,
        client: ClientFacts,
        cache: CacheFacts,
        evidence: Evidence,
    }

    /// The reason that must be given, and the change that gives rise to it.
    type Case = (&'static str, fn(&mut Run));

    fn summary(p50: u64) -> Option<Summary> {
        Some(Summary { mean: Some(p50), p50: Some(p50), ..Summary::default() })
    }

    fn clean() -> Run {
        Run {
            counts: Counts {
                requests_planned: Some(100),
                requests_ok: Some(100),
                requests_failed: Some(0),
                output_tokens_requested: Some(1000),
                output_tokens_reported: Some(1000),
                output_tokens_retokenized: Some(995),
                ..Counts::default()
            },
            metrics: Metrics {
                output_tokens_per_s: Some(100.0),
                output_tokens_per_s_peak: Some(140.0),
                ttft_us: summary(100_000),
                tpot_us: summary(20_000),
                e2e_us: summary(280_000),
                ..Metrics::default()
            },
            client: ClientFacts {
                cpu_share_p95: Some(0.2),
                loop_lag_us_p99: Some(300),
                schedule_lag_us_p99: Some(900),
                coalesced_read_share: Some(0.01),
                ..ClientFacts::default()
            },
            cache: CacheFacts {
                query_tokens: Some(5000),
                hit_tokens: Some(16),
                expected_hit_tokens: Some(16),
                ..CacheFacts::default()
            },
            evidence: Evidence {
                prompt_tokens_mean: (50.0, 50.0),
                fixed_output: Some(10),
                wall_us: 10_000_000,
                ..Evidence::default()
            },
        }
    }

    fn judged(change: impl FnOnce(&mut Run)) -> Validity {
        let mut run = clean();
        change(&mut run);
        verdict(&run.counts, Some(&run.metrics), &run.client, &run.cache, &run.evidence)
    }

    #[test]
    fn a_clean_run_is_valid() {
        assert_eq!(judged(|_| ()), Validity::default());
    }

    #[test]
    fn a_run_of_no_whole_seconds_may_have_a_mean_above_its_best_second() {
        // Ten tokens at the start of each of two seconds, the second of which is cut short.
        let validity = judged(|run| {
            run.metrics.output_tokens_per_s = Some(20.0 / 1.1);
            run.metrics.output_tokens_per_s_peak = Some(10.0);
            run.evidence.wall_us = 1_100_000;
        });
        assert_eq!(validity, Validity::default());
    }

    #[test]
    fn what_a_reader_can_allow_for_degrades() {
        let cases: [Case; 8] = [
            ("of a core", |run| run.client.cpu_share_p95 = Some(0.85)),
            ("loop was away for 5001", |run| run.client.loop_lag_us_p99 = Some(5001)),
            ("loop was away for 450", |run| run.client.loop_lag_us_p99 = Some(450)),
            ("us late", |run| run.client.schedule_lag_us_p99 = Some(6000)),
            ("several chunks", |run| run.client.coalesced_read_share = Some(0.6)),
            ("their text makes", |run| run.counts.output_tokens_retokenized = Some(900)),
            ("1 of 100 requests failed", |run| run.counts.requests_failed = Some(1)),
            ("chunks and usage disagree", |run| run.evidence.chunks_miscounted = 1),
        ];
        for (reason, change) in cases {
            let validity = judged(change);
            assert_eq!(validity.verdict, ValidityVerdict::Degraded, "{reason}");
            assert!(validity.reasons.concat().contains(reason), "{:?}", validity.reasons);
        }
    }

    #[test]
    fn numbers_that_are_not_what_they_say_are_invalid() {
        let cases: [Case; 8] = [
            ("1000 output tokens were requested", |run| {
                run.counts.output_tokens_reported = Some(998);
            }),
            ("another prompt length", |run| run.evidence.prompts_miscounted = 1),
            ("6 of 100 requests failed", |run| run.counts.requests_failed = Some(6)),
            ("where answered", |run| {
                run.counts.requests_failed = Some(1);
                run.evidence.prompt_tokens_mean = (50.0, 45.0);
            }),
            ("from the prefix cache", |run| run.cache.hit_tokens = Some(100)),
            ("mean TPOT is 3000 us", |run| run.metrics.tpot_us = summary(3000)),
            ("median TTFT is zero", |run| run.metrics.ttft_us = summary(0)),
            ("best second", |run| run.metrics.output_tokens_per_s_peak = Some(90.0)),
        ];
        for (reason, change) in cases {
            let validity = judged(change);
            assert_eq!(validity.verdict, ValidityVerdict::Invalid, "{reason}");
            assert!(validity.reasons.concat().contains(reason), "{:?}", validity.reasons);
        }
    }
}
