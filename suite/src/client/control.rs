//! Control requests beside the load, for a server's readiness, version, configuration and metrics,
//! and to reset its prefix cache. They are blocking HTTP calls with a time limit, over a connection
//! of their own, never on the measuring thread.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use schema::untrusted::{self, one_line};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use url::Url;

use super::channel::Channel;
pub use super::channel::Trust;
use super::headers::{self, Header, Key};
use super::http::{HttpError, ResponseDecoder};
use super::tls::Tls;
use crate::clock::monotonic_ns;

/// Time after which a control request fails; the slowest one resets a large prefix cache.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Largest body of a response of which any field may be asked for, in bytes: real ones have a few
/// hundred kB, and the values of a JSON document take up to 36 times its length in memory.
const DOCUMENT_MAX: usize = 1 << 20;
/// Largest list of models, in bytes: gateways list hundreds of models with a description each.
const LIST_MAX: usize = 4 << 20;
/// Largest page of text, in bytes: a hundred times the page of metrics of a large server.
const PAGE_MAX: usize = 16 << 20;
/// Largest part of the body of an error response that enters a message, in characters.
const MESSAGE_MAX: usize = 300;
/// Longest name of a model, in bytes, that requests are sent with: it is part of each of them.
const NAME_MAX: usize = 1024;

/// Server under test: its address, TLS and API key.
#[derive(Debug)]
pub struct Server {
    /// Socket address that requests to the server go to.
    pub address: SocketAddr,
    /// `host:port` of the server, for the `Host` header.
    pub authority: String,
    /// TLS configuration of connections to the server; `None` where its URL begins with `http://`.
    pub tls: Option<Tls>,
    /// API key sent with every request to the server; `None` sends none. The key enters no record.
    key: Option<Key>,
    /// Further headers sent with every request to the server.
    headers: Vec<Header>,
    /// Time after which a control request to the server fails.
    limit: Duration,
}

/// Error of a control request, or of the address and TLS setup of the server that requests go to.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The given URL is not the address of a server. This error has its scheme, host and port alone:
    /// keys stand in queries and paths.
    #[error(
        "`{0}` is not the address of a server\nhint: give it as `http://HOST:PORT` or \
         `https://HOST:PORT`"
    )]
    Url(String),
    /// The given URL holds a user's name or password. Where they end may be uncertain, so that this
    /// error has no part of the URL.
    #[error(
        "the server's URL holds a user name or password, which no request would carry\nhint: leave \
         them out; `--api-key-file` names the file with a server's key"
    )]
    UserInfo,
    /// The host of the URL has no address.
    #[error("the host `{host}` is not found")]
    Host {
        /// Name of the host that has no address.
        host: String,
        /// Error of the system's resolver.
        source: io::Error,
    },
    /// TLS for the server cannot be set up; the message says why.
    #[error("{0}")]
    Tls(String),
    /// The server gives no usable HTTP response to a control request.
    #[error("no server answers at `{url}`: {message}")]
    Unreachable {
        /// URL of the control request that got no usable response.
        url: String,
        /// Reason why the control request got no usable response.
        message: String,
    },
    /// The server accepts connections and does not answer a control request in time.
    #[error(
        "the server accepts connections, but does not answer `{url}` within {} s",
        .limit.as_secs_f64()
    )]
    Silent {
        /// URL of the control request that got no answer.
        url: String,
        /// Time that the server had for its answer.
        limit: Duration,
    },
    /// The server's response to a control request is longer than any that is needed, and was not read
    /// to its end.
    #[error("`{route}` answered with more than {bytes} bytes")]
    TooLong {
        /// Route of the control request whose response is too long.
        route: String,
        /// Largest length of the response's body, in bytes.
        bytes: usize,
    },
    /// The server responded to a control request with a status other than success (2xx).
    #[error("`{route}` answered {status}: {body}")]
    Status {
        /// Route of the control request that got a status other than success.
        route: String,
        /// HTTP status with which the server refused the control request.
        status: u16,
        /// Beginning of the body of the response with a status other than success, at most 300
        /// characters, as one line in which nothing acts on a terminal.
        body: String,
    },
    /// The server has none of the routes on which OpenAI-compatible servers generate text.
    #[error(
        "`{url}` has neither `/v1/completions` nor `/v1/chat/completions`\nhint: give an engine \
         file with `--engine`, which names the server's route"
    )]
    NoRoute {
        /// URL of the server that has no known route.
        url: String,
    },
    /// The server's response to a control request is not JSON.
    #[error("`{route}` did not answer with JSON")]
    Json {
        /// Route of the control request whose response is not JSON.
        route: String,
        /// Error of the JSON parser for the response's body.
        source: serde_json::Error,
    },
}

impl Server {
    /// Returns the server at `url`, with its host resolved to an address, without connecting to it. A
    /// URL without a scheme is one of `http`, as of `localhost:8000`.
    /// For `https://`, `trust` decides which certificates are accepted.
    ///
    /// # Errors
    /// The URL is not valid, has another scheme than `http` and `https`, no host, a user name or
    /// password, or a path other than `/v1`; its host does not resolve; or TLS cannot be set up.
    pub fn at(url: &str, trust: &Trust) -> Result<Self, ControlError> {
        // The text before an `@` may be a password.
        if url.contains('@') {
            return Err(ControlError::UserInfo);
        }
        let wrong = || ControlError::Url(untrusted::origin(url));
        let scheme = if url.contains("://") { "" } else { "http://" };
        let base = Url::parse(&format!("{scheme}{url}")).map_err(|_| wrong())?;
        let secured = base.scheme() == "https";
        // Clients of OpenAI's API are given the address with `/v1`, with which all its routes begin.
        // Any other path would be ignored, because routes come from the engine file: refuse it.
        let is_bare = ["/", "/v1", "/v1/"].contains(&base.path());
        let bare = (secured || base.scheme() == "http") && is_bare;
        let host = base.host_str().filter(|_| bare).ok_or_else(wrong)?;
        let port = base.port_or_known_default().ok_or_else(wrong)?;
        let authority = format!("{host}:{port}");
        let unknown = |source| ControlError::Host { host: host.to_owned(), source };
        let mut addresses = authority.to_socket_addrs().map_err(unknown)?;
        let address = addresses.next().ok_or_else(|| unknown(ErrorKind::NotFound.into()))?;
        let tls = secured.then(|| Tls::new(host, trust).map_err(ControlError::Tls)).transpose()?;
        Ok(Self { address, authority, tls, key: None, headers: Vec::new(), limit: LIMIT })
    }

    /// Returns the server with `key` as the API key of every request; `None` sends no key.
    pub fn with_key(self, key: Option<Key>) -> Self {
        Self { key, ..self }
    }

    /// Returns the server with `headers` in every request, besides those of the client.
    pub fn with_headers(self, headers: Vec<Header>) -> Self {
        Self { headers, ..self }
    }

    /// Returns the lines of a request's head for the API key and the further headers.
    pub fn added_headers(&self) -> String {
        headers::lines(self.key.as_ref(), &self.headers)
    }

    /// Returns the server with control requests that fail after `limit`, or after [`LIMIT`] where
    /// that is shorter.
    pub fn within(self, limit: Duration) -> Self {
        Self { limit: limit.min(LIMIT), ..self }
    }

    /// Requests `route` from the server with GET and parses the response as JSON.
    ///
    /// # Errors
    /// No usable HTTP response within [`LIMIT`], a status other than success (2xx), or a body that
    /// is not JSON or has more than 1 MiB.
    pub fn get_json(&self, route: &str) -> Result<Value, ControlError> {
        json(route, &self.ask(&mut Caller::new(self), "GET", route, Bounds::DOCUMENT)?)
    }

    /// Requests `route` from the server with GET and returns the response body as text.
    ///
    /// # Errors
    /// No usable HTTP response within [`LIMIT`], a status other than success (2xx), or a body of more
    /// than 16 MiB.
    pub fn get_text(&self, route: &str) -> Result<String, ControlError> {
        self.ask(&mut Caller::new(self), "GET", route, Bounds::PAGE)
    }

    /// Requests the server's list of models at `route` and returns the name of the first one; `None`
    /// where it has none, or one that is longer than a name.
    ///
    /// # Errors
    /// No usable HTTP response within [`LIMIT`], a status other than success (2xx), or a body that
    /// is no list of models or has more than 4 MiB.
    pub fn first_model(&self, route: &str) -> Result<Option<String>, ControlError> {
        let bounds = Bounds { time: LIMIT, bytes: LIST_MAX };
        let list: ModelList =
            json(route, &self.ask(&mut Caller::new(self), "GET", route, bounds)?)?;
        let first = list.data.first().and_then(|model| model["id"].as_str());
        Ok(first.filter(|id| is_name(id)).map(str::to_owned))
    }

    /// Sends an empty POST to the server's `route` and returns the response as JSON, or `null`
    /// where it is not JSON.
    ///
    /// # Errors
    /// No usable HTTP response within [`LIMIT`], a status other than success (2xx), or a body of more
    /// than 1 MiB.
    pub fn post(&self, route: &str) -> Result<Value, ControlError> {
        let text = self.ask(&mut Caller::new(self), "POST", route, Bounds::DOCUMENT)?;
        Ok(json(route, &text).unwrap_or_default())
    }

    /// True when the server gives any HTTP response to a GET of `route` within `limit`, or within
    /// [`LIMIT`] where that is shorter, whatever the response's status.
    pub fn answers(&self, route: &str, limit: Duration) -> bool {
        let bounds = Bounds { time: limit.min(LIMIT), ..Bounds::PAGE };
        let asked = self.ask(&mut Caller::new(self), "GET", route, bounds);
        // An error status is an answer too.
        !matches!(asked, Err(ControlError::Unreachable { .. } | ControlError::Silent { .. }))
    }

    /// Requests `route` with the HTTP method `method` over the HTTP client `caller`, within `bounds`,
    /// and returns the response body as text.
    ///
    /// # Errors
    /// No usable HTTP response in time, one that is too long, or a status other than success (2xx).
    pub(crate) fn ask(
        &self,
        caller: &mut Caller<'_>,
        method: &str,
        route: &str,
        bounds: Bounds,
    ) -> Result<String, ControlError> {
        let head = self.head(method, route) + "Content-Length: 0\r\n\r\n";
        self.exchange(caller, route, head.as_bytes(), bounds)
    }

    /// Sends the bytes of `request` and returns the response body as text, if its status is success.
    fn exchange(
        &self,
        caller: &mut Caller<'_>,
        route: &str,
        request: &[u8],
        bounds: Bounds,
    ) -> Result<String, ControlError> {
        let bounds = Bounds { time: bounds.time.min(self.limit), ..bounds };
        let failed = |error: CallError| match error {
            CallError::TooLong(bytes) => ControlError::TooLong { route: route.to_owned(), bytes },
            CallError::TooLate(limit) => ControlError::Silent { url: self.url(route), limit },
            error => ControlError::Unreachable {
                url: self.url(route),
                message: self.masked(&error.to_string()),
            },
        };
        let reply = caller.ask(request, bounds).map_err(failed)?;
        let body = text_of(reply.body);
        if !(200..300).contains(&reply.status) {
            let body = beginning(&self.masked(&body));
            return Err(ControlError::Status {
                route: route.to_owned(),
                status: reply.status,
                body,
            });
        }
        Ok(body)
    }

    /// Sends `body` as JSON in a POST to the server's `route` and returns the response as JSON, or
    /// `null` where it is not JSON.
    ///
    /// # Errors
    /// No usable HTTP response within [`LIMIT`], a status other than success (2xx), or a body of more
    /// than 1 MiB.
    pub(crate) fn post_json(&self, route: &str, body: &Value) -> Result<Value, ControlError> {
        let body = body.to_string();
        let head = self.head("POST", route);
        let length = body.len();
        let request = format!(
            "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        let bounds = Bounds::DOCUMENT;
        let text = self.exchange(&mut Caller::new(self), route, request.as_bytes(), bounds)?;
        Ok(json(route, &text).unwrap_or_default())
    }

    /// Returns the first lines of a request: method, route, host and added headers.
    fn head(&self, method: &str, route: &str) -> String {
        let (authority, added) = (&self.authority, self.added_headers());
        format!("{method} {route} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\n{added}")
    }

    /// Returns `text`, which the server wrote, without what it repeats of the API key and of the
    /// further headers.
    pub(crate) fn masked(&self, text: &str) -> String {
        headers::masked(text, &self.added_headers())
    }

    /// Returns the URL of `route` on the server.
    pub(crate) fn url(&self, route: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{route}", self.authority)
    }
}

fn json<T: DeserializeOwned>(route: &str, text: &str) -> Result<T, ControlError> {
    serde_json::from_str(text)
        .map_err(|source| ControlError::Json { route: route.to_owned(), source })
}

/// List of a server's models, of which only names are read.
#[derive(Deserialize)]
struct ModelList {
    data: Vec<Value>,
}

/// True where requests can be sent with the model's name `id`, which a server reports.
pub(crate) fn is_name(id: &str) -> bool {
    id.len() <= NAME_MAX
}

/// Converts the body of a response to text, without a copy where it is UTF-8.
fn text_of(body: Vec<u8>) -> String {
    String::from_utf8(body)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Returns the beginning of an error response's body for a message: the page may be long, and may
/// hold anything.
pub(crate) fn beginning(body: &str) -> String {
    one_line(&body.chars().take(MESSAGE_MAX).collect::<String>())
}

/// Reads a page in Prometheus text format and returns the metrics in `wanted` (a map from the
/// suite's metric names to the engine's) by the suite's names, each summed over all label sets.
/// Metrics that the page lacks are left out.
pub fn read_metrics(page: &str, wanted: &BTreeMap<String, String>) -> BTreeMap<String, f64> {
    // Only names that are wanted are kept: a page may hold any number of others.
    let names: BTreeSet<&str> = wanted.values().map(String::as_str).collect();
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or("");
        if !names.contains(name) {
            continue;
        }
        // Label values may contain spaces and braces; the value follows the last brace.
        let rest = line.rsplit_once('}').map_or(&line[name.len()..], |(_, rest)| rest);
        // A timestamp may follow the value.
        let value = rest.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
        if let Some(value) = value.filter(|value| value.is_finite()) {
            *sums.entry(name).or_default() += value;
        }
    }
    let found = wanted
        .iter()
        .filter_map(|(ours, theirs)| sums.get(theirs.as_str()).map(|value| (ours.clone(), *value)));
    found.collect()
}

const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Minimum value to which a socket's read and write timeouts are set, because the system refuses
/// zero.
const SHORTEST: Duration = Duration::from_millis(1);
/// First bytes of the TLS alert that a server sends when it expected TLS.
const ALERT: [u8; 2] = [0x15, 0x03];

/// Bounds of a blocking HTTP call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Time within which the whole response must have arrived.
    pub time: Duration,
    /// Largest length of the response's body, in bytes.
    pub bytes: usize,
}

impl Bounds {
    /// Bounds of a JSON document.
    pub const DOCUMENT: Self = Self { time: LIMIT, bytes: DOCUMENT_MAX };
    /// Bounds of a page of text, such as metrics.
    pub const PAGE: Self = Self { time: LIMIT, bytes: PAGE_MAX };
}

/// Response to a blocking HTTP call.
#[derive(Debug)]
pub(crate) struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
    /// Time at which the first byte of the response had arrived, in nanoseconds of the monotonic
    /// clock.
    pub first_byte_ns: u64,
}

/// Error of a blocking HTTP call that got no usable response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("no connection within {} s", .0.as_secs_f64())]
    Unconnected(Duration),
    #[error("no answer within {} s", .0.as_secs_f64())]
    TooLate(Duration),
    #[error("the answer has more than {0} bytes")]
    TooLong(usize),
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("the server expects TLS on this port\nhint: try an address with `https://`")]
    WantsTls,
}

/// Blocking HTTP client for one server, which keeps its connection from one call to the next.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    server: &'a Server,
    wire: Option<Box<dyn Channel>>,
}

impl<'a> Caller<'a> {
    pub fn new(server: &'a Server) -> Self {
        Self { server, wire: None }
    }

    /// Sends the bytes of the request `question` and waits for the response, within `bounds` in all.
    /// Where a kept connection fails other than by a timeout, the request is sent once more on a new
    /// one.
    ///
    /// # Errors
    /// The server cannot be reached, ends the connection, expects TLS, does not respond within the
    /// bounds, or responds with something other than valid HTTP.
    pub fn ask(&mut self, question: &[u8], bounds: Bounds) -> Result<Reply, CallError> {
        let bound = (Instant::now() + bounds.time, bounds.bytes);
        let asked = match self.wire.take() {
            Some(kept) => self.exchange(kept, question, bound).or_else(|error| match error {
                // A server may close a kept connection at any time; after a timeout no time is left.
                CallError::Io(error) if !is_timeout(&error) => self.ask_afresh(question, bound),
                other => Err(other),
            }),
            None => self.ask_afresh(question, bound),
        };
        asked.map_err(|error| match error {
            CallError::Io(error) if is_timeout(&error) => CallError::TooLate(bounds.time),
            other => other,
        })
    }

    fn ask_afresh(&mut self, question: &[u8], bound: (Instant, usize)) -> Result<Reply, CallError> {
        let wire = connect(self.server, bound.0)?;
        self.exchange(wire, question, bound)
    }

    fn exchange(
        &mut self,
        mut wire: Box<dyn Channel>,
        question: &[u8],
        (deadline, bytes_max): (Instant, usize),
    ) -> Result<Reply, CallError> {
        wire.write_all(question)?;
        let mut decoder = ResponseDecoder::default();
        let mut body = Vec::new();
        let mut first_byte_ns = None;
        let mut buffer = [0; 8 << 10];
        while !decoder.is_done() {
            wire.socket().set_read_timeout(Some(left(deadline)?))?;
            let count = match wire.read(&mut buffer) {
                // A read with a time limit fails when this program is stopped and resumed.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
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
            if body.len() > bytes_max {
                return Err(CallError::TooLong(bytes_max));
            }
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

/// Returns the time left until `deadline`, at least 1 ms, or a timeout error where it has passed.
pub(super) fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(left.max(SHORTEST)) }
}

/// True for the error of a timeout, which a blocking socket reports as `WouldBlock`.
pub(super) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock)
}

/// Connects to a server for blocking HTTP calls, by `deadline`.
pub(super) fn connect(server: &Server, deadline: Instant) -> Result<Box<dyn Channel>, CallError> {
    let limit = left(deadline)?.min(CONNECT_LIMIT);
    let socket = TcpStream::connect_timeout(&server.address, limit);
    let socket = socket.map_err(|error| match is_timeout(&error) {
        true => CallError::Unconnected(limit),
        false => error.into(),
    })?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(left(deadline)?))?;
    socket.set_write_timeout(Some(left(deadline)?))?;
    match &server.tls {
        Some(tls) => Ok(tls.blocking(socket)?),
        None => Ok(Box::new(socket)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_addresses_of_http_are_taken() {
        let at = |url: &str| Server::at(url, &Trust::default());
        for url in [
            "",
            "127.0.0.1:x",
            "127.0.0.1:80/v2",
            "ftp://127.0.0.1:9",
            "http://",
            "https://",
            "http://127.0.0.1/v2",
        ] {
            assert!(matches!(at(url), Err(ControlError::Url(_))), "{url:?}");
        }
        for url in ["http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", "127.0.0.1:8000"] {
            assert_eq!(at(url).unwrap().authority, "127.0.0.1:8000");
        }
        let server = at("http://127.0.0.1:8000").unwrap();
        assert_eq!(server.url("/metrics"), "http://127.0.0.1:8000/metrics");
        for url in ["http://ada:s3cret@127.0.0.1:1", "ada:s3cret@h", "http://s3cret@h:x"] {
            let error = at(url).unwrap_err();
            assert!(matches!(error, ControlError::UserInfo), "{url}");
            assert!(!error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn metrics_are_summed_over_their_labels() {
        let page = "# HELP x_total Things.\n# TYPE x_total counter\n\
            x_total{outcome=\"ok {1}\"} 3\nx_total{outcome=\"bad\"} 1.5 1700000000\n\
            y 2e3\nz NaN\nx_total_created 9\n";
        let wanted = [("xs", "x_total"), ("ys", "y"), ("zs", "z"), ("none", "absent")];
        let wanted = wanted.map(|(ours, theirs)| (ours.to_owned(), theirs.to_owned())).into();
        let found = read_metrics(page, &wanted);
        assert_eq!(found, [("xs".to_owned(), 4.5), ("ys".to_owned(), 2000.0)].into());
    }
}
