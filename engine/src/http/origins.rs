//! Origins of web pages that may use the server from a browser (CORS, `--allow-origin`).

use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, Method, Uri};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// Time for which a browser need not ask again whether a page may send a request.
const MAX_AGE: Duration = Duration::from_secs(3600);

/// Origins of web pages that may use the server from a browser, as `--allow-origin` names them;
/// none by default.
#[derive(Debug, Clone, Default)]
pub struct Origins {
    /// True if `*` is among them, which is any origin.
    is_any: bool,
    listed: Vec<HeaderValue>,
}

impl Origins {
    /// Reads origins such as `https://chat.example`, and `*` for any.
    ///
    /// # Errors
    /// Returns the first value that is no origin.
    pub fn read(values: &[String]) -> Result<Self, String> {
        let mut origins = Self::default();
        for value in values {
            match (value.as_str(), origin(value)) {
                ("*", _) => origins.is_any = true,
                (_, Some(origin)) => origins.listed.push(origin),
                _ => return Err(value.clone()),
            }
        }
        Ok(origins)
    }

    /// Returns true if pages of any origin may use the server.
    pub fn is_any(&self) -> bool {
        self.is_any
    }

    /// Returns true if pages with the origin `origin`, a header of a request, may use the server.
    pub(super) fn include(&self, origin: &str) -> bool {
        self.is_any || self.listed.iter().any(|listed| listed == origin)
    }

    /// Returns the layer that answers a browser's questions (preflights) and tells it which pages
    /// may read answers; `None` without origins.
    pub(super) fn layer(&self) -> Option<CorsLayer> {
        let allowed = match self {
            Self { is_any: true, .. } => AllowOrigin::any(),
            Self { listed, .. } if listed.is_empty() => return None,
            Self { listed, .. } => AllowOrigin::list(listed.clone()),
        };
        let layer = CorsLayer::new()
            .allow_origin(allowed)
            .allow_methods([Method::GET, Method::POST])
            .allow_headers([AUTHORIZATION, CONTENT_TYPE])
            .expose_headers([RETRY_AFTER])
            // A page of the internet may use a server of the visitor's own network.
            .allow_private_network(true)
            .max_age(MAX_AGE);
        Some(layer)
    }
}

/// Returns the header value of an origin, scheme and host with or without port; `None` for anything
/// else. Browsers send it without a path and in lower case.
fn origin(value: &str) -> Option<HeaderValue> {
    let uri: Uri = value.parse().ok()?;
    let is_whole = value == format!("{}://{}", uri.scheme_str()?, uri.authority()?);
    let is_plain = !value.contains('@') && value == value.to_ascii_lowercase();
    (is_whole && is_plain).then(|| value.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_schemes_and_hosts() {
        for value in ["https://chat.example", "http://localhost:3000", "app://obsidian.md"] {
            assert!(Origins::read(&[value.to_owned()]).unwrap().include(value), "{value}");
        }
        for value in
            ["", "chat.example", "https://chat.example/", "https://a@b", "HTTPS://A", "null"]
        {
            assert_eq!(Origins::read(&[value.to_owned()]).unwrap_err(), value);
        }
        let any = Origins::read(&["*".to_owned()]).unwrap();
        assert!(any.is_any() && any.include("https://anywhere.example"));
        assert!(!Origins::default().include("https://chat.example"));
    }
}
