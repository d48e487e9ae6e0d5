//! Telemetry of a run: periodic samples of the server's counters, this machine and its GPUs.
//!
//! A sample is taken just before the clock starts, at intervals during the run, and just after it
//! stops. Sampling during the run has a thread and a connection of its own, so that the event loop
//! that measures latency never waits for it. It does not see single requests and judges nothing.
//!
//! Many samples are reduced to the few numbers of a record: distributions and short time series.
//! Those of the server's counters are queue lengths, KV pages, tokens, prefix cache hits and
//! preemptions.

pub mod gpu;
mod host;
pub mod speed;

pub use host::steal_us;
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use schema::engine::EngineFile;
use schema::telemetry::{GpuTelemetry, LookCost, Series, ServerTelemetry, Spread, Telemetry};

use self::gpu::{GpuReading, Meter};
use self::host::HostReading;
use crate::client::control::{Bounds, Caller, LIMIT, Server, read_metrics};
use crate::clock::{monotonic_ns, thread_cpu_ns};
use crate::measure::summary::{float, whole};

/// Timeout for the server's response with its counters, for a sample during or after the run.
const POLL_LIMIT: Duration = Duration::from_secs(2);
/// Maximum number of retries of the run's last sample. Some servers update their counters a moment
/// after an answer has ended; `SETTLE_PAUSE` is the time between two retries.
const SETTLE_POLLS: u32 = 10;
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// Counters and gauges of the server at one moment, by Redline's names for them.
pub type Counters = BTreeMap<String, f64>;

/// Telemetry sample of a run: server counters, machine and GPUs at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Poll {
    /// Time at which the telemetry sample was taken, in nanoseconds of the machine's monotonic
    /// clock.
    pub at_ns: u64,
    /// Counters and gauges of the server in the sample; `None` if the engine file names none or
    /// they could not be read in time.
    pub server: Option<Counters>,
    /// CPU, memory and pressure of the load generator's machine in the sample; `None` if the kernel
    /// does not report them.
    pub host: Option<HostReading>,
    /// Readings of all GPUs in the sample, in the driver's order; empty if GPUs cannot be read.
    pub gpus: Vec<GpuReading>,
}

/// Sampler of server, machine and GPUs over a run, with the samples taken so far.
#[derive(Debug)]
pub struct Watch<'a> {
    server: &'a Server,
    engine: &'a EngineFile,
    caller: Caller<'a>,
    meter: &'a Meter,
    polls: Vec<Poll>,
    cost: LookCost,
    /// Time between two telemetry samples during the run; `None` takes samples only before and
    /// after it.
    pause: Option<Duration>,
}

impl<'a> Watch<'a> {
    /// Creates a sampler of telemetry without samples. `pause_ns` is the time between two samples
    /// during the run, in nanoseconds; `None` takes samples only before and after it.
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
            polls: Vec::new(),
            cost: LookCost::default(),
            pause: pause_ns.map(Duration::from_nanos),
        }
    }

    /// Runs `work` with a telemetry sample before it, periodic samples during it if an interval is
    /// set, and a sample after it.
    pub fn around<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.poll(LIMIT);
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
        self.poll(POLL_LIMIT);
        done
    }

    fn keep_looking(&mut self, pause: Duration, stopped: &Receiver<()>) {
        let mut next = Instant::now() + pause;
        while let Err(RecvTimeoutError::Timeout) =
            stopped.recv_timeout(next.saturating_duration_since(Instant::now()))
        {
            self.poll(POLL_LIMIT);
            // A sample that took longer than the interval skips those it missed.
            while next <= Instant::now() {
                next += pause;
            }
        }
        // The thread did nothing but sampling, so its CPU time is the cost of sampling.
        self.cost.cpu_us = thread_cpu_ns() / 1000;
    }

    fn poll(&mut self, limit: Duration) {
        // Local readings come first: they do not wait, so they belong to `at_ns`.
        let poll = Poll {
            at_ns: monotonic_ns(),
            host: host::read(),
            gpus: self.meter.as_ref().map(|meter| meter.poll()).unwrap_or_default(),
            server: self.counters(limit),
        };
        self.cost.looks += 1;
        self.polls.push(poll);
    }

    fn counters(&mut self, limit: Duration) -> Option<Counters> {
        if self.engine.metrics.is_empty() {
            return None;
        }
        let began_ns = monotonic_ns();
        let bounds = Bounds { time: limit, ..Bounds::PAGE };
        let page = self.server.ask(&mut self.caller, "GET", self.engine.metrics_route(), bounds);
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

    /// Reads the server's counters again into the run's last sample until the counters include all
    /// `output_tokens` of the answers, or the retries are used up. Where the server reports no such
    /// counter, one successful read suffices. The caller makes sure that the server is alive.
    pub fn settle(&mut self, output_tokens: u64) {
        // Without counters from before the run no growth can be computed.
        if self.polls.first().is_none_or(|poll| poll.server.is_none()) {
            return;
        }
        for again in 0..SETTLE_POLLS {
            let grown = self.grown("output_tokens");
            let last = self.polls.last().and_then(|poll| poll.server.as_ref());
            if last.is_some() && grown.is_none_or(|grown| grown >= output_tokens) {
                return;
            }
            if again > 0 {
                thread::sleep(SETTLE_PAUSE);
            }
            let counters = self.counters(POLL_LIMIT);
            if let (Some(counters), Some(last)) = (counters, self.polls.last_mut()) {
                last.server = Some(counters);
            }
        }
    }

    /// Returns the growth of the server's counter `name` from the run's first sample to the last;
    /// `None` if it was not reported or decreased.
    pub fn grown(&self, name: &str) -> Option<u64> {
        let ends = [self.polls.first()?, self.polls.last()?];
        let [first, last] = ends.map(|poll| poll.server.as_ref()?.get(name).copied());
        growth(first?, last?)
    }
}

impl Watch<'_> {
    /// Builds the telemetry section of the record of a run whose clock started at `start_ns` of the
    /// monotonic clock.
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

/// Device, and number of GPUs, that the server computes on, as far as known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ranks<'a> {
    /// Device name that the server reports, such as `cpu` or `cuda`; `None` if it reports none.
    pub device: Option<&'a str>,
    /// Number of GPUs that the server uses (its tensor-parallel ranks); `None` if unknown.
    pub gpus: Option<u32>,
}

/// Returns the energy per output token in joules: the energy of all GPUs of the machine that ran
/// kernels during the run, divided by `tokens`. `None` without tokens or such GPUs, if one of them
/// reports no energy, or where the server is on another machine, is not on GPUs, or uses another
/// number of GPUs than ran kernels.
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

/// Maximum number of points in a telemetry time series. A longer run has more samples per point,
/// not more points.
const POINTS_MAX: usize = 32;

/// Way in which the samples of one point in a time series are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Together {
    /// Sum of the samples' values, for the growth of a counter.
    Sum,
    /// Mean of the samples' values, for a gauge.
    Mean,
}

/// Quantity of a telemetry time series: its name, the way in which samples are combined, and one
/// value per sample.
type Column = (&'static str, Together, Vec<f64>);

/// Returns the growth of a counter between two samples; `None` if it decreased, as after a restart
/// of the server.
fn growth(before: f64, after: f64) -> Option<u64> {
    counted(after - before)
}

/// Rounds a counter's value, its growth, or a mean of values to the nearest integer; `None` for a
/// negative value.
fn counted(value: f64) -> Option<u64> {
    (value >= 0.0).then(|| whole(value))
}

/// Returns the ratio of `part` to `of`, rounded to four decimals; finer digits are noise in
/// telemetry.
fn share(part: u64, of: u64) -> f64 {
    (float(part) / float(of.max(1)) * 1e4).round() / 1e4
}

/// Returns the distribution of `values`: mean, maximum, and percentiles by nearest rank. `None`
/// without values.
fn spread(values: impl IntoIterator<Item = u64>) -> Option<Spread> {
    let mut sorted: Vec<u64> = values.into_iter().collect();
    sorted.sort_unstable();
    let max = *sorted.last()?;
    let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
    let mean = mean(&sorted.iter().map(|value| float(*value)).collect::<Vec<_>>());
    Some(Spread { mean: (mean * 100.0).round() / 100.0, p5: at(5), p50: at(50), p95: at(95), max })
}

/// Builds the time series of `columns`, reduced to at most 32 points; a column that is zero
/// throughout is left out. `at_us` has the time of each sample in microseconds since the run's
/// start, and each column has one value per sample. `None` for fewer than two samples.
fn series(at_us: &[u64], columns: Vec<Column>) -> Option<Series> {
    if at_us.len() < 2 {
        return None;
    }
    let polls = at_us.len().div_ceil(POINTS_MAX);
    let point = |together: Together, values: &[f64]| match together {
        Together::Sum => counted(values.iter().sum()).unwrap_or(0),
        Together::Mean => counted(mean(values)).unwrap_or(0),
    };
    let column = |(name, together, values): Column| {
        let points = values.chunks(polls).map(|values| point(together, values)).collect();
        (name.to_owned(), points)
    };
    let last = |polls: &[u64]| polls.last().copied().unwrap_or(0);
    // Quantities that were zero all along are left out to keep records small.
    let moved = |column: &(String, Vec<u64>)| column.1.iter().any(|value| *value > 0);
    Some(Series {
        // Each point has the time of its last sample.
        at_us: at_us.chunks(polls).map(last).collect(),
        columns: columns.into_iter().map(column).filter(moved).collect(),
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / float(values.len().max(1) as u64)
}

const GAUGES: [&str; 3] = ["requests_running", "requests_waiting", "kv_pages_used"];
const COUNTERS: [&str; 7] = [
    "prompt_tokens",
    "output_tokens",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "preemptions",
    "draft_tokens",
    "accepted_tokens",
];

impl Watch<'_> {
    /// Computes the telemetry of the server from its counters over the run, whose clock started at
    /// `start_ns`; `None` if it reported none.
    fn server_facts(&self, start_ns: u64) -> Option<ServerTelemetry> {
        let reported = self.polls.iter().filter_map(|poll| {
            Some((poll.at_ns.saturating_sub(start_ns) / 1000, poll.server.as_ref()?))
        });
        let (at_us, counters): (Vec<u64>, Vec<&Counters>) = reported.unzip();
        if counters.iter().all(|counters| counters.is_empty()) {
            return None;
        }
        // Gauges are taken only from samples during the run, when the load was present.
        let during = self.polls.get(1..self.polls.len().saturating_sub(1)).unwrap_or_default();
        let gauge = |name: &str| -> Option<Spread> {
            let seen = during.iter().filter_map(|poll| poll.server.as_ref()?.get(name).copied());
            spread(seen.filter_map(counted))
        };
        let [requests_running, requests_waiting, kv_pages_used] = GAUGES.map(gauge);
        let [prompt, output, query, hit, preemptions, draft_tokens, accepted_tokens] =
            COUNTERS.map(|name| self.grown(name));
        let pages = counters.last().and_then(|counters| counters.get("kv_pages").copied());
        Some(ServerTelemetry {
            requests_running,
            requests_waiting,
            kv_pages_used,
            kv_pages: pages.and_then(counted),
            prompt_tokens: prompt,
            output_tokens: output,
            prefix_query_tokens: query,
            prefix_hit_tokens: hit,
            preemptions,
            draft_tokens,
            accepted_tokens,
            series: server_series(&at_us, &counters),
        })
    }
}

/// Builds the time series of the server's gauges and counters, from the second sample on; the
/// first, taken before the run, is the counters' baseline. A quantity that some sample lacks is
/// left out. `at_us` are the times of the samples in microseconds since the run's clock started.
fn server_series(at_us: &[u64], samples: &[&Counters]) -> Option<Series> {
    let values = |name: &str| -> Option<Vec<f64>> {
        samples.iter().map(|counters| counters.get(name).copied()).collect()
    };
    let gauges = GAUGES.iter().filter_map(|name| {
        let values = values(name)?.split_off(1);
        Some((*name, Together::Mean, values))
    });
    let counters = COUNTERS.iter().filter_map(|name| {
        let values = values(name)?;
        let grown = values.windows(2).map(|pair| growth(pair[0], pair[1]).unwrap_or(0));
        Some((*name, Together::Sum, grown.map(float).collect()))
    });
    series(at_us.get(1..)?, gauges.chain(counters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::control::Trust;
    use gpu::Throttle;

    const SECOND_NS: u64 = 1_000_000_000;

    /// Reader of GPUs that is never called, because the tests build their samples themselves.
    #[derive(Debug)]
    struct Unread;

    impl gpu::Gpus for Unread {
        fn poll(&self) -> Vec<GpuReading> {
            Vec::new()
        }
    }

    /// Test helper: returns a telemetry sample of `gpus` busy GPUs and a busy server, taken
    /// `second` seconds after the clock started.
    fn poll(second: u64, names: &[&str], gpus: usize) -> Poll {
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
        Poll {
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
        for (seconds, gpus, most) in [(60, 1, 7 << 10), (28_800, 1, 7 << 10), (28_800, 8, 11 << 10)]
        {
            let mut watch = Watch::new(&server, &engine, &meter, Some(SECOND_NS));
            watch.polls = (0..=seconds).map(|second| poll(second, &names, gpus)).collect();
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

#[cfg(test)]
mod series_tests {
    use super::*;

    #[test]
    fn a_spread_is_of_nearest_ranks() {
        let of = |values: &[u64]| spread(values.iter().copied());
        assert_eq!(of(&[]), None);
        let one = Spread { mean: 7.0, p5: 7, p50: 7, p95: 7, max: 7 };
        assert_eq!(of(&[7]), Some(one));
        let hundred: Vec<u64> = (1..=100).rev().collect();
        let expected = Spread { mean: 50.5, p5: 5, p50: 50, p95: 95, max: 100 };
        assert_eq!(of(&hundred), Some(expected));
    }

    #[test]
    fn a_long_run_has_no_more_points_and_loses_no_count() {
        for polls in [2_u64, 31, 32, 33, 64, 65, 30_000] {
            let at_us: Vec<u64> = (1..=polls).map(|poll| poll * 1_000_000).collect();
            let ones = vec![1.0; at_us.len()];
            let columns = vec![
                ("grown", Together::Sum, ones.clone()),
                ("kept", Together::Mean, ones),
                ("still", Together::Sum, vec![0.0; at_us.len()]),
            ];
            let found = series(&at_us, columns).unwrap();
            assert!(found.at_us.len() <= POINTS_MAX && found.at_us.len() >= 2, "{polls}");
            assert_eq!(found.at_us.last(), at_us.last());
            assert!(found.columns.values().all(|column| column.len() == found.at_us.len()));
            assert_eq!(found.columns["grown"].iter().sum::<u64>(), polls, "growth adds up");
            assert!(found.columns["kept"].iter().all(|kept| *kept == 1), "a mean stays");
            assert_eq!(found.columns.len(), 2, "what was zero all along is left out");
        }
        assert_eq!(series(&[1], vec![("grown", Together::Sum, vec![1.0])]), None);
    }
}
