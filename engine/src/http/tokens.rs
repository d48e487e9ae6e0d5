//! `POST /tokenize` and `POST /detokenize`, and the way from text to ids for all routes.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

use super::chat::{render, take_messages};
use super::error::{ApiError, ErrorKind};
use super::fields::{Fields, wrong_type};
use super::state::{App, Ready};

/// Longer texts are tokenized beside the event loop, which would stand still for milliseconds.
const INLINE_BYTES_MAX: usize = 8 * 1024;

pub(super) async fn encode(
    ready: &Arc<Ready>,
    text: String,
    add_special_tokens: bool,
) -> Result<Vec<u32>, ApiError> {
    // No token is longer than a few hundred bytes; a text far beyond the context is refused by
    // its length in tokens, which is cheap to find out.
    if text.len() <= INLINE_BYTES_MAX {
        return Ok(ready.text.encode(&text, add_special_tokens)?);
    }
    let shared = Arc::clone(&ready.text);
    let encoded = tokio::task::spawn_blocking(move || shared.encode(&text, add_special_tokens));
    match encoded.await {
        Ok(ids) => Ok(ids?),
        Err(panicked) => Err(ApiError {
            source: Some(Box::new(panicked)),
            ..ApiError::new(ErrorKind::EngineFailed, "the tokenizer failed")
        }),
    }
}

/// A token as it is shown in log-probabilities; bytes that are no text become U+FFFD.
pub(super) fn token_text(ready: &Ready, token: u32) -> String {
    String::from_utf8_lossy(&ready.text.token_bytes(token)).into_owned()
}

pub(super) async fn tokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let mut fields = Fields::parse(&body)?;
    super::check_model(&mut fields, &ready)?;
    let flag = |value: Option<Value>, default| value.map_or(Some(default), |v| v.as_bool());
    let special = fields.take("add_special_tokens");
    let generation = fields.take("add_generation_prompt");
    let not_bool = |name: &str| ApiError::field(name, format!("`{name}` must be true or false"));
    let tokens = if let Some(prompt) = fields.take("prompt") {
        let Value::String(text) = prompt else {
            return Err(wrong_type("prompt", "a string", &prompt));
        };
        let special = flag(special, true).ok_or_else(|| not_bool("add_special_tokens"))?;
        encode(&ready, text, special).await?
    } else {
        let messages = take_messages(&mut fields)?;
        let special = flag(special, false).ok_or_else(|| not_bool("add_special_tokens"))?;
        let generation = flag(generation, true);
        let generation = generation.ok_or_else(|| not_bool("add_generation_prompt"))?;
        encode(&ready, render(&ready, &messages, generation)?, special).await?
    };
    Ok(Json(json!({
        "count": tokens.len(),
        "max_model_len": ready.limits.max_seq_len,
        "tokens": tokens,
    })))
}

pub(super) async fn detokenize(
    State(app): State<App>,
    body: Bytes,
) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let mut fields = Fields::parse(&body)?;
    super::check_model(&mut fields, &ready)?;
    let tokens = fields.tokens("tokens", ready.vocab_size)?.ok_or_else(|| {
        ApiError::new(ErrorKind::MissingField, "`tokens` is missing").at("tokens")
    })?;
    Ok(Json(json!({"prompt": ready.text.decode(&tokens)})))
}
