//! Route `POST /v1/responses`, in the format of OpenAI's Responses API: the request becomes that of a
//! chat, and the answer a list of items. Conversations are kept in memory, so that a later request can
//! continue them by `previous_response_id`.

mod request;
mod store;

pub(super) use store::Store;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::chat::ChatRequest;
use super::error::{ApiError, Result};
use super::fields::Fields;
use super::state::App;
use super::turn::{self, Block, Format, Kind, Usage};
use crate::worker::Finish;
use request::ResponsesRequest;
use store::Conversation;

pub(super) async fn responses(State(app): State<App>, body: Bytes) -> Result<Response> {
    let ready = app.ready_to_generate()?;
    let mut fields = Fields::read(body).await?;
    super::check_model(&mut fields, &ready)?;
    fields.check_texts()?;
    let ResponsesRequest { chat, conversation, echoed, streams, stores } =
        request::take(&mut fields, &app.conversations).map_err(renamed)?;
    let request = ChatRequest::take(Fields::of(chat), ready.text.reasoning(), ready.vocab_size);
    let begun = request.map_err(renamed)?.begin(&app, &ready).await.map_err(renamed)?;
    let unique = app.conversations.unguessable(app.unique());
    let answer = Answer {
        unique,
        model: ready.model_name.clone(),
        created: app.clock.unix_s(),
        echoed,
        conversation: stores.then_some(conversation),
        store: Arc::clone(&app.conversations),
        events: 0,
    };
    turn::respond(answer, ready, begun, streams).await
}

/// Fields of a chat request that an error may name, and their names in this API.
const NAMES: [(&str, &str); 7] = [
    ("max_tokens", "max_output_tokens"),
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("prompt", "input"),
    ("reasoning_effort", "reasoning.effort"),
    ("response_format", "text.format"),
    ("response_format.json_schema.schema", "text.format.schema"),
];

/// Names the field of an error as this API does, also in its message.
fn renamed(mut error: ApiError) -> ApiError {
    let Some(param) = error.param.take() else { return error };
    let (old, new) = match NAMES.iter().find(|(old, _)| *old == param) {
        Some((old, new)) => ((*old).to_owned(), (*new).to_owned()),
        None => {
            // The properties of a tool's function stand beside its `type` here.
            let tool = param.split(".function").next().unwrap_or_default();
            (format!("{tool}.function"), tool.to_owned())
        }
    };
    error.message = error.message.replace(&format!("`{old}"), &format!("`{new}"));
    error.param = Some(param.replacen(&old, &new, 1));
    error
}

/// Answer in the format of this API.
struct Answer {
    /// Text from which the ids of the response and its items are made.
    unique: String,
    model: String,
    created: u64,
    /// Fields of the request that the response repeats.
    echoed: Value,
    /// Messages of the conversation up to the answer; `None` if it is not stored.
    conversation: Option<Vec<Value>>,
    store: Arc<Store>,
    /// Number of events so far.
    events: u64,
}

impl Answer {
    fn id(&self) -> String {
        format!("resp_{}", self.unique)
    }

    fn event(&mut self, kind: &str, mut event: Value) -> Value {
        event["type"] = kind.into();
        event["sequence_number"] = self.events.into();
        self.events += 1;
        event
    }

    /// Returns the response with this status and output.
    fn response(&self, status: &str, output: Value, usage: Value) -> Value {
        let mut response = self.echoed.clone();
        let facts = json!({
            "id": self.id(), "object": "response", "created_at": self.created, "status": status,
            "model": self.model, "output": output, "usage": usage, "error": null,
            "incomplete_details": null,
        });
        if let (Value::Object(response), Value::Object(facts)) = (&mut response, facts) {
            response.extend(facts);
        }
        response
    }

    fn item_id(&self, index: usize, block: &Block) -> String {
        let prefix = match block.kind {
            Kind::Reasoning => "rs",
            Kind::Text => "msg",
            Kind::Call { .. } => "fc",
        };
        format!("{prefix}_{}_{index}", self.unique)
    }

    /// Returns an output item with this status.
    fn item(&self, index: usize, block: &Block, status: &str) -> Value {
        let id = self.item_id(index, block);
        // An item that has just begun has no part yet.
        let content = if block.text.is_empty() { json!([]) } else { json!([part(block)]) };
        match &block.kind {
            Kind::Reasoning => json!({
                "id": id, "type": "reasoning", "summary": [], "content": content, "status": status,
            }),
            Kind::Text => json!({
                "id": id, "type": "message", "role": "assistant", "content": content,
                "status": status,
            }),
            Kind::Call { name } => json!({
                "id": id, "type": "function_call", "call_id": self.call_id(index), "name": name,
                "arguments": block.text, "status": status,
            }),
        }
    }

    fn call_id(&self, index: usize) -> String {
        // Templates of Mistral's models take only ids of nine letters and digits.
        format!("{:0>6}{index:03}", &self.unique[self.unique.len() - 6..])
    }

    /// Returns the whole response at the end of the answer, and stores the conversation.
    fn ended(&mut self, blocks: &[Block], finish: &Finish, usage: Usage) -> Value {
        let is_cut = matches!(finish, Finish::Length);
        let last = blocks.len().saturating_sub(1);
        let output = blocks.iter().enumerate().map(|(index, block)| {
            let status = if is_cut && index == last { "incomplete" } else { "completed" };
            self.item(index, block, status)
        });
        let output = output.collect();
        let used = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.prompt + usage.output,
        });
        let status = if is_cut { "incomplete" } else { "completed" };
        let mut response = self.response(status, output, used);
        if is_cut {
            response["incomplete_details"] = json!({"reason": "max_output_tokens"});
        }
        if let Some(mut messages) = self.conversation.take() {
            let items = blocks.iter().enumerate();
            let items = items.map(|(index, block)| self.item(index, block, "completed"));
            let items: Vec<Value> = items.collect();
            for item in &items {
                // The server's own items are well formed.
                let _ = request::add_item("output", item, &mut messages);
            }
            self.store.keep(self.id(), &Conversation { messages, items });
        }
        response
    }
}

/// Returns the content part of a block with text.
fn part(block: &Block) -> Value {
    match block.kind {
        Kind::Reasoning => json!({"type": "reasoning_text", "text": block.text}),
        _ => json!({
            "type": "output_text", "text": block.text, "annotations": [], "logprobs": [],
        }),
    }
}

impl Format for Answer {
    fn begin(&mut self, _: Usage) -> Vec<Value> {
        let response = self.response("in_progress", json!([]), Value::Null);
        ["response.created", "response.in_progress"]
            .map(|kind| self.event(kind, json!({"response": response})))
            .into()
    }

    fn open(&mut self, index: usize, block: &Block) -> Vec<Value> {
        let item = self.item(index, block, "in_progress");
        let added = json!({"output_index": index, "item": item});
        let mut events = vec![self.event("response.output_item.added", added)];
        if !matches!(block.kind, Kind::Call { .. }) {
            let id = self.item_id(index, block);
            let part = json!({
                "item_id": id, "output_index": index, "content_index": 0, "part": part(block),
            });
            events.push(self.event("response.content_part.added", part));
        }
        events
    }

    fn add(&mut self, index: usize, block: &Block, text: &str) -> Value {
        let mut delta = json!({
            "item_id": self.item_id(index, block), "output_index": index, "delta": text,
        });
        let kind = match block.kind {
            Kind::Call { .. } => "response.function_call_arguments.delta",
            Kind::Reasoning => {
                delta["content_index"] = 0.into();
                "response.reasoning_text.delta"
            }
            Kind::Text => {
                delta["content_index"] = 0.into();
                delta["logprobs"] = json!([]);
                "response.output_text.delta"
            }
        };
        self.event(kind, delta)
    }

    fn close(&mut self, index: usize, block: &Block) -> Vec<Value> {
        let mut done = json!({"item_id": self.item_id(index, block), "output_index": index});
        let mut events = Vec::new();
        match &block.kind {
            Kind::Call { name } => {
                done["arguments"] = block.text.as_str().into();
                done["name"] = name.as_str().into();
                events.push(self.event("response.function_call_arguments.done", done));
            }
            kind => {
                done["content_index"] = 0.into();
                let mut text = done.clone();
                text["text"] = block.text.as_str().into();
                if *kind == Kind::Reasoning {
                    events.push(self.event("response.reasoning_text.done", text));
                } else {
                    text["logprobs"] = json!([]);
                    events.push(self.event("response.output_text.done", text));
                }
                done["part"] = part(block);
                events.push(self.event("response.content_part.done", done));
            }
        }
        let item = self.item(index, block, "completed");
        let done = json!({"output_index": index, "item": item});
        events.push(self.event("response.output_item.done", done));
        events
    }

    fn end(&mut self, blocks: &[Block], finish: &Finish, usage: Usage) -> Vec<Value> {
        let response = self.ended(blocks, finish, usage);
        let kind = format!("response.{}", response["status"].as_str().unwrap_or("completed"));
        vec![self.event(&kind, json!({"response": response}))]
    }

    fn fail(&mut self, error: &ApiError) -> Value {
        let mut response = self.response("failed", json!([]), Value::Null);
        response["error"] = json!({"code": "server_error", "message": error.message});
        self.event("response.failed", json!({"response": response}))
    }

    fn whole(&mut self, blocks: &[Block], finish: &Finish, usage: Usage) -> Value {
        self.ended(blocks, finish, usage)
    }
}
