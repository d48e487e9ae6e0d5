//! TCP connection of the client: opens the socket, writes one request at a time, reads its answer.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, getsockopt, send,
    setsockopt, socket, sockopt,
};

use super::stamp::{Read, Stamper};
use super::stream::Stream;
use super::tls::Tls;
use crate::clock::monotonic_ns;

/// Longest decrypted TLS record in bytes: one read may complete a record that an earlier read began.
const RECORD_MAX: usize = 16 << 10;

/// Error that ends a connection.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    #[error("{}", .0.desc())]
    System(#[from] Errno),
    /// The server violates TLS, or its certificate is not valid.
    #[error("{0}")]
    Tls(String),
}

/// TLS over the connection's non-blocking socket.
pub trait Session: fmt::Debug {
    /// Continues the handshake as far as `socket` allows. Returns true once it is complete.
    fn shake(&mut self, socket: &OwnedFd) -> Result<bool, Broken>;
    /// Decrypts `wire` into `plain` and returns the number of decrypted bytes, zero while a record
    /// is incomplete. `plain` must be longer than `wire` by one record.
    fn take(&mut self, wire: &[u8], plain: &mut [u8]) -> Result<usize, Broken>;
    /// True when the server announced that it will send no more data.
    fn has_ended(&mut self) -> bool;
    /// Encrypts `payload`; `flush` sends it.
    fn put(&mut self, payload: &[u8]);
    /// Sends encrypted data. Returns false where `socket` did not accept all of it.
    fn flush(&mut self, socket: &OwnedFd) -> Result<bool, Errno>;
    /// Tells the server that this side will send no more data.
    fn end(&mut self, socket: &OwnedFd);
}

/// Connection slot of the client: a socket and at most one request in flight.
#[derive(Debug, Default)]
pub struct Connection {
    pub phase: Phase,
    pub request: Option<InFlight>,
    /// Time at which the socket last had nothing left to read, in nanoseconds.
    pub drained_ns: u64,
    /// Time at which the connection's last request ended, in nanoseconds.
    pub freed_ns: u64,
    /// Number of requests answered on the current socket.
    pub served: u32,
    /// Time to open the current socket including the TLS handshake, in nanoseconds.
    pub connect_ns: Option<u64>,
    /// Start and end of the TLS handshake, in nanoseconds of the monotonic clock.
    handshake_ns: Option<(u64, u64)>,
    /// True when the server announced the end of the TLS connection, though the socket is open.
    pub over: bool,
    socket: Option<OwnedFd>,
    tls: Option<Box<dyn Session>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Closed,
    Connecting {
        since_ns: u64,
    },
    Open,
}

/// Request in flight on a connection.
#[derive(Debug)]
pub struct InFlight {
    /// Index of the request in the list of payloads.
    pub index: usize,
    pub stream: Stream,
    /// Number of payload bytes written so far.
    pub written: usize,
    /// True when this is the second attempt, after the server closed the kept-alive connection.
    pub reopened: bool,
    /// Time at which the answer's last event arrived while the body has not ended, in nanoseconds.
    pub closing_since_ns: Option<u64>,
}

impl Connection {
    /// Starts to open a socket to `address`, registered with `epoll` under `key`, with TLS if
    /// given.
    ///
    /// # Errors
    /// The system refuses a socket (an environment failure, not the server's), or the address is
    /// refused at once.
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
    /// The connection failed.
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
        self.drained_ns = now;
        Ok(true)
    }

    /// Writes the unwritten rest of `payload` as far as the socket accepts it.
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
                Ok(count) => request.written += count,
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

    /// Stops waiting for the socket to become writable, because the server has stopped reading.
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

    /// Reads once into the beginning of `buffer`. With TLS, the time stamp is that of the read that
    /// completed a record.
    ///
    /// # Errors
    /// The socket's error; `EAGAIN` where it has no data.
    pub fn read(&mut self, stamper: &mut Stamper, buffer: &mut [u8]) -> Result<Read, Broken> {
        let Some(socket) = &self.socket else { return Err(Errno::ENOTCONN.into()) };
        let Some(session) = &mut self.tls else {
            let read = stamper.read(socket, buffer, self.drained_ns)?;
            // A read that did not fill the buffer left the socket empty.
            if read.bytes < buffer.len() {
                self.drained_ns = read.moment.user_ns;
            }
            return Ok(read);
        };
        // The second part is for encrypted bytes from the wire, the first for the decrypted ones.
        let (plain, wire) = buffer.split_at_mut((buffer.len() + RECORD_MAX) / 2);
        let read = stamper.read(socket, wire, self.drained_ns)?;
        if read.bytes < wire.len() {
            self.drained_ns = read.moment.user_ns;
        }
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
        Ok(Read { bytes, ..read })
    }

    /// True when the server closed a kept-alive connection before it answered the current request,
    /// which may then be sent once more on a new connection (RFC 9112, 9.3.1).
    pub fn may_reopen(&self) -> bool {
        let fresh = |request: &InFlight| request.stream.is_unanswered() && !request.reopened;
        self.served > 0 && self.request.as_ref().is_some_and(fresh)
    }

    /// Closes the socket, which also removes it from epoll.
    pub fn close(&mut self) {
        if let (Some(session), Some(socket)) = (&mut self.tls, &self.socket) {
            session.end(socket);
        }
        (self.socket, self.tls, self.handshake_ns, self.over) = (None, None, None, false);
        self.phase = Phase::Closed;
        self.served = 0;
    }
}
