//! One run against one server, from warm-up to the check of its outputs. Always ends in a
//! measurement, unless the environment gives out: a server that fails is a result.

mod cache;
mod correctness;
mod failure;
pub mod journal;
mod record;

use std::sync::atomic::AtomicBool;

use schema::engine::EngineFile;
use schema::manifest::ManifestRequest;
use schema::measurement::Measurement;
use schema::run::{Failure, Phase, ScenarioFacts};
use schema::scenario::{Arrival, CacheState, Connections, Scenario};

pub use correctness::Reference;
pub use record::unfinished;

use crate::client::control::Server;
use crate::client::drive::{DriveError, Driven, Observer, Orders, Unobserved, drive};
use crate::client::payload::{Endpoint, Payload, payload};
use crate::clock::utc_now;
use crate::measure::slo::Slo;
use crate::telemetry::gpu::Meter;
use crate::telemetry::{Ranks, Watch};
use crate::workload::pack::Plan;
use crate::workload::tokenizer::Tokenizer;

/// Prompts that prime a cache are one token each and may go several at a time.
const PRIMING_CONCURRENCY: u64 = 8;

/// Everything a run needs to know.
#[derive(Debug)]
pub struct Assignment<'a> {
    pub server: &'a Server,
    pub engine: &'a EngineFile,
    pub scenario: &'a Scenario,
    /// What a record says about the scenario.
    pub facts: ScenarioFacts,
    pub plan: &'a Plan,
    pub tokenizer: &'a Tokenizer,
    /// Name of the model on the server.
    pub model: String,
    /// Tokens in a page of the server's prefix cache.
    pub page_tokens: Option<u64>,
    pub prefix_cache: Option<bool>,
    /// Where the server computes.
    pub ranks: Ranks<'a>,
    /// Whoever reads the GPUs of this machine.
    pub meter: &'a Meter,
    /// Between two looks at server, machine and GPUs while the clock runs; none for before and
    /// after only.
    pub telemetry_ns: Option<u64>,
    /// Outputs to compare with.
    pub reference: Option<&'a Reference>,
    /// Limits by which requests are counted as good.
    pub slos: &'a [Slo],
    /// Longest time without any event while requests are in flight, in nanoseconds.
    pub no_progress_ns: u64,
    pub kernel_timestamps: bool,
    /// Ask the fixed prompts once the clock has stopped.
    pub check_outputs: bool,
    /// Flag that another thread sets to stop the run.
    pub stop: &'a AtomicBool,
}

/// What was seen of a run.
struct Seen<'a> {
    driven: Driven,
    cache: cache::Observed,
    watch: Watch<'a>,
    failure: Option<Failure>,
}

/// What a run came to.
#[derive(Debug)]
pub struct Finished {
    pub measurement: Measurement,
    /// Requests that were answered within all limits.
    pub slos_met: u64,
}

impl Assignment<'_> {
    /// Makes the run.
    ///
    /// # Errors
    /// The system refuses what the client needs, or `stop` was set.
    pub fn run(&self, observer: &mut dyn Observer) -> Result<Finished, DriveError> {
        let payloads: Vec<Payload> = self.written(&self.plan.manifest.requests);
        // What the system will not allow is said before anything is sent.
        self.timed_orders(&payloads).prepare()?;
        let warmup = self.written(&self.plan.warmup);
        let warmed = self.drive(&warmup, &Arrival::AllAtOnce, &mut Unobserved)?;
        if let Some(failure) = failure::of(&warmed, self.is_gone(&warmed), Phase::Warmup) {
            let measurement = self.failed_before_the_clock(failure);
            return Ok(Finished { measurement, slos_met: 0 });
        }
        let emptied = match self.scenario.cache.state {
            CacheState::Unknown => cache::Emptied::NotAsked,
            CacheState::Cold | CacheState::Primed => cache::empty(self.server, self.engine),
        };
        let priming = cache::priming(self.scenario, self.plan);
        let primed = self.asked(&priming, PRIMING_CONCURRENCY)?;
        if let Some(failure) = failure::of(&primed, self.is_gone(&primed), Phase::Warmup) {
            let measurement = self.failed_before_the_clock(failure);
            return Ok(Finished { measurement, slos_met: 0 });
        }
        let mut watch = Watch::new(self.server, self.engine, self.meter, self.telemetry_ns);
        let started_at = utc_now();
        let driven = watch.beside(|| drive(&self.timed_orders(&payloads), observer))?;
        let finished_at = utc_now();
        let gone = self.is_gone(&driven);
        if !gone {
            watch.settle(driven.output_tokens());
        }
        let seen = Seen {
            failure: failure::of(&driven, gone, Phase::Measure),
            cache: cache::Observed { emptied, priming },
            driven,
            watch,
        };
        let (mut measurement, slos_met) = self.measurement(&seen);
        if let Some(time) = &mut measurement.time {
            time.started_at = started_at;
            time.finished_at = finished_at;
        }
        self.check_outputs(&mut measurement)?;
        Ok(Finished { measurement, slos_met })
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

    /// The measured requests, on connections as the scenario wants them.
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
            no_progress_ns: self.no_progress_ns,
            stop: self.stop,
            kernel_timestamps: self.kernel_timestamps,
        }
    }

    /// Asks `requests`, `concurrency` at a time, beside the measurement.
    fn asked(&self, requests: &[ManifestRequest], concurrency: u64) -> Result<Driven, DriveError> {
        let arrival = Arrival::Closed { concurrency };
        self.drive(&self.written(requests), &arrival, &mut Unobserved)
    }
}
