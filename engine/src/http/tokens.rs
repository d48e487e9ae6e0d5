//! `POST /tokenize` and `POST /detokenize`, and the way from text to ids for all routes.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use serde_json::{Value, json};

use super::beside::beside;
use super::chat::ChatPrompt;
use super::error::{ApiError, ErrorKind};
use super::fields::Fields;
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
    let encoded = beside("the tokenizer", move || shared.encode(&text, add_special_tokens));
    Ok(encoded.await??)
}

/// A token as it is shown in log-probabilities; bytes that are no text become U+FFFD.
pub(super) fn token_text(ready: &Ready, token: u32) -> String {
    String::from_utf8_lossy(&ready.text.token_bytes(token)).into_owned()
}

pub(super) async fn tokenize(State(app): State<App>, body: Bytes) -> Result<Json<Value>, ApiError> {
    let ready = app.ready()?;
    let mut fields = Fields::parse(&body)?;
    super::check_model(&mut fields, &ready)?;
    let tokens = match fields.string("prompt")? {
        Some(text) => {
            let add_special_tokens = fields.bool_or("add_special_tokens", true)?;
            encode(&ready, text, add_special_tokens).await?
        }
        None => {
            // The template writes the special tokens itself.
            let add_special_tokens = fields.bool_or("add_special_tokens", false)?;
            let prompt = ChatPrompt::take(&mut fields, ready.text.reasoning())?;
            let text = prompt.render(&ready, app.clock().unix_s()).await?;
            encode(&ready, text, add_special_tokens).await?
        }
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
