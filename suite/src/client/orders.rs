//! Input and output of the load generation loop: the requests to send, progress for an observer,
//! samples and errors; and the system limits that a run needs: open files, and local ports to
//! connect from.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;

use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use procfs::net::{TcpNetEntry, TcpState, tcp, tcp6};
use schema::engine::ApiFormat;
use schema::scenario::{Arrival, Connections};

use super::load::ClientLoad;
use super::payload::Payload;
use super::sample::Sample;
use super::tls::Tls;

/// Number of connections kept open beyond those in use, where send times are fixed and nothing
/// limits concurrency, so that the number in use is not known before the run.
pub(super) const AHEAD: usize = 64;

/// Orders for the load generation loop: which requests to send, where and when.
#[derive(Debug)]
pub struct Orders<'a> {
    /// Socket address of the server that requests are sent to.
    pub address: SocketAddr,
    /// TLS configuration of the connections; `None` for plain HTTP.
    pub tls: Option<&'a Tls>,
    /// Requests to send; their indexes identify them in results.
    pub payloads: &'a [Payload],
    /// API format of the answers to the requests.
    pub dialect: ApiFormat,
    /// Arrival process by which the requests become due.
    pub arrival: &'a Arrival,
    /// Handling of connections: kept open for further requests, or one for each request.
    pub connections: Connections,
    /// Time without progress while requests are in flight, in nanoseconds, after which the run is
    /// given up. Progress is a response that begins, a token, or the end of a request.
    pub no_progress_ns: u64,
    /// Flag that stops the run once another thread or a signal handler has set it.
    pub stop: &'a AtomicBool,
    /// True to use the kernel's receive time stamps; false for this program's own clock.
    pub kernel_timestamps: bool,
}

/// Progress of a running load test, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of requests that the run is to send in all.
    pub planned: u64,
    /// Number of requests of the run that have ended, answered or failed.
    pub done: u64,
    /// Number of requests of the run that have failed so far.
    pub failed: u64,
    /// Number of the run's requests in flight.
    pub in_flight: u64,
    /// Number of output tokens received so far in the run, by the server's count or as one for each
    /// chunk.
    pub tokens: u64,
    /// Time since the run's first request could be sent, in nanoseconds.
    pub elapsed_ns: u64,
}

/// Result of the load generation loop: samples, start time and load of the client.
#[derive(Debug)]
pub struct Driven {
    /// Samples of the run, one for each payload, in the same order.
    pub samples: Vec<Sample>,
    /// Time at which the run's clock started, in nanoseconds of the monotonic clock.
    pub start_ns: u64,
    /// Length of the run in nanoseconds, from its start until the last request ended.
    pub elapsed_ns: u64,
    /// Load of the client's own event loop during the run.
    pub load: ClientLoad,
    /// True when no request made progress for longer than the limit while some were in flight, and
    /// the run was given up.
    pub hung: bool,
    /// True when the stop flag ended the run: requests in flight, and those not sent, have failed.
    pub interrupted: bool,
}

impl Driven {
    /// Returns the result of a run that was not interrupted.
    ///
    /// # Errors
    /// The stop flag ended the run.
    pub fn whole(self) -> Result<Self, DriveError> {
        if self.interrupted { Err(DriveError::Interrupted) } else { Ok(self) }
    }

    /// Returns the total number of output tokens that the server's usage reports for the successful
    /// requests.
    pub fn output_tokens(&self) -> u64 {
        let ok = self.samples.iter().filter(|sample| sample.is_ok());
        ok.filter_map(|sample| Some(sample.usage?.completion_tokens)).sum()
    }
}

/// Observer of a running load generation loop.
pub trait Observer {
    /// Receives the progress of the run, about twenty times a second and at its end.
    fn stands(&mut self, _tally: &Tally) {}
    /// Receives the sample of the request with index `index` when it has ended: answered, failed,
    /// or given up before it was sent.
    fn ended(&mut self, _index: usize, _sample: &Sample) {}
}

/// Observer of the load generation loop that ignores progress and samples.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {}

/// Policy by which the requests of a run share connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pool {
    /// Pool with one connection for each request that may be in flight; they are used in rotation.
    Fixed,
    /// Pool that grows with the number of requests in flight and has a few more open connections;
    /// the most recently used one is taken first.
    Growing,
}

impl Orders<'_> {
    /// Checks that the system allows as many open files and local ports as the run will need at one
    /// time, and raises the limit on open files.
    ///
    /// # Errors
    /// Too few open files or local ports are allowed, or the limit on open files cannot be read or
    /// raised.
    pub fn prepare(&self) -> Result<(), DriveError> {
        let (most, surely) = self.connections_needed();
        allow_files(most as u64 + FILES_SPARE, surely as u64 + FILES_SPARE)?;
        allow_ports(self.address, self.ports_needed())
    }

    /// Returns a lower bound of the number of local ports that the run will hold at the moment when
    /// it holds the most. Where each request opens a connection and only its send time delays it,
    /// recently closed connections count too.
    fn ports_needed(&self) -> u64 {
        let surely = self.connections_needed().1 as u64;
        if self.connections == Connections::Warm || self.pool() == Pool::Fixed {
            return surely;
        }
        surely.max(self.sent_within(port_held_us(self.address)))
    }

    /// Returns the largest number of requests with fixed send times within any span of `span_us`
    /// microseconds.
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

    /// Returns an upper bound and a lower bound of the number of connections that the run will have
    /// open at the moment when it has the most open.
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

/// Error that ended a run, or kept it from starting; requests that fail are no such error.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// A system limit on open files or local ports is too low for the run.
    #[error("{0}")]
    Limit(String),
    /// A system call that the client needs failed.
    #[error("the system refuses {what}")]
    System {
        /// Phrase that names the refused resource or the purpose of the system call.
        what: &'static str,
        /// Error number of the system call.
        source: Errno,
    },
    /// The run was stopped by a signal or another thread.
    #[error("interrupted")]
    Interrupted,
}

/// Number of open files for which the check of the limit on open files leaves room besides the
/// connections.
pub(super) const FILES_SPARE: u64 = 64;
/// Time for which a closed connection holds its local port: Linux's `TIME_WAIT`, not configurable.
/// Microseconds.
const HELD_US: u64 = 60_000_000;
/// Time for which a closed connection holds its local port where the kernel reuses ports: its
/// `tcp_tw_reuse_delay`. Microseconds.
const REUSED_AFTER_US: u64 = 1_000_000;

/// Returns the error for a run that needs `needed` open files on a system that allows `limit`.
pub(super) fn too_few_files(needed: u64, limit: u64) -> DriveError {
    DriveError::Limit(format!(
        "{needed} open files are needed and {limit} allowed\nhint: raise the limit (`ulimit -n`)"
    ))
}

/// Returns the error for a run during which no local port was left to connect to `address`.
pub(super) fn no_port(address: SocketAddr) -> DriveError {
    let held_s = port_held_us(address) / 1_000_000;
    DriveError::Limit(format!(
        "no port is left to connect to `{address}` from: an ended connection holds its port for \
         {held_s} s\nhint: widen net.ipv4.ip_local_port_range, send fewer requests a second, or \
         keep connections (`connections = \"warm\"`)"
    ))
}

/// Raises the soft limit on open files to `most`, or as far as the hard limit allows.
///
/// # Errors
/// The hard limit is below `needed`, or the system calls fail.
pub fn allow_files(most: u64, needed: u64) -> Result<(), DriveError> {
    let what = "to read or raise the limit on open files";
    let system = |source| DriveError::System { what, source };
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(system)?;
    if needed > hard {
        return Err(too_few_files(needed, hard));
    }
    if most > soft {
        setrlimit(Resource::RLIMIT_NOFILE, most.min(hard), hard).map_err(system)?;
    }
    Ok(())
}

/// Checks that `needed` local ports are free for connections to `address`, besides those that open
/// and recently closed connections hold. Where the kernel does not report its range of local ports,
/// nothing is checked.
pub(super) fn allow_ports(address: SocketAddr, needed: u64) -> Result<(), DriveError> {
    // Where the system does not report its range, connecting will show.
    let Some(range) = setting("ip_local_port_range").and_then(|range| Range::read(&range)) else {
        return Ok(());
    };
    let reserved = setting("ip_local_reserved_ports").unwrap_or_default();
    let free = range.count().saturating_sub(range.reserved(&reserved));
    // Fast path: the kernel keeps this count, while its full table is slow to read.
    if connections().is_some_and(|held| needed + held <= free) {
        return Ok(());
    }
    let table = if address.is_ipv4() { tcp() } else { tcp6() };
    let held = range.held(&table.unwrap_or_default(), address, is_reused(address));
    let limit = free.saturating_sub(held);
    if needed > limit {
        return Err(DriveError::Limit(format!(
            "{needed} ports are needed at one time to connect to `{address}` from, and {limit} are \
             free; {held} more are held by other connections to it, open or ended\nhint: widen \
             net.ipv4.ip_local_port_range, send fewer at once (`concurrency_max`), or keep \
             connections (`connections = \"warm\"`)"
        )));
    }
    Ok(())
}

/// Returns the time for which a closed connection to `address` holds its local port, in
/// microseconds.
pub(super) fn port_held_us(address: SocketAddr) -> u64 {
    if is_reused(address) { REUSED_AFTER_US } else { HELD_US }
}

/// True when the kernel gives the local port of a closed connection to a new connection to the same
/// `address` before `TIME_WAIT` ends.
fn is_reused(address: SocketAddr) -> bool {
    // `tcp_tw_reuse` requires TCP time stamps; its value 2 means loopback only.
    let stamped = setting("tcp_timestamps").is_none_or(|on| on.trim() != "0");
    let reuse = setting("tcp_tw_reuse").unwrap_or_default();
    let here = address.ip().is_loopback() || address.ip().is_unspecified();
    stamped && (reuse.trim() == "1" || (reuse.trim() == "2" && here))
}

/// Returns the number of TCP sockets on this machine that are in use or in `TIME_WAIT`; `None` if
/// the kernel does not report it. The kernel keeps this count; reading its table of connections
/// takes longer than a short run.
fn connections() -> Option<u64> {
    let of = |file: &str| fs::read_to_string(format!("/proc/net/{file}")).ok();
    Some(counted(&of("sockstat")?) + of("sockstat6").as_deref().map_or(0, counted))
}

/// Returns the number of TCP sockets in use or in `TIME_WAIT` from a `sockstat` file.
fn counted(counts: &str) -> u64 {
    let lines = counts.lines().filter_map(|line| line.split_once(": "));
    let tcp = lines.filter(|(protocol, _)| matches!(*protocol, "TCP" | "TCP6"));
    let words = tcp.flat_map(|(_, counts)| counts.split(' ').zip(counts.split(' ').skip(1)));
    let of_interest = words.filter(|(name, _)| matches!(*name, "inuse" | "tw"));
    of_interest.filter_map(|(_, count)| count.parse::<u64>().ok()).sum()
}

fn setting(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/net/ipv4/{name}")).ok()
}

/// Range of local ports for outgoing connections, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
}

impl Range {
    /// Parses a range of local ports from the kernel's setting `ip_local_port_range`; `None` for
    /// other text.
    fn read(text: &str) -> Option<Self> {
        let mut ends = text.split_whitespace().map(str::parse::<u64>);
        let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
        (first <= last).then_some(Self { first, last })
    }

    fn count(self) -> u64 {
        self.last - self.first + 1
    }

    /// Returns the number of ports in the range that are in `list`, the kernel's reserved ports,
    /// such as `8080,9148-9200`.
    fn reserved(self, list: &str) -> u64 {
        let parts = list.split(',').filter_map(|part| {
            let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            Some((last.min(self.last) + 1).saturating_sub(first.max(self.first)))
        });
        parts.sum()
    }

    /// Returns the number of ports in the range that connections to `address` hold, by the kernel's
    /// `table`. Closed connections do not count where their ports are `reused`. The unspecified
    /// IPv4 address means 127.0.0.1.
    fn held(self, table: &[TcpNetEntry], address: SocketAddr, reused: bool) -> u64 {
        let ip = match address.ip() {
            IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            known => known,
        };
        let holds = |entry: &&TcpNetEntry| {
            let remote = entry.remote_address;
            // The client end of a connection has a port of the range and the server as its peer.
            (self.first..=self.last).contains(&u64::from(entry.local_address.port()))
                && (remote.ip(), remote.port()) == (ip, address.port())
                && !(reused && entry.state == TcpState::TimeWait)
        };
        // The kernel lists a connection twice where others end while the table is read.
        let ends = table.iter().filter(holds).map(|entry| entry.local_address);
        ends.collect::<BTreeSet<SocketAddr>>().len() as u64
    }
}

#[cfg(test)]
mod tests {
    use procfs::FromBufReadSI;
    use procfs::net::TcpNetEntries;

    use super::*;

    const USUAL: Range = Range { first: 32_768, last: 60_999 };

    #[test]
    fn a_range_of_ports_counts_both_ends_and_not_what_is_reserved() {
        assert_eq!(Range::read("32768\t60999\n"), Some(USUAL));
        assert_eq!(USUAL.count(), 28_232);
        assert_eq!((Range::read("9 3"), Range::read("")), (None, None));
        assert_eq!(USUAL.reserved("8080,32760-32769,40000,60999-65000\n"), 4);
        assert_eq!(USUAL.reserved("\n"), 0);
    }

    #[test]
    fn ports_of_open_and_of_ended_connections_to_the_address_are_held() {
        let line = |local: &str, remote: &str, state: &str| {
            format!(" 1: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 0 0 9\n")
        };
        let server = SocketAddr::from(([127, 0, 0, 1], 8000));
        let (here, there) = ("0100007F:1F40", "0100000A:1F40");
        let table = [
            "  sl  local_address rem_address   st\n".to_owned(),
            line("0100007F:8001", here, "01"),
            line("0100007F:8001", here, "01"),
            line("0100007F:8002", here, "06"),
            line("0100007F:8003", there, "01"),
            line("0100007F:0050", here, "01"),
            line(here, "0100007F:8001", "01"),
        ];
        let (table, system) = (table.concat(), procfs::current_system_info());
        let TcpNetEntries(table) = TcpNetEntries::from_buf_read(table.as_bytes(), system).unwrap();
        assert_eq!(USUAL.held(&table, server, false), 2);
        assert_eq!(USUAL.held(&table, server, true), 1, "what ended is reused");
        let anywhere = SocketAddr::from(([0, 0, 0, 0], 8000));
        assert_eq!(USUAL.held(&table, anywhere, false), 2, "no address is this machine");
    }

    #[test]
    fn connections_are_counted_by_the_kernel_ended_ones_among_them() {
        let four = "sockets: used 21\nTCP: inuse 3 orphan 9 tw 107 alloc 8 mem 205\nUDP: inuse 5\n";
        assert_eq!((counted(four), counted("TCP6: inuse 2\nUDP6: inuse 4\n")), (110, 2));
        assert_eq!(counted(""), 0);
    }

    #[test]
    fn an_open_connection_is_found_in_the_kernels_own_table() {
        // Address of this machine that no other test connects to.
        let listener = std::net::TcpListener::bind("127.77.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let Ok(table) = tcp() else { return };
        assert_eq!(USUAL.held(&table, address, false), 0);
        let client = std::net::TcpStream::connect(address).unwrap();
        let port = u64::from(client.local_addr().unwrap().port());
        let table = tcp().unwrap();
        assert_eq!(Range { first: port, last: port }.held(&table, address, false), 1);
    }

    #[test]
    fn what_the_system_cannot_give_is_said_with_the_number_needed() {
        let address = SocketAddr::from(([127, 0, 0, 1], 9));
        let ports = allow_ports(address, 70_000).unwrap_err().to_string();
        assert!(ports.contains("70000") && ports.contains("127.0.0.1:9"), "{ports}");
        let files = allow_files(u64::MAX, u64::MAX).unwrap_err().to_string();
        assert!(files.contains(&u64::MAX.to_string()), "{files}");
    }
}
