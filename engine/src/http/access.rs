//! Access checks before a route runs: the API key or, for a server without one, `Host` and
//! `Origin`, so that no web page can use the server through somebody's browser.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue};
use sha2::{Digest, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::{ApiError, ErrorKind, Result, shown};
use super::origins::Origins;

/// Rule by which requests are accepted or refused before a route sees them; `/health` is exempt.
#[derive(Debug, Clone)]
pub enum Access {
    /// Rule that requests must send one of these API keys.
    Keys(Vec<Key>),
    /// Rule of a server without API key: requests must name the server as these names do, and must
    /// not come from a foreign web page. A page whose domain is pointed at this server (DNS
    /// rebinding) still sends its own domain as `Host`.
    Keyless(Names),
}

/// API key of a client, and how many of its requests may be open at once.
#[derive(Debug, Clone)]
pub struct Key {
    sha256: [u8; 32],
    /// Places for open requests, with their number; `None` where it is not limited.
    places: Option<(Arc<Semaphore>, u32)>,
}

impl Key {
    /// Returns the API key `key`, of whose requests at most `limit` may be open at once.
    pub fn new(key: &str, limit: Option<u32>) -> Self {
        let places = limit.map(|limit| (Arc::new(Semaphore::new(limit as usize)), limit));
        Self { sha256: Sha256::digest(key).into(), places }
    }

    /// Returns the place of a request among the open ones; `None` where their number is not limited.
    ///
    /// # Errors
    /// The key has as many open requests as it may.
    pub(super) fn place(&self) -> Result<Option<OwnedSemaphorePermit>> {
        let Some((places, limit)) = &self.places else { return Ok(None) };
        Arc::clone(places).try_acquire_owned().map(Some).map_err(|_| {
            let message =
                format!("this API key may have {limit} open requests; hint: wait for an answer");
            ApiError::new(ErrorKind::TooManyRequests, message)
        })
    }
}

/// Names by which clients may address a server without API key. Names without a dot, as container
/// networks and proxies give them, and names with one of the ends `LOCAL_ENDS` belong to no web
/// page, so that everybody may use them.
#[derive(Debug, Clone)]
pub struct Names {
    /// Value of `--host`: a name or an address.
    pub host: String,
    /// True if other machines can reach the server. They may use any IP address, since the server
    /// cannot know how its network maps addresses.
    pub is_open: bool,
}

/// Ends of names that nobody can register: of this machine (RFC 6761), the local network (RFC 6762)
/// and private networks such as those of containers and clusters.
const LOCAL_ENDS: [&str; 3] = [".localhost", ".local", ".internal"];

impl Access {
    /// Checks whether a request may reach a route, and returns its API key if the server has any.
    /// Web pages of the origins `allowed` may.
    ///
    /// # Errors
    /// The API key is missing or wrong; or, without a key, the request names a foreign host or
    /// comes from a foreign web page.
    pub(super) fn check(&self, request: &Request, allowed: &Origins) -> Result<Option<&Key>> {
        let headers = request.headers();
        match self {
            Self::Keys(keys) => {
                let bearer = headers.get(AUTHORIZATION).and_then(bearer);
                // Anthropic's clients send the key by itself.
                let plain = || headers.get("x-api-key")?.to_str().ok();
                let key = found(keys, bearer.or_else(plain));
                let message = "this server requires an API key; hint: `Authorization: Bearer KEY`";
                key.map(Some).ok_or_else(|| ApiError::new(ErrorKind::InvalidApiKey, message))
            }
            Self::Keyless(names) => {
                // A proxy request names its host in the request line.
                let target = request.uri().authority().map(|authority| authority.as_str().into());
                let mut hosts = headers.get_all(HOST).iter().map(text).chain(target);
                if let Some(foreign) = hosts.find(|host| !names.include(host)) {
                    return Err(forbidden("the host name", &foreign));
                }
                let mut origins = headers.get_all(ORIGIN).iter().map(text);
                match origins.find(|origin| !is_own(origin, headers) && !allowed.include(origin)) {
                    Some(foreign) => Err(forbidden("web pages of", &foreign)),
                    None => Ok(None),
                }
            }
        }
    }
}

impl Names {
    /// Returns true if `authority`, a host with or without port, is one of the names.
    fn include(&self, authority: &str) -> bool {
        let Some(host) = host_of(authority) else { return false };
        match address(&host) {
            Some(ip) => {
                let ip = ip.to_canonical();
                self.is_open || ip.is_loopback() || ip.is_unspecified()
            }
            None => {
                let is_local =
                    !host.contains('.') || LOCAL_ENDS.iter().any(|end| host.ends_with(end));
                is_name(&host) && is_local || host.eq_ignore_ascii_case(&self.host)
            }
        }
    }
}

/// Returns true if the web page with the origin `origin` is served by the same host and port as the
/// request goes to, or by this machine.
fn is_own(origin: &str, headers: &HeaderMap) -> bool {
    // Sandboxed pages and files have the origin `null`, which anybody can cause.
    let Some((_, authority)) = origin.split_once("://") else { return false };
    let Some(host) = host_of(authority) else { return false };
    let is_local = host == "localhost" || address(&host).is_some_and(|ip| ip.is_loopback());
    is_local || headers.get(HOST).is_some_and(|host| text(host).eq_ignore_ascii_case(authority))
}

/// Returns the host of `authority` in lower case, without port; `None` if it is not a host with or
/// without port.
fn host_of(authority: &str) -> Option<String> {
    let parsed: Authority = authority.parse().ok()?;
    // `user@host`, which no client sends in these headers.
    if authority.contains('@') {
        return None;
    }
    // The parser takes anything after the bracket that ends an IPv6 address.
    let port = authority.strip_prefix(parsed.host())?;
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let is_whole = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
    is_whole.then(|| parsed.host().to_ascii_lowercase())
}

/// Returns true if a host is written as a name, with letters, digits and the signs of names only.
fn is_name(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

/// Returns the IP address that a host is, an IPv6 address being in brackets; `None` for a name.
fn address(host: &str) -> Option<IpAddr> {
    host.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Returns the key of an `Authorization` header with the scheme `Bearer`, in any case.
fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Returns the one of `keys` that a request shows. Compares whole digests, and all of them, without an
/// early exit, so that the time taken reveals nothing about the keys.
fn found<'a>(keys: &'a [Key], shown: Option<&str>) -> Option<&'a Key> {
    // A missing key is compared like a wrong one.
    let shown: [u8; 32] = Sha256::digest(shown.unwrap_or_default()).into();
    keys.iter().fold(None, |found, key| {
        let different = key.sha256.iter().zip(&shown).fold(0, |sum, (a, b)| sum | (a ^ b));
        // Keeps the compiler from adding an early exit.
        if std::hint::black_box(different) == 0 { Some(key) } else { found }
    })
}

/// Returns true if the headers say that the body is JSON. A web page may send any other site a body
/// of the types `text/plain`, `application/x-www-form-urlencoded` and `multipart/form-data`, or
/// without a type; for JSON the browser asks that site first, and this server does not consent.
pub(super) fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else {
        return false;
    };
    let kind = kind.split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// Returns true if the headers say that the body is compressed or otherwise encoded.
pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).into_owned()
}

fn forbidden(what: &str, found: &str) -> ApiError {
    let found = shown(found);
    let message = format!(
        "a server without API key does not answer {what} `{found}`; hint: address it by its IP \
         address or as `localhost`, or start it with `--api-key-file`"
    );
    ApiError::new(ErrorKind::Forbidden, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_this_machine_has_only_local_names() {
        let names = Names { host: "mybox.example".into(), is_open: false };
        for host in [
            "localhost",
            "LOCALHOST:23333",
            "127.0.0.1:23333",
            "127.8.9.1",
            "[::1]:80",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "0.0.0.0:23333",
            "MyBox.example:1",
            "backend",
            "host.docker.internal:23333",
            "redline.default.svc.cluster.local",
        ] {
            assert!(names.include(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:23333",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[2001:db8::1]",
            "local.evil.example",
            "[fe80::1%25lo]",
            "",
            "evil.example@localhost",
            "localhost/x",
            "[::1].evil.example",
            "[::1]evil:80",
        ] {
            assert!(!names.include(host), "{host}");
        }
    }

    #[test]
    fn an_open_server_is_named_by_any_address_too() {
        let names = Names { host: "0.0.0.0".into(), is_open: true };
        for host in ["10.0.0.1:8000", "[2001:db8::1]:8000", "redline:8000"] {
            assert!(names.include(host), "{host}");
        }
        for host in ["evil.example:8000", "redline.evil.example"] {
            assert!(!names.include(host), "{host}");
        }
    }

    #[test]
    fn pages_of_this_machine_and_of_the_same_host_are_not_foreign() {
        let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static("redline:8000"))]);
        for origin in ["http://localhost:3000", "http://127.0.0.1", "http://redline:8000"] {
            assert!(is_own(origin, &headers), "{origin}");
        }
        for origin in
            ["null", "", "https://evil.example", "http://redline:8001", "http://93.184.216.34"]
        {
            assert!(!is_own(origin, &headers), "{origin}");
        }
    }
}
