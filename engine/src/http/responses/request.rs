//! Requests of the Responses API as chat requests.

use serde_json::{Map, Value, json};

use super::store::Store;
use crate::http::error::{ApiError, ErrorKind, Result, shown};
use crate::http::fields::{Fields, text_of, wrong_type};

/// Request of the Responses API.
pub(super) struct ResponsesRequest {
    /// Fields of the chat request.
    pub(super) chat: Map<String, Value>,
    /// Messages of the conversation, without the instructions of this request.
    pub(super) conversation: Vec<Value>,
    /// Fields that the response repeats.
    pub(super) echoed: Value,
    pub(super) streams: bool,
    /// True if the conversation is kept for later requests.
    pub(super) stores: bool,
}

/// Types of content parts that are text.
const TEXTS: &[&str] = &["input_text", "output_text", "text"];

/// Fields of a request that mean the same in a chat request, by both names.
const SAME: [(&str, &str); 6] = [
    ("max_output_tokens", "max_completion_tokens"),
    ("temperature", "temperature"),
    ("top_p", "top_p"),
    ("seed", "seed"),
    ("parallel_tool_calls", "parallel_tool_calls"),
    ("chat_template_kwargs", "chat_template_kwargs"),
];

/// Reads a request; the conversation that it continues is one of `kept`.
pub(super) fn take(fields: &mut Fields, kept: &Store) -> Result<ResponsesRequest> {
    refuse_unsupported(fields)?;
    let (mut chat, mut echoed) = (Map::new(), Map::new());
    for (name, chat_name) in SAME {
        let value = fields.take(name);
        echoed.insert(name.into(), value.clone().unwrap_or_default());
        if let Some(value) = value {
            chat.insert(chat_name.into(), value);
        }
    }
    let previous = fields.string("previous_response_id")?;
    let mut conversation = match &previous {
        None => Vec::new(),
        Some(id) => kept.messages(id).ok_or_else(|| {
            let message = format!(
                "the response `{}` is not kept; hint: send the whole conversation as `input`",
                shown(id)
            );
            ApiError::new(ErrorKind::NotFound, message).at("previous_response_id")
        })?,
    };
    take_input(fields, kept, &mut conversation)?;
    let instructions = fields.string("instructions")?;
    let system = instructions.iter().map(|text| json!({"role": "system", "content": text}));
    let messages: Vec<Value> = system.chain(conversation.iter().cloned()).collect();
    chat.insert("messages".into(), messages.into());
    let (tools, choice) = take_tools(fields, &mut chat)?;
    let text = take_format(fields, &mut chat)?;
    let reasoning = fields.take("reasoning").unwrap_or_default();
    if let Some(effort) = reasoning.get("effort").filter(|effort| !effort.is_null()) {
        chat.insert("reasoning_effort".into(), effort.clone());
    }
    let stores = fields.bool_or("store", true)?;
    let streams = fields.bool("stream")?;
    echoed.extend([
        ("previous_response_id".into(), previous.into()),
        ("instructions".into(), instructions.into()),
        ("tools".into(), tools),
        ("tool_choice".into(), choice),
        ("text".into(), text),
        ("reasoning".into(), reasoning),
        ("store".into(), stores.into()),
        ("metadata".into(), fields.take("metadata").unwrap_or_else(|| json!({}))),
    ]);
    echoed.entry("parallel_tool_calls").and_modify(|value| {
        if value.is_null() {
            *value = true.into();
        }
    });
    Ok(ResponsesRequest { chat, conversation, echoed: echoed.into(), streams, stores })
}

/// Refuses fields that would change the answer and that the server does not have.
fn refuse_unsupported(fields: &mut Fields) -> Result<()> {
    for name in ["background", "conversation", "prompt", "max_tool_calls"] {
        let value = fields.take(name).filter(|value| *value != Value::Bool(false));
        if value.is_some() {
            let message = format!("`{name}` is not supported");
            return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(name));
        }
    }
    // Other parts of `include` are what answers of this server never have.
    let include = fields.take("include").unwrap_or_default();
    let wants_logprobs = |part: &Value| part == "message.output_text.logprobs";
    if include.as_array().is_some_and(|parts| parts.iter().any(wants_logprobs)) {
        let message = "`include` has `message.output_text.logprobs`, which is not supported; hint: \
                       `/v1/chat/completions` has `logprobs`";
        return Err(ApiError::new(ErrorKind::UnsupportedField, message).at("include"));
    }
    // Without log-probabilities in `include` their number has no effect.
    fields.take("top_logprobs");
    let truncation = fields.string("truncation")?;
    if truncation.is_some_and(|value| value != "disabled") {
        let message = "`truncation` is not supported: a conversation that is too long is refused";
        return Err(ApiError::new(ErrorKind::UnsupportedField, message).at("truncation"));
    }
    Ok(())
}

/// Appends the messages that `input` means. An item may be a reference to one of an earlier answer,
/// whose conversation is `kept`.
fn take_input(fields: &mut Fields, kept: &Store, messages: &mut Vec<Value>) -> Result<()> {
    match fields.take("input") {
        Some(Value::String(text)) => messages.push(json!({"role": "user", "content": text})),
        Some(Value::Array(items)) => {
            for (index, item) in items.iter().enumerate() {
                let name = format!("input.{index}");
                match item["type"].as_str() {
                    Some("item_reference") => {
                        add_item(&name, &referred(&name, item, kept)?, messages)?;
                    }
                    _ => add_item(&name, item, messages)?,
                }
            }
        }
        Some(other) => return Err(wrong_type("input", "a text or a list of items", &other)),
        None => {
            return Err(ApiError::missing("input"));
        }
    }
    if messages.is_empty() {
        return Err(ApiError::field("input", "`input` has no item"));
    }
    Ok(())
}

/// Returns the item of an earlier answer to which an item refers by its id.
fn referred(name: &str, item: &Value, kept: &Store) -> Result<Value> {
    let Some(id) = item["id"].as_str() else {
        return Err(wrong_type(&format!("{name}.id"), "a text", &item["id"]));
    };
    kept.item(id).ok_or_else(|| {
        let message = format!(
            "the item `{}` is not kept; hint: send the item itself, as with `\"store\": false`",
            shown(id)
        );
        ApiError::new(ErrorKind::NotFound, message).at(name)
    })
}

/// Appends what an item of a conversation means: reasoning, text and calls that follow each other are
/// one message of the assistant.
pub(super) fn add_item(name: &str, item: &Value, messages: &mut Vec<Value>) -> Result<()> {
    match item["type"].as_str().unwrap_or("message") {
        "message" => {
            let Some(role) = item["role"].as_str() else {
                return Err(wrong_type(&format!("{name}.role"), "a text", &item["role"]));
            };
            let text = text_of(&format!("{name}.content"), &item["content"], TEXTS)?;
            if role == "assistant" {
                let has_none = |last: &Value| last["content"] == "" && last["tool_calls"].is_null();
                let open = assistant(messages, has_none);
                open["content"] = text.into();
            } else {
                messages.push(json!({"role": role, "content": text}));
            }
        }
        "reasoning" => {
            // Encrypted reasoning of another server has no text.
            let parts = item["content"].as_array().into_iter().flatten();
            let text: String = parts.filter_map(|part| part["text"].as_str()).collect();
            messages.push(json!({"role": "assistant", "content": "", "reasoning_content": text}));
        }
        "function_call" => {
            let call = json!({
                "id": item["call_id"], "type": "function",
                "function": {"name": item["name"], "arguments": item["arguments"]},
            });
            let open = assistant(messages, |_| true);
            match open["tool_calls"].as_array_mut() {
                Some(calls) => calls.push(call),
                None => open["tool_calls"] = json!([call]),
            }
        }
        "function_call_output" => {
            let output = text_of(&format!("{name}.output"), &item["output"], TEXTS)?;
            messages.push(json!({
                "role": "tool", "tool_call_id": item["call_id"], "content": output,
            }));
        }
        other => {
            let message =
                format!("`{name}` is an item of type `{}`, which is not supported", shown(other));
            return Err(ApiError::new(ErrorKind::UnsupportedField, message).at(name));
        }
    }
    Ok(())
}

/// Returns the last message if it is the assistant's and `is_open`, else a new one of the assistant.
fn assistant(messages: &mut Vec<Value>, is_open: impl Fn(&Value) -> bool) -> &mut Value {
    if !messages.last().is_some_and(|last| last["role"] == "assistant" && is_open(last)) {
        messages.push(json!({"role": "assistant", "content": ""}));
    }
    let last = messages.len() - 1;
    &mut messages[last]
}

/// Reads the tools; returns the fields that the response repeats.
fn take_tools(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<(Value, Value)> {
    let tools = fields.take("tools").unwrap_or_else(|| json!([]));
    let Value::Array(listed) = &tools else {
        return Err(wrong_type("tools", "a list of tools", &tools));
    };
    let nested = listed.iter().map(|tool| {
        // Here a function's properties stand beside its `type`.
        let mut function = tool.clone();
        let kind = function.as_object_mut().and_then(|map| map.remove("type"));
        json!({"type": kind.unwrap_or_default(), "function": function})
    });
    let nested: Vec<Value> = nested.collect();
    let choice = fields.take("tool_choice").unwrap_or_else(|| json!("auto"));
    if !nested.is_empty() {
        chat.insert("tools".into(), nested.into());
    }
    let chat_choice = match choice["name"].as_str() {
        Some(name) if choice["type"] == "function" => {
            json!({"type": "function", "function": {"name": name}})
        }
        _ => choice.clone(),
    };
    chat.insert("tool_choice".into(), chat_choice);
    Ok((tools, choice))
}

/// Reads `text`, the format of the answer's text; returns the field that the response repeats.
fn take_format(fields: &mut Fields, chat: &mut Map<String, Value>) -> Result<Value> {
    let text = fields.take("text").unwrap_or_else(|| json!({"format": {"type": "text"}}));
    if let Some(verbosity) = text.get("verbosity").filter(|value| !value.is_null()) {
        chat.insert("verbosity".into(), verbosity.clone());
    }
    let format = &text["format"];
    let chat_format = match format["type"].as_str() {
        None if format.is_null() => return Ok(text),
        Some("json_schema") => json!({"type": "json_schema", "json_schema": format}),
        _ => format.clone(),
    };
    chat.insert("response_format".into(), chat_format);
    Ok(text)
}
