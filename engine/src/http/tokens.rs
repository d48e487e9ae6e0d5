//! Routes `POST /tokenize` and `POST /detokenize`, and tokenization for all routes.

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

/// Longest text in bytes that is tokenized on the event loop. A longer one would block it for
/// milliseconds and goes to a blocking thread.
const INLINE_BYTES_MAX: usize = 8 * 1024;

/// Token ids of `text`; with `add_special_tokens` those that the model expects around it as well.
pub(super) async fn encode(
    ready: &Arc<Ready>,
    text: String,
    add_special_tokens: bool,
) -> Result<Vec<u32>, ApiError> {
    // No length limit here: a text far beyond the model's context is refused by its number of
    // tokens, which is cheap to find out.
    if text.len() <= INLINE_BYTES_MAX {
        return Ok(ready.text.encode(&text, add_special_tokens)?);
    }
    let shared = Arc::clone(&ready.text);
    let encoded = beside("the tokenizer", move || shared.encode(&text, add_special_tokens));
    Ok(encoded.await??)
}

/// Text of a token in log-probabilities; bytes that are not UTF-8 become U+FFFD.
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
            // The chat template has written the special tokens already.
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
