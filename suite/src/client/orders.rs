//! Input and output of the load generation loop: what to send, progress for an observer, samples,
//! errors.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use schema::engine::ApiFormat;
use schema::scenario::{Arrival, Connections};

pub use super::limits::DriveError;
use super::limits::{FILES_SPARE, allow_files, allow_ports, port_held_us};
use super::load::ClientLoad;
use super::payload::Payload;
use super::sample::Sample;
use super::tls::Tls;

/// Number of connections opened ahead of need where send times are fixed and nothing limits
/// concurrency, so that the number in use is not known before the run.
pub(super) const AHEAD: usize = 64;

/// Orders for the load generation loop: which requests to send, where and when.
#[derive(Debug)]
pub struct Orders<'a> {
    /// Address that the server listens on.
    pub address: SocketAddr,
    /// TLS configuration, if connections use TLS.
    pub tls: Option<&'a Tls>,
    /// Requests to send, in order.
    pub payloads: &'a [Payload],
    /// API format of the answers.
    pub dialect: ApiFormat,
    /// Arrival process of the requests.
    pub arrival: &'a Arrival,
    /// Connections: kept open, or one for each request.
    pub connections: Connections,
    /// Longest time without any event while requests are in flight, in nanoseconds.
    pub no_progress_ns: u64,
    /// Flag that another thread sets to stop the run.
    pub stop: &'a AtomicBool,
    /// True to use the kernel's receive time stamps; false for this program's own clock.
    pub kernel_timestamps: bool,
}

/// Progress of a running load test, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of requests in the run.
    pub planned: u64,
    /// Number of requests that have ended, answered or failed.
    pub done: u64,
    /// Number of requests that failed.
    pub failed: u64,
    /// Number of requests in flight.
    pub in_flight: u64,
    /// Number of output tokens so far, by the server's count or as one for each chunk.
    pub tokens: u64,
    /// Time since the clock started, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Result of the load generation loop.
#[derive(Debug)]
pub struct Driven {
    /// Samples, one for each payload, in the same order.
    pub samples: Vec<Sample>,
    /// Time at which the clock started, in nanoseconds of the monotonic clock.
    pub start_ns: u64,
    /// Load of the client's own loop.
    pub load: ClientLoad,
    /// True when no event came for longer than the limit, and the run was given up.
    pub hung: bool,
}

impl Driven {
    /// Returns the output tokens that the server's usage reports for the successful requests.
    pub fn output_tokens(&self) -> u64 {
        let ok = self.samples.iter().filter(|sample| sample.is_ok());
        ok.filter_map(|sample| Some(sample.usage?.completion_tokens)).sum()
    }
}

/// Observer of a running load generation loop.
pub trait Observer {
    /// Reports the progress of the run, about twenty times a second.
    fn stands(&mut self, _tally: &Tally) {}
    /// Reports that request `index` has ended, answered or failed.
    fn ended(&mut self, _index: usize, _sample: &Sample) {}
}

/// Observer that ignores everything.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Policy by which requests share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// One connection for each request that may be in flight, used in rotation.
    Fixed,
    /// A few more connections than requests in flight, the most recently used first.
    Growing,
}

impl Orders<'_> {
    /// Checks that the system allows as many open files and local ports as the run will need at one
    /// time, and raises the limit on open files.
    ///
    /// # Errors
    /// A limit is too low.
    pub fn prepare(&self) -> Result<(), DriveError> {
        let (most, surely) = self.connections_needed();
        allow_files(most as u64 + FILES_SPARE, surely as u64 + FILES_SPARE)?;
        allow_ports(self.address, self.ports_needed())
    }

    /// Returns the minimum number of local ports that the run holds at one time. Where each request
    /// opens a connection and only its send time delays it, recently closed connections count too.
    fn ports_needed(&self) -> u64 {
        let surely = self.connections_needed().1 as u64;
        if self.connections == Connections::Warm || self.pool() == Pool::Fixed {
            return surely;
        }
        surely.max(self.sent_within(port_held_us(self.address)))
    }

    /// Returns the largest number of requests with fixed send times within any span of `span_us`.
    fn sent_within(&self, span_us: u64) -> u64 {
        let timed = self.payloads.iter().filter(|payload| payload.after.is_none());
        let mut times_us: Vec<u64> = timed.map(|payload| payload.send_us).collect();
        times_us.sort_unstable();
        let mut first = 0;
        let mut most = 0;
        for (index, time_us) in times_us.iter().enumerate() {
            while time_us - times_us[first] >= span_us {
                first += 1;
            }
            most = most.max(index + 1 - first);
        }
        most as u64
    }

    /// Returns how many connections may be open at one time at most, and how many surely will be.
    pub(super) fn connections_needed(&self) -> (usize, usize) {
        let cap = self.arrival.concurrency_max();
        let cap = cap.and_then(|cap| usize::try_from(cap).ok()).unwrap_or(usize::MAX);
        let slots = self.payloads.len().min(cap);
        // A fixed pool uses every slot; a growing one surely only those opened ahead.
        (slots, if self.pool() == Pool::Growing { slots.min(AHEAD) } else { slots })
    }

    pub(super) fn pool(&self) -> Pool {
        let all = matches!(self.arrival, Arrival::AllAtOnce);
        let capped = self.arrival.concurrency_max().is_some();
        // With a limit, or all requests at once, the number of connections is known.
        if all || capped { Pool::Fixed } else { Pool::Growing }
    }
}
