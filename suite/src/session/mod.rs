//! One benchmark run against one server, from warm-up to the check of its outputs. A server that
//! fails still gives a measurement; only an error of the client's own system does not.

mod cache;
mod correctness;
pub mod journal;
mod record;

use std::sync::atomic::AtomicBool;

use schema::engine::EngineFile;
use schema::manifest::ManifestRequest;
use schema::measurement::Measurement;
use schema::run::{Failure, Phase, ScenarioFacts};
use schema::scenario::{Arrival, CacheState, Connections, Scenario};

pub use correctness::Reference;
use record::failure_of;
pub use record::unfinished;

use crate::client::control::Server;
use crate::client::drive::{DriveError, Driven, Observer, Orders, Unobserved, drive};
use crate::client::payload::{Endpoint, Payload, payload};
use crate::client::probe::Probed;
use crate::clock::utc_now;
use crate::measure::slo::Slo;
use crate::telemetry::gpu::Meter;
use crate::telemetry::{Ranks, Watch};
use crate::workload::sampler::Plan;
use crate::workload::tokenizer::Tokenizer;

/// Priming requests in flight at a time. Each asks for one token and is not timed.
const PRIMING_CONCURRENCY: u64 = 8;

/// Everything that one benchmark run needs: server, scenario, plan, limits and sampling interval.
#[derive(Debug)]
pub struct Assignment<'a> {
    pub server: &'a Server,
    pub engine: &'a EngineFile,
    pub scenario: &'a Scenario,
    /// Facts about the scenario as the record states them.
    pub facts: ScenarioFacts,
    pub plan: &'a Plan,
    pub tokenizer: &'a Tokenizer,
    /// Model name that requests carry, as the server knows it.
    pub model: String,
    /// What the server reports about itself.
    pub probed: &'a Probed,
    /// Reader of this machine's GPUs, or the reason why they cannot be read.
    pub meter: &'a Meter,
    /// Reference outputs that the server's greedy outputs are compared with.
    pub reference: Option<&'a Reference>,
    /// Latency limits (SLOs); goodput counts the requests that meet them.
    pub slos: &'a [Slo],
    pub conduct: Conduct,
    /// Flag that another thread or a signal handler sets to stop the run.
    pub stop: &'a AtomicBool,
}

/// Settings of how runs are performed and watched, the same for all runs of a command.
#[derive(Clone, Copy, Debug)]
pub struct Conduct {
    /// Longest time without any event while requests are in flight, in nanoseconds; then the run
    /// counts as hung.
    pub no_progress_ns: u64,
    /// Time between two telemetry samples during the run, in nanoseconds; `None` takes samples only
    /// before and after the run.
    pub telemetry_ns: Option<u64>,
    /// Uses the kernel's receive stamps as event times, where the kernel provides them.
    pub kernel_timestamps: bool,
    /// True when the fixed prompts are sent after the clock has stopped, to check the outputs.
    pub check_outputs: bool,
}

/// Everything observed in one run, from which its record is made.
struct Seen<'a> {
    driven: Driven,
    cache: cache::Observed,
    watch: Watch<'a>,
    failure: Option<Failure>,
}

/// Result of a finished run: its measurement, and the number of requests that met all limits.
#[derive(Debug)]
pub struct Finished {
    pub measurement: Measurement,
    /// Number of requests answered within all latency limits.
    pub slos_met: u64,
}

impl Assignment<'_> {
    /// Performs the run: warm-up, cache reset, priming, timed requests, then the correctness check.
    ///
    /// # Errors
    /// The client's system fails (files, ports, sockets), or `stop` was set.
    pub fn run(&self, observer: &mut dyn Observer) -> Result<Finished, DriveError> {
        let payloads: Vec<Payload> = self.written(&self.plan.manifest.requests);
        // System limits are checked first, so that they fail before anything is sent.
        self.timed_orders(&payloads).prepare()?;
        // Warm-up requests are sent at once whatever the scenario's arrival: nothing of them is
        // timed.
        let warmup = self.written(&self.plan.warmup);
        let warmed = self.drive(&warmup, &Arrival::AllAtOnce, &mut Unobserved)?;
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
        // Asked before the counters are read again: a dead server would cost every retry of
        // `settle`.
        let gone = self.is_gone(&driven);
        if !gone {
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
        self.check_outputs(&mut measurement)?;
        Ok(Finished { measurement, slos_met })
    }

    /// Device and GPUs that the server computes on; the number of GPUs is known only for CUDA.
    fn ranks(&self) -> Ranks<'_> {
        let server = &self.probed.probe.server;
        let device = server.device.as_deref();
        Ranks { device, gpus: server.tp.filter(|_| device == Some("cuda")) }
    }

    fn written(&self, requests: &[ManifestRequest]) -> Vec<Payload> {
        let endpoint = Endpoint {
            authority: self.server.authority.clone(),
            path: self.engine.request.route.clone(),
            model: self.model.clone(),
            key: self.server.key.clone(),
        };
        let write = |entry| payload(&endpoint, &self.engine.request, &self.scenario.output, entry);
        requests.iter().map(write).collect()
    }

    fn drive(
        &self,
        payloads: &[Payload],
        arrival: &Arrival,
        observer: &mut dyn Observer,
    ) -> Result<Driven, DriveError> {
        drive(&self.orders(payloads, arrival), observer)
    }

    /// Orders for the measured requests, on warm or cold connections as the scenario says.
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
        self.drive(&self.written(requests), &arrival, &mut Unobserved)
    }
}
