//! Route `POST /v1/messages`, in the format of Anthropic's Messages API: the request becomes that of a
//! chat, and the answer a list of content blocks.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::chat::ChatRequest;
use super::error::{ApiError, ErrorKind, Result};
use super::fields::{Fields, text_of, unsupported_part, wrong_type};
use super::state::App;
use super::turn::{self, Block, Format, Kind, Usage};
use crate::worker::Finish;

pub(super) async fn messages(State(app): State<App>, body: Bytes) -> Response {
    reported(answer(&app, body).await)
}

/// Returns an answer, or its error as clients of this API read it.
fn reported(answer: Result<Response>) -> Response {
    answer.unwrap_or_else(|error| {
        let body = failure(&error);
        error.with_body(body)
    })
}

/// Answers with the number of tokens of a request's prompt.
pub(super) async fn count_tokens(State(app): State<App>, body: Bytes) -> Response {
    reported(count(&app, body).await)
}

async fn count(app: &App, body: Bytes) -> Result<Response> {
    let ready = app.ready()?;
    let mut fields = Fields::read(body).await?;
    super::check_model(&mut fields, &ready)?;
    fields.check_texts()?;
    let mut chat = chat_of(&mut fields)?;
    // An answer's limit, which here is none, does not change the prompt.
    chat.remove("max_tokens");
    let request = ChatRequest::take(Fields::of(chat), ready.text.reasoning(), ready.vocab_size)?;
    let tokens = request.prompt_tokens(app, &ready).await?;
    Ok(Json(json!({"input_tokens": tokens})).into_response())
}

async fn answer(app: &App, body: Bytes) -> Result<Response> {
    let ready = app.ready_to_generate()?;
    let mut fields = Fields::read(body).await?;
    super::check_model(&mut fields, &ready)?;
    fields.check_texts()?;
    let streams = fields.bool("stream")?;
    let chat = chat_of(&mut fields)?;
    if !chat.contains_key("max_tokens") {
        return Err(ApiError::missing("max_tokens"));
    }
    let request = ChatRequest::take(Fields::of(chat), ready.text.reasoning(), ready.vocab_size)?;
    let begun = request.begin(app, &ready).await?;
    let unique = app.unique();
    let message = Message { unique, model: ready.model_name.clone() };
    turn::respond(message, ready, begun, streams).await
}

/// Returns an error as clients of this API read it.
fn failure(error: &ApiError) -> Value {
    let kind = match error.kind {
        ErrorKind::InvalidApiKey => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::ModelNotFound | ErrorKind::NotFound => "not_found_error",
        ErrorKind::BodyTooLarge => "request_too_large",
        ErrorKind::TooManyRequests => "rate_limit_error",
        ErrorKind::Overloaded | ErrorKind::Loading | ErrorKind::Draining => "overloaded_error",
        ErrorKind::EngineFailed => "api_error",
        _ => "invalid_request_error",
    };
    json!({"type": "error", "error": {"type": kind, "message": error.message}})
}

/// Types of content blocks that are text.
const TEXTS: &[&str] = &["text"];

/// Fields of a request that mean the same in a chat request, by both names.
const SAME: [(&str, &str); 6] = [
    ("max_tokens", "max_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("top_k", "top_k"),
    ("stop_sequences", "stop"),
    ("chat_template_kwargs", "chat_template_kwargs"),
];

/// Turns the fields of a request into those of a chat request.
fn chat_of(fields: &mut Fields) -> Result<Map<String, Value>> {
    let mut chat = Map::new();
    for (name, chat_name) in SAME {
        if let Some(value) = fields.take(name) {
            chat.insert(chat_name.into(), value);
        }
    }
    let mut messages = Vec::new();
    if let Some(system) = fields.take("system") {
        messages.push(json!({"role": "system", "content": text_of("system", &system, TEXTS)?}));
    }
    match fields.take("messages") {
        Some(Value::Array(given)) => {
            for (index, message) in given.iter().enumerate() {
                read_message(&format!("messages.{index}"), message, &mut messages)?;
            }
            if given.is_empty() {
                return Err(ApiError::field("messages", "`messages` has no message"));
            }
        }
        Some(other) => return Err(wrong_type("messages", "a list of messages", &other)),
        None => return Err(ApiError::missing("messages")),
    }
    if messages.last().is_some_and(|last| last["role"] == "assistant") {
        let message = "the last of `messages` is the assistant's: an answer whose beginning is given \
                       is not supported";
        return Err(ApiError::new(ErrorKind::UnsupportedField, message).at("messages"));
    }
    chat.insert("messages".into(), messages.into());
    take_tools(fields, &mut chat)?;
    take_thinking(fields, &mut chat)?;
    take_format(fields, &mut chat)?;
    Ok(chat)
}

/// Appends the chat messages that a message of a request means: results of tools are messages of their
/// own.
fn read_message(name: &str, message: &Value, messages: &mut Vec<Value>) -> Result<()> {
    let role = match message["role"].as_str() {
        Some(role @ ("user" | "assistant" | "system")) => role,
        _ => {
            let message = format!("`{name}.role` must be `user` or `assistant`");
            return Err(ApiError::field(&format!("{name}.role"), message));
        }
    };
    let name = format!("{name}.content");
    let Some(blocks) = message["content"].as_array() else {
        let text = text_of(&name, &message["content"], TEXTS)?;
        messages.push(json!({"role": role, "content": text}));
        return Ok(());
    };
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for block in blocks {
        match block["type"].as_str().unwrap_or_default() {
            "text" => text += block["text"].as_str().unwrap_or_default(),
            "thinking" if role == "assistant" => {
                reasoning += block["thinking"].as_str().unwrap_or_default();
            }
            "tool_use" if role == "assistant" => calls.push(json!({
                "id": block["id"], "type": "function",
                "function": {"name": block["name"], "arguments": block["input"].to_string()},
            })),
            "tool_result" if role == "user" => {
                let content = match &block["content"] {
                    Value::Null => String::new(),
                    content => text_of(&name, content, TEXTS)?,
                };
                let id = &block["tool_use_id"];
                messages.push(json!({"role": "tool", "tool_call_id": id, "content": content}));
            }
            _ => return Err(unsupported_part(&name, &block["type"])),
        }
    }
    // A message that only has results of tools is no message of the user.
    if text.is_empty() && role == "user" && !blocks.is_empty() {
        return Ok(());
    }
    let mut written = json!({"role": role, "content": text});
    if !reasoning.is_empty() {
        written["reasoning_content"] = reasoning.into();
    }
    if !calls.is_empty() {
        written["tool_calls"] = calls.into();
    }
    messages.push(written);
    Ok(())
}

fn take_tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<()> {
    if let Some(tools) = fields.take("tools") {
        let Value::Array(tools) = tools else {
            return Err(wrong_type("tools", "a list of tools", &tools));
        };
        let tools = tools.iter().enumerate().map(|(index, tool)| {
            if tool["type"].as_str().is_some_and(|kind| kind != "custom") {
                return Err(unsupported_part(&format!("tools.{index}"), &tool["type"]));
            }
            let mut function = json!({"name": tool["name"], "parameters": tool["input_schema"]});
            if let Some(text) = tool.get("description") {
                function["description"] = text.clone();
            }
            Ok(json!({"type": "function", "function": function}))
        });
        chat.insert("tools".into(), tools.collect::<Result<Vec<_>>>()?.into());
    }
    let Some(choice) = fields.take("tool_choice") else { return Ok(()) };
    let value = match choice["type"].as_str() {
        Some("auto") => json!("auto"),
        Some("any") => json!("required"),
        Some("none") => json!("none"),
        Some("tool") => json!({"type": "function", "function": {"name": choice["name"]}}),
        _ => return Err(wrong_type("tool_choice", "an object with a known `type`", &choice)),
    };
    chat.insert("tool_choice".into(), value);
    if choice["disable_parallel_tool_use"] == true {
        chat.insert("parallel_tool_calls".into(), false.into());
    }
    Ok(())
}

/// Reads `thinking`, which the chat templates of models that can be told so know as `enable_thinking`.
fn take_thinking(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<()> {
    let Some(thinking) = fields.take("thinking") else { return Ok(()) };
    let is_enabled = match thinking["type"].as_str() {
        Some("enabled" | "adaptive") => true,
        Some("disabled") => false,
        _ => return Err(wrong_type("thinking", "an object with a known `type`", &thinking)),
    };
    let variables = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
    if let Value::Object(variables) = variables {
        variables.entry("enable_thinking").or_insert(is_enabled.into());
    }
    Ok(())
}

/// Reads `output_config`, whose `format` is a schema that the answer must conform to.
fn take_format(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<()> {
    let Some(config) = fields.take("output_config") else { return Ok(()) };
    let Value::Object(mut config) = config else {
        return Err(wrong_type("output_config", "an object", &config));
    };
    let format = config.remove("format").filter(|format| !format.is_null());
    if let Some((other, _)) = config.iter().find(|(_, value)| !value.is_null()) {
        let name = format!("output_config.{other}");
        let message = format!("`{name}` is not supported");
        return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(&name));
    }
    let Some(mut format) = format else { return Ok(()) };
    if format["type"] != "json_schema" {
        return Err(unsupported_part("output_config.format", &format["type"]));
    }
    let schema = json!({"name": "output", "schema": format["schema"].take()});
    chat.insert("response_format".into(), json!({"type": "json_schema", "json_schema": schema}));
    Ok(())
}

/// Answer in the format of this API.
struct Message {
    /// Number from which the ids of the message and its calls are made.
    unique: u64,
    model: String,
}

impl Message {
    fn envelope(&self, content: Value, usage: Usage) -> Value {
        json!({
            "id": format!("msg_{:016x}", self.unique), "type": "message", "role": "assistant", "model": self.model,
            "content": content, "stop_reason": null, "stop_sequence": null,
            "usage": used(usage),
        })
    }

    /// Returns a content block as it is at the end.
    fn block(&self, index: usize, block: &Block) -> Value {
        match &block.kind {
            Kind::Reasoning => json!({"type": "thinking", "thinking": block.text, "signature": ""}),
            Kind::Text => json!({"type": "text", "text": block.text}),
            Kind::Call { name } => {
                // Arguments that were cut off are no JSON; clients get an object in any case.
                let input =
                    serde_json::from_str::<Value>(&block.text).unwrap_or_else(|_| json!({}));
                json!({
                    "type": "tool_use", "id": format!("toolu_{:016x}_{index}", self.unique),
                    "name": name, "input": input,
                })
            }
        }
    }
}

fn used(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt.saturating_sub(usage.cached), "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached, "output_tokens": usage.output,
    })
}

/// Returns the reason for the end of an answer, and the stop string if that ended it.
fn stop(blocks: &[Block], finish: &Finish) -> (&'static str, Value) {
    let has_calls = blocks.iter().any(|block| matches!(block.kind, Kind::Call { .. }));
    match finish {
        Finish::Length => ("max_tokens", Value::Null),
        Finish::StopString(text) => ("stop_sequence", text.as_str().into()),
        _ if has_calls => ("tool_use", Value::Null),
        _ => ("end_turn", Value::Null),
    }
}

impl Format for Message {
    fn begin(&mut self, usage: Usage) -> Vec<Value> {
        vec![json!({"type": "message_start", "message": self.envelope(json!([]), usage)})]
    }

    fn open(&mut self, index: usize, block: &Block) -> Vec<Value> {
        let block = self.block(index, block);
        vec![json!({"type": "content_block_start", "index": index, "content_block": block})]
    }

    fn add(&mut self, index: usize, block: &Block, text: &str) -> Value {
        let delta = match block.kind {
            Kind::Reasoning => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Text => json!({"type": "text_delta", "text": text}),
            Kind::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
        };
        json!({"type": "content_block_delta", "index": index, "delta": delta})
    }

    fn close(&mut self, index: usize, _: &Block) -> Vec<Value> {
        vec![json!({"type": "content_block_stop", "index": index})]
    }

    fn end(&mut self, blocks: &[Block], finish: &Finish, usage: Usage) -> Vec<Value> {
        let (reason, sequence) = stop(blocks, finish);
        let delta = json!({"stop_reason": reason, "stop_sequence": sequence});
        vec![
            json!({"type": "message_delta", "delta": delta, "usage": used(usage)}),
            json!({"type": "message_stop"}),
        ]
    }

    fn fail(&mut self, error: &ApiError) -> Value {
        failure(error)
    }

    fn whole(&mut self, blocks: &[Block], finish: &Finish, usage: Usage) -> Value {
        let content = blocks.iter().enumerate().map(|(index, block)| self.block(index, block));
        let mut message = self.envelope(content.collect(), usage);
        let (reason, sequence) = stop(blocks, finish);
        (message["stop_reason"], message["stop_sequence"]) = (reason.into(), sequence);
        message
    }
}
