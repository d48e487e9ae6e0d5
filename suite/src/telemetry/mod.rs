//! What is seen beside the load while it goes: the server's counters, this machine, its GPUs.
//!
//! It is looked at just before the clock starts, at intervals while it runs, and just after it
//! stops. In between on a thread of its own and over a connection of its own: the loop that
//! measures waits for none of it. Knows no request and judges nothing.

mod facts;
pub mod gpu;
mod host;
pub(crate) mod nvml;
mod series;
mod server;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use schema::engine::EngineFile;
use schema::telemetry::LookCost;

pub use self::facts::{Ranks, joules_per_token};
use self::gpu::{GpuReading, Meter};
use self::host::HostReading;
use crate::client::blocking::Caller;
use crate::client::control::{ControlError, LIMIT, Server, read_metrics};
use crate::clock::{monotonic_ns, thread_cpu_ns};

/// How long the server may take over its counters while the clock runs.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// Some servers count a moment after they answered: how often, and how far apart, the last look is
/// taken again until the counters hold what the answers say.
const SETTLE_LOOKS: u32 = 10;
const SETTLE_PAUSE: Duration = Duration::from_millis(100);

/// The server's counters, by the suite's names.
pub type Counters = BTreeMap<String, f64>;

/// What was seen at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Look {
    /// By the machine's monotonic clock.
    pub at_ns: u64,
    /// None where the server did not tell.
    pub server: Option<Counters>,
    /// None where the system does not tell.
    pub host: Option<HostReading>,
    /// In the driver's order; empty where there is no driver.
    pub gpus: Vec<GpuReading>,
}

/// Whoever looks.
#[derive(Debug)]
pub struct Watch<'a> {
    server: &'a Server,
    engine: &'a EngineFile,
    caller: Caller<'a>,
    meter: &'a Meter,
    looks: Vec<Look>,
    cost: LookCost,
    /// Between two looks while the clock runs.
    pause: Option<Duration>,
    /// Why the server last did not tell.
    trouble: Option<String>,
}

impl<'a> Watch<'a> {
    /// Looks at nothing yet. `pause_ns` is how long to wait between two looks while the clock
    /// runs; none for before and after only.
    #[must_use]
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
            trouble: None,
        }
    }

    /// Does `work` with a look before it, looks beside it, and a look after it.
    pub fn beside<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.look(LIMIT);
        let done = match self.pause {
            None => work(),
            Some(pause) => thread::scope(|scope| {
                let (stop, stopped) = channel();
                let watch = &mut *self;
                scope.spawn(move || watch.keep_looking(pause, &stopped));
                let done = work();
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
            // One that took longer than the pause leaves out those that it missed.
            while next <= Instant::now() {
                next += pause;
            }
        }
        self.cost.cpu_us = thread_cpu_ns() / 1000;
    }

    fn look(&mut self, limit: Duration) {
        // What is here comes first: it does not wait, and belongs to this moment.
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
            self.trouble = Some("the engine file names no metrics".to_owned());
            return None;
        }
        let began_ns = monotonic_ns();
        let page = self.server.ask(&mut self.caller, "GET", self.engine.metrics_route(), limit);
        let took_us = (monotonic_ns() - began_ns) / 1000;
        self.cost.server_look_us_max = self.cost.server_look_us_max.max(took_us);
        match page {
            Ok(page) => Some(read_metrics(&page, &self.engine.metrics)),
            Err(error) => {
                self.cost.server_looks_failed += 1;
                self.trouble = Some(without_place(self.engine.metrics_route(), &error));
                None
            }
        }
    }

    /// Sees to it that the last look holds what the server counted, now that it is known to be
    /// there and that its answers held `output_tokens` in all.
    pub fn settle(&mut self, output_tokens: u64) {
        // Where it told nothing before the clock, no counter can have grown by anything.
        if self.looks.first().is_none_or(|look| look.server.is_none()) {
            return;
        }
        for again in 0..SETTLE_LOOKS {
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

    /// What the counter of this name grew by, from the first look to the last.
    #[must_use]
    pub fn grown(&self, name: &str) -> Option<u64> {
        let ends = [self.looks.first()?, self.looks.last()?];
        let [first, last] = ends.map(|look| look.server.as_ref()?.get(name).copied());
        series::growth(first?, last?)
    }
}

/// What went wrong, without the server's address: no record holds one.
fn without_place(route: &str, error: &ControlError) -> String {
    let said = match error {
        ControlError::Status { status, .. } => return format!("`{route}` answered {status}"),
        ControlError::Unreachable { message, .. } => message.clone(),
        other => other.to_string(),
    };
    format!("`{route}` gave no answer: {}", said.lines().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::control::Trust;
    use crate::measure::Reasons;
    use gpu::Throttle;

    const SECOND_NS: u64 = 1_000_000_000;

    /// GPUs that are never looked at: the looks are made up.
    #[derive(Debug)]
    struct Unread;

    impl gpu::Gpus for Unread {
        fn look(&self) -> Vec<GpuReading> {
            Vec::new()
        }
    }

    /// Busy GPUs and a busy server, `second` seconds after the clock started.
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
        let count = 12_345.0 * series::float(second);
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
        let meter: Meter = Ok(Box::new(Unread));
        for (seconds, gpus, most) in [(60, 1, 6 << 10), (28_800, 1, 6 << 10), (28_800, 8, 10 << 10)]
        {
            let mut watch = Watch::new(&server, &engine, &meter, Some(SECOND_NS));
            watch.looks = (0..=seconds).map(|second| look(second, &names, gpus)).collect();
            let mut reasons = Reasons::default();
            let facts = watch.facts(0, &mut reasons);
            let server = facts.server.as_ref().unwrap();
            assert_eq!(server.output_tokens, Some(12_345 * seconds));
            let columns = &server.series.as_ref().unwrap().columns;
            assert_eq!(columns["output_tokens"].iter().sum::<u64>(), 12_345 * seconds);
            let size = serde_json::to_string(&facts).unwrap().len();
            assert!(size < most, "{gpus} GPUs, {seconds} s: {size} bytes");
        }
    }

    #[test]
    fn a_reason_does_not_say_where_the_server_is() {
        let error = ControlError::Unreachable {
            url: "http://10.1.2.3:80/metrics".to_owned(),
            message: "no answer within 2 s\nhint: wait".to_owned(),
        };
        let said = without_place("/metrics", &error);
        assert_eq!(said, "`/metrics` gave no answer: no answer within 2 s");
    }
}
