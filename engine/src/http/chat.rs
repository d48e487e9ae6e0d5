//! `POST /v1/chat/completions`.

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::{self, Choice, Piece, Shape, Writing, reason};
use super::error::{ApiError, ErrorKind};
use super::fields::{Fields, wrong_type};
use super::params::{Params, check_choices, take_chat_logprobs};
use super::state::{App, Ready};
use super::tokens::{encode, token_text};
use crate::sample::Candidate;
use crate::text::Message;
use crate::worker::TokenOutput;

pub(super) async fn chat_completions(
    State(app): State<App>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let ready = app.ready_for_work()?;
    let mut fields = Fields::parse(&body)?;
    super::check_model(&mut fields, &ready)?;
    let messages = take_messages(&mut fields)?;
    let add_generation_prompt = fields.take("add_generation_prompt") != Some(Value::Bool(false));
    let names = ["max_completion_tokens", "max_tokens"];
    let params = Params::take(&mut fields, &names, ready.vocab_size)?;
    let logprobs = take_chat_logprobs(&mut fields)?;
    fields.finish()?;
    check_choices(1, params.n)?;
    let text = render(&ready, &messages, add_generation_prompt)?;
    // The template writes the special tokens itself.
    let ids = encode(&ready, text, false).await?;
    let requests = params.requests(&ids, logprobs, None, &ready.limits, || app.unique())?;
    let ticket = ready.handle.submit(requests)?;
    let writing = Writing {
        id: format!("chatcmpl-{:016x}", app.unique()),
        created: app.clock().unix_s(),
        ready,
        answer: params.answer,
        prompts: vec![ids],
        n: params.n,
    };
    answer::respond(Chat, writing, ticket).await
}

/// The conversation as the model reads it.
pub(super) fn render(
    ready: &Ready,
    messages: &[Message],
    add_generation_prompt: bool,
) -> Result<String, ApiError> {
    let rendered = ready.text.render_chat(messages, add_generation_prompt);
    rendered.map_err(|error| ApiError::from(error).at("messages"))
}

/// Messages with their text; parts other than text are refused.
pub(super) fn take_messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let messages = match fields.take("messages") {
        Some(Value::Array(messages)) if !messages.is_empty() => messages,
        Some(other) => return Err(wrong_type("messages", "a list of messages", &other)),
        None => {
            let error = ApiError::new(ErrorKind::MissingField, "`messages` is missing");
            return Err(error.at("messages"));
        }
    };
    messages.into_iter().enumerate().map(|(index, message)| take_message(index, message)).collect()
}

fn take_message(index: usize, message: Value) -> Result<Message, ApiError> {
    let name = |field: &str| format!("messages.{index}.{field}");
    let Value::Object(map) = message else {
        return Err(wrong_type(&format!("messages.{index}"), "an object", &message));
    };
    let mut fields = Fields::of(map);
    let role = match fields.take("role") {
        Some(Value::String(role)) => role,
        other => return Err(wrong_type(&name("role"), "a string", &other.unwrap_or_default())),
    };
    for field in ["tool_calls", "function_call", "audio", "refusal"] {
        if fields.take(field).is_some_and(|value| value != json!([])) {
            let message = format!("`{}` is not supported", name(field));
            return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(&name(field)));
        }
    }
    let content = match fields.take("content") {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => {
            let texts = parts.iter().map(|part| {
                let text = part.get("text").and_then(Value::as_str);
                text.filter(|_| part.get("type").is_some_and(|kind| kind == "text"))
            });
            texts.collect::<Option<String>>().ok_or_else(|| {
                let message = format!("`{}` has parts that are not text", name("content"));
                ApiError::new(ErrorKind::UnsupportedField, message).at(&name("content"))
            })?
        }
        other => {
            let wanted = "a string or a list of text parts";
            return Err(wrong_type(&name("content"), wanted, &other.unwrap_or_default()));
        }
    };
    Ok(Message { role, content })
}

#[derive(Debug)]
struct Chat;

impl Shape for Chat {
    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";

    fn whole(&self, writing: &Writing, choice: &Choice) -> Value {
        let (finish_reason, stop_reason) = reason(choice.finish.as_ref());
        let mut value = json!({
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text},
            "logprobs": logprobs(writing, choice.tokens.iter()),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if writing.answer.return_token_ids {
            let ids: Vec<u32> = choice.tokens.iter().map(|output| output.token).collect();
            value["token_ids"] = ids.into();
        }
        value
    }

    fn chunk(&self, writing: &Writing, piece: &Piece<'_>) -> Value {
        let (finish_reason, stop_reason) = reason(piece.output.finish.as_ref());
        let mut delta = json!({"content": piece.output.text});
        // The role comes with the first token: a chunk of its own would look like a token.
        if piece.first {
            delta["role"] = "assistant".into();
        }
        let mut value = json!({
            "index": piece.index,
            "delta": delta,
            "logprobs": logprobs(writing, piece.output.token.iter()),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if writing.answer.return_token_ids {
            let ids: Vec<u32> = piece.output.token.iter().map(|output| output.token).collect();
            value["token_ids"] = ids.into();
        }
        value
    }

    fn prompt_ids_on_top(&self) -> bool {
        true
    }
}

fn logprobs<'a>(writing: &Writing, outputs: impl Iterator<Item = &'a TokenOutput>) -> Value {
    let entry = |candidate: &Candidate| {
        json!({
            "token": token_text(&writing.ready, candidate.token),
            "logprob": candidate.logprob,
            "bytes": writing.ready.text.token_bytes(candidate.token),
        })
    };
    let mut content = Vec::new();
    for logprobs in outputs.filter_map(|output| output.logprobs.as_ref()) {
        let mut value = entry(&logprobs.chosen);
        value["top_logprobs"] = logprobs.top.iter().map(entry).collect();
        content.push(value);
    }
    if content.is_empty() { Value::Null } else { json!({"content": content}) }
}
