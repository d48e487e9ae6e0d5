//! TCP connection of the client: opens the socket, writes one request at a time, reads its answer
//! with receive time stamps; no other code stamps the answers of a run as they are received.
//!
//! The kernel records when a segment arrived (`SO_TIMESTAMPNS`), which stays right however busy
//! this program is. TCP gives one stamp per read, that of the last segment. Where the kernel gives
//! no stamp or an impossible one (it uses the wall clock, which may jump), the time after the read
//! is used.

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, connect,
    getsockopt, recvmsg, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;

use super::channel::{Broken, Session};
use super::sample::Moment;
use super::stream::Stream;
use super::tls::Tls;
use crate::clock::{monotonic_ns, realtime_ns};

/// Tolerance in nanoseconds by which a kernel receive time stamp may precede the time at which the
/// socket last had no data, or follow the read, and still be credible: the error of relating the
/// wall clock to the monotonic clock.
const SLACK_NS: u64 = 200_000;
/// Maximum time between two clock readings that count as simultaneous, in nanoseconds.
const ADJACENT_NS: u64 = 5_000;

/// Outcome of one read from a socket: number of bytes and time stamps.
#[derive(Clone, Copy, Debug)]
pub struct StampedRead {
    /// Number of bytes read, with TLS after decryption; zero at the end of the connection.
    pub bytes: usize,
    /// Arrival time of the bytes, and the time at which this program had read them.
    pub moment: Moment,
    /// Delay from the kernel's time stamp to this program's read in nanoseconds; `None` without a
    /// credible kernel time stamp.
    pub kernel_to_user_ns: Option<u64>,
}

/// Reader of sockets that provides receive time stamps.
#[derive(Debug)]
pub struct Stamper {
    control: Vec<u8>,
    /// Last measured difference of the wall clock minus the monotonic clock, in nanoseconds.
    offset_ns: u64,
    /// True when the kernel provides the time stamps, so that they do not depend on when a socket is
    /// read.
    pub kernel: bool,
}

impl Stamper {
    /// Creates a reader with receive time stamps; `kernel` true requests the kernel's stamps
    /// instead of this program's.
    pub fn new(kernel: bool) -> Self {
        let control = nix::cmsg_space!(TimeSpec);
        let mut stamper = Self { control, offset_ns: 0, kernel };
        // First estimate, in case `relate_clocks` finds no undisturbed moment.
        stamper.offset_ns = realtime_ns().saturating_sub(monotonic_ns());
        stamper.relate_clocks();
        stamper
    }

    /// Measures the offset of the wall clock to the monotonic clock again. Must be called often,
    /// since either clock may be adjusted.
    pub fn relate_clocks(&mut self) {
        // Try again where the thread was interrupted between the readings.
        for _ in 0..4 {
            let before = monotonic_ns();
            let real = realtime_ns();
            let after = monotonic_ns();
            if after - before < ADJACENT_NS {
                self.offset_ns = real.saturating_sub(before + (after - before) / 2);
                return;
            }
        }
    }

    /// Requests kernel time stamps for `socket`; where the kernel refuses, this and later sockets
    /// get stamps of this program's clock.
    pub fn prepare(&mut self, socket: &OwnedFd) {
        if self.kernel && setsockopt(socket, sockopt::ReceiveTimestampns, &true).is_err() {
            self.kernel = false;
        }
    }

    /// Reads available data from `socket` into `buffer`. `since_ns` is the time in nanoseconds of
    /// the monotonic clock at which the socket last had none, a lower bound of the arrival. If the
    /// read takes all data, `since_ns` becomes the time just before it.
    ///
    /// # Errors
    /// The error of `recvmsg`; `EAGAIN` where there is no data.
    pub fn read(
        &mut self,
        socket: &OwnedFd,
        buffer: &mut [u8],
        since_ns: &mut u64,
    ) -> Result<StampedRead, Errno> {
        let control = self.kernel.then_some(self.control.as_mut_slice());
        let capacity = buffer.len();
        let mut slices = [IoSliceMut::new(buffer)];
        let before_ns = monotonic_ns();
        let message =
            recvmsg::<()>(socket.as_raw_fd(), &mut slices, control, MsgFlags::MSG_DONTWAIT)?;
        let user_ns = monotonic_ns();
        let stamp = message.cmsgs().ok().and_then(|mut parts| {
            parts.find_map(|part| match part {
                ControlMessageOwned::ScmTimestampns(time) => nanoseconds(time),
                _ => None,
            })
        });
        // A stamp slightly out of bounds is clamped; one that is far off is not credible.
        let lower_ns = *since_ns;
        let arrived_ns = stamp
            .and_then(|stamp| stamp.checked_sub(self.offset_ns))
            .filter(|at| (lower_ns.saturating_sub(SLACK_NS)..=user_ns + SLACK_NS).contains(at))
            .map(|at| at.clamp(lower_ns.min(user_ns), user_ns));
        let bytes = message.bytes;
        let at_ns = arrived_ns.unwrap_or(user_ns);
        // A read that did not fill the buffer left the socket empty. This program may be held up
        // before it reads the clock again, so only the time before the read is sure.
        if bytes < capacity {
            *since_ns = before_ns;
        }
        Ok(StampedRead {
            bytes,
            moment: Moment { since_ns: lower_ns, at_ns, user_ns, stamped: arrived_ns.is_some() },
            kernel_to_user_ns: arrived_ns.map(|at| user_ns - at),
        })
    }
}

fn nanoseconds(time: TimeSpec) -> Option<u64> {
    let seconds = u64::try_from(time.tv_sec()).ok()?;
    Some(seconds * 1_000_000_000 + u64::try_from(time.tv_nsec()).ok()?)
}

/// Maximum length of a decrypted TLS record, in bytes, for which a read needs room: it may complete
/// a record that an earlier read began.
const RECORD_MAX: usize = 16 << 10;

/// Reusable connection slot of the client: a socket and at most one request in flight.
#[derive(Debug, Default)]
pub(super) struct Connection {
    pub phase: Phase,
    pub request: Option<InFlight>,
    /// Time at which the connection's socket last had nothing left to read, in nanoseconds of the
    /// monotonic clock.
    pub drained_ns: u64,
    /// True when the latest read filled its buffer, so that more bytes may have arrived before it.
    has_more: bool,
    /// Time at which the connection's last request ended, in nanoseconds of the monotonic clock;
    /// zero before its first request has ended.
    pub freed_ns: u64,
    /// Number of requests that have ended on the connection's current socket and left it open.
    pub served: u32,
    /// Time that it took to open the connection's latest open socket, including the TLS handshake,
    /// in nanoseconds; `None` before any socket was open.
    pub connect_ns: Option<u64>,
    /// Start and end of the TLS handshake, in nanoseconds of the monotonic clock; the end is that
    /// of its latest step. `None` before a handshake and without TLS.
    handshake_ns: Option<(u64, u64)>,
    /// True when the server announced the end of the TLS connection while the TCP socket may still
    /// be open.
    pub over: bool,
    socket: Option<OwnedFd>,
    tls: Option<Box<dyn Session>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    #[default]
    Closed,
    Connecting {
        since_ns: u64,
    },
    Open,
}

/// Request in flight on a connection.
#[derive(Debug)]
pub(super) struct InFlight {
    /// Index of the request in flight in the list of payloads.
    pub index: usize,
    pub stream: Stream,
    /// Number of payload bytes of the request written to the socket so far.
    pub written: usize,
    /// True when the request is sent for the second time, after the server closed the kept-alive
    /// connection.
    pub reopened: bool,
    /// Time in nanoseconds of the monotonic clock at which the answer's last event arrived, if the
    /// HTTP body has not ended yet; otherwise `None`.
    pub closing_since_ns: Option<u64>,
}

impl Connection {
    /// Starts to open a socket to `address`, registered with `epoll` under `key`; with TLS if `tls`
    /// is not `None`.
    ///
    /// # Errors
    /// The system refuses the socket, one of its options or its registration with `epoll` (a
    /// failure of the client's machine, not the server's), or connecting to the address fails at
    /// once.
    pub fn open(
        &mut self,
        address: SocketAddr,
        tls: Option<&Tls>,
        epoll: &Epoll,
        key: u64,
        stamper: &mut Stamper,
    ) -> Result<(), Errno> {
        self.close();
        self.tls = tls.map(Tls::session);
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Stream, flags, None)?;
        // Requests are written whole, so waiting to merge writes (Nagle) would only add measured
        // time.
        setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
        // Before connecting, so that no data arrive without a time stamp.
        stamper.prepare(&socket);
        let since_ns = monotonic_ns();
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
            // A non-blocking connect continues in the background; epoll signals its outcome.
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT, key))?;
        self.phase = Phase::Connecting { since_ns };
        self.socket = Some(socket);
        Ok(())
    }

    /// Continues to open the socket after an event: it is connected, refused, or in the TLS
    /// handshake. Returns false while the handshake goes on.
    ///
    /// # Errors
    /// Connecting or the TLS handshake failed, or a system call on the socket or `epoll` fails.
    pub fn conclude_opening(&mut self, epoll: &Epoll, key: u64) -> Result<bool, Broken> {
        let (Some(socket), Phase::Connecting { since_ns }) = (&self.socket, self.phase) else {
            return Ok(true);
        };
        match getsockopt(socket, sockopt::SocketError)? {
            0 => {}
            code => return Err(Errno::from_raw(code).into()),
        }
        let shaken = match &mut self.tls {
            None => true,
            Some(session) => {
                let (since_ns, _) = *self.handshake_ns.get_or_insert((monotonic_ns(), u64::MAX));
                let shaken = session.shake(socket)?;
                self.handshake_ns = Some((since_ns, monotonic_ns()));
                shaken
            }
        };
        // An open socket is almost always writable, which would wake the loop all the time.
        epoll.modify(socket, &mut EpollEvent::new(EpollFlags::EPOLLIN, key))?;
        if !shaken {
            return Ok(false);
        }
        let now = monotonic_ns();
        self.phase = Phase::Open;
        self.connect_ns = Some(now - since_ns);
        (self.drained_ns, self.has_more) = (now, false);
        Ok(true)
    }

    /// Writes the unwritten rest of the request's `payload` as far as the socket accepts it.
    pub fn write(&mut self, payload: &[u8], epoll: &Epoll, key: u64) -> Result<(), Errno> {
        let (Some(socket), Some(request)) = (&self.socket, &mut self.request) else {
            return Ok(());
        };
        let sample = &mut request.stream.sample;
        sample.sent_ns.get_or_insert_with(monotonic_ns);
        sample.connect_ns = self.connect_ns;
        if let Some(session) = &mut self.tls {
            // A handshake that ended before the request was taken up does not count in its time.
            let taken_ns = sample.taken_ns.unwrap_or(0);
            let part = |(since, until): (u64, u64)| until.saturating_sub(since.max(taken_ns));
            sample.tls_ns = self.handshake_ns.map(part);
            if request.written == 0 {
                session.put(payload);
                request.written = payload.len();
            }
            let whole = session.flush(socket)?;
            if sample.send_ns == 0 {
                sample.send_ns = monotonic_ns() - sample.sent_ns.unwrap_or(0);
            }
            if whole {
                sample.written_ns.get_or_insert_with(monotonic_ns);
            }
            let events = if whole { EpollFlags::empty() } else { EpollFlags::EPOLLOUT };
            let events = EpollFlags::EPOLLIN | events;
            return epoll.modify(socket, &mut EpollEvent::new(events, key));
        }
        let before = request.written;
        while request.written < payload.len() {
            let rest = &payload[request.written..];
            match send(socket.as_raw_fd(), rest, MsgFlags::MSG_NOSIGNAL) {
                Ok(count) => {
                    if request.written == 0 {
                        sample.send_ns = monotonic_ns() - sample.sent_ns.unwrap_or(0);
                    }
                    request.written += count;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => {
                    let events = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
                    return epoll.modify(socket, &mut EpollEvent::new(events, key));
                }
                Err(error) => return Err(error),
            }
        }
        sample.written_ns = Some(monotonic_ns());
        // An earlier write waited for the socket to become writable; stop that.
        if before > 0 {
            epoll.modify(socket, &mut EpollEvent::new(EpollFlags::EPOLLIN, key))?;
        }
        Ok(())
    }

    /// Gives up writing the request and stops waiting for the socket to become writable, because
    /// the server has stopped reading.
    pub fn stop_writing(&mut self, epoll: &Epoll, key: u64) {
        if let Some(socket) = &self.socket {
            // If this fails, the next read reports why.
            let _ = epoll.modify(socket, &mut EpollEvent::new(EpollFlags::EPOLLIN, key));
        }
        if let Some(request) = &mut self.request {
            // No payload has this length, so the connection is closed instead of reused.
            request.written = usize::MAX;
        }
    }

    /// Reads the connection's socket once into the beginning of `buffer`. With TLS, the time stamp
    /// is that of the read that completed a record. The bytes arrived after `polled_ns`, a time in
    /// nanoseconds of the monotonic clock, unless the previous read left some.
    ///
    /// # Errors
    /// The socket is not open, a system call on it fails, or TLS fails. `EAGAIN` means that there is
    /// nothing to read yet; with TLS also where a record is incomplete or holds no data of the
    /// application.
    pub fn read(
        &mut self,
        stamper: &mut Stamper,
        buffer: &mut [u8],
        polled_ns: u64,
    ) -> Result<StampedRead, Broken> {
        let Some(socket) = &self.socket else { return Err(Errno::ENOTCONN.into()) };
        // With TLS the second part is for encrypted bytes from the wire, the first for the decrypted
        // ones.
        let at = if self.tls.is_some() { (buffer.len() + RECORD_MAX) / 2 } else { 0 };
        let (plain, wire) = buffer.split_at_mut(at);
        let mut read = stamper.read(socket, wire, &mut self.drained_ns)?;
        if !std::mem::replace(&mut self.has_more, read.bytes == wire.len()) {
            // The kernel's stamp may lie below by the error of relating the two clocks.
            read.moment.since_ns = read.moment.since_ns.max(polled_ns);
        }
        let Some(session) = &mut self.tls else { return Ok(read) };
        if read.bytes == 0 {
            return Ok(read);
        }
        let bytes = session.take(&wire[..read.bytes], plain)?;
        // The server may have requested new keys. An answer that cannot be sent now goes with the
        // next request.
        session.flush(socket)?;
        self.over = session.has_ended();
        if bytes == 0 && !self.over {
            return Err(Errno::EAGAIN.into());
        }
        Ok(StampedRead { bytes, ..read })
    }

    /// True when the current request may be sent once more on a new connection if the server closes
    /// this one (RFC 9112, 9.3.1): the connection has carried an earlier request, no byte of the
    /// answer has arrived, and the request has been sent only once.
    pub fn may_reopen(&self) -> bool {
        let fresh = |request: &InFlight| request.stream.is_unanswered() && !request.reopened;
        self.served > 0 && self.request.as_ref().is_some_and(fresh)
    }

    /// Closes the connection's socket, which also removes it from epoll.
    pub fn close(&mut self) {
        if let (Some(session), Some(socket)) = (&mut self.tls, &self.socket) {
            session.end(socket);
        }
        (self.socket, self.tls, self.handshake_ns, self.over) = (None, None, None, false);
        self.phase = Phase::Closed;
        self.served = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let writer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (writer, listener.accept().unwrap().0.into())
    }

    fn read_after_waiting(stamper: &mut Stamper, since_ns: u64) -> (u64, StampedRead) {
        let (mut writer, socket) = pair();
        stamper.prepare(&socket);
        let before = monotonic_ns();
        writer.write_all(b"x").unwrap();
        // A busy client reads late.
        while monotonic_ns() < before + 20_000_000 {
            std::hint::spin_loop();
        }
        let mut since = if since_ns == 0 { before } else { since_ns };
        (before, stamper.read(&socket, &mut [0; 8], &mut since).unwrap())
    }

    #[test]
    fn a_late_reader_still_learns_when_the_bytes_came() {
        let mut stamper = Stamper::new(true);
        let (sent, read) = read_after_waiting(&mut stamper, 0);
        assert_eq!(read.bytes, 1);
        let Some(lag) = read.kernel_to_user_ns else {
            return fixtures::skip("the kernel's receive stamps", "run it on Linux");
        };
        let Moment { at_ns, user_ns, .. } = read.moment;
        assert_eq!(user_ns - at_ns, lag);
        assert!(user_ns - sent >= 20_000_000, "the reader came late");
        assert!(at_ns - sent < 10_000_000, "the stamp is the arrival's, not the reader's");
    }

    #[test]
    fn a_stamp_that_cannot_be_is_replaced_by_the_readers_own_time() {
        let mut stamper = Stamper::new(true);
        // Simulates a wall clock that was set back by a minute after the clocks were related.
        stamper.offset_ns += 60_000_000_000;
        let (_, read) = read_after_waiting(&mut stamper, 0);
        assert_eq!((read.moment.at_ns, read.kernel_to_user_ns), (read.moment.user_ns, None));
    }

    #[test]
    fn without_kernel_stamps_the_readers_time_is_taken() {
        let (_, read) = read_after_waiting(&mut Stamper::new(false), 0);
        assert_eq!((read.moment.at_ns, read.kernel_to_user_ns), (read.moment.user_ns, None));
    }
}
