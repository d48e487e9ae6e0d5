//! The HTTP front end: routes, API formats and errors. No other module may know HTTP.

mod answer;
mod chat;
mod completions;
mod error;
mod fields;
mod params;
mod state;
mod structure;

pub use chat::check_chat;
pub use completions::check_completion;
pub use error::{ApiError, ErrorKind};
pub use state::{App, KvFacts, ModelFacts, Phase, Ready, ServerInfo};

use std::io;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use chat::ChatPrompt;
use error::{Result, blocking};
use fields::Fields;

/// Limit on the size of a request body in bytes; a larger one is refused. A prompt of a million
/// token ids fits with room to spare.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Serves HTTP on `listener` until the future `closed` completes, then until the answers in
/// progress have ended.
///
/// # Errors
/// The socket failed.
pub async fn serve(
    listener: TcpListener,
    app: App,
    closed: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    // Nagle's algorithm would delay each token: it is a small packet, and no other follows it soon.
    let listener = listener.tap_io(|stream| {
        let _ = stream.set_nodelay(true);
    });
    axum::serve(listener, router(app)).with_graceful_shutdown(closed).await
}

/// Builds the router with all HTTP routes of one engine.
fn router(app: App) -> Router {
    Router::new()
        .route("/v1/completions", post(completions::completions))
        .route("/v1/chat/completions", post(chat::chat_completions))
        .route("/v1/models", get(models))
        // A wildcard, because hub ids contain a slash.
        .route("/v1/models/{*id}", get(model))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/health", get(health))
        .route("/server_info", get(server_info))
        .route("/metrics", get(metrics))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state(app.clone(), guard))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

/// Middleware that checks the API key except for `/health`, counts refused requests for completions
/// and chats, and answers a body that is too long in the JSON format of all other errors.
async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let generates = path == "/v1/completions" || path == "/v1/chat/completions";
    let shown = request.headers().get(header::AUTHORIZATION);
    let shown = shown.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    // Health checks, as of a load balancer, have no key.
    let response = if path == "/health" || app.authorizes(shown) {
        next.run(request).await
    } else {
        let message = "this server requires an API key; hint: `Authorization: Bearer KEY`";
        ApiError::new(ErrorKind::InvalidApiKey, message).into_response()
    };
    let kind = response.extensions().get::<ErrorKind>().copied();
    if let (true, Some(outcome)) = (generates, kind.and_then(ErrorKind::outcome)) {
        app.metrics.count_request(outcome);
    }
    // axum refuses a long body in plain text; this gives the answer our format.
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE && kind.is_none() {
        let message = format!("the body is longer than {BODY_BYTES_MAX} bytes");
        return ApiError::new(ErrorKind::BodyTooLarge, message).into_response();
    }
    response
}

/// Reads the request field `model`. It may be absent, but must not name another model than the
/// served one.
fn check_model(fields: &mut Fields, ready: &Ready) -> Result<()> {
    match fields.string("model")? {
        Some(name) if name != ready.model_name => Err(unknown_model(&name, ready)),
        _ => Ok(()),
    }
}

fn unknown_model(name: &str, ready: &Ready) -> ApiError {
    let message = format!("the model `{name}` is not served here; hint: `{}` is", ready.model_name);
    ApiError::new(ErrorKind::ModelNotFound, message).at("model")
}

async fn health(State(app): State<App>) -> Response {
    let phase = app.phase.borrow().clone();
    let (status, reason) = match &phase {
        Phase::Ready(_) => return Json(json!({"status": "ok"})).into_response(),
        Phase::Loading => ("loading", "the model is being loaded"),
        Phase::Failed(reason) => ("failed", reason.as_str()),
    };
    let body = Json(json!({"status": status, "reason": reason}));
    (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
}

async fn models(State(app): State<App>) -> Result<Json<Value>> {
    let ready = app.ready()?;
    Ok(Json(json!({"object": "list", "data": [model_json(&app, &ready)]})))
}

async fn model(State(app): State<App>, Path(id): Path<String>) -> Result<Json<Value>> {
    let ready = app.ready()?;
    if id != ready.model_name {
        return Err(unknown_model(&id, &ready));
    }
    Ok(Json(model_json(&app, &ready)))
}

fn model_json(app: &App, ready: &Ready) -> Value {
    json!({
        "id": ready.model_name,
        "object": "model",
        // The model has no date of its own; the start of the server stands for it.
        "created": app.clock.start_unix_ns() / 1_000_000_000,
        "owned_by": "redline",
        "max_model_len": ready.limits.max_seq_len,
    })
}

async fn server_info(State(app): State<App>) -> Result<Json<ServerInfo>> {
    let ready = app.ready()?;
    let mut info = ready.info.clone();
    // On a blocking thread, because hashing large files takes longer than loading them.
    let digest = ready.weights_sha256.clone();
    info.model.weights_sha256 = blocking("hashing", move || digest.wait()).await?.ok();
    Ok(Json(info))
}

async fn metrics(State(app): State<App>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, app.metrics.render()).into_response()
}

async fn reset_prefix_cache(State(app): State<App>) -> Result<Json<Value>> {
    let freed = app.ready()?.handle.reset_prefix_cache().await?;
    Ok(Json(json!({"freed_pages": freed})))
}

async fn not_found(request: Request) -> ApiError {
    let message = format!("there is no route `{}`", request.uri().path());
    ApiError::new(ErrorKind::NotFound, message)
}

async fn method_not_allowed(request: Request) -> ApiError {
    let message = format!("`{}` does not take {}", request.uri().path(), request.method());
    ApiError::new(ErrorKind::MethodNotAllowed, message)
}

async fn tokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>> {
    let ready = app.ready()?;
    let mut fields = Fields::parse(&body)?;
    check_model(&mut fields, &ready)?;
    let tokens = match fields.string("prompt")? {
        Some(text) => {
            let add_special_tokens = fields.bool_or("add_special_tokens", true)?;
            ready.encode(text, add_special_tokens).await?
        }
        None => {
            // The chat template has written the special tokens already.
            let add_special_tokens = fields.bool_or("add_special_tokens", false)?;
            let prompt = ChatPrompt::take(&mut fields, ready.text.reasoning())?;
            let text = prompt.render(&ready, app.clock.unix_s()).await?;
            ready.encode(text, add_special_tokens).await?
        }
    };
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": ready.limits.max_seq_len,
        "tokens": tokens,
    })))
}

async fn detokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>> {
    let ready = app.ready()?;
    let mut fields = Fields::parse(&body)?;
    check_model(&mut fields, &ready)?;
    let tokens = fields.tokens("tokens", ready.vocab_size)?.ok_or_else(|| {
        ApiError::new(ErrorKind::MissingField, "`tokens` is missing").at("tokens")
    })?;
    Ok(Json(json!({"prompt": ready.text.decode(&tokens)})))
}
