//! Builds the measurement record of a run out of what was observed, and the failure of a run out of
//! its failed requests.

use std::collections::BTreeMap;
use std::time::Duration;

use judge::quantile::{quantile, quantile_of_floats};
use judge::rule::Evidence;
use judge::rules::validity;
use schema::measurement::{Measurement, SCHEMA};
use schema::run::{
    ClientFacts, Counts, Failure, FailureClass, Phase, PromptForm, RunRecord, ScenarioFacts,
    Status, Time, Validity, ValidityVerdict,
};

use super::{Assignment, Finished, Seen};
use crate::client::drive::Driven;
use crate::client::sample::{FailureKind, Sample};
use crate::client::tls::Tls;
use crate::measure::distribution::Distributions;
use crate::measure::rates::{lengths, metrics};
use crate::measure::slo::met;
use crate::measure::summary::float;
use crate::measure::tally::{Answered, answered, counts};
use crate::measure::window::Wall;
use crate::telemetry::joules_per_token;

impl Assignment<'_> {
    /// Measurement of a run whose warm-up or priming failed, so that the clock never started.
    pub(super) fn failed_before_the_clock(&self, failure: Failure) -> Finished {
        let validity = "nothing-measured: the warm-up failed";
        let measurement = bare(&self.facts, Status::Failed, failure, validity);
        Finished { measurement, slos_met: 0 }
    }

    /// Measurement of a run, still without the correctness check, and the number of requests that
    /// met all latency limits.
    pub(super) fn measurement(&self, seen: &Seen<'_>) -> (Measurement, u64) {
        let driven = &seen.driven;
        let answered = answered(&driven.samples, &self.plan.manifest, self.tokenizer);
        let all = Distributions::of(&answered);
        let counts = counts(&driven.samples, &answered);
        let tls = self.server.tls.as_ref().and_then(Tls::facts);
        let client = ClientFacts { tls, ..client_facts(driven, &all) };
        let cache = seen.cache.facts(self, &driven.samples, &seen.watch);
        let status = match (answered.len(), driven.samples.len()) {
            (0, _) => Status::Failed,
            (ok, planned) if ok < planned => Status::Partial,
            _ => Status::Ok,
        };
        let mut measurement = Measurement {
            schema: SCHEMA.to_owned(),
            status,
            failure: seen.failure.clone(),
            scenario: self.facts.clone(),
            ..Measurement::default()
        };
        self.figures(&mut measurement, &answered, &all, &counts);
        let telemetry = seen.watch.facts(driven.start_ns);
        if let Some(metrics) = &mut measurement.metrics {
            let tokens = counts.output_tokens_reported.unwrap_or(0);
            metrics.joules_per_output_token = joules_per_token(&telemetry, self.ranks(), tokens);
        }
        measurement.telemetry = Some(telemetry);
        measurement.counts = Some(counts);
        measurement.client = Some(client);
        measurement.cache = Some(cache);
        let mut record = RunRecord::default();
        measurement.clone().fill(&mut record);
        measurement.validity = validity(&record, &self.evidence(&answered, &all));
        (measurement, met(self.slos, &answered))
    }

    /// Fills in durations, histograms and metrics (TTFT, TPOT, ITL, E2E, rates); they need at least
    /// one answered request.
    fn figures(
        &self,
        measurement: &mut Measurement,
        answered: &[Answered<'_>],
        all: &Distributions,
        counts: &Counts,
    ) {
        let Some(wall) = Wall::of(answered) else {
            measurement.time = Some(Time::default());
            return;
        };
        measurement.time = Some(lengths(answered, wall));
        // A time beyond what a histogram holds leaves the run without histograms.
        measurement.histograms = all.histograms().ok();
        let figures = metrics(answered, wall, counts, all, self.ranks().gpus, self.slos);
        measurement.metrics = Some(figures);
    }

    fn evidence(&self, answered: &[Answered<'_>], all: &Distributions) -> Evidence {
        let manifest = &self.plan.manifest;
        let mean = |sum: u64, count: usize| float(sum) / float(count.max(1) as u64);
        let survivors: u64 = answered.iter().map(|request| request.prompt_tokens).sum();
        // Only prompts sent as ids have an exact length; text is tokenized by the server.
        let as_ids = manifest.prompt_form == PromptForm::TokenIds;
        let prompts_miscounted = answered.iter().filter(|request| as_ids && miscounted(request));
        let chunks_miscounted = answered.iter().filter(|request| {
            request.credit.seen.is_some_and(|seen| seen != request.credit.tokens)
        });
        let decode_ns = all.itl_token_ns.as_ref().map(|gaps| {
            let decode = |(e2e, ttft): (&u64, &u64)| e2e - ttft;
            (gaps.iter().sum(), all.e2e_ns.iter().zip(&all.ttft_ns).map(decode).sum())
        });
        Evidence {
            prompt_tokens_planned: mean(manifest.input_tokens(), manifest.requests.len()),
            prompt_tokens_answered: mean(survivors, answered.len()),
            prompts_miscounted: prompts_miscounted.count() as u64,
            chunks_miscounted: chunks_miscounted.count() as u64,
            decode_ns,
        }
    }
}

/// Placeholder measurement that is on disk while a run is in progress. If it is found later, the
/// run never ended; the samples taken so far are in the file named `samples`.
pub fn unfinished(facts: &ScenarioFacts, samples: &str) -> Measurement {
    const WHY: &str = "the load generator ended before the run did";
    let failure = Failure {
        class: FailureClass::Infrastructure,
        phase: Phase::Measure,
        message: format!("{WHY}: the samples so far are in `{samples}`"),
    };
    bare(facts, Status::Partial, failure, &format!("unfinished: {WHY}"))
}

/// Measurement without any figure.
fn bare(facts: &ScenarioFacts, status: Status, failure: Failure, validity: &str) -> Measurement {
    Measurement {
        schema: SCHEMA.to_owned(),
        status,
        validity: Validity {
            verdict: ValidityVerdict::Invalid,
            reasons: vec![validity.to_owned()],
        },
        failure: Some(failure),
        scenario: facts.clone(),
        ..Measurement::default()
    }
}

fn miscounted(request: &Answered<'_>) -> bool {
    let usage = request.sample.usage;
    usage.is_some_and(|usage| usage.prompt_tokens != request.prompt_tokens)
}

/// Facts about the load generator in this run: CPU share, loop lag, receive stamps, send lag.
fn client_facts(driven: &Driven, all: &Distributions) -> ClientFacts {
    let load = &driven.load;
    let mut lags: Vec<u64> = driven.samples.iter().filter_map(Sample::schedule_lag_ns).collect();
    lags.sort_unstable();
    debug_assert!(lags.len() >= all.schedule_lag_ns.len(), "every answer was sent");
    let lag_ns = quantile(&lags, 0.99);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a lag is positive and far below 2^53"
    )]
    let lag_us = lag_ns.map(|ns| (ns / 1000.0).round() as u64);
    ClientFacts {
        // Only the program that started server and client knows where the server runs.
        place: None,
        name: Some("redline-bench".to_owned()),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        // Nor does the client know the commit that it was built at.
        commit: None,
        cpu_share_p95: quantile_of_floats(&load.cpu_shares, 0.95),
        loop_lag_us_p99: load.loop_lag_us_p99(),
        kernel_timestamps: load.kernel_timestamps(),
        kernel_to_user_us_p99: load.kernel_to_user_us_p99(),
        coalesced_read_share: load.coalesced_read_share(),
        late_read_share: load.late_read_share(),
        schedule_lag_us_p99: lag_us,
        streams_max: Some(load.streams_max),
        tls: None,
    }
}

impl Assignment<'_> {
    /// True when a request failed and the server no longer answers its readiness route. A server
    /// that hung has `no_progress_ns` to answer, as its requests had.
    pub(super) fn is_gone(&self, driven: &Driven) -> bool {
        let limit_ns = if driven.hung { self.conduct.no_progress_ns } else { u64::MAX };
        let failed = driven.samples.iter().any(|sample| !sample.is_ok());
        failed && !self.server.answers(&self.engine.ready.route, Duration::from_nanos(limit_ns))
    }
}

/// Failure of a run in which at least one request failed, by the most frequent kind; `None` if all
/// requests were answered.
pub fn failure_of(driven: &Driven, gone: bool, phase: Phase) -> Option<Failure> {
    let mut kinds: BTreeMap<FailureKind, (u64, &str)> = BTreeMap::new();
    for failure in driven.samples.iter().filter_map(|sample| sample.failure.as_ref()) {
        kinds.entry(failure.kind).or_insert((0, &failure.message)).0 += 1;
    }
    // Requests that were never sent tell nothing about the cause.
    let sent = |kind: &FailureKind| *kind != FailureKind::NotSent;
    let (kind, (count, message)) = kinds
        .iter()
        .filter(|(kind, _)| sent(kind) || kinds.len() == 1)
        .max_by_key(|(_, (count, _))| *count)?;
    let total = driven.samples.len();
    let message = format!("{count} of {total} requests: {kind}: {message}");
    let class = if driven.hung {
        FailureClass::Hang
    } else if gone {
        FailureClass::Crash
    } else {
        class_of(*kind)
    };
    let message = if gone { format!("{message}; the server no longer answers") } else { message };
    Some(Failure { class, phase, message })
}

fn class_of(kind: FailureKind) -> FailureClass {
    match kind {
        FailureKind::Connect | FailureKind::Reset | FailureKind::Closed => FailureClass::Crash,
        FailureKind::Stall => FailureClass::Hang,
        FailureKind::Http(408 | 504) => FailureClass::Timeout,
        FailureKind::Http(429 | 503) | FailureKind::NotSent => FailureClass::Infrastructure,
        FailureKind::Http(400..=499 | 501) => FailureClass::Unsupported,
        FailureKind::Http(_)
        | FailureKind::ErrorEvent
        | FailureKind::NoTokens
        | FailureKind::BadHttp
        | FailureKind::BadEvent => FailureClass::BadOutput,
    }
}
