//! What a request gets when it gets no answer: one table from kind to status, code and metric.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::metrics::Outcome;
use crate::text::TextError;
use crate::worker::WorkerGone;
use engine_schedule::Refusal;

/// What went wrong, as far as a client can act on it. Codes are stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The body is not a JSON object.
    InvalidJson,
    /// A field has a value that cannot be taken.
    InvalidField,
    /// A field that has to be there is not.
    MissingField,
    /// A field asks for what this release does not do.
    UnsupportedField,
    /// Prompt and output together are longer than a sequence may be.
    ContextLengthExceeded,
    /// The sequence would not fit the KV cache, were it alone there.
    KvCacheExceeded,
    /// The server wants a key, and another was shown or none.
    InvalidApiKey,
    /// Another model is served here.
    ModelNotFound,
    /// There is no such route.
    NotFound,
    /// The route does not take the method.
    MethodNotAllowed,
    /// The body is longer than any request has to be.
    BodyTooLarge,
    /// The model is being loaded: the same request may do later.
    Loading,
    /// The server is about to end, and takes nothing new.
    Draining,
    /// The fault is here, and not the client's.
    EngineFailed,
}

/// The one place where a kind becomes a status, a code and a metric label.
struct Facts {
    status: StatusCode,
    code: &'static str,
    r#type: &'static str,
    outcome: Option<Outcome>,
}

impl ErrorKind {
    fn facts(self) -> Facts {
        const INVALID: &str = "invalid_request_error";
        const SERVER: &str = "server_error";
        let (status, code, r#type) = match self {
            Self::InvalidJson => (StatusCode::BAD_REQUEST, "invalid_json", INVALID),
            Self::InvalidField => (StatusCode::BAD_REQUEST, "invalid_value", INVALID),
            Self::MissingField => (StatusCode::BAD_REQUEST, "missing_field", INVALID),
            Self::UnsupportedField => (StatusCode::BAD_REQUEST, "unsupported_field", INVALID),
            Self::ContextLengthExceeded => {
                (StatusCode::BAD_REQUEST, "context_length_exceeded", INVALID)
            }
            Self::KvCacheExceeded => (StatusCode::BAD_REQUEST, "kv_cache_exceeded", INVALID),
            Self::InvalidApiKey => {
                (StatusCode::UNAUTHORIZED, "invalid_api_key", "authentication_error")
            }
            Self::ModelNotFound => (StatusCode::NOT_FOUND, "model_not_found", INVALID),
            Self::NotFound => (StatusCode::NOT_FOUND, "not_found", INVALID),
            Self::MethodNotAllowed => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", INVALID)
            }
            Self::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", INVALID),
            Self::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading", SERVER),
            Self::Draining => (StatusCode::SERVICE_UNAVAILABLE, "draining", SERVER),
            Self::EngineFailed => (StatusCode::INTERNAL_SERVER_ERROR, "engine_failed", SERVER),
        };
        let outcome = (self != Self::EngineFailed).then_some(Outcome::Refused);
        Facts { status, code, r#type, outcome }
    }

    /// How `redline_requests_total` counts it; what failed in the engine was counted there.
    pub(super) fn outcome(self) -> Option<Outcome> {
        self.facts().outcome
    }
}

/// An error on its way to a client, who never sees its `source`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Decides about status, code and metric.
    pub kind: ErrorKind,
    /// What the client reads.
    pub message: String,
    /// The request field at fault.
    pub param: Option<String>,
    /// What caused it, where something did.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ApiError {
    pub(super) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, source: None }
    }

    /// A field whose value cannot be taken.
    pub(super) fn field(field: &str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidField, message).at(field)
    }

    pub(super) fn at(mut self, field: &str) -> Self {
        self.param = Some(field.to_owned());
        self
    }

    /// The JSON of the error, also for the middle of a stream.
    pub(super) fn body(&self) -> Value {
        let Facts { code, r#type, .. } = self.kind.facts();
        json!({"error": {
            "message": self.message, "type": r#type, "param": self.param, "code": code,
        }})
    }
}

impl From<WorkerGone> for ApiError {
    fn from(gone: WorkerGone) -> Self {
        let message = "the engine has failed; its log says why";
        Self { source: Some(Box::new(gone)), ..Self::new(ErrorKind::EngineFailed, message) }
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
        Self::new(ErrorKind::InvalidField, error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = self.kind.facts().status;
        let mut response = (status, Json(self.body())).into_response();
        response.extensions_mut().insert(self.kind);
        match self.kind {
            ErrorKind::InvalidApiKey => {
                let scheme = HeaderValue::from_static("Bearer");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            }
            ErrorKind::Loading | ErrorKind::Draining => {
                let seconds = HeaderValue::from_static("1");
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
            _ => {}
        }
        response
    }
}
