//! Alternation of two servers on one machine: short slices of a scenario's requests go to one of
//! them while the other is frozen, in pairs whose order is random.
//!
//! Interference by neighbors of this machine lasts for seconds, so that it affects both slices of a
//! pair alike, which two runs of minutes do not achieve. The method is known as randomised
//! interleaved trials (Abedi and Brecht, "Conducting Repeatable Experiments in Highly Variable
//! Cloud Computing Environments", 2017) and duet benchmarking (Bulej and others, "Duet Benchmarking:
//! Improving Measurement Accuracy in the Cloud", 2020).

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::thread;

use schema::alternation::{Alternation, OutputsCompared, SCHEMA, Side, Slice, Tail};
use schema::engine::EngineFile;
use schema::manifest::{Manifest, ManifestRequest};
use schema::random::SplitMix64;
use schema::run::{CacheState, Phase, ScenarioFacts};
use schema::scenario::{Arrival, Connections, Scenario};

use super::cache;
use super::freezer::Freezer;
use super::{PRIMING_CONCURRENCY, failure_of, written};
use crate::client::control::Server;
use crate::client::drive::{DriveError, Driven, Orders, Unobserved, drive};
use crate::client::sample::Sample;
use crate::clock::{monotonic_ns, utc_now};
use crate::measure::distribution::Distributions;
use crate::measure::rates::Wall;
use crate::measure::summary::summarize;
use crate::measure::tally::{Answered, answered};
use crate::measure::to_us;
use crate::telemetry::speed::{Speed, SpeedProbe};
use crate::telemetry::steal_us;
use crate::workload::sampler::Plan;

/// Length of a slice that is aimed at, in nanoseconds: short against the interference of neighbors,
/// long against the time that the first step after thawing takes longer than others.
const SLICE_NS: u64 = 200_000_000;
/// Minimum length of a slice of a closed loop, as a multiple of its users: with fewer requests, some
/// user would send none.
const PER_USER_MIN: u64 = 1;

/// One of the two servers of an alternation, with the requests in the form that it accepts.
#[derive(Debug)]
pub struct Contender {
    /// Address of the server.
    pub server: Server,
    /// Routes and features of the server.
    pub engine: EngineFile,
    /// Model name that requests carry.
    pub model: String,
    /// Requests of the scenario and of the warm-up.
    pub plan: Plan,
    /// Freezer of the server's processes; `None` where the server stays awake when it is idle.
    pub freezer: Option<Freezer>,
}

/// End of an alternation: after a number of pairs, or when some time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Number of pairs after which the alternation ends.
    Pairs(u32),
    /// Time in nanoseconds after which no further pair begins.
    Elapsed(u64),
}

/// Settings of an alternation.
#[derive(Debug)]
pub struct Alternating<'a> {
    /// Baseline and candidate.
    pub contenders: [Contender; 2],
    /// Scenario whose requests are sent.
    pub scenario: &'a Scenario,
    /// Facts about the scenario, for the result.
    pub facts: ScenarioFacts,
    /// Number of requests in a slice; `None` chooses one by the time that the baseline needs.
    pub slice_requests: Option<u64>,
    /// Seed of the order within pairs.
    pub seed: u64,
    /// End of the alternation.
    pub until: Until,
    /// Time without progress while requests are in flight, in nanoseconds, after which a slice is
    /// given up.
    pub no_progress_ns: u64,
    /// Flag that another thread or a signal handler sets to stop.
    pub stop: &'a AtomicBool,
}

/// Error that ended an alternation without a result.
#[derive(Debug, thiserror::Error)]
pub enum AlternationError {
    /// The client's own system failed, or the alternation was interrupted.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A server cannot be frozen or thawed.
    #[error("cannot freeze or thaw the {0}")]
    Freezer(&'static str, #[source] std::io::Error),
    /// A request outside the slices failed: of the warm-up or of the priming of the prefix cache.
    #[error("{side}: {message}")]
    Warmup {
        /// Variant whose request failed.
        side: &'static str,
        /// First failure and the number of failed requests.
        message: String,
    },
}

/// Thaws both servers when it is dropped, so that a later SIGTERM reaches them.
struct ThawAtEnd<'a>(&'a [Contender; 2]);

impl Drop for ThawAtEnd<'_> {
    fn drop(&mut self) {
        for freezer in self.0.iter().filter_map(|contender| contender.freezer.as_ref()) {
            // A server that is gone needs no thawing.
            let _ = freezer.thaw();
        }
    }
}

impl Alternating<'_> {
    /// Warms up both servers and asks them in turns until the end, or until one of them answers no
    /// request of a slice. A failed request is data: its slice counts it.
    ///
    /// # Errors
    /// The client's own system fails, the alternation is interrupted, a server cannot be frozen, or
    /// a request of the warm-up fails.
    pub fn run(&self) -> Result<Alternation, AlternationError> {
        let _thaw = ThawAtEnd(&self.contenders);
        for side in Side::BOTH {
            let warmup = self.contender(side).plan.warmup.clone();
            self.untimed(side, &warmup, self.scenario.warmup.requests.max(1))?;
        }
        let slice_requests = match self.slice_requests {
            Some(given) => given.min(self.round()),
            None => self.slice_requests()?,
        };
        for side in Side::BOTH {
            self.freeze(side)?;
        }
        let mut slices = Slices::default();
        let probe = SpeedProbe::new(thread::available_parallelism().map_or(1, NonZero::get));
        let mut random = SplitMix64(self.seed);
        let (started_at, start_ns) = (utc_now(), monotonic_ns());
        let mut emptied = true;
        while !self.is_over(&slices, start_ns) {
            for side in Side::BOTH {
                emptied &= self.begin_round(side)?;
            }
            for range in ranges(self.round(), slice_requests) {
                if self.is_over(&slices, start_ns) {
                    break;
                }
                self.pair(&range, random.draw(), (start_ns, &probe), &mut slices)?;
            }
        }
        let [baseline, candidate] = slices.latencies.map(Latencies::tail);
        Ok(Alternation {
            schema: SCHEMA.to_owned(),
            scenario: self.facts.clone(),
            seed: self.seed,
            started_at,
            slice_requests,
            prefix_cache: if emptied { self.scenario.cache.state } else { CacheState::Unknown },
            slices: slices.done,
            baseline,
            candidate,
            outputs: slices.outputs,
        })
    }

    fn contender(&self, side: Side) -> &Contender {
        &self.contenders[side as usize]
    }

    /// Returns the number of requests of the scenario.
    fn round(&self) -> u64 {
        self.contenders[0].plan.manifest.requests.len() as u64
    }

    fn is_over(&self, slices: &Slices, start_ns: u64) -> bool {
        let ended = match self.until {
            Until::Pairs(most) => slices.pairs >= most,
            Until::Elapsed(most_ns) => monotonic_ns() - start_ns >= most_ns,
        };
        // A server that is gone would fail every request to come.
        ended || slices.silent
    }

    /// Chooses the number of requests in a slice. Only a closed loop without conversations is cut,
    /// between two requests: any other arrival process would be another one in parts.
    fn slice_requests(&self) -> Result<u64, AlternationError> {
        let all = self.round();
        let manifest = &self.contenders[0].plan.manifest;
        let chained = manifest.requests.iter().any(|request| request.after.is_some());
        let Arrival::Closed { concurrency } = self.scenario.arrival else { return Ok(all) };
        if chained {
            return Ok(all);
        }
        let smallest = (concurrency * PER_USER_MIN).min(all);
        // Both servers get the same requests, or the prefix cache of one would know more than the
        // other's; the last ones, which a scenario that is not sent as a whole uses last.
        let last = all - smallest..all;
        self.drive(Side::Candidate, &last)?;
        let driven = self.drive(Side::Baseline, &last)?;
        let times = SLICE_NS.div_ceil(driven.elapsed_ns.max(1)).max(1);
        Ok((smallest * times).min(all))
    }

    /// Empties the prefix cache of a variant and primes it, as the scenario says; returns whether it
    /// was emptied. The variant is frozen before and after.
    fn begin_round(&self, side: Side) -> Result<bool, AlternationError> {
        let contender = self.contender(side);
        self.thaw(side)?;
        let emptied = match self.scenario.cache.state {
            CacheState::Unknown => cache::Emptied::No,
            CacheState::Cold | CacheState::Primed => {
                cache::empty(&contender.server, &contender.engine)
            }
        };
        self.untimed(side, &cache::priming(self.scenario, &contender.plan), PRIMING_CONCURRENCY)?;
        self.freeze(side)?;
        Ok(emptied == cache::Emptied::Yes)
    }

    /// Sends the requests in `range` to both variants, one after the other, in the order that `drawn`
    /// decides.
    fn pair(
        &self,
        range: &Range<u64>,
        drawn: u64,
        (start_ns, probe): (u64, &SpeedProbe),
        slices: &mut Slices,
    ) -> Result<(), AlternationError> {
        let mut answers = Vec::new();
        let first = Side::BOTH[usize::from(drawn >> 63 == 1)];
        for variant in [first, first.other()] {
            // Both are frozen now.
            let Speed { memory_mb_per_s, multiplications_per_us } = probe.measure();
            self.thaw(variant)?;
            let idle = self.contender(variant.other()).freezer.as_ref();
            let idle_cpu = || idle.and_then(Freezer::cpu_time);
            let (idle_before, steal_before) = (idle_cpu(), steal_us());
            let driven = self.drive(variant, range)?;
            let since = |before: u64, after: u64| after.saturating_sub(before);
            let steal_us = steal_before.zip(steal_us()).map(|(old, new)| since(old, new));
            let idle_cpu_us = idle_before.zip(idle_cpu()).map(|(old, new)| {
                u64::try_from(new.saturating_sub(old).as_micros()).unwrap_or(u64::MAX)
            });
            self.freeze(variant)?;
            let frame = Slice {
                pair: slices.pairs,
                variant,
                start_us: to_us(driven.start_ns.saturating_sub(start_ns)),
                elapsed_us: 0,
                requests_failed: 0,
                output_tokens: 0,
                ttft_us_p50: None,
                tpot_us_p50: None,
                itl_us_p99: None,
                idle_cpu_us,
                steal_us,
                memory_mb_per_s,
                multiplications_per_us,
            };
            slices.add(frame, &driven, &self.part(variant, range));
            answers.push(driven.samples);
        }
        if let [one, two] = answers.as_slice()
            && self.scenario.output.temperature == Some(0.0)
        {
            slices.compare(one, two);
        }
        slices.pairs += 1;
        Ok(())
    }

    /// Returns the manifest of a slice: the requests in `range`.
    fn part(&self, side: Side, range: &Range<u64>) -> Manifest {
        let manifest = &self.contender(side).plan.manifest;
        Manifest { requests: within(&manifest.requests, range).to_vec(), ..manifest.clone() }
    }

    /// Sends the measured requests in `range` to a variant, which must be awake.
    fn drive(&self, side: Side, range: &Range<u64>) -> Result<Driven, DriveError> {
        let requests = within(&self.contender(side).plan.manifest.requests, range);
        self.send(side, requests, &self.scenario.arrival, self.scenario.connections)
    }

    /// Sends requests whose times are not kept, and fails if one fails.
    fn untimed(
        &self,
        side: Side,
        requests: &[ManifestRequest],
        concurrency: u64,
    ) -> Result<(), AlternationError> {
        let arrival = Arrival::Closed { concurrency };
        let driven = self.send(side, requests, &arrival, Connections::Warm)?;
        match failure_of(&driven, false, Phase::Warmup) {
            Some(failure) => {
                Err(AlternationError::Warmup { side: side.name(), message: failure.message })
            }
            None => Ok(()),
        }
    }

    fn send(
        &self,
        side: Side,
        requests: &[ManifestRequest],
        arrival: &Arrival,
        connections: Connections,
    ) -> Result<Driven, DriveError> {
        let contender = self.contender(side);
        let orders = Orders {
            address: contender.server.address,
            tls: contender.server.tls.as_ref(),
            payloads: &written(
                &contender.server,
                &contender.engine,
                &contender.model,
                &self.scenario.output,
                requests,
            ),
            dialect: contender.engine.request.dialect(),
            arrival,
            connections,
            no_progress_ns: self.no_progress_ns,
            stop: self.stop,
            kernel_timestamps: true,
        };
        drive(&orders, &mut Unobserved)?.whole()
    }

    fn freeze(&self, side: Side) -> Result<(), AlternationError> {
        let freezer = self.contender(side).freezer.as_ref();
        freezer
            .map_or(Ok(()), Freezer::freeze)
            .map_err(|error| AlternationError::Freezer(side.name(), error))
    }

    fn thaw(&self, side: Side) -> Result<(), AlternationError> {
        let freezer = self.contender(side).freezer.as_ref();
        freezer
            .map_or(Ok(()), Freezer::thaw)
            .map_err(|error| AlternationError::Freezer(side.name(), error))
    }
}

/// Slices that were measured so far.
#[derive(Default)]
struct Slices {
    pairs: u32,
    /// True once a variant answered no request of a slice.
    silent: bool,
    done: Vec<Slice>,
    /// Latencies of all answered requests: of the baseline, and of the candidate.
    latencies: [Latencies; 2],
    outputs: OutputsCompared,
}

/// TTFT and TPOT of all requests that a variant answered, in nanoseconds.
#[derive(Default)]
struct Latencies {
    ttft_ns: Vec<u64>,
    tpot_ns: Vec<u64>,
}

impl Latencies {
    fn tail(self) -> Tail {
        let p99 = |samples| summarize(samples).and_then(|summary| summary.p99);
        Tail { ttft_us_p99: p99(self.ttft_ns), tpot_us_p99: p99(self.tpot_ns) }
    }
}

impl Slices {
    /// Fills the figures of a slice into `frame` and adds it.
    fn add(&mut self, frame: Slice, driven: &Driven, part: &Manifest) {
        let answers: Vec<Answered<'_>> = answered(&driven.samples, part, None);
        let all = Distributions::of(&answers);
        let p50 = |samples: &[u64]| summarize(samples.to_vec()).and_then(|summary| summary.p50);
        let gaps = all.itl_token_ns.and_then(summarize);
        let tokens: u64 = answers.iter().map(|request| request.credit.tokens).sum();
        self.silent |= answers.is_empty();
        self.done.push(Slice {
            elapsed_us: Wall::of(&answers).map_or(0, |wall| to_us(wall.length_ns())),
            requests_failed: (driven.samples.len() - answers.len()) as u64,
            output_tokens: tokens,
            ttft_us_p50: p50(&all.ttft_ns),
            tpot_us_p50: p50(&all.tpot_ns),
            itl_us_p99: gaps.and_then(|summary| summary.p99),
            ..frame
        });
        let latencies = &mut self.latencies[frame.variant as usize];
        latencies.ttft_ns.extend(all.ttft_ns);
        latencies.tpot_ns.extend(all.tpot_ns);
    }

    /// Compares the outputs of a pair, whose samples are of the same requests in the same order.
    fn compare(&mut self, one: &[Sample], two: &[Sample]) {
        let both = one.iter().zip(two);
        for (one, two) in both.filter(|(one, two)| [one, two].iter().all(|of| of.failure.is_none()))
        {
            let has_ids = !one.ids.is_empty() && !two.ids.is_empty();
            let same = if has_ids { one.ids == two.ids } else { one.text == two.text };
            self.outputs.compared += 1;
            self.outputs.differ += u64::from(!same);
        }
    }
}

/// Divides a round of `all` requests into slices of `size`, and leaves the rest out.
fn ranges(all: u64, size: u64) -> impl Iterator<Item = Range<u64>> {
    (0..all / size.max(1)).map(move |number| number * size..(number + 1) * size)
}

fn within<'a>(requests: &'a [ManifestRequest], range: &Range<u64>) -> &'a [ManifestRequest] {
    let at = |index: u64| usize::try_from(index).unwrap_or(usize::MAX).min(requests.len());
    &requests[at(range.start)..at(range.end)]
}
