//! Builds the measurement record of a run out of what was observed.

use judge::quantile::{percentile, percentile_f64};
use schema::measurement::{Measurement, SCHEMA};
use schema::run::{
    ClientFacts, Counts, Failure, FailureClass, Histograms, Metrics, Phase, PromptForm,
    ScenarioFacts, Status, Telemetry, Time, Validity, ValidityVerdict,
};

use super::{Assignment, Seen};
use crate::client::drive::Driven;
use crate::client::sample::Sample;
use crate::client::tls::Tls;
use crate::measure::Reasons;
use crate::measure::distribution::Distributions;
use crate::measure::rates::{lengths, metrics};
use crate::measure::slo::met;
use crate::measure::summary::float;
use crate::measure::tally::{Answered, answered, counts};
use crate::measure::verdict::{Evidence, Judged, verdict};
use crate::measure::window::Wall;
use crate::telemetry::joules_per_token;

impl Assignment<'_> {
    /// Measurement of a run whose warm-up or priming failed, so that the clock never started.
    pub(super) fn failed_before_the_clock(&self, failure: Failure) -> Measurement {
        let validity = "nothing-measured: the warm-up failed";
        bare(&self.facts, Status::Failed, failure, "the warm-up failed", validity)
    }

    /// Measurement of a run, still without the correctness check, and the number of requests that
    /// met all latency limits.
    pub(super) fn measurement(&self, seen: &Seen<'_>) -> (Measurement, u64) {
        let driven = &seen.driven;
        let mut reasons = of_scenario(&self.facts);
        let answered = answered(&driven.samples, &self.plan.manifest, self.tokenizer);
        let all = Distributions::of(&answered);
        let counts = counts(&driven.samples, &answered, &mut reasons);
        let tls = self.server.tls.as_ref().and_then(Tls::facts);
        let client = ClientFacts { tls, ..client_facts(driven, &all, &mut reasons) };
        let cache = seen.cache.facts(self, &driven.samples, &seen.watch, &mut reasons);
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
        self.figures(&mut measurement, &answered, &all, &counts, &mut reasons);
        let telemetry = seen.watch.facts(driven.start_ns, &mut reasons);
        self.energy(measurement.metrics.as_mut(), &telemetry, &counts, &mut reasons);
        let evidence = self.evidence(&measurement, &counts, &answered, &all);
        measurement.validity = verdict(&Judged {
            counts: &counts,
            metrics: measurement.metrics.as_ref(),
            client: &client,
            cache: &cache,
            telemetry: Some(&telemetry),
            evidence: &evidence,
        });
        measurement.telemetry = Some(telemetry);
        measurement.counts = Some(counts);
        measurement.client = Some(client);
        measurement.cache = Some(cache);
        measurement.absent = reasons.0;
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
        reasons: &mut Reasons,
    ) {
        const NOTHING: &str = "no request was answered";
        let Some(wall) = Wall::of(answered) else {
            for length in ["wall_us", "window_us", "ramp_us", "drain_us"] {
                reasons.none::<()>(&format!("time.{length}"), NOTHING);
            }
            measurement.time = Some(Time::default());
            measurement.histograms = reasons.none("histograms", NOTHING);
            measurement.metrics = reasons.none("metrics", NOTHING);
            return;
        };
        measurement.time = Some(lengths(answered, wall, reasons));
        let histograms: Option<Histograms> = all.histograms(reasons).ok();
        measurement.histograms =
            reasons.explain("histograms", histograms, "a time is beyond what a histogram holds");
        measurement.metrics =
            Some(metrics(answered, wall, counts, all, self.ranks.gpus, self.slos, reasons));
    }

    /// Fills in the energy per output token in joules, or the reason why it is not known.
    fn energy(
        &self,
        metrics: Option<&mut Metrics>,
        telemetry: &Telemetry,
        counts: &Counts,
        reasons: &mut Reasons,
    ) {
        let Some(metrics) = metrics else { return };
        let tokens = counts.output_tokens_reported.unwrap_or(0);
        metrics.joules_per_output_token = match joules_per_token(telemetry, self.ranks, tokens) {
            Ok(joules) => Some(joules),
            Err(why) => {
                let why = self.meter.as_ref().err().unwrap_or(&why);
                reasons.none("metrics.joules_per_output_token", why)
            }
        };
    }

    fn evidence(
        &self,
        measurement: &Measurement,
        counts: &Counts,
        answered: &[Answered<'_>],
        all: &Distributions,
    ) -> Evidence {
        let manifest = &self.plan.manifest;
        let mean = |sum: u64, count: usize| float(sum) / float(count.max(1) as u64);
        let survivors: u64 = answered.iter().map(|request| request.prompt_tokens).sum();
        // Only prompts sent as ids have an exact length; text is tokenized by the server.
        let as_ids = manifest.prompt_form == PromptForm::TokenIds;
        let prompts_miscounted = answered.iter().filter(|request| as_ids && miscounted(request));
        let chunks_miscounted = answered.iter().filter(|request| {
            request.credit.seen.is_some_and(|seen| seen != request.credit.tokens)
        });
        let lengths = || manifest.requests.iter().map(|request| request.output_tokens);
        let fixed_output = lengths().next().filter(|first| lengths().all(|next| next == *first));
        let length_forced = self.scenario.output.ignore_eos;
        let whole =
            length_forced && counts.output_tokens_reported == counts.output_tokens_requested;
        let decode_ns = all.itl_token_ns.as_ref().map(|gaps| {
            let decode = |(e2e, ttft): (&u64, &u64)| e2e - ttft;
            (gaps.iter().sum(), all.e2e_ns.iter().zip(&all.ttft_ns).map(decode).sum())
        });
        Evidence {
            prompt_tokens_mean: (
                mean(manifest.input_tokens(), manifest.requests.len()),
                mean(survivors, answered.len()),
            ),
            prompts_miscounted: prompts_miscounted.count() as u64,
            chunks_miscounted: chunks_miscounted.count() as u64,
            length_forced,
            fixed_output: fixed_output.filter(|_| whole),
            wall_us: measurement.time.as_ref().and_then(|time| time.wall_us).unwrap_or(0),
            decode_ns,
            concurrency_max: self.scenario.arrival.concurrency_max(),
            tier: self.scenario.tier,
            cache_asked: self.scenario.cache.state,
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
    bare(facts, Status::Partial, failure, WHY, &format!("unfinished: {WHY}"))
}

/// Measurement without any figure: each group of figures has the same reason for its absence.
fn bare(
    facts: &ScenarioFacts,
    status: Status,
    failure: Failure,
    why: &str,
    validity: &str,
) -> Measurement {
    let mut reasons = of_scenario(facts);
    for group in
        ["time", "client", "cache", "counts", "histograms", "metrics", "telemetry", "correctness"]
    {
        reasons.none::<()>(group, why);
    }
    Measurement {
        schema: SCHEMA.to_owned(),
        status,
        validity: Validity {
            verdict: ValidityVerdict::Invalid,
            reasons: vec![validity.to_owned()],
        },
        failure: Some(failure),
        scenario: facts.clone(),
        absent: reasons.0,
        ..Measurement::default()
    }
}

/// Reasons for facts that the scenario itself lacks: generated workloads have no dataset.
fn of_scenario(facts: &ScenarioFacts) -> Reasons {
    let mut reasons = Reasons::default();
    let dataset = facts.dataset_sha256.as_ref();
    reasons.explain("scenario.dataset_sha256", dataset, "the pack makes its own prompts");
    reasons
}

fn miscounted(request: &Answered<'_>) -> bool {
    let usage = request.sample.usage;
    usage.is_some_and(|usage| usage.prompt_tokens != request.prompt_tokens)
}

/// Facts about the load generator in this run: CPU share, loop lag, receive stamps, send lag.
fn client_facts(driven: &Driven, all: &Distributions, reasons: &mut Reasons) -> ClientFacts {
    const NO_READ: &str = "no answer brought a token";
    const SHORT: &str = "the run is shorter than 10 ms";
    let load = &driven.load;
    let mut lags: Vec<u64> = driven.samples.iter().filter_map(Sample::schedule_lag_ns).collect();
    lags.sort_unstable();
    debug_assert!(lags.len() >= all.schedule_lag_ns.len(), "every answer was sent");
    let lag_ns = percentile(&lags, 0.99);
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
        commit: reasons
            .none("client.commit", "the client does not know the commit it was built at"),
        cpu_share_p95: reasons.explain(
            "client.cpu_share_p95",
            percentile_f64(load.cpu_shares(), 0.95),
            SHORT,
        ),
        loop_lag_us_p99: reasons.explain("client.loop_lag_us_p99", load.loop_lag_us_p99(), SHORT),
        kernel_timestamps: reasons.explain(
            "client.kernel_timestamps",
            load.kernel_timestamps(),
            NO_READ,
        ),
        kernel_to_user_us_p99: reasons.explain(
            "client.kernel_to_user_us_p99",
            load.kernel_to_user_us_p99(),
            "the kernel gave no receive stamps",
        ),
        coalesced_read_share: reasons.explain(
            "client.coalesced_read_share",
            load.coalesced_read_share(),
            NO_READ,
        ),
        late_read_share: reasons.explain("client.late_read_share", load.late_read_share(), NO_READ),
        schedule_lag_us_p99: reasons.explain(
            "client.schedule_lag_us_p99",
            lag_us,
            "no request was sent",
        ),
        streams_max: Some(load.streams_max),
        tls: None,
    }
}
