//! The questions beside the load: is the server ready, what is it, what does it count, empty its
//! cache. Plain blocking HTTP, never while the clock runs.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Url;
use reqwest::blocking::{Client, RequestBuilder, Response};
use reqwest::header::AUTHORIZATION;
use serde_json::Value;

/// How long a question may take. Emptying a large cache is the slowest.
const LIMIT: Duration = Duration::from_secs(30);
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A server that can be asked.
#[derive(Debug)]
pub struct Server {
    client: Client,
    base: Url,
    /// Where the load goes.
    pub address: SocketAddr,
    /// `host:port`.
    pub authority: String,
    /// What the server wants to be shown, where it wants a key. Enters no record.
    pub key: Option<Key>,
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
    #[error("cannot read key file `{path}`")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("key file `{path}` must hold one line of visible ASCII characters")]
    Text { path: PathBuf },
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
    #[error("`{url}` is not the address of a server\nhint: give it as `http://HOST:PORT`")]
    Url { url: String },
    #[error("no server answers at `{url}`: {message}")]
    Unreachable { url: String, message: String },
    #[error("`{route}` answered {status}: {body}")]
    Status { route: String, status: u16, body: String },
    #[error("`{route}` did not answer with JSON")]
    Json { route: String, source: serde_json::Error },
}

impl Server {
    /// Takes `url` apart; asks nothing yet.
    ///
    /// # Errors
    /// The URL is not plain `http://HOST:PORT`, or its host has no address.
    pub fn at(url: &str) -> Result<Self, ControlError> {
        let wrong = || ControlError::Url { url: url.to_owned() };
        let base = Url::parse(url).map_err(|_| wrong())?;
        // A path would be lost: routes are those of the engine.
        let bare = base.scheme() == "http" && base.path() == "/";
        let host = base.host_str().filter(|_| bare).ok_or_else(wrong)?;
        let port = base.port_or_known_default().ok_or_else(wrong)?;
        let authority = format!("{host}:{port}");
        let address = authority
            .to_socket_addrs()
            .ok()
            .and_then(|mut addresses| addresses.next())
            .ok_or_else(wrong)?;
        let client = Client::builder()
            .timeout(LIMIT)
            .connect_timeout(CONNECT_LIMIT)
            .no_proxy()
            .build()
            .map_err(|error| ControlError::Unreachable {
                url: url.to_owned(),
                message: error.to_string(),
            })?;
        Ok(Self { client, base, address, authority, key: None })
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
        self.answer(route, self.keyed(self.client.get(self.url(route))).send())
    }

    /// Posts nothing to `route`, and takes whatever comes back; `null` where that is no JSON.
    ///
    /// # Errors
    /// There is no answer, or not of status 200.
    pub fn post(&self, route: &str) -> Result<Value, ControlError> {
        let text = self.answer(route, self.keyed(self.client.post(self.url(route))).send())?;
        Ok(json(route, &text).unwrap_or_default())
    }

    /// Whether anything at all comes back from `route` within `limit`.
    #[must_use]
    pub fn answers(&self, route: &str, limit: Duration) -> bool {
        let asked = self.keyed(self.client.get(self.url(route))).timeout(limit.min(LIMIT)).send();
        !matches!(self.answer(route, asked), Err(ControlError::Unreachable { .. }))
    }

    fn keyed(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.key {
            Some(key) => request.header(AUTHORIZATION, key.authorization()),
            None => request,
        }
    }

    fn url(&self, route: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(route);
        url
    }

    fn answer(
        &self,
        route: &str,
        response: Result<Response, reqwest::Error>,
    ) -> Result<String, ControlError> {
        let unreachable = |error: reqwest::Error| ControlError::Unreachable {
            url: self.url(route).to_string(),
            message: innermost(&error),
        };
        let response = response.map_err(unreachable)?;
        let status = response.status();
        let body = response.text().map_err(unreachable)?;
        if !status.is_success() {
            let body = body.chars().take(300).collect();
            return Err(ControlError::Status {
                route: route.to_owned(),
                status: status.as_u16(),
                body,
            });
        }
        Ok(body)
    }
}

fn json(route: &str, text: &str) -> Result<Value, ControlError> {
    serde_json::from_str(text)
        .map_err(|source| ControlError::Json { route: route.to_owned(), source })
}

/// The last cause says what happened; the layers above only that something did.
fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
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
    fn only_plain_http_addresses_are_taken() {
        for url in [
            "",
            "127.0.0.1:80",
            "https://127.0.0.1",
            "ftp://127.0.0.1:9",
            "http://",
            "http://127.0.0.1/v1",
        ] {
            assert!(matches!(Server::at(url), Err(ControlError::Url { .. })), "{url:?}");
        }
        let server = Server::at("http://127.0.0.1:8000/").unwrap();
        assert_eq!(server.authority, "127.0.0.1:8000");
        assert_eq!(server.url("/metrics").as_str(), "http://127.0.0.1:8000/metrics");
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
