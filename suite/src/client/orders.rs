//! What the client's loop is told and what it brings back: orders, whoever looks on, results.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;

use nix::errno::Errno;
use schema::engine::Dialect;
use schema::scenario::{Arrival, Connections};

use super::limits::{FILES_SPARE, allow_files, allow_ports, port_held_us};
use super::load::ClientLoad;
use super::payload::Payload;
use super::sample::Sample;
use super::tls::Tls;

/// Connections that are open ahead of need where the times of requests are fixed and nothing caps
/// them: how many will be needed at one time, only the run tells.
pub(super) const AHEAD: usize = 64;

/// How a list of payloads is sent.
#[derive(Debug)]
pub struct Orders<'a> {
    /// Where the server listens.
    pub address: SocketAddr,
    /// How connections are secured, where they are.
    pub tls: Option<&'a Tls>,
    /// What is sent, in this order.
    pub payloads: &'a [Payload],
    /// What their answers are written in.
    pub dialect: Dialect,
    /// When each is sent.
    pub arrival: &'a Arrival,
    /// Whether connections are kept from one request to the next.
    pub connections: Connections,
    /// Longest time without any event while requests are open.
    pub no_progress_ns: u64,
    /// Set from outside to stop.
    pub stop: &'a AtomicBool,
    /// Ask the kernel when bytes arrive; else the times are this program's own.
    pub kernel_timestamps: bool,
}

/// Where a run stands, for whoever shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests of the run.
    pub planned: u64,
    /// Requests that are over, answered or not.
    pub done: u64,
    /// Of those, the ones without an answer.
    pub failed: u64,
    /// Requests that are sent and not answered yet.
    pub in_flight: u64,
    /// Output tokens so far, as far as the server tells, else one a chunk.
    pub tokens: u64,
    /// Since the clock started.
    pub elapsed_ns: u64,
}

/// What a run brought.
#[derive(Debug)]
pub struct Driven {
    /// One per payload, in their order.
    pub samples: Vec<Sample>,
    /// When the clock started.
    pub start_ns: u64,
    /// What the work cost this program.
    pub load: ClientLoad,
    /// No event came for longer than the limit.
    pub hung: bool,
}

impl Driven {
    /// Output tokens that the server reported with its answers, of those that it answered.
    #[must_use]
    pub fn output_tokens(&self) -> u64 {
        let ok = self.samples.iter().filter(|sample| sample.is_ok());
        ok.filter_map(|sample| Some(sample.usage?.completion_tokens)).sum()
    }
}

/// A run that could not be made at all.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The system allows fewer open files.
    #[error(
        "{needed} open files are needed and {limit} allowed\nhint: raise the limit (`ulimit -n`)"
    )]
    Files {
        /// One for each connection, and a few.
        needed: u64,
        /// Allowed.
        limit: u64,
    },
    /// The system has fewer ports than connections will hold at one time.
    #[error(
        "{needed} ports are needed at one time to connect to `{address}` from, and {limit} are \
         free; {held} more are held by other connections to it, open or ended\nhint: widen \
         net.ipv4.ip_local_port_range, send fewer at once (`concurrency_max`), or keep \
         connections (`connections = \"warm\"`)"
    )]
    Ports {
        /// Of the server.
        address: SocketAddr,
        /// At one time.
        needed: u64,
        /// Free.
        limit: u64,
        /// Held by others.
        held: u64,
    },
    /// The run used up the ports.
    #[error(
        "no port is left to connect to `{address}` from: an ended connection holds its port for \
         {held_s} s\nhint: widen net.ipv4.ip_local_port_range, send fewer requests a second, or \
         keep connections (`connections = \"warm\"`)"
    )]
    NoPort {
        /// Of the server.
        address: SocketAddr,
        /// Seconds for which the system holds the port of an ended connection.
        held_s: u64,
    },
    /// A call of the system failed.
    #[error("the system refuses {what}")]
    System {
        /// What it was to do.
        what: &'static str,
        /// The cause.
        source: Errno,
    },
    /// Somebody wanted an end.
    #[error("interrupted")]
    Interrupted,
}

/// Whoever looks on while a run goes.
pub trait Observer {
    /// How far the run is; about twenty times a second.
    fn stands(&mut self, _tally: &Tally) {}
    /// A request ended, answered or not: payload `index` of the list.
    fn ended(&mut self, _index: usize, _sample: &Sample) {}
}

/// Nobody looks on.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// How the connections are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// As many as there may be requests, in turns.
    Fixed,
    /// A few more than there are requests at the time, the latest used first.
    Growing,
}

impl Orders<'_> {
    /// Sees that the system allows as many connections as will be open, at once, and as many ports
    /// as they and those that have ended will hold.
    ///
    /// # Errors
    /// It does not.
    pub fn prepare(&self) -> Result<(), DriveError> {
        let (most, surely) = self.connections_needed();
        allow_files(most as u64 + FILES_SPARE, surely as u64 + FILES_SPARE)?;
        allow_ports(self.address, self.ports_needed())
    }

    /// How many ports will surely be held at one time. Where each request opens a connection of its
    /// own and nothing but its time holds it back, those sent before it hold theirs for a while.
    fn ports_needed(&self) -> u64 {
        let surely = self.connections_needed().1 as u64;
        if self.connections == Connections::Warm || self.pool() == Pool::Fixed {
            return surely;
        }
        surely.max(self.sent_within(port_held_us(self.address)))
    }

    /// Most requests with a time of their own that are due within `span_us` of each other.
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

    /// How many connections may be open at one time, and how many will be.
    pub(super) fn connections_needed(&self) -> (usize, usize) {
        let cap = self.arrival.concurrency_max();
        let cap = cap.and_then(|cap| usize::try_from(cap).ok()).unwrap_or(usize::MAX);
        let slots = self.payloads.len().min(cap);
        (slots, if self.pool() == Pool::Growing { slots.min(AHEAD) } else { slots })
    }

    pub(super) fn pool(&self) -> Pool {
        let all = matches!(self.arrival, Arrival::AllAtOnce);
        let capped = self.arrival.concurrency_max().is_some();
        if all || capped { Pool::Fixed } else { Pool::Growing }
    }
}
