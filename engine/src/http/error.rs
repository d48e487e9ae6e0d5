//! Errors that clients see: one table from the kind of error to HTTP status, code and metric.

use axum::http::{StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::guide::TextError;
use crate::metrics::Outcome;
use crate::worker::WorkerGone;
use crate::{one_line, shortened};
use engine_schedule::Refusal;

/// Kind of an error, as far as a client can react to it. Its code in the JSON body is stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The body is not a JSON object.
    InvalidJson,
    /// A field of the request has an invalid value.
    InvalidField,
    /// A required field of the request is missing.
    MissingField,
    /// A field of the request asks for something that this release does not support.
    UnsupportedField,
    /// Prompt and output of the request together are longer than the longest sequence that the
    /// server allows.
    ContextLengthExceeded,
    /// A sequence of the request needs more KV pages than the whole cache has.
    KvCacheExceeded,
    /// The output of the request cannot be continued because of what the request asks for: its
    /// structure has become too large to follow, or its own limits leave no token.
    Unsatisfiable,
    /// The API key of the request is missing or wrong.
    InvalidApiKey,
    /// The server has no API key, and the request names a foreign host or comes from a foreign web
    /// page.
    Forbidden,
    /// The body of the request is not declared as JSON, or is compressed.
    UnsupportedMediaType,
    /// The request names a model that this server does not have.
    ModelNotFound,
    /// The path of the request is not a route.
    NotFound,
    /// The route does not support the HTTP method of the request.
    MethodNotAllowed,
    /// The request body is longer than 16 MiB.
    BodyTooLarge,
    /// The request body arrives too slowly.
    BodyTooSlow,
    /// The request body ended early, or its chunks are malformed.
    BrokenBody,
    /// All connections are in use, and this one is kept for health checks.
    TooManyConnections,
    /// The API key of the request has as many open requests as it may.
    TooManyRequests,
    /// Other requests take what the server limits: memory for bodies, or the building of grammars.
    Overloaded,
    /// The model is still loading; the same request may succeed later.
    Loading,
    /// The server is shutting down and accepts no new requests.
    Draining,
    /// The model could not be loaded, the engine failed, or a task for the request, such as
    /// rendering the chat template, panicked; the request is not at fault.
    EngineFailed,
}

impl ErrorKind {
    /// Returns the HTTP status, the error code and the error type of this kind of error.
    fn facts(self) -> (StatusCode, &'static str, &'static str) {
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        let bad_request = |code| (StatusCode::BAD_REQUEST, code, INVALID);
        match self {
            Self::InvalidJson => bad_request("invalid_json"),
            Self::InvalidField => bad_request("invalid_value"),
            Self::MissingField => bad_request("missing_field"),
            Self::UnsupportedField => bad_request("unsupported_field"),
            Self::ContextLengthExceeded => bad_request("context_length_exceeded"),
            Self::KvCacheExceeded => bad_request("kv_cache_exceeded"),
            Self::Unsatisfiable => bad_request("unsatisfiable"),
            Self::InvalidApiKey => {
                (StatusCode::UNAUTHORIZED, "invalid_api_key", "authentication_error")
            }
            Self::Forbidden => (StatusCode::FORBIDDEN, "forbidden", "permission_error"),
            Self::UnsupportedMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", INVALID)
            }
            Self::ModelNotFound => (StatusCode::NOT_FOUND, "model_not_found", INVALID),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", INVALID),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", INVALID)
            }
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", INVALID),
            Self::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, "body_too_slow", INVALID),
            Self::BrokenBody => bad_request("broken_body"),
            Self::TooManyConnections => {
                (StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", SERVER)
            }
            Self::TooManyRequests => {
                (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", "rate_limit_error")
            }
            Self::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded", SERVER),
            Self::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading", SERVER),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining", SERVER),
            Self::EngineFailed => (StatusCode::INTERNAL_SERVER_ERROR, "engine_failed", SERVER),
        }
    }

    /// Returns the outcome under which `redline_requests_total` counts a request with this kind of
    /// error; `None` for `EngineFailed` and `Unsatisfiable`: the engine loop counts the sequences
    /// that it ends itself, and other such errors are not counted.
    pub(super) fn outcome(self) -> Option<Outcome> {
        let is_counted = !matches!(self, Self::EngineFailed | Self::Unsatisfiable);
        is_counted.then_some(Outcome::Refused)
    }
}

/// `Result` with [`ApiError`] as the error, unless another is named: of reading or answering a
/// request.
pub(super) type Result<T, E = ApiError> = std::result::Result<T, E>;

/// Error that a request is answered with. The client sees its message but never its `source`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Kind of the error, which determines status, code and metric.
    pub kind: ErrorKind,
    /// Message that the client sees.
    pub message: String,
    /// Name of the request field that is wrong, if one is.
    pub param: Option<String>,
    /// Underlying error, if any; not sent to the client.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ApiError {
    /// Creates an error of this kind with a message, which becomes one line.
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        // A client may print it to a terminal, and it may quote what a stranger sent to the client.
        Self { kind, message: one_line(&message.into()), param: None, source: None }
    }

    /// Creates an error about the value of a request field.
    pub(super) fn field(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidField, message).at(field)
    }

    /// Creates the error of a request without a field that it must have.
    pub(super) fn missing(field: &str) -> Self {
        Self::new(ErrorKind::MissingField, format!("`{field}` is missing")).at(field)
    }

    pub(super) fn at(mut self, field: &str) -> Self {
        self.param = Some(shown(field));
        self
    }

    /// Builds the JSON body of the error, for an error response or an event within a stream.
    pub(super) fn body(&self) -> Value {
        let (_, code, r#type) = self.kind.facts();
        json!({"error": {
            "message": self.message, "type": r#type, "param": self.param, "code": code,
        }})
    }
}

/// Limit on the number of characters of a client's text that an error message repeats.
const SHOWN_CHARS_MAX: usize = 200;

/// Returns a client's text as an error message shows it: as one line, and cut where it is long, so
/// that an answer is not as long as a hostile request.
pub(super) fn shown(text: &str) -> String {
    let escaped = one_line(&shortened(text, SHOWN_CHARS_MAX));
    shortened(&escaped, SHOWN_CHARS_MAX).into_owned()
}

impl From<WorkerGone> for ApiError {
    fn from(gone: WorkerGone) -> Self {
        let (kind, message) = match gone {
            WorkerGone::Failed => {
                (ErrorKind::EngineFailed, "the engine has failed; its log says why")
            }
            WorkerGone::CutOff => (ErrorKind::Draining, "the server is shutting down"),
        };
        Self { source: Some(Box::new(gone)), ..Self::new(kind, message) }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let kind = match refusal {
            Refusal::TooLong { .. } => ErrorKind::ContextLengthExceeded,
            Refusal::TooFewPages { .. } => ErrorKind::KvCacheExceeded,
        };
        Self::new(kind, refusal.to_string())
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        Self::new(ErrorKind::InvalidField, shown(&error.to_string()))
    }
}

impl ApiError {
    /// Builds the response with another body than OpenAI's.
    pub(super) fn with_body(self, body: Value) -> Response {
        let (status, ..) = self.kind.facts();
        let header = match self.kind {
            // HTTP requires the scheme with status 401.
            ErrorKind::InvalidApiKey => Some((header::WWW_AUTHENTICATE, "Bearer")),
            ErrorKind::Loading
            | ErrorKind::Draining
            | ErrorKind::Overloaded
            | ErrorKind::TooManyRequests => Some((header::RETRY_AFTER, "1")),
            // The rest of the body, and later requests, are not wanted on this connection.
            ErrorKind::BodyTooSlow | ErrorKind::TooManyConnections => {
                Some((header::CONNECTION, "close"))
            }
            _ => None,
        };
        // The middleware counts the error by its kind.
        let kind = Extension(self.kind);
        (status, AppendHeaders(header), kind, Json(body)).into_response()
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.body();
        self.with_body(body)
    }
}
