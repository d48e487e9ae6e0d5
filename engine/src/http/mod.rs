//! The HTTP front end: routes, API formats and errors. No other module may know HTTP.

mod accept;
mod access;
mod answer;
mod body;
mod chat;
mod completions;
mod connections;
mod embeddings;
mod error;
mod fields;
mod json;
mod local;
mod logprobs;
mod messages;
mod open_request;
mod origins;
mod params;
mod responses;
mod socket;
mod state;
mod structure;
mod tools;
mod turn;
mod whole;
mod work;

pub use access::{Access, Key, Names};
pub use chat::check_chat;
pub use completions::check_completion;
pub use connections::ConnectionLimits;
pub use error::{ApiError, ErrorKind};
pub use local::{LocalAnswer, LocalChat};
pub use origins::Origins;
pub use state::{App, KvFacts, ModelFacts, Phase, Ready, ServerInfo};

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{Method, StatusCode, Version, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use chat::ChatPrompt;
use connections::Connection;
use error::{Result, shown};
use fields::Fields;
use open_request::OpenRequest;
use tokio::sync::OwnedSemaphorePermit;
use work::blocking;

use crate::tokenize::TokenizerInfo;

/// Serves HTTP on `listener` until the future `closed` completes, then until the answers in
/// progress have ended. Dropping the returned future ends all connections.
pub async fn serve(
    listener: TcpListener,
    app: App,
    limits: ConnectionLimits,
    closed: impl Future<Output = ()>,
) {
    accept::serve(listener, router(app, limits.body), &limits, closed).await;
}

/// Builds the router with all HTTP routes of one engine. A request's body has the time
/// `body_patience` to arrive.
fn router(app: App, body_patience: Duration) -> Router {
    let cors = app.origins.layer();
    let router = Router::new()
        .merge(openai("/v1"))
        // Some clients are given the server's address without `/v1`.
        .merge(openai(""))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/tokenizer_info", get(tokenizer_info))
        .route("/health", get(health))
        .route("/health/live", get(live))
        .route("/health/ready", get(takes_requests))
        .route("/server_info", get(server_info))
        .route("/metrics", get(metrics))
        .route("/reset_prefix_cache", post(reset_prefix_cache))
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(from_fn_with_state((app.clone(), body_patience), guard))
        // `guard` limits bodies.
        .layer(DefaultBodyLimit::disable())
        .with_state(app);
    match cors {
        // Outermost, because a browser asks without the API key.
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// Builds the router with the routes that OpenAI has, and Anthropic's, below `prefix`.
fn openai(prefix: &str) -> Router<App> {
    Router::new()
        .route(&format!("{prefix}/completions"), post(completions::completions))
        .route(&format!("{prefix}/chat/completions"), post(chat::chat_completions))
        .route(&format!("{prefix}/embeddings"), post(embeddings::embeddings))
        .route(&format!("{prefix}/responses"), post(responses::responses))
        .route(&format!("{prefix}/messages"), post(messages::messages))
        .route(&format!("{prefix}/messages/count_tokens"), post(messages::count_tokens))
        .route(&format!("{prefix}/models"), get(models))
        // A wildcard, because hub ids contain a slash.
        .route(&format!("{prefix}/models/{{*id}}"), get(model))
}

/// Middleware that checks whether a request may reach its route, reads its body, and counts refused
/// requests of the routes for which the model computes.
async fn guard(
    State((app, body_patience)): State<(App, Duration)>,
    request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let path = path.strip_prefix("/v1").unwrap_or(path);
    let computing = ["/completions", "/chat/completions", "/embeddings", "/responses", "/messages"];
    let computes = computing.contains(&path);
    let mut open = OpenRequest::new(request.method().as_str(), request.uri().path(), app.clock);
    let response = match admit(&app, request, computes, body_patience).await {
        Ok((request, place)) => {
            open.take(place);
            next.run(request).await
        }
        Err(error) => error.into_response(),
    };
    let kind = response.extensions().get::<ErrorKind>().copied();
    if let (true, Some(outcome)) = (computes, kind.and_then(ErrorKind::outcome)) {
        app.metrics.count_request(outcome);
    }
    open.answered_by(response)
}

/// Returns true for the path of a health check.
fn is_health(path: &str) -> bool {
    matches!(path, "/health" | "/health/live" | "/health/ready")
}

/// Checks whether `request` may reach its route, and reads its body, as far as routes want one. A
/// request for which the model `computes` also gets a place among those of its API key, if their number is limited.
async fn admit(
    app: &App,
    request: Request,
    computes: bool,
    body_patience: Duration,
) -> Result<(Request, Option<OwnedSemaphorePermit>)> {
    let connection = request.extensions().get::<Arc<Connection>>().cloned();
    // Health checks, as of a load balancer, have no key and may name the server by any name.
    let is_health = is_health(request.uri().path());
    let is_spare = connection.as_ref().is_some_and(|connection| connection.is_spare());
    let mut place = None;
    if !is_health {
        match check(app, &request, is_spare, computes) {
            Ok(taken) => place = taken,
            Err(error) => {
                body::discard(request);
                return Err(error);
            }
        }
    }
    let takes_body = request.method() == Method::POST && !is_health;
    let is_whole = takes_body || request.body().is_end_stream();
    let request = match takes_body {
        true => body::read(request, body_patience).await?,
        false => body::without_body(request),
    };
    // A client of HTTP/1.0 cannot be asked whether it still waits for the answer.
    if let Some(connection) = connection
        && request.version() == Version::HTTP_11
        && is_whole
    {
        connection.await_answer();
    }
    Ok((request, place))
}

/// Checks whether the head of `request` may reach its route on a connection which, if `is_spare`,
/// is kept for health checks. Returns the place of a request for which the model `computes` among
/// those of its API key, if their number is limited.
fn check(
    app: &App,
    request: &Request,
    is_spare: bool,
    computes: bool,
) -> Result<Option<OwnedSemaphorePermit>> {
    if is_spare {
        let message = "all connections of this server are in use; hint: try again later";
        return Err(ApiError::new(ErrorKind::TooManyConnections, message));
    }
    let key = app.access.check(request, &app.origins)?;
    let has_body = !request.body().is_end_stream();
    if request.method() == Method::POST && has_body && !access::is_json(request.headers()) {
        let message = "the body must be declared as JSON; hint: `Content-Type: application/json`";
        return Err(ApiError::new(ErrorKind::UnsupportedMediaType, message));
    }
    if has_body && access::is_encoded(request.headers()) {
        let message = "the body is encoded; hint: send it without `Content-Encoding`";
        return Err(ApiError::new(ErrorKind::UnsupportedMediaType, message));
    }
    key.filter(|_| computes).map_or(Ok(None), Key::place)
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
    let (name, served) = (shown(name), &ready.model_name);
    let message = format!("the model `{name}` is not served here; hint: `{served}` is");
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

/// Answers whether the process does its work: it fails only once the engine has failed for good, so
/// that a process that still loads its model, or ends its last answers, is not restarted.
async fn live(State(app): State<App>) -> Response {
    let is_failed = matches!(&*app.phase.borrow(), Phase::Failed(_));
    if is_failed { health(State(app)).await } else { Json(json!({"status": "ok"})).into_response() }
}

/// Answers whether new requests are taken now: not while the model loads, nor while the server drains.
async fn takes_requests(State(app): State<App>) -> Response {
    match app.ready_for_work() {
        Err(error) if error.kind == ErrorKind::Draining => {
            let body = Json(json!({"status": "draining", "reason": error.message}));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
        _ => health(State(app)).await,
    }
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
        // Anthropic's clients read it.
        "type": "model",
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
    let message = format!("there is no route `{}`", shown(request.uri().path()));
    ApiError::new(ErrorKind::NotFound, message)
}

async fn method_not_allowed(request: Request) -> ApiError {
    let (path, method) = (shown(request.uri().path()), shown(request.method().as_str()));
    let message = format!("`{path}` does not take {method}");
    ApiError::new(ErrorKind::MethodNotAllowed, message)
}

async fn tokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>> {
    let ready = app.ready()?;
    let mut fields = Fields::read(body).await?;
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
    let mut fields = Fields::read(body).await?;
    check_model(&mut fields, &ready)?;
    let longest = ready.limits.max_seq_len;
    let tokens = fields.tokens("tokens", ready.vocab_size, longest)?;
    let tokens = tokens.ok_or_else(|| ApiError::missing("tokens"))?;
    Ok(Json(json!({"prompt": ready.text.decode(&tokens)})))
}

/// Answers with what clients need that render conversations and count tokens themselves, such as
/// lm-eval, in the format of vLLM's route of this name.
async fn tokenizer_info(State(app): State<App>) -> Result<Json<TokenizerInfo>> {
    let info = app.ready()?.text.info();
    let message = "the model has no tokenizer";
    info.map(Json).ok_or_else(|| ApiError::new(ErrorKind::NotFound, message))
}
