//! Scripted mock server: reads requests and writes the answers of its script, at the scripted time.
//! It logs when it really read and wrote, as JSON lines, so that a client's times are compared with
//! what happened and not with what was planned.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::generate::GenerateRequest;
use super::script::{Action, Answer, Framing, Route, Script, Scripted};
use crate::clock::monotonic_ns;

/// Line of the scripted mock server's log. Its times are nanoseconds of the machine's monotonic
/// clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Number of the request to which the event belongs, from 0, not counting requests to fixed
    /// routes.
    pub request: u64,
    /// Event that the line of the log reports.
    pub event: Logged,
    /// Time at which the event happened, in nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Time for which the script planned the event, in nanoseconds of the monotonic clock; without
    /// a plan, the time at which the request was received.
    pub planned_ns: u64,
}

/// Event that the mock server logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Logged {
    /// The mock server has read the complete request.
    Received,
    /// The head of the response was written.
    Head,
    /// The event with this index among the answer's events was written.
    Written(u64),
    /// Writing the answer failed, such as because the client disconnected or the script reset the
    /// connection.
    Gone,
}

/// Largest request that the mock server accepts, in bytes.
const REQUEST_MAX: usize = 64 << 20;
/// Stack size of a connection's thread in bytes; a small one suffices, since buffers are on the
/// heap.
const STACK_BYTES: usize = 128 << 10;

/// Running scripted mock server, which accepts no further connections once it is dropped.
#[derive(Debug)]
pub struct MockServer {
    /// Socket address on which the scripted mock server listens.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
}

struct Shared {
    script: Script,
    /// Number of requests that got each answer of the script, by the answer's index.
    used: Mutex<Vec<u64>>,
    /// Number of requests so far to each fixed route, by its path.
    asked: Mutex<BTreeMap<String, usize>>,
    next: AtomicU64,
    /// Output of the log, shared by all connections.
    log: Mutex<Box<dyn Write + Send>>,
}

impl Shared {
    /// Writes one line of the log. An error is ignored, because logging must not change the mock
    /// server's behavior.
    fn log(&self, line: &Line) {
        let Ok(mut text) = serde_json::to_vec(line) else { return };
        text.push(b'\n');
        let mut output = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = output.write_all(&text).and_then(|()| output.flush());
    }

    fn in_turn(&self, path: &str, route: &Route) -> Route {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let asked = all.entry(path.to_owned()).or_default();
        *asked += 1;
        route.turn(*asked - 1)
    }
}

impl MockServer {
    /// Starts a mock server that listens on `address`, answers by `script` and writes its log to
    /// `log`. It accepts connections until it is dropped. Port 0 selects a free port.
    ///
    /// # Errors
    /// The system refuses to listen on the address, or to start a thread.
    pub fn start(
        address: SocketAddr,
        script: Script,
        log: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let used = Mutex::new(vec![0; script.requests.len()]);
        let asked = Mutex::default();
        let next = AtomicU64::new(0);
        let shared = Arc::new(Shared { script, used, asked, next, log: Mutex::new(Box::new(log)) });
        let stopped = Arc::clone(&stop);
        thread::Builder::new().spawn(move || accept(&listener, &shared, &stopped))?;
        Ok(Self { address, stop })
    }
}

impl Drop for MockServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then sees the stop flag.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>, stop: &AtomicBool) {
    for connection in listener.incoming() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(connection) = connection else { continue };
        pause_until(monotonic_ns() + shared.script.accept_delay_us * 1000);
        let shared = Arc::clone(shared);
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        // A connection without a thread is closed, which its client will notice.
        let _ = thread.spawn(move || serve(connection, &shared));
    }
}

fn serve(mut connection: TcpStream, shared: &Shared) {
    let mut pending = Vec::new();
    // An event must not wait to be merged with the next one (Nagle).
    let _ = connection.set_nodelay(true);
    // An error here means that the client disconnected.
    while let Ok(Some(request)) = read_request(&mut connection, &mut pending) {
        let kept = match shared.script.routes.get(&request.path) {
            Some(route) => {
                let answer = route_response(&shared.in_turn(&request.path, route));
                connection.write_all(&answer).map(|()| true)
            }
            None => answer(&mut connection, shared, &request),
        };
        if !matches!(kept, Ok(true)) {
            break;
        }
    }
}

pub(super) struct Request {
    pub path: String,
    pub head: String,
    pub body: Vec<u8>,
}

/// Reads one request from a connection; `pending` has bytes that were read before. Returns `None`
/// where the client closed the connection first.
fn read_request(connection: &mut TcpStream, pending: &mut Vec<u8>) -> io::Result<Option<Request>> {
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some((request, length)) = parse_request(pending)? {
            pending.drain(..length);
            return Ok(Some(request));
        }
        let count = connection.read(&mut buffer)?;
        if count == 0 {
            return Ok(None);
        }
        pending.extend_from_slice(&buffer[..count]);
        if pending.len() > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

/// Parses the first HTTP request in `bytes` and returns it and its length in bytes, or `None` while
/// it is incomplete.
pub(super) fn parse_request(bytes: &[u8]) -> io::Result<Option<(Request, usize)>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    let status = request.parse(bytes).map_err(io::Error::other)?;
    let httparse::Status::Complete(head) = status else { return Ok(None) };
    let length = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse::<usize>().ok())
        .unwrap_or(0);
    let Some(body) = bytes.get(head..head + length) else { return Ok(None) };
    let path = request.path.unwrap_or("/").split('?').next().unwrap_or("/").to_owned();
    let body = body.to_vec();
    let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
    Ok(Some((Request { path, head: text, body }, head + length)))
}

/// Returns the bytes of a fixed route's response, head and body.
pub(super) fn route_response(route: &Route) -> Vec<u8> {
    let (kind, body) = match &route.body {
        Value::String(text) => ("text/plain", text.clone()),
        json => ("application/json", json.to_string()),
    };
    let head = format!(
        "HTTP/1.1 {} Scripted\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
        route.status,
        body.len()
    );
    [head.as_bytes(), body.as_bytes()].concat()
}

fn answer(connection: &mut TcpStream, shared: &Shared, request: &Request) -> io::Result<bool> {
    let received_ns = monotonic_ns();
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    let Some(answer) = choose(shared, number, request) else {
        let missing = Route::of(404, "no scripted answer fits this".into());
        return connection.write_all(&route_response(&missing)).map(|()| true);
    };
    let log = |event, at_ns, planned_ns| {
        shared.log(&Line { request: number, event, at_ns, planned_ns });
    };
    log(Logged::Received, received_ns, received_ns);
    let events = match &answer.steady {
        Some(steady) => steady.events(GenerateRequest::read(&request.body)),
        None => answer.events.clone(),
    };
    let written = write_answer(connection, answer, &events, (received_ns, &log));
    if written.is_err() {
        log(Logged::Gone, monotonic_ns(), received_ns);
    }
    written
}

fn choose<'a>(shared: &'a Shared, number: u64, request: &Request) -> Option<&'a Answer> {
    let body = String::from_utf8_lossy(&request.body);
    let fits = |answer: &Answer| {
        let when = &answer.when;
        when.index.is_none_or(|index| index == number)
            && when.path.as_ref().is_none_or(|path| *path == request.path)
            && when.head_contains.as_ref().is_none_or(|text| request.head.contains(text))
            && when.body_contains.as_ref().is_none_or(|text| body.contains(text))
    };
    // Held until the answer is counted, so that no two requests take its last use.
    let mut used = shared.used.lock().unwrap_or_else(PoisonError::into_inner);
    let is_free = |answer: &Answer, used: u64| answer.times == 0 || used < answer.times;
    let mut answers = shared.script.requests.iter().zip(used.iter_mut());
    let (answer, used) = answers.find(|(answer, used)| fits(answer) && is_free(answer, **used))?;
    *used += 1;
    Some(answer)
}

/// Writes the answer's response head and events at their scripted times. Returns true when the
/// connection may carry another request.
fn write_answer(
    connection: &mut TcpStream,
    answer: &Answer,
    events: &[Scripted],
    (received_ns, log): (u64, &dyn Fn(Logged, u64, u64)),
) -> io::Result<bool> {
    if answer.framing != Framing::Raw {
        let planned_ns = received_ns + answer.head_us * 1000;
        // A stall at the time of the head simulates a server that never answers.
        let silent = events.first().is_some_and(|event| {
            event.action == Some(Action::Stall) && event.at_us <= answer.head_us
        });
        if !silent {
            pause_until(planned_ns);
            connection.write_all(head(answer, events).as_bytes())?;
            log(Logged::Head, monotonic_ns(), planned_ns);
        }
    }
    for (index, event) in events.iter().enumerate() {
        let planned_ns = received_ns + event.at_us * 1000;
        pause_until(planned_ns);
        if let Some(action) = event.action {
            return act(connection, action).map(|()| false);
        }
        connection.write_all(&framed(answer.framing, &bytes_of(event)?))?;
        log(Logged::Written(index as u64), monotonic_ns(), planned_ns);
    }
    match answer.framing {
        Framing::Chunked => connection.write_all(b"0\r\n\r\n").map(|()| true),
        Framing::Length => Ok(true),
        Framing::Close | Framing::Raw => Ok(false),
    }
}

fn head(answer: &Answer, events: &[Scripted]) -> String {
    let mut head = format!("HTTP/1.1 {} Scripted\r\n", answer.status);
    if !answer.headers.keys().any(|name| name.eq_ignore_ascii_case("content-type")) {
        head += "Content-Type: text/event-stream\r\n";
    }
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    match answer.framing {
        Framing::Chunked => head += "Transfer-Encoding: chunked\r\n",
        Framing::Length => {
            let length: usize = events.iter().flat_map(bytes_of).map(|bytes| bytes.len()).sum();
            head += &format!("Content-Length: {length}\r\n");
        }
        Framing::Close | Framing::Raw => head += "Connection: close\r\n",
    }
    head + "\r\n"
}

fn bytes_of(event: &Scripted) -> io::Result<Vec<u8>> {
    match (&event.text, &event.base64) {
        (Some(text), _) => Ok(text.clone().into_bytes()),
        (None, Some(base64)) => STANDARD.decode(base64).map_err(io::Error::other),
        (None, None) => Ok(Vec::new()),
    }
}

fn framed(framing: Framing, bytes: &[u8]) -> Vec<u8> {
    if framing != Framing::Chunked || bytes.is_empty() {
        return bytes.to_vec();
    }
    [format!("{:x}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

fn act(connection: &mut TcpStream, action: Action) -> io::Result<()> {
    match action {
        Action::Close => connection.shutdown(Shutdown::Both),
        Action::Reset => {
            // Closing with a linger time of zero sends RST instead of FIN.
            setsockopt(connection, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 })?;
            Err(io::ErrorKind::ConnectionReset.into())
        }
        Action::Stall => {
            // Reads until the client closes the connection.
            let mut rest = [0; 1024];
            while connection.read(&mut rest)? > 0 {}
            Ok(())
        }
    }
}

fn pause_until(at_ns: u64) {
    thread::sleep(Duration::from_nanos(at_ns.saturating_sub(monotonic_ns())));
}
