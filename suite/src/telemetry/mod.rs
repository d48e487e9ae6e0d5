//! Telemetry of a run: periodic samples of the server's counters, this machine and its GPUs.
//!
//! A sample is taken just before the clock starts, at intervals during the run, and just after it
//! stops. Sampling during the run has a thread and a connection of its own, so that the event loop
//! that measures latency never waits for it. Knows no request and judges nothing.

pub mod gpu;
mod host;
mod series;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use schema::engine::EngineFile;
use schema::telemetry::{GpuTelemetry, LookCost, Telemetry};

use self::gpu::{GpuReading, Meter};
use self::host::HostReading;
use crate::client::control::{Caller, LIMIT, Server, read_metrics};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::measure::summary::float;

/// Longest time that the server may take to return its counters while the run is timed.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Most retries of the last sample. Some servers update their counters a moment after an answer has
/// ended; `SETTLE_PAUSE` is the time between two retries.
const SETTLE_POLLS: u32 = 10;
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// Counters of the server at one moment, by Redline's names for them.
pub type Counters = BTreeMap<String, f64>;

/// One telemetry sample: server counters, machine and GPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// Time of the sample, from the machine's monotonic clock, in nanoseconds.
    pub at_ns: u64,
    /// Counters of the server; `None` if it did not report them.
    pub server: Option<Counters>,
    /// CPU, memory and pressure of this machine; `None` if the kernel does not report them.
    pub host: Option<HostReading>,
    /// Readings of all GPUs, in the driver's order; empty without a driver.
    pub gpus: Vec<GpuReading>,
}

/// Samples server, machine and GPUs over a run, and keeps the samples.
#[derive(Debug)]
pub struct Watch<'a> {
    server: &'a Server,
    engine: &'a EngineFile,
    caller: Caller<'a>,
    meter: &'a Meter,
    looks: Vec<Look>,
    cost: LookCost,
    /// Time between two samples while the run is timed; `None` samples only before and after.
    pause: Option<Duration>,
}

impl<'a> Watch<'a> {
    /// Creates a watch without samples. `pause_ns` is the time between two samples during the run,
    /// in nanoseconds; `None` samples only before and after.
    pub fn new(
        server: &'a Server,
        engine: &'a EngineFile,
        meter: &'a Meter,
        pause_ns: Option<u64>,
    ) -> Self {
        Self {
            server,
            engine,
            caller: Caller::new(server),
            meter,
            looks: Vec::new(),
            cost: LookCost::default(),
            pause: pause_ns.map(Duration::from_nanos),
        }
    }

    /// Runs `work` with a sample before it, periodic samples during it, and a sample after it.
    pub fn around<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.look(LIMIT);
        let done = match self.pause {
            None => work(),
            Some(pause) => thread::scope(|scope| {
                let (stop, stopped) = channel();
                let watch = &mut *self;
                scope.spawn(move || watch.keep_looking(pause, &stopped));
                let done = work();
                // Dropping the sender wakes the sampling thread at once; the scope then waits for
                // its end.
                drop(stop);
                done
            }),
        };
        self.look(LOOK_LIMIT);
        done
    }

    fn keep_looking(&mut self, pause: Duration, stopped: &Receiver<()>) {
        let mut next = Instant::now() + pause;
        while let Err(RecvTimeoutError::Timeout) =
            stopped.recv_timeout(next.saturating_duration_since(Instant::now()))
        {
            self.look(LOOK_LIMIT);
            // A sample that took longer than the interval skips those it missed.
            while next <= Instant::now() {
                next += pause;
            }
        }
        // The thread did nothing but sampling, so its CPU time is the cost of sampling.
        self.cost.cpu_us = thread_cpu_ns() / 1000;
    }

    fn look(&mut self, limit: Duration) {
        // Local readings come first: they do not wait, so they belong to `at_ns`.
        let look = Look {
            at_ns: monotonic_ns(),
            host: host::read(),
            gpus: self.meter.as_ref().map(|meter| meter.look()).unwrap_or_default(),
            server: self.counters(limit),
        };
        self.cost.looks += 1;
        self.looks.push(look);
    }

    fn counters(&mut self, limit: Duration) -> Option<Counters> {
        if self.engine.metrics.is_empty() {
            return None;
        }
        let began_ns = monotonic_ns();
        let page = self.server.ask(&mut self.caller, "GET", self.engine.metrics_route(), limit);
        let took_us = (monotonic_ns() - began_ns) / 1000;
        self.cost.server_look_us_max = self.cost.server_look_us_max.max(took_us);
        match page {
            Ok(page) => Some(read_metrics(&page, &self.engine.metrics)),
            Err(_) => {
                self.cost.server_looks_failed += 1;
                None
            }
        }
    }

    /// Repeats the last sample until the server's counters include all `output_tokens` of the
    /// answers, or the retries are used up. The server must be alive.
    pub fn settle(&mut self, output_tokens: u64) {
        // Without counters from before the run no growth can be computed.
        if self.looks.first().is_none_or(|look| look.server.is_none()) {
            return;
        }
        for again in 0..SETTLE_POLLS {
            let grown = self.grown("output_tokens");
            let last = self.looks.last().and_then(|look| look.server.as_ref());
            if last.is_some() && grown.is_none_or(|grown| grown >= output_tokens) {
                return;
            }
            if again > 0 {
                thread::sleep(SETTLE_PAUSE);
            }
            let counters = self.counters(LOOK_LIMIT);
            if let (Some(counters), Some(last)) = (counters, self.looks.last_mut()) {
                last.server = Some(counters);
            }
        }
    }

    /// Growth of the counter `name` from the first sample to the last.
    pub fn grown(&self, name: &str) -> Option<u64> {
        let ends = [self.looks.first()?, self.looks.last()?];
        let [first, last] = ends.map(|look| look.server.as_ref()?.get(name).copied());
        series::growth(first?, last?)
    }
}

impl Watch<'_> {
    /// Telemetry section of the record of a run whose clock started at `start_ns`.
    pub fn facts(&self, start_ns: u64) -> Telemetry {
        let interval = self.pause.map(|pause| pause.as_micros());
        let gpus = self.gpu_facts();
        Telemetry {
            interval_us: interval.and_then(|us| u64::try_from(us).ok()),
            cost: self.cost.clone(),
            server: self.server_facts(start_ns),
            host: self.host_facts(start_ns),
            gpu_series: gpus.as_deref().and_then(|gpus| self.gpu_series(gpus, start_ns)),
            gpus,
        }
    }
}

/// Device and GPUs that the server computes on, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranks<'a> {
    /// Device name that the server reports: `cpu` or `cuda`.
    pub device: Option<&'a str>,
    /// Number of GPUs that the server uses (its tensor-parallel ranks).
    pub gpus: Option<u32>,
}

/// Energy per output token in joules: the energy of all GPUs that worked, divided by `tokens`.
/// `None` where no driver reports it, and where the GPUs that worked are not exactly the server's.
pub fn joules_per_token(telemetry: &Telemetry, ranks: Ranks<'_>, tokens: u64) -> Option<f64> {
    let gpus = telemetry.gpus.as_deref()?;
    let is_here = telemetry.host.as_ref().is_some_and(|host| host.has_server);
    let worked: Vec<&GpuTelemetry> = gpus.iter().filter(|gpu| gpu.worked).collect();
    let server = ranks.gpus.map_or(worked.len(), |gpus| gpus as usize);
    let is_server = ranks.device.is_none_or(|device| device == "cuda");
    if !is_here || !is_server || tokens == 0 || worked.is_empty() || worked.len() != server {
        return None;
    }
    let energy: Option<u64> = worked.iter().map(|gpu| gpu.energy_mj).sum();
    Some(float(energy?) / 1000.0 / float(tokens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::control::Trust;
    use gpu::Throttle;

    const SECOND_NS: u64 = 1_000_000_000;

    /// GPUs that are never read: the tests make up their samples.
    #[derive(Debug)]
    struct Unread;

    impl gpu::Gpus for Unread {
        fn look(&self) -> Vec<GpuReading> {
            Vec::new()
        }
    }

    /// Sample of `gpus` busy GPUs and a busy server, `second` seconds after the clock started.
    fn look(second: u64, names: &[&str], gpus: usize) -> Look {
        let reading = GpuReading {
            power_mw: Some(650_000 + second % 1000),
            energy_mj: Some(650_000 * second),
            sm_mhz: Some(1980),
            memory_mhz: Some(2619),
            gpu_c: Some(71),
            memory_c: Some(88),
            util_percent: Some(99),
            memory_used_bytes: Some(79 << 30),
            throttle: Some(Throttle::default()),
            ecc_uncorrected: Some(0),
            pcie_replays: Some(second),
        };
        let count = 12_345.0 * float(second);
        let value = |name: &&str| if name.starts_with("kv_pages") { 4000.0 } else { count };
        Look {
            at_ns: second * SECOND_NS,
            server: Some(names.iter().map(|name| ((*name).to_owned(), value(name))).collect()),
            host: host::read(),
            gpus: vec![reading; gpus],
        }
    }

    #[test]
    fn hours_of_looks_stay_small_in_a_record_and_lose_no_token() {
        let server = Server::at("http://127.0.0.1:9", &Trust::default()).unwrap();
        let text = include_str!("../../engines/redline.toml");
        let engine = schema::engine::parse(text).unwrap();
        let names: Vec<&str> = engine.metrics.keys().map(String::as_str).collect();
        let meter: Meter = Some(Box::new(Unread));
        for (seconds, gpus, most) in [(60, 1, 6 << 10), (28_800, 1, 6 << 10), (28_800, 8, 10 << 10)]
        {
            let mut watch = Watch::new(&server, &engine, &meter, Some(SECOND_NS));
            watch.looks = (0..=seconds).map(|second| look(second, &names, gpus)).collect();
            let facts = watch.facts(0);
            let server = facts.server.as_ref().unwrap();
            assert_eq!(server.output_tokens, Some(12_345 * seconds));
            let columns = &server.series.as_ref().unwrap().columns;
            assert_eq!(columns["output_tokens"].iter().sum::<u64>(), 12_345 * seconds);
            let size = serde_json::to_string(&facts).unwrap().len();
            assert!(size < most, "{gpus} GPUs, {seconds} s: {size} bytes");
        }
    }
}

#[cfg(test)]
mod energy_tests {
    use schema::telemetry::HostTelemetry;

    use super::*;

    fn telemetry(has_server: bool, gpus: &[(bool, Option<u64>)]) -> Telemetry {
        let gpu = |(worked, energy_mj): &(bool, Option<u64>)| GpuTelemetry {
            worked: *worked,
            energy_mj: *energy_mj,
            ..GpuTelemetry::default()
        };
        Telemetry {
            host: Some(HostTelemetry { has_server, ..HostTelemetry::default() }),
            gpus: Some(gpus.iter().map(gpu).collect()),
            ..Telemetry::default()
        }
    }

    #[test]
    fn energy_is_spread_over_tokens_only_where_it_is_the_servers() {
        let two = [(true, Some(3_000_000)), (true, Some(1_000_000)), (false, Some(500_000))];
        let on = |gpus| Ranks { device: Some("cuda"), gpus };
        let per_token = |has_server, gpus: &[_], ranks| {
            joules_per_token(&telemetry(has_server, gpus), ranks, 2000)
        };
        assert_eq!(per_token(true, &two, on(Some(2))), Some(2.0));
        assert_eq!(
            per_token(true, &two, Ranks::default()),
            Some(2.0),
            "one that does not say where"
        );
        for (has_server, gpus, ranks, why) in [
            (false, &two[..], on(Some(2)), "on another machine"),
            (true, &two, on(Some(1)), "2 GPUs worked, and the server runs on 1"),
            (true, &two[2..], Ranks::default(), "no GPU worked"),
            (true, &two, Ranks { device: Some("cpu"), gpus: None }, "on no GPU"),
            (true, &[(true, None)], on(Some(1)), "neither energy nor power"),
        ] {
            assert_eq!(per_token(has_server, gpus, ranks), None, "{why}");
        }
        assert_eq!(joules_per_token(&telemetry(true, &two), on(Some(2)), 0), None);
    }
}
