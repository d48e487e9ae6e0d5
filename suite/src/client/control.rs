//! Control requests beside the load: server readiness, version, configuration, metrics, and the
//! reset of its prefix cache. Blocking, never on the measuring thread.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::blocking::{CallError, Caller};
use super::tls::{Tls, TlsError};

/// Longest time for a control request. Resetting a large cache is the slowest.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Server under test: its address, TLS and API key.
#[derive(Debug)]
pub struct Server {
    /// Socket address that requests go to.
    pub address: SocketAddr,
    /// `host:port` of the server, for the `Host` header.
    pub authority: String,
    /// TLS configuration, where the server's URL begins with `https://`.
    pub tls: Option<Tls>,
    /// API key that the server requires, if any; it enters no record.
    pub key: Option<Key>,
}

/// Trust settings for a server's TLS certificate.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// File of trusted certificate authorities; the machine's own where left out.
    pub ca_file: Option<PathBuf>,
    /// True to accept any certificate.
    pub insecure: bool,
}

/// API key of a server, which is never printed.
#[derive(Clone)]
pub struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

/// Error of reading a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The key file cannot be read.
    #[error("cannot read key file `{path}`")]
    Read {
        /// Path of the key file that the error is about.
        path: PathBuf,
        /// Error of reading the key file.
        source: std::io::Error,
    },
    /// The key file does not hold one line of visible ASCII characters.
    #[error("key file `{path}` must hold one line of visible ASCII characters")]
    Text {
        /// Path of the key file that the error is about.
        path: PathBuf,
    },
}

impl Key {
    /// Reads a key file.
    ///
    /// # Errors
    /// The file cannot be read or does not hold a valid key.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
        Self::of(&text).ok_or_else(|| KeyError::Text { path: path.to_owned() })
    }

    /// Returns the key in `text` without surrounding white space, or `None` where it is not valid.
    pub fn of(text: &str) -> Option<Self> {
        let key = text.trim();
        let fits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(key.to_owned()))
    }

    /// Returns the value of the `Authorization` header.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// Error of a control request.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The URL is not the address of a server.
    #[error(
        "`{url}` is not the address of a server\nhint: give it as `http://HOST:PORT` or \
         `https://HOST:PORT`"
    )]
    Url {
        /// URL as it was given.
        url: String,
    },
    /// TLS cannot be set up.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The server does not respond.
    #[error("no server answers at `{url}`: {message}")]
    Unreachable {
        /// URL of the failed request.
        url: String,
        /// Reason why there is no response.
        message: String,
    },
    /// The server responded with a status other than success.
    #[error("`{route}` answered {status}: {body}")]
    Status {
        /// Route of the failed request.
        route: String,
        /// HTTP status of the response.
        status: u16,
        /// Beginning of the response body.
        body: String,
    },
    /// The response is not JSON.
    #[error("`{route}` did not answer with JSON")]
    Json {
        /// Route of the failed request.
        route: String,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },
}

impl Server {
    /// Resolves `url` to a server without connecting to it. For `https://`, `trust` decides which
    /// certificates are accepted.
    ///
    /// # Errors
    /// The URL is not `http://HOST:PORT` or `https://HOST:PORT`, its host does not resolve, or TLS
    /// cannot be set up.
    pub fn at(url: &str, trust: &Trust) -> Result<Self, ControlError> {
        let wrong = || ControlError::Url { url: url.to_owned() };
        let base = Url::parse(url).map_err(|_| wrong())?;
        let secured = base.scheme() == "https";
        // A path in the URL would be ignored, because routes come from the engine file: refuse it.
        let bare = (secured || base.scheme() == "http") && base.path() == "/";
        let host = base.host_str().filter(|_| bare).ok_or_else(wrong)?;
        let port = base.port_or_known_default().ok_or_else(wrong)?;
        let authority = format!("{host}:{port}");
        let address = authority
            .to_socket_addrs()
            .ok()
            .and_then(|mut addresses| addresses.next())
            .ok_or_else(wrong)?;
        let tls = if secured { Some(Tls::new(host, trust)?) } else { None };
        Ok(Self { address, authority, tls, key: None })
    }

    /// Returns the server with an API key for every request.
    pub fn with_key(self, key: Option<Key>) -> Self {
        Self { key, ..self }
    }

    /// Requests `route` with GET and parses the response as JSON.
    ///
    /// # Errors
    /// No response, a status other than success, or a body that is not JSON.
    pub fn get_json(&self, route: &str) -> Result<Value, ControlError> {
        json(route, &self.get_text(route)?)
    }

    /// Requests `route` with GET and returns the response body as text.
    ///
    /// # Errors
    /// No response, or a status other than success.
    pub fn get_text(&self, route: &str) -> Result<String, ControlError> {
        self.ask(&mut Caller::new(self), "GET", route, LIMIT)
    }

    /// Sends an empty POST to `route` and returns the response as JSON, or `null` where it is not
    /// JSON.
    ///
    /// # Errors
    /// No response, or a status other than success.
    pub fn post(&self, route: &str) -> Result<Value, ControlError> {
        let text = self.ask(&mut Caller::new(self), "POST", route, LIMIT)?;
        Ok(json(route, &text).unwrap_or_default())
    }

    /// True when `route` gives any response within `limit`, whatever its status.
    pub fn answers(&self, route: &str, limit: Duration) -> bool {
        let asked = self.ask(&mut Caller::new(self), "GET", route, limit.min(LIMIT));
        // An error status is an answer too.
        !matches!(asked, Err(ControlError::Unreachable { .. }))
    }

    /// Requests `route` with `method` through `caller`, within `limit`, and returns the body as
    /// text.
    ///
    /// # Errors
    /// No response in time, or a status other than success.
    pub fn ask(
        &self,
        caller: &mut Caller<'_>,
        method: &str,
        route: &str,
        limit: Duration,
    ) -> Result<String, ControlError> {
        let unreachable = |error: CallError| ControlError::Unreachable {
            url: self.url(route),
            message: error.to_string(),
        };
        let reply = caller.ask(&self.question(method, route), limit).map_err(unreachable)?;
        let body = String::from_utf8_lossy(&reply.body).into_owned();
        if !(200..300).contains(&reply.status) {
            // An error page may be long; its beginning suffices for a message.
            let body = body.chars().take(300).collect();
            return Err(ControlError::Status {
                route: route.to_owned(),
                status: reply.status,
                body,
            });
        }
        Ok(body)
    }

    fn question(&self, method: &str, route: &str) -> Vec<u8> {
        let key = self.key.as_ref();
        let key = key.map(|key| format!("Authorization: {}\r\n", key.authorization()));
        let (authority, key) = (&self.authority, key.unwrap_or_default());
        let head =
            format!("{method} {route} HTTP/1.1\r\nHost: {authority}\r\nAccept: */*\r\n{key}");
        (head + "Content-Length: 0\r\n\r\n").into_bytes()
    }

    fn url(&self, route: &str) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}{route}", self.authority)
    }
}

fn json(route: &str, text: &str) -> Result<Value, ControlError> {
    serde_json::from_str(text)
        .map_err(|source| ControlError::Json { route: route.to_owned(), source })
}

/// Reads a page in Prometheus text format and returns the metrics in `wanted` (our name to the
/// engine's), each summed over all label sets.
pub fn read_metrics(page: &str, wanted: &BTreeMap<String, String>) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or("");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_bare_addresses_of_http_are_taken() {
        let at = |url: &str| Server::at(url, &Trust::default());
        for url in
            ["", "127.0.0.1:80", "ftp://127.0.0.1:9", "http://", "https://", "http://127.0.0.1/v1"]
        {
            assert!(matches!(at(url), Err(ControlError::Url { .. })), "{url:?}");
        }
        let server = at("http://127.0.0.1:8000/").unwrap();
        assert_eq!(server.authority, "127.0.0.1:8000");
        assert_eq!(server.url("/metrics"), "http://127.0.0.1:8000/metrics");
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
