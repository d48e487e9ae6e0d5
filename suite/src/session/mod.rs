//! One benchmark run against one server, from warm-up to the check of its outputs, and the
//! measurement record that results from it. A server that fails still gives a measurement; only an
//! error of the client's own system does not.

pub mod alternation;
mod cache;
mod correctness;
pub mod freezer;
pub mod journal;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

pub use correctness::open_reference;
use judge::quantile::{quantile, quantile_of_floats};
use judge::rule::Evidence;
use judge::validity;
use schema::correctness::ReferenceOutputs;
use schema::engine::EngineFile;
use schema::manifest::{Manifest, ManifestRequest};
use schema::measurement::{Measurement, SCHEMA};
use schema::run::{
    ClientFacts, Counts, Failure, FailureClass, Phase, PromptForm, RunRecord, ScenarioFacts,
    Status, Telemetry, Time, Validity, ValidityVerdict,
};
use schema::scenario::{Arrival, CacheState, Connections, Output, Scenario};

use crate::client::control::Server;
use crate::client::drive::{DriveError, Driven, Observer, Orders, Unobserved, drive};
use crate::client::payload::{Endpoint, Payload, payload};
use crate::client::probe::Probed;
use crate::client::sample::{FailureKind, Sample};
use crate::client::tls::Tls;
use crate::clock::utc_now;
use crate::measure::distribution::Distributions;
use crate::measure::embeddings::without_output;
use crate::measure::error::{Influence, error_pct};
use crate::measure::rates::{Slo, Wall, lengths, met, metrics};
use crate::measure::summary::{float, whole};
use crate::measure::tally::{Answered, answered, counts, is_planned};
use crate::telemetry::gpu::Meter;
use crate::telemetry::{Ranks, Watch, joules_per_token};
use crate::workload::sampler::Plan;
use crate::workload::tokenizer::Tokenizer;

/// Maximum number of requests in flight at a time while the prefix cache is primed. Each request
/// asks for one token and is not timed.
const PRIMING_CONCURRENCY: u64 = 8;

/// Inputs of one benchmark run: among others server, scenario, plan, tokenizer, latency limits and
/// settings.
#[derive(Debug)]
pub struct Assignment<'a> {
    pub server: &'a Server,
    pub engine: &'a EngineFile,
    pub scenario: &'a Scenario,
    /// Facts about the run's scenario as the record states them.
    pub facts: ScenarioFacts,
    pub plan: &'a Plan,
    /// Tokenizer with which prompts were made and answers are tokenized again; `None` where the
    /// sampler needs none and none is given.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Model name that the run's requests carry: the one that a flag gives, else the one that the
    /// server reports; empty if there is neither.
    pub model: String,
    /// Facts that the server reports about itself, probed before the run.
    pub probed: &'a Probed,
    /// Reader of this machine's GPUs; `None` where they cannot be read.
    pub meter: &'a Meter,
    /// Reference outputs that the server's greedy outputs are compared with; `None` if none are
    /// given.
    pub reference: Option<&'a ReferenceOutputs>,
    /// Latency limits (SLOs); goodput counts the requests that meet them.
    pub slos: &'a [Slo],
    pub conduct: Conduct,
    /// Flag that another thread or a signal handler sets to stop the run.
    pub stop: &'a AtomicBool,
}

/// Settings by which runs are performed and sampled, from flags or their defaults; the same for all
/// runs of a command.
#[derive(Clone, Copy, Debug)]
pub struct Conduct {
    /// Time without progress while requests are in flight, in nanoseconds, after which the run is
    /// given up as hung.
    pub no_progress_ns: u64,
    /// Time between two telemetry samples during the run, in nanoseconds; `None` takes samples only
    /// before and after the run.
    pub telemetry_ns: Option<u64>,
    /// True to use the kernel's receive time stamps as event times, where the kernel provides them.
    pub kernel_timestamps: bool,
    /// True to send the fixed prompts of the correctness check after the run's clock has stopped.
    pub check_outputs: bool,
    /// True to keep the texts of the answers in the samples file.
    pub keeps_text: bool,
}

/// Observations of one run, from which its measurement is built: results of the load generation
/// loop, prefix cache, telemetry and failure.
struct Seen<'a> {
    driven: Driven,
    cache: cache::Observed,
    watch: Watch<'a>,
    failure: Option<Failure>,
}

/// Result of a finished run: its measurement, and the number of requests that met all latency
/// limits.
#[derive(Debug)]
pub struct Finished {
    pub measurement: Measurement,
    /// Number of the run's requests that were answered within all latency limits.
    pub slos_met: u64,
    /// True when a signal ended the run before its end.
    pub interrupted: bool,
}

impl Assignment<'_> {
    /// Performs the run: warm-up; if the scenario asks for them, a reset of the prefix cache and
    /// its priming; the timed requests; and the correctness check unless it is switched off. A
    /// failure in warm-up or priming ends the run before the timed requests. A run that is stopped
    /// among the timed requests, after one of them was answered, is measured up to there.
    ///
    /// # Errors
    /// A limit on open files or local ports is too low, a system call that the client needs fails,
    /// or `stop` was set before a timed request was answered.
    pub fn run(&self, observer: &mut dyn Observer) -> Result<Finished, DriveError> {
        let payloads: Vec<Payload> = self.written(&self.plan.manifest.requests);
        // System limits are checked first, so that they fail before anything is sent.
        self.timed_orders(&payloads).prepare()?;
        // Warm-up requests are sent at once whatever the scenario's arrival: nothing of them is
        // timed.
        let warmup = self.written(&self.plan.warmup);
        let warmed = self.drive(&warmup, &Arrival::AllAtOnce)?;
        if let Some(failure) = failure_of(&warmed, self.is_gone(&warmed), Phase::Warmup) {
            return Ok(self.failed_before_the_clock(failure));
        }
        let emptied = match self.scenario.cache.state {
            CacheState::Unknown => cache::Emptied::No,
            CacheState::Cold | CacheState::Primed => cache::empty(self.server, self.engine),
        };
        let priming = cache::priming(self.scenario, self.plan);
        let primed = self.untimed(&priming, PRIMING_CONCURRENCY)?;
        if let Some(failure) = failure_of(&primed, self.is_gone(&primed), Phase::Warmup) {
            return Ok(self.failed_before_the_clock(failure));
        }
        let mut watch = Watch::new(self.server, self.engine, self.meter, self.conduct.telemetry_ns);
        let started_at = utc_now();
        let driven = watch.around(|| drive(&self.timed_orders(&payloads), observer))?;
        let finished_at = utc_now();
        let interrupted = driven.interrupted;
        if interrupted && !driven.samples.iter().any(Sample::is_ok) {
            return Err(DriveError::Interrupted);
        }
        // Asked before the counters are read again: a dead server would cost every retry of
        // `settle`. Whoever interrupts a run does not wait for either.
        let gone = !interrupted && self.is_gone(&driven);
        if !gone && !interrupted {
            watch.settle(driven.output_tokens());
        }
        let seen = Seen {
            failure: failure_of(&driven, gone, Phase::Measure),
            cache: cache::Observed { emptied, priming },
            driven,
            watch,
        };
        let (mut measurement, slos_met) = self.measurement(&seen);
        if let Some(time) = &mut measurement.time {
            time.started_at = started_at;
            time.finished_at = finished_at;
        }
        // The check comes last, when it can no longer affect any figure.
        let interrupted = interrupted
            || match self.check_outputs(&mut measurement) {
                // The figures are complete: the signal costs the check alone.
                Err(DriveError::Interrupted) => true,
                checked => checked.map(|()| false)?,
            };
        Ok(Finished { measurement, slos_met, interrupted })
    }

    /// Returns the device and the number of GPUs that the server computes on; the number of GPUs is
    /// known only for CUDA.
    fn ranks(&self) -> Ranks<'_> {
        let server = &self.probed.probe.server;
        let device = server.device.as_deref();
        Ranks { device, gpus: server.tp.filter(|_| device == Some("cuda")) }
    }

    fn written(&self, requests: &[ManifestRequest]) -> Vec<Payload> {
        written(self.server, self.engine, &self.model, &self.scenario.output, requests)
    }

    /// Sends requests outside the timed part, and waits for all answers.
    ///
    /// # Errors
    /// Those of [`drive`], and `stop` was set.
    fn drive(&self, payloads: &[Payload], arrival: &Arrival) -> Result<Driven, DriveError> {
        drive(&self.orders(payloads, arrival), &mut Unobserved)?.whole()
    }

    /// Returns the orders for sending the measured requests, on warm or cold connections as the
    /// scenario says.
    fn timed_orders<'b>(&'b self, payloads: &'b [Payload]) -> Orders<'b> {
        let connections = self.scenario.connections;
        Orders { connections, ..self.orders(payloads, &self.scenario.arrival) }
    }

    fn orders<'b>(&'b self, payloads: &'b [Payload], arrival: &'b Arrival) -> Orders<'b> {
        Orders {
            address: self.server.address,
            tls: self.server.tls.as_ref(),
            payloads,
            dialect: self.engine.request.dialect(),
            arrival,
            connections: Connections::Warm,
            no_progress_ns: self.conduct.no_progress_ns,
            stop: self.stop,
            kernel_timestamps: self.conduct.kernel_timestamps,
        }
    }

    /// Sends `requests` outside the timed part, `concurrency` at a time, and waits for all answers.
    fn untimed(
        &self,
        requests: &[ManifestRequest],
        concurrency: u64,
    ) -> Result<Driven, DriveError> {
        let arrival = Arrival::Closed { concurrency };
        self.drive(&self.written(requests), &arrival)
    }
}

/// Builds the HTTP requests to `server` for the manifest entries `requests`, which ask for `model` and
/// the generation options `output`.
fn written(
    server: &Server,
    engine: &EngineFile,
    model: &str,
    output: &Output,
    requests: &[ManifestRequest],
) -> Vec<Payload> {
    let endpoint = Endpoint {
        authority: server.authority.clone(),
        path: engine.request.route.clone(),
        model: model.to_owned(),
        added_headers: server.added_headers(),
    };
    let write = |entry| payload(&endpoint, &engine.request, output, entry);
    requests.iter().map(write).collect()
}

impl Assignment<'_> {
    /// Returns the measurement of a run whose warm-up or priming failed, so that the clock never
    /// started.
    fn failed_before_the_clock(&self, failure: Failure) -> Finished {
        let validity = "nothing-measured: the warm-up failed";
        let measurement = Measurement {
            url: Some(self.server.url("")),
            model_name: self.model_name(),
            ..bare(&self.facts, Status::Failed, failure, validity)
        };
        Finished { measurement, slos_met: 0, interrupted: false }
    }

    /// Returns the model name that the run's requests carry; `None` if they carry none.
    fn model_name(&self) -> Option<String> {
        Some(self.model.clone()).filter(|name| !name.is_empty())
    }

    /// Builds the measurement of a run, still without the correctness check, and returns it with
    /// the number of requests that met all latency limits.
    fn measurement(&self, seen: &Seen<'_>) -> (Measurement, u64) {
        let driven = &seen.driven;
        let answered = answered(&driven.samples, &self.plan.manifest, self.tokenizer);
        let all = Distributions::of(&answered);
        let counts = counts(&driven.samples, &answered, &self.plan.manifest);
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
            url: Some(self.server.url("")),
            model_name: self.model_name(),
            scenario: self.facts.clone(),
            ..Measurement::default()
        };
        self.figures(&mut measurement, &answered, &all, &counts);
        let telemetry = seen.watch.facts(driven.start_ns);
        let influence = self.influence(driven, &telemetry);
        let error_pct = Wall::of(&answered).map(|wall| error_pct(&answered, wall, influence));
        let client = ClientFacts { error_pct, ..client };
        if let Some(metrics) = &mut measurement.metrics {
            let tokens = counts.output_tokens_reported.unwrap_or(0);
            metrics.joules_per_output_token = joules_per_token(&telemetry, self.ranks(), tokens);
        }
        measurement.telemetry = Some(telemetry);
        measurement.counts = Some(counts);
        measurement.client = Some(client);
        measurement.cache = Some(cache);
        if !self.engine.request.dialect().generates() {
            without_output(&mut measurement);
        }
        let mut record = RunRecord::default();
        measurement.clone().fill(&mut record);
        measurement.validity =
            validity::of_fresh(&record, &self.evidence(&answered, &all, &driven.samples));
        (measurement, met(self.slos, &answered))
    }

    /// Fills in the measurement's durations, histograms and metrics (TTFT, TPOT, ITL, E2E, rates);
    /// they need at least one answered request.
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

    /// Returns the influence of the client on the length of the run: its share of the machine's CPU
    /// time where the server computes on the same cores, and whether requests wait for others.
    fn influence(&self, driven: &Driven, telemetry: &Telemetry) -> Influence {
        let shares_machine = telemetry.host.as_ref().is_some_and(|host| host.has_server);
        let worked = telemetry.gpus.iter().flatten().any(|gpu| gpu.worked);
        let on_gpu = worked || self.ranks().device == Some("cuda");
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let available_ns = float(driven.elapsed_ns.max(1)) * float(cores as u64);
        let cpu_share = float(driven.load.process_cpu_ns) / available_ns;
        let waits = self.plan.manifest.requests.iter().any(|request| request.after.is_some());
        Influence {
            cpu_share: if shares_machine && !on_gpu { cpu_share } else { 0.0 },
            chained: waits || self.scenario.arrival.concurrency_max().is_some(),
        }
    }

    fn evidence(
        &self,
        answered: &[Answered<'_>],
        all: &Distributions,
        samples: &[Sample],
    ) -> Evidence {
        let manifest = &self.plan.manifest;
        let mean = |sum: u64, count: usize| float(sum) / float(count.max(1) as u64);
        // Without planned lengths there is nothing to compare the answered prompts with.
        let is_planned = is_planned(manifest);
        let prompts = answered.iter().filter_map(|request| request.prompt_tokens);
        let survivors: u64 = if is_planned { prompts.sum() } else { 0 };
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
            prompt_tokens_as_text: as_text(manifest).then(|| tokens_of_text(answered)).flatten(),
            chunks_miscounted: chunks_miscounted.count() as u64,
            decode_ns,
            prompt_tokens_shared: cache::shared_tokens(samples, manifest),
        }
    }
}

/// Builds the placeholder measurement that is on disk while a run is in progress. If it is found
/// later, the run did not end by itself; the samples taken so far are in the file named `samples`.
pub fn unfinished(facts: &ScenarioFacts, samples: &str) -> Measurement {
    const WHY: &str = "the load generator ended before the run did";
    let failure = Failure {
        class: FailureClass::Infrastructure,
        phase: Phase::Measure,
        message: format!("{WHY}: the samples so far are in `{samples}`"),
    };
    bare(facts, Status::Partial, failure, &format!("unfinished: {WHY}"))
}

/// Builds an INVALID measurement without counts, times and metrics, for a run with the given
/// failure; `validity` is the reason why it is INVALID.
fn bare(facts: &ScenarioFacts, status: Status, failure: Failure, validity: &str) -> Measurement {
    Measurement {
        schema: SCHEMA.to_owned(),
        status,
        validity: Validity {
            verdict: ValidityVerdict::Invalid,
            reasons: vec![validity.to_owned()],
            ..Validity::default()
        },
        failure: Some(failure),
        scenario: facts.clone(),
        ..Measurement::default()
    }
}

/// True where the prompts of a manifest were sent as text whose tokens the client has counted, each
/// prompt whole: later turns of conversations also repeat the answers before.
fn as_text(manifest: &Manifest) -> bool {
    manifest.prompt_form == PromptForm::Text
        && is_planned(manifest)
        && manifest.requests.iter().all(|request| request.after.is_none())
}

/// Counts the tokens of prompts that were sent as text: by the client's tokenizer, and by the server,
/// without those that it adds to every prompt, as of a chat template. `None` where the server does not
/// count them.
fn tokens_of_text(answered: &[Answered<'_>]) -> Option<(u64, u64)> {
    let counted = answered.iter().map(|request| {
        let server = request.sample.usage?.prompt_tokens;
        Some((request.prompt_tokens?, server)).filter(|_| server > 0)
    });
    let counted: Vec<(u64, u64)> = counted.collect::<Option<_>>()?;
    let added = counted.iter().map(|(own, server)| server.saturating_sub(*own)).min()?;
    let own = counted.iter().map(|(own, _)| own).sum();
    Some((own, counted.iter().map(|(_, server)| server - added.min(*server)).sum()))
}

fn miscounted(request: &Answered<'_>) -> bool {
    let usage = request.sample.usage;
    usage.is_some_and(|usage| Some(usage.prompt_tokens) != request.prompt_tokens)
}

/// Returns the facts about the load generator in a run, such as CPU share, loop lag, receive time
/// stamps and send lag.
fn client_facts(driven: &Driven, all: &Distributions) -> ClientFacts {
    let load = &driven.load;
    let mut lags: Vec<u64> = driven.samples.iter().filter_map(Sample::schedule_lag_ns).collect();
    lags.sort_unstable();
    debug_assert!(lags.len() >= all.schedule_lag_ns.len(), "every answer was sent");
    let lag_ns = quantile(&lags, 0.99);
    let lag_us = lag_ns.map(|ns| whole(ns / 1000.0));
    ClientFacts {
        name: Some("redline-bench".to_owned()),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        cpu_share_p95: quantile_of_floats(&load.cpu_shares, 0.95),
        loop_lag_us_p99: load.loop_lag_us_p99(),
        kernel_timestamps: load.kernel_timestamps(),
        kernel_to_user_us_p99: load.kernel_to_user_us_p99(),
        coalesced_read_share: load.coalesced_read_share(),
        schedule_lag_us_p99: lag_us,
        streams_max: Some(load.streams_max),
        // Only the program that started server and client knows where the server runs, and the commit
        // that this program was built at.
        ..ClientFacts::default()
    }
}

impl Assignment<'_> {
    /// True when a request of the run failed and the server no longer answers its readiness route
    /// within 30 s, or, where it hung, within `no_progress_ns` if that is shorter.
    fn is_gone(&self, driven: &Driven) -> bool {
        let limit_ns = if driven.hung { self.conduct.no_progress_ns } else { u64::MAX };
        let failed = driven.samples.iter().any(|sample| !sample.is_ok());
        failed && !self.server.answers(&self.engine.ready.route, Duration::from_nanos(limit_ns))
    }
}

/// Returns the failure of a run in which at least one request failed, by the most frequent kind of
/// failure; requests that were never sent count only if no other failed. `gone` is true if the
/// server no longer answers, `phase` is the phase of the run. `None` if all requests were answered.
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
        FailureKind::Http(429 | 503) | FailureKind::NotSent | FailureKind::Interrupted => {
            FailureClass::Infrastructure
        }
        FailureKind::Http(400..=499 | 501) => FailureClass::Unsupported,
        FailureKind::Http(_)
        | FailureKind::ErrorEvent
        | FailureKind::NoTokens
        | FailureKind::BadHttp
        | FailureKind::BadEvent
        | FailureKind::TooLong => FailureClass::BadOutput,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::delta::Usage;
    use crate::measure::tally::untokenized;

    #[test]
    fn what_a_server_adds_to_every_prompt_is_no_difference_of_tokenizers() {
        let of = |prompts: [(u64, u64); 2]| {
            let sample = |(_, prompt_tokens)| Sample {
                usage: Some(Usage { prompt_tokens, ..Usage::default() }),
                ..Sample::default()
            };
            let samples = prompts.map(sample);
            let mut answered = untokenized(&samples);
            for (request, (own, _)) in answered.iter_mut().zip(prompts) {
                request.prompt_tokens = Some(own);
            }
            tokens_of_text(&answered)
        };
        assert_eq!(of([(100, 110), (200, 210)]), Some((300, 300)), "a template of ten tokens");
        assert_eq!(of([(100, 110), (200, 260)]), Some((300, 350)), "another tokenizer");
        assert_eq!(of([(100, 90), (200, 180)]), Some((300, 270)));
        assert_eq!(of([(100, 0), (200, 210)]), None, "it does not count them");
    }
}
