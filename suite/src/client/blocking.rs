//! Blocking HTTP calls to a server, one after the other over a connection of their own, each with a
//! time limit. For control requests beside the load, never on the measuring thread.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::control::Server;
use super::http::{HttpError, ResponseDecoder};
use super::tls;
use crate::clock::monotonic_ns;

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Shortest socket timeout: the system refuses zero.
const SHORTEST: Duration = Duration::from_millis(1);
/// First bytes of the TLS alert that a server sends when it expected TLS.
const ALERT: [u8; 2] = [0x15, 0x03];

/// Response to a blocking call.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
    /// Time at which the first byte of the response had arrived, in nanoseconds of the monotonic
    /// clock.
    pub first_byte_ns: u64,
}

/// Error of a blocking call without a usable response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("{}", tls::said(.0))]
    Io(#[from] io::Error),
    #[error("no answer within {} s", .0.as_secs_f64())]
    TooLate(Duration),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the server expects TLS on this port\nhint: try an address with `https://`")]
    WantsTls,
}

/// Blocking HTTP client of one server, which keeps its connection from one call to the next.
#[derive(Debug)]
pub struct Caller<'a> {
    server: &'a Server,
    wire: Option<Wire>,
}

impl<'a> Caller<'a> {
    pub fn new(server: &'a Server) -> Self {
        Self { server, wire: None }
    }

    /// Sends the request `question` and waits for the response, for at most `limit` in all. Where a
    /// kept connection turns out to be closed, the request is sent once more on a new one.
    ///
    /// # Errors
    /// No response within the limit, or one that is not HTTP.
    pub fn ask(&mut self, question: &[u8], limit: Duration) -> Result<Reply, CallError> {
        let deadline = Instant::now() + limit;
        let asked = match self.wire.take() {
            Some(kept) => self.exchange(kept, question, deadline).or_else(|error| match error {
                // A server may close a kept connection at any time. A timeout is not retried,
                // because the time is used up.
                CallError::Io(error) if !is_timeout(&error) => self.ask_afresh(question, deadline),
                other => Err(other),
            }),
            None => self.ask_afresh(question, deadline),
        };
        asked.map_err(|error| match error {
            CallError::Io(error) if is_timeout(&error) => CallError::TooLate(limit),
            other => other,
        })
    }

    fn ask_afresh(&mut self, question: &[u8], deadline: Instant) -> Result<Reply, CallError> {
        let wire = Wire::open(self.server, deadline)?;
        self.exchange(wire, question, deadline)
    }

    fn exchange(
        &mut self,
        mut wire: Wire,
        question: &[u8],
        deadline: Instant,
    ) -> Result<Reply, CallError> {
        wire.write_all(question)?;
        let mut decoder = ResponseDecoder::default();
        let mut body = Vec::new();
        let mut first_byte_ns = None;
        let mut buffer = [0; 8 << 10];
        while !decoder.is_done() {
            wire.socket().set_read_timeout(Some(left(deadline)?))?;
            let count = wire.read(&mut buffer)?;
            let now_ns = monotonic_ns();
            // A body without length and chunks ends with the connection.
            if count == 0 && decoder.ends_with_connection() {
                break;
            }
            if count == 0 {
                return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
            }
            // A TLS server answers plain HTTP with an alert instead of a response.
            if first_byte_ns.is_none() && buffer[..count].starts_with(&ALERT) {
                return Err(CallError::WantsTls);
            }
            first_byte_ns.get_or_insert(now_ns);
            decoder.feed(&buffer[..count], &mut |_, run| body.extend_from_slice(run))?;
        }
        let (Some(head), Some(first_byte_ns)) = (decoder.head(), first_byte_ns) else {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        };
        let status = head.status;
        // Unread bytes of this body would be taken for the next response.
        if head.keep_alive && decoder.is_done() {
            self.wire = Some(wire);
        }
        Ok(Reply { status, body, first_byte_ns })
    }
}

/// Returns the time until `deadline`, or a timeout error where it has passed.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left.max(SHORTEST)) }
}

/// True for a socket timeout; a blocking socket reports it as `WouldBlock`.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

#[derive(Debug)]
enum Wire {
    Plain(TcpStream),
    Tls(Box<tls::Blocking>),
}

impl Wire {
    fn open(server: &Server, deadline: Instant) -> io::Result<Self> {
        let socket =
            TcpStream::connect_timeout(&server.address, left(deadline)?.min(CONNECT_LIMIT))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(left(deadline)?))?;
        socket.set_write_timeout(Some(left(deadline)?))?;
        match &server.tls {
            Some(tls) => Ok(Self::Tls(Box::new(tls.blocking(socket)?))),
            None => Ok(Self::Plain(socket)),
        }
    }

    fn socket(&self) -> &TcpStream {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(stream) => stream.socket(),
        }
    }
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.read(buffer),
            Self::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(socket) => socket.flush(),
            Self::Tls(stream) => stream.flush(),
        }
    }
}
