//! One TCP connection of the client: opening, writing, reading, and the request on it.

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
use super::tls::{self, Broken, Session, Tls};
use crate::clock::monotonic_ns;

/// A place for one request at a time.
#[derive(Debug, Default)]
pub struct Connection {
    pub phase: Phase,
    pub request: Option<InFlight>,
    /// When the socket last had nothing to read.
    pub drained_ns: u64,
    /// When its last request ended.
    pub freed_ns: u64,
    /// Requests answered on the present socket.
    pub served: u32,
    /// How long the present socket took to open, with the handshake of TLS.
    pub connect_ns: Option<u64>,
    /// From when to when that handshake went.
    handshake_ns: Option<(u64, u64)>,
    /// The server said that it will send no more, though the socket is open.
    pub over: bool,
    socket: Option<OwnedFd>,
    tls: Option<Box<Session>>,
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

/// A request under way.
#[derive(Debug)]
pub struct InFlight {
    /// Position in the list of payloads.
    pub index: usize,
    pub stream: Stream,
    /// Bytes of the payload that are written.
    pub written: usize,
    /// The server had closed the kept-alive connection; this is the one fresh attempt.
    pub reopened: bool,
    /// When the last event came without the body's end.
    pub closing_since_ns: Option<u64>,
}

impl Connection {
    /// Begins to open a socket to `address`, watched under `key`, and secured by `tls`.
    ///
    /// # Errors
    /// The system refuses a socket, which is the environment's fault and not the server's, or the
    /// address at once.
    pub fn open(
        &mut self,
        address: SocketAddr,
        tls: Option<&Tls>,
        epoll: &Epoll,
        key: u64,
        stamper: &mut Stamper,
    ) -> Result<(), Errno> {
        self.close();
        self.tls = tls.map(|tls| Box::new(tls.session()));
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let socket = socket(family, SockType::Stream, flags, None)?;
        // Requests are written whole; waiting for more would only add to the time measured.
        setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
        stamper.prepare(&socket);
        let since_ns = monotonic_ns();
        match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
            Ok(()) | Err(Errno::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT, key))?;
        self.phase = Phase::Connecting { since_ns };
        self.socket = Some(socket);
        Ok(())
    }

    /// Something came of opening: the socket is open, or the server refused it. False while the
    /// handshake of TLS goes on.
    ///
    /// # Errors
    /// The reason why there is no connection.
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

    /// Writes what is left of `payload` as far as the socket takes it.
    pub fn write(&mut self, payload: &[u8], epoll: &Epoll, key: u64) -> Result<(), Errno> {
        let (Some(socket), Some(request)) = (&self.socket, &mut self.request) else {
            return Ok(());
        };
        let sample = &mut request.stream.sample;
        sample.sent_ns.get_or_insert_with(monotonic_ns);
        sample.connect_ns = self.connect_ns;
        if let Some(session) = &mut self.tls {
            // What went before the request was taken up is no part of its time.
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
        if before > 0 {
            epoll.modify(socket, &mut EpollEvent::new(EpollFlags::EPOLLIN, key))?;
        }
        Ok(())
    }

    /// Stops watching for room to write: the server has stopped reading.
    pub fn stop_writing(&mut self, epoll: &Epoll, key: u64) {
        if let Some(socket) = &self.socket {
            // The read that follows tells what happened.
            let _ = epoll.modify(socket, &mut EpollEvent::new(EpollFlags::EPOLLIN, key));
        }
        if let Some(request) = &mut self.request {
            request.written = usize::MAX;
        }
    }

    /// Reads once, into the beginning of `buffer`. Under TLS the moment is that of the read in
    /// which a record ended.
    ///
    /// # Errors
    /// As the socket's; `EAGAIN` where there is nothing.
    pub fn read(&mut self, stamper: &mut Stamper, buffer: &mut [u8]) -> Result<Read, Broken> {
        let Some(socket) = &self.socket else { return Err(Errno::ENOTCONN.into()) };
        let Some(session) = &mut self.tls else {
            let read = stamper.read(socket, buffer, self.drained_ns)?;
            if read.bytes < buffer.len() {
                self.drained_ns = read.moment.user_ns;
            }
            return Ok(read);
        };
        let (plain, wire) = tls::split(buffer);
        let read = stamper.read(socket, wire, self.drained_ns)?;
        if read.bytes < wire.len() {
            self.drained_ns = read.moment.user_ns;
        }
        if read.bytes == 0 {
            return Ok(read);
        }
        let bytes = session.take(&wire[..read.bytes], plain)?;
        // The server may have asked for new keys. What does not go now goes with the next request.
        session.flush(socket)?;
        self.over = session.has_ended();
        if bytes == 0 && !self.over {
            return Err(Errno::EAGAIN.into());
        }
        Ok(Read { bytes, ..read })
    }

    /// True when the server closed a kept-alive connection before it answered the present request,
    /// which then deserves a fresh one (RFC 9112, 9.3.1), once.
    #[must_use]
    pub fn may_reopen(&self) -> bool {
        let fresh = |request: &InFlight| request.stream.is_unanswered() && !request.reopened;
        self.served > 0 && self.request.as_ref().is_some_and(fresh)
    }

    /// Closes the socket; epoll forgets it by itself.
    pub fn close(&mut self) {
        if let (Some(session), Some(socket)) = (&mut self.tls, &self.socket) {
            session.end(socket);
        }
        (self.socket, self.tls, self.handshake_ns, self.over) = (None, None, None, false);
        self.phase = Phase::Closed;
        self.served = 0;
    }
}
