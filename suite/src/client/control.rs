//! The questions beside the load: is the server ready, what is it, what does it count, empty its
//! cache. Blocking, and never on the thread that measures.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::blocking::{CallError, Caller};
use super::tls::{Tls, TlsError};

/// How long a question may take. Emptying a large cache is the slowest.
pub const LIMIT: Duration = Duration::from_secs(30);

/// A server that can be asked.
#[derive(Debug)]
pub struct Server {
    /// Where the load goes.
    pub address: SocketAddr,
    /// `host:port`.
    pub authority: String,
    /// How connections are secured, where the address begins with `https://`.
    pub tls: Option<Tls>,
    /// What the server wants to be shown, where it wants a key. Enters no record.
    pub key: Option<Key>,
}

/// Whose word is taken for who a server is.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// File of the authorities that may have signed its certificate; else those of the machine.
    pub ca_file: Option<PathBuf>,
    /// Any certificate will do.
    pub insecure: bool,
}

/// A key, which is never printed.
#[derive(Clone)]
pub struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

/// A file without a usable key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("cannot read key file `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// It holds something else.
    #[error("key file `{path}` must hold one line of visible ASCII characters")]
    Text {
        /// The file.
        path: PathBuf,
    },
}

impl Key {
    /// Reads the one line of the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
        Self::of(&text).ok_or_else(|| KeyError::Text { path: path.to_owned() })
    }

    /// The key that `text` is, blanks around it aside; none where it cannot be one.
    #[must_use]
    pub fn of(text: &str) -> Option<Self> {
        let key = text.trim();
        let fits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(key.to_owned()))
    }

    /// The value of the `Authorization` header.
    #[must_use]
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

/// A question without an answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The address is none.
    #[error(
        "`{url}` is not the address of a server\nhint: give it as `http://HOST:PORT` or \
         `https://HOST:PORT`"
    )]
    Url {
        /// As it was given.
        url: String,
    },
    /// The connection cannot be secured.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Nobody answers.
    #[error("no server answers at `{url}`: {message}")]
    Unreachable {
        /// Where.
        url: String,
        /// Why, in words.
        message: String,
    },
    /// The server answers that it will not.
    #[error("`{route}` answered {status}: {body}")]
    Status {
        /// What was asked.
        route: String,
        /// Of HTTP.
        status: u16,
        /// What it says.
        body: String,
    },
    /// The answer is not JSON.
    #[error("`{route}` did not answer with JSON")]
    Json {
        /// What was asked.
        route: String,
        /// The cause.
        source: serde_json::Error,
    },
}

impl Server {
    /// Takes `url` apart; asks nothing yet. Behind `https://` its certificate has to be good by
    /// `trust`.
    ///
    /// # Errors
    /// The URL is not `http://HOST:PORT` or `https://HOST:PORT`, its host has no address, or TLS
    /// cannot be had.
    pub fn at(url: &str, trust: &Trust) -> Result<Self, ControlError> {
        let wrong = || ControlError::Url { url: url.to_owned() };
        let base = Url::parse(url).map_err(|_| wrong())?;
        let secured = base.scheme() == "https";
        // A path would be lost: routes are those of the engine.
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

    /// The same server, shown `key` with every request.
    #[must_use]
    pub fn with_key(self, key: Option<Key>) -> Self {
        Self { key, ..self }
    }

    /// Asks for `route` as JSON.
    ///
    /// # Errors
    /// There is no answer, or not of status 200, or not in JSON.
    pub fn get_json(&self, route: &str) -> Result<Value, ControlError> {
        json(route, &self.get_text(route)?)
    }

    /// Asks for `route` as text.
    ///
    /// # Errors
    /// There is no answer, or not of status 200.
    pub fn get_text(&self, route: &str) -> Result<String, ControlError> {
        self.ask(&mut Caller::new(self), "GET", route, LIMIT)
    }

    /// Posts nothing to `route`, and takes whatever comes back; `null` where that is no JSON.
    ///
    /// # Errors
    /// There is no answer, or not of status 200.
    pub fn post(&self, route: &str) -> Result<Value, ControlError> {
        let text = self.ask(&mut Caller::new(self), "POST", route, LIMIT)?;
        Ok(json(route, &text).unwrap_or_default())
    }

    /// Whether anything at all comes back from `route` within `limit`.
    #[must_use]
    pub fn answers(&self, route: &str, limit: Duration) -> bool {
        let asked = self.ask(&mut Caller::new(self), "GET", route, limit.min(LIMIT));
        !matches!(asked, Err(ControlError::Unreachable { .. }))
    }

    /// Asks for `route` through `caller`, within `limit`.
    ///
    /// # Errors
    /// There is no answer in time, or not of status 200.
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

/// Reads a page of metrics in Prometheus' text format: the sum of each name's samples, whatever
/// their labels, by the names that `wanted` maps to it.
#[must_use]
pub fn read_metrics(page: &str, wanted: &BTreeMap<String, String>) -> BTreeMap<String, f64> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap_or("");
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
