//! Paced mock server for load tests: one thread serves thousands of steady streams, writes every
//! token when it is due, and records when it did. It needs a CPU core of its own and does not sleep
//! while a token is nearly due, so that the scheduler cannot delay it. Only the scripted server
//! simulates faults.
//!
//! The bytes of an answer are prepared before the first token is due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{Backlog, listen};
use schema::emitted::Emitted;

use super::generate::GenerateRequest;
use super::script::{Route, Script};
use super::server::{parse_request, route_response};
use crate::clock::monotonic_ns;

/// Key of the listening socket in epoll, which no connection has.
const LISTENER: u64 = u64::MAX;
/// Maximum number of streams served between two polls of the sockets.
const STREAMS_PER_TURN: usize = 32;
/// Listen backlog: number of connections that may wait to be accepted.
const BACKLOG: i32 = 4096;
/// Time before a due token during which the mock server's loop polls instead of sleeping, in
/// nanoseconds.
const AWAKE_NS: u64 = 2_000_000;
/// Timeout of the mock server's wait for an event, in milliseconds, if no token is due earlier.
const WAIT_MAX_MS: u8 = 50;
const READ_BYTES: usize = 64 << 10;
/// Route of the paced mock server that is answered with a stream of tokens.
const COMPLETIONS: &str = "/v1/completions";

/// Pace of a stream: the times at which its tokens are due after the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time from the arrival of the complete request to the first token, in microseconds.
    pub first_us: u64,
    /// Time between two tokens in microseconds. At 0, a stream is written as fast as its socket
    /// accepts data, which is the heaviest load for a client.
    pub gap_us: u64,
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not FIRST_US:GAP_US, such as `50000:10000`");
        let (first, gap) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.parse().map_err(|_| wrong());
        Ok(Self { first_us: number(first)?, gap_us: number(gap)? })
    }
}

/// Paced mock server that listens but does not serve yet.
#[derive(Debug)]
pub struct PacedMockServer {
    /// Socket address on which the paced mock server listens.
    pub address: SocketAddr,
    pace: Pace,
    routes: Script,
    missing: Route,
    listener: TcpListener,
    epoll: Epoll,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Due time of each stream's next token in nanoseconds of the monotonic clock, a serial number
    /// that orders equal times, and the connection's index.
    due: BinaryHeap<Reverse<(u64, u64, usize)>>,
    serial: u64,
    log: Vec<Emitted>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    accepted_ns: u64,
    /// Bytes read from the connection that do not form a complete request yet.
    pending: Vec<u8>,
    stream: Option<Stream>,
    /// Serial number of the connection's entry in `due`; an entry of the connection with another
    /// number is obsolete.
    serial: u64,
    /// True while the connection's socket is full; the next token waits until the socket accepts
    /// data.
    blocked: bool,
}

impl PacedMockServer {
    /// Creates a paced mock server that listens on `address`; port 0 selects a free port.
    ///
    /// # Errors
    /// A system call fails, as when the address is in use.
    pub fn bind(address: SocketAddr, pace: Pace) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        // The standard library's backlog is too short for many connections opened at once.
        listen(&listener, Backlog::new(BACKLOG)?)?;
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
        Ok(Self {
            address: listener.local_addr()?,
            pace,
            routes: Script::steady(),
            missing: Route::of(404, "only completions are paced".into()),
            listener,
            epoll,
            connections: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            serial: 0,
            log: Vec::new(),
            buffer: vec![0; READ_BYTES],
        })
    }

    /// Serves until `stop` is set, and returns a log entry for each answer to a completion request,
    /// unfinished ones included.
    ///
    /// # Errors
    /// A system call fails, for another reason than a client's disconnection.
    pub fn serve(mut self, stop: &AtomicBool) -> io::Result<Vec<Emitted>> {
        let mut events = vec![EpollEvent::empty(); 256];
        while !stop.load(Ordering::Relaxed) {
            let wait = self.write_due()?;
            let count = match self.epoll.wait(&mut events, wait) {
                Ok(count) => count,
                Err(nix::errno::Errno::EINTR) => 0,
                Err(error) => return Err(error.into()),
            };
            for event in &events[..count] {
                if event.data() == LISTENER {
                    self.accept()?;
                } else {
                    self.handle(event)?;
                }
            }
        }
        for slot in 0..self.connections.len() {
            self.close(slot);
        }
        Ok(self.log)
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // The client disconnected before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => continue,
                Err(error) => return Err(error),
            };
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let slot = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, slot as u64))?;
            self.connections[slot] = Some(Connection {
                socket,
                accepted_ns: monotonic_ns(),
                pending: Vec::new(),
                stream: None,
                serial: 0,
                blocked: false,
            });
        }
    }

    fn handle(&mut self, event: &EpollEvent) -> io::Result<()> {
        // The key was made from a `usize`, so it fits.
        let slot = usize::try_from(event.data()).unwrap_or(usize::MAX);
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return Ok(()) };
        if event.events().contains(EpollFlags::EPOLLOUT) && connection.blocked {
            connection.blocked = false;
            let mut events = EpollEvent::new(EpollFlags::EPOLLIN, slot as u64);
            self.epoll.modify(&connection.socket, &mut events)?;
            self.schedule(slot, monotonic_ns());
        }
        if event.events().intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLHUP) {
            return self.read(slot);
        }
        Ok(())
    }

    fn read(&mut self, slot: usize) -> io::Result<()> {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return Ok(()) };
        match connection.socket.read(&mut self.buffer) {
            Ok(count) if count > 0 => connection.pending.extend_from_slice(&self.buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            // The client disconnected.
            Ok(_) | Err(_) => {
                self.close(slot);
                return Ok(());
            }
        }
        self.take_requests(slot)
    }

    /// Answers a connection's complete requests, one after the other: a completion by starting its
    /// stream once the previous stream has ended, another route at once. Invalid requests close the
    /// connection.
    fn take_requests(&mut self, slot: usize) -> io::Result<()> {
        while let Some(Some(connection)) = self.connections.get_mut(slot) {
            if connection.stream.is_some() {
                return Ok(());
            }
            let received_ns = monotonic_ns();
            let (request, length) = match parse_request(&connection.pending) {
                Ok(Some(whole)) => whole,
                Ok(None) => return Ok(()),
                Err(_) => {
                    self.close(slot);
                    return Ok(());
                }
            };
            connection.pending.drain(..length);
            if request.path != COMPLETIONS {
                let route = self.routes.routes.get(&request.path).unwrap_or(&self.missing);
                // Short enough for any socket buffer, so it does not block.
                if connection.socket.write_all(&route_response(route)).is_err() {
                    self.close(slot);
                }
                continue;
            }
            let mut stream = Stream::begin(&request.body, self.log.len() + 1);
            stream.emitted.accepted_ns = connection.accepted_ns;
            stream.emitted.received_ns = received_ns;
            connection.stream = Some(stream);
            self.log.push(Emitted::default());
            self.schedule(slot, received_ns + self.pace.first_us * 1000);
        }
        Ok(())
    }

    fn schedule(&mut self, slot: usize, due_ns: u64) {
        self.serial += 1;
        if let Some(Some(connection)) = self.connections.get_mut(slot) {
            connection.serial = self.serial;
            self.due.push(Reverse((due_ns, self.serial, slot)));
        }
    }

    /// Writes the tokens that are due, of at most `STREAMS_PER_TURN` streams. Returns the longest
    /// time that the server's loop may then wait for events.
    fn write_due(&mut self) -> io::Result<EpollTimeout> {
        for _ in 0..STREAMS_PER_TURN {
            let now_ns = monotonic_ns();
            let Some(Reverse((due_ns, serial, slot))) = self.due.peek().copied() else {
                return Ok(EpollTimeout::from(WAIT_MAX_MS));
            };
            if due_ns > now_ns {
                let left_ns = due_ns - now_ns;
                let rest_ms = left_ns.saturating_sub(AWAKE_NS) / 1_000_000;
                let wait_ms = u8::try_from(rest_ms).unwrap_or(WAIT_MAX_MS).min(WAIT_MAX_MS);
                return Ok(EpollTimeout::from(wait_ms));
            }
            self.due.pop();
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            // Another serial number means that the entry's stream has ended.
            if connection.serial == serial {
                self.write(slot, due_ns)?;
            }
        }
        Ok(EpollTimeout::ZERO)
    }

    fn write(&mut self, slot: usize, due_ns: u64) -> io::Result<()> {
        let saturate = self.pace.gap_us == 0;
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return Ok(()) };
        let Some(stream) = &mut connection.stream else { return Ok(()) };
        match stream.fire(&mut connection.socket, saturate) {
            // From the due time, not from now: a late token does not delay the next ones.
            Ok(Fired::Written) => self.schedule(slot, due_ns + self.pace.gap_us * 1000),
            Ok(Fired::Full) => {
                connection.blocked = true;
                let flags = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
                let mut events = EpollEvent::new(flags, slot as u64);
                self.epoll.modify(&connection.socket, &mut events)?;
            }
            Ok(Fired::Ended) => {
                self.end_stream(slot);
                return self.take_requests(slot);
            }
            Err(_) => self.close(slot),
        }
        Ok(())
    }

    fn end_stream(&mut self, slot: usize) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        if let Some(stream) = connection.stream.take() {
            self.log[stream.number - 1] = stream.emitted;
        }
    }

    fn close(&mut self, slot: usize) {
        self.end_stream(slot);
        if self.connections.get_mut(slot).and_then(Option::take).is_some() {
            self.free.push(slot);
        }
    }
}

/// Maximum number of tokens written to one stream before the next stream's turn, when tokens are
/// not paced.
const BURST: usize = 16;
const HEAD: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                    Transfer-Encoding: chunked\r\n\r\n";

/// Paced answer in progress on one connection.
#[derive(Debug)]
pub(super) struct Stream {
    /// Log entry of the answer, filled so far.
    pub emitted: Emitted,
    /// Number of the answer in the order of requests, from 1, which is part of the answer's events.
    number: usize,
    /// Bytes of the HTTP chunk that is written for every token of the answer but the last.
    token: Vec<u8>,
    /// Bytes of the HTTP chunk for the last token of the answer; `tail` has the bytes that follow
    /// it.
    last: Vec<u8>,
    tail: Vec<u8>,
    written: u64,
    written_ns: u64,
    /// Bytes of the answer that the socket has not accepted yet.
    rest: Vec<u8>,
}

/// Result of writing the next tokens to a paced stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fired {
    /// A token, or a burst of tokens, was written to the stream, and more are to come.
    Written,
    /// The stream's socket is full; the remaining bytes are written first when it accepts data
    /// again.
    Full,
    /// The whole answer was written, with the end of its body.
    Ended,
}

impl Stream {
    /// Returns the answer with number `number` to a request with the given body, before its first
    /// byte is written.
    pub(super) fn begin(body: &[u8], number: usize) -> Self {
        let asked = GenerateRequest::read(body);
        let asks = |key: &str| memchr::memmem::find(body, key.as_bytes()).is_some();
        let ids = if asks("\"return_token_ids\"") { ",\"token_ids\":[100]" } else { "" };
        let event = |finish: &str| {
            format!(
                "data: {{\"id\":\"cmpl-{number:08}\",\"object\":\"text_completion\",\
                 \"created\":1700000000,\"model\":\"emitter\",\
                 \"system_fingerprint\":\"fp_0123456789abcdef0123456789abcdef\",\
                 \"choices\":[{{\"index\":0,\"text\":\" t\",\"logprobs\":null,\
                 \"finish_reason\":{finish}{ids}}}]}}\n\n"
            )
        };
        let (prompt, tokens) = (asked.prompt_tokens, asked.max_tokens);
        let usage = format!(
            "data: {{\"id\":\"cmpl-{number:08}\",\"object\":\"text_completion\",\"choices\":[],\
             \"usage\":{{\"prompt_tokens\":{prompt},\"completion_tokens\":{tokens},\
             \"total_tokens\":{}}}}}\n\n",
            prompt + tokens
        );
        let usage = if asks("\"include_usage\"") { chunked(&usage) } else { Vec::new() };
        let emitted = Emitted {
            tag: asked.tag,
            max_tokens: tokens,
            gaps_ns: Vec::with_capacity(usize::try_from(tokens).unwrap_or(0)),
            write_ns: Vec::with_capacity(usize::try_from(tokens).unwrap_or(0)),
            ..Emitted::default()
        };
        Self {
            emitted,
            number,
            token: chunked(&event("null")),
            last: chunked(&event("\"length\"")),
            tail: [&*usage, &*chunked("data: [DONE]\n\n"), b"0\r\n\r\n"].concat(),
            written: 0,
            written_ns: 0,
            // The response head goes out just before the first token.
            rest: HEAD.as_bytes().to_vec(),
        }
    }

    /// Writes the next token of the answer, or a burst of tokens if `saturate` is set.
    ///
    /// # Errors
    /// The socket cannot be written, as when the client disconnected.
    pub(super) fn fire(&mut self, socket: &mut impl Write, saturate: bool) -> io::Result<Fired> {
        for _ in 0..if saturate { BURST } else { 1 } {
            if !self.flush(socket)? {
                return Ok(Fired::Full);
            }
            if self.written < self.emitted.max_tokens {
                self.stamp();
                let is_last = self.written == self.emitted.max_tokens;
                let bytes = if is_last { &self.last } else { &self.token };
                put(socket, bytes, &mut self.rest)?;
                self.emitted.write_ns.push(monotonic_ns() - self.written_ns);
            }
            if self.written >= self.emitted.max_tokens {
                // `tail` is empty after the first time, so the answer has ended once nothing is
                // left to write.
                self.rest.append(&mut self.tail);
                let is_whole = self.flush(socket)?;
                // A client that reads both together has one time stamp for both.
                if let Some(last) = self.emitted.write_ns.last_mut() {
                    *last = monotonic_ns() - self.written_ns;
                }
                return Ok(if is_whole { Fired::Ended } else { Fired::Full });
            }
        }
        Ok(Fired::Written)
    }

    fn stamp(&mut self) {
        let now_ns = monotonic_ns();
        match self.emitted.first_ns {
            None => self.emitted.first_ns = Some(now_ns),
            Some(_) => self.emitted.gaps_ns.push(now_ns - self.written_ns),
        }
        (self.written, self.written_ns) = (self.written + 1, now_ns);
    }

    /// Writes the answer's bytes that the socket did not accept before. Returns true when none are
    /// left.
    fn flush(&mut self, socket: &mut impl Write) -> io::Result<bool> {
        if !self.rest.is_empty() {
            let rest = std::mem::take(&mut self.rest);
            put(socket, &rest, &mut self.rest)?;
        }
        Ok(self.rest.is_empty())
    }
}

/// Writes `bytes`, and appends to `rest` what the socket does not accept.
fn put(socket: &mut impl Write, mut bytes: &[u8], rest: &mut Vec<u8>) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                rest.extend_from_slice(bytes);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn chunked(text: &str) -> Vec<u8> {
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_two_numbers() {
        assert_eq!("50000:10".parse(), Ok(Pace { first_us: 50_000, gap_us: 10 }));
        for text in ["", "1", "1:", ":1", "a:1", "1:-1"] {
            assert!(text.parse::<Pace>().is_err(), "{text:?}");
        }
    }
}

#[cfg(test)]
mod stream_tests {
    use super::*;

    /// Simulated socket for tests: it accepts `room` bytes more and then refuses data until `room`
    /// is raised.
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = bytes.len().min(self.room);
            if count == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            self.room -= count;
            self.taken.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn written(room: usize, saturate: bool) -> (String, Emitted) {
        let body = br#"{"prompt":[7,8],"max_tokens":20,"stream_options":{"include_usage":true}}"#;
        let mut stream = Stream::begin(body, 1);
        let mut socket = Narrow { room, taken: Vec::new() };
        while stream.fire(&mut socket, saturate).unwrap() != Fired::Ended {
            socket.room = room;
        }
        (String::from_utf8(socket.taken).unwrap(), stream.emitted)
    }

    #[test]
    fn a_full_socket_changes_no_byte_of_an_answer() {
        let (whole, emitted) = written(usize::MAX, false);
        assert!(emitted.is_whole() && emitted.tag == Some(7));
        assert_eq!(whole.matches("\" t\"").count(), 20);
        assert_eq!(whole.matches("\"finish_reason\":\"length\"").count(), 1);
        assert!(whole.contains("\"completion_tokens\":20") && whole.ends_with("0\r\n\r\n"));
        for (room, saturate) in [(1, false), (100, false), (7, true), (5_000, true)] {
            let (same, emitted) = written(room, saturate);
            assert_eq!(same, whole, "{room} bytes at a time");
            assert!(emitted.is_whole());
        }
    }

    #[test]
    fn an_answer_of_no_token_ends_at_once() {
        let mut stream = Stream::begin(b"{}", 3);
        let mut socket = Vec::new();
        assert_eq!(stream.fire(&mut socket, false).unwrap(), Fired::Ended);
        assert!(socket.ends_with(b"0\r\n\r\n"), "its client need not wait for more");
    }
}
