//! Route `POST /v1/chat/completions`: reads the request, renders the chat template, writes choices.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use engine_core::random::mix;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::answer::{Piece, Shape, Writing};
use super::error::{ApiError, ErrorKind, Result};
use super::fields::{Fields, wrong_type};
use super::json::Budget;
use super::logprobs;
use super::params::{
    AnswerOptions, Params, SequenceOptions, check_choices, check_logprobs, take_chat_logprobs,
};
use super::state::{App, Ready};
use super::tools::Tools;
use super::whole;
use super::work::blocking;
use crate::tokenize::{self, Reasoning, SplitText, Splitter, Text};
use crate::worker::Ticket;

pub(super) async fn chat_completions(State(app): State<App>, body: Bytes) -> Result<Response> {
    let ready = app.ready_to_generate()?;
    let mut fields = Fields::read(body).await?;
    super::check_model(&mut fields, &ready)?;
    let reasoning = ready.text.reasoning();
    let request = ChatRequest::take(fields, reasoning, ready.vocab_size)?;
    let n = request.params.n;
    let Begun { prompt, splitter, ticket, options } = request.begin(&app, &ready).await?;
    let writing = Writing {
        id: format!("chatcmpl-{:016x}", app.unique()),
        created: app.clock.unix_s(),
        ready,
        options,
        prompts: vec![prompt],
        n,
        has_prompt_logprobs: false,
        splitter,
    };
    let chat = Chat { calls: app.unique(), reasons: reasoning != Reasoning::None };
    whole::respond(chat, writing, ticket).await
}

/// Chat request whose answer the engine has begun.
#[derive(Debug)]
pub(super) struct Begun {
    /// Token ids of the prompt.
    pub(super) prompt: Vec<u32>,
    /// Splitter between reasoning, answer and tool calls; `None` where the answer is all text.
    pub(super) splitter: Option<Splitter>,
    pub(super) ticket: Ticket,
    pub(super) options: AnswerOptions,
}

/// Parses a chat request as the route does and renders its prompt with the tokenizer `text`,
/// without a server. Used by fuzzing.
///
/// # Errors
/// The body is not a JSON object, a field is missing or not supported or has an invalid value, or
/// the messages cannot be rendered, as where the template refuses them.
pub fn check_chat(body: &[u8], text: &dyn Text, vocab_size: usize) -> Result<()> {
    let mut fields = Fields::parse(body)?;
    // Without a server any model name is right, but it must be a string.
    fields.string("model")?;
    let asking = ChatRequest::take(fields, text.reasoning(), vocab_size)?;
    asking.prompt.written(text, 0).map(|_| ())
}

/// Parsed body of a chat request, without `model`.
#[derive(Debug)]
pub(super) struct ChatRequest {
    prompt: ChatPrompt,
    params: Params,
    logprobs: Option<usize>,
}

impl ChatRequest {
    pub(super) fn take(
        mut fields: Fields,
        reasoning: Reasoning,
        vocab_size: usize,
    ) -> Result<Self> {
        let prompt = ChatPrompt::take(&mut fields, reasoning)?;
        let names = ["max_completion_tokens", "max_tokens"];
        let mut params = Params::take(&mut fields, &names, 1, vocab_size)?;
        let logprobs = take_chat_logprobs(&mut fields)?;
        fields.finish()?;
        check_choices(1, params.n)?;
        // Harmony's channel marks are special tokens, and the splitter needs them.
        if reasoning == Reasoning::Harmony {
            params.shows_special = true;
        }
        Ok(Self { prompt, params, logprobs })
    }

    /// Returns the number of tokens of the prompt.
    pub(super) async fn prompt_tokens(self, app: &App, ready: &Arc<Ready>) -> Result<usize> {
        let text = self.prompt.render(ready, app.clock.unix_s()).await?;
        Ok(ready.encode(text, false).await?.len())
    }

    /// Has the engine begin the answer.
    pub(super) async fn begin(self, app: &App, ready: &Arc<Ready>) -> Result<Begun> {
        let Self { mut prompt, mut params, logprobs } = self;
        let reasoning = ready.text.reasoning();
        let calls = prompt.tools.is_some().then(|| ready.text.calls()).flatten();
        let mut are_alone = false;
        if let Some(tools) = &mut prompt.tools {
            are_alone = params.call(tools.calls(calls)?)?;
        }
        let text = prompt.render(ready, app.clock.unix_s()).await?;
        let splits = reasoning != Reasoning::None || calls.is_some();
        let splitter = splits.then(|| {
            let splitter = Splitter::new(reasoning, &text);
            match calls {
                Some(calls) => splitter.with_calls(calls.format, are_alone),
                None => splitter,
            }
        });
        let guide = params.guide(ready, Some(text.clone()), 1).await?;
        // The chat template has written the special tokens already.
        let prompt = ready.encode(text, false).await?;
        let options = SequenceOptions { logprobs, guide, ..SequenceOptions::default() };
        let requests = params.requests(&prompt, options, &ready.limits, || app.unique())?;
        check_logprobs(&requests)?;
        let ticket = ready.handle.submit(requests)?;
        Ok(Begun { prompt, splitter, ticket, options: params.answer })
    }
}

/// Fields of a chat request that determine its prompt.
#[derive(Debug)]
pub(super) struct ChatPrompt {
    messages: Value,
    /// Tools that the model may call.
    tools: Option<Tools>,
    add_generation_prompt: bool,
    variables: Option<Value>,
}

impl ChatPrompt {
    pub(super) fn take(fields: &mut Fields, reasoning: Reasoning) -> Result<Self> {
        fields.check_texts()?;
        let messages = match fields.take("messages") {
            Some(Value::Array(messages)) if messages.is_empty() => {
                return Err(ApiError::field("messages", "`messages` has no message"));
            }
            Some(Value::Array(messages)) => messages,
            Some(other) => return Err(wrong_type("messages", "a list of messages", &other)),
            None => return Err(ApiError::missing("messages")),
        };
        let messages = messages.into_iter().enumerate();
        let messages: Result<Vec<_>> =
            messages.map(|(index, value)| message(index, value, &fields.budget)).collect();
        let name = "chat_template_kwargs";
        let mut variables = match fields.take(name) {
            Some(other) if !other.is_object() => return Err(wrong_type(name, "an object", &other)),
            variables => variables,
        };
        if let Some(effort) = take_effort(fields, reasoning)? {
            variables.get_or_insert_with(|| json!({}))["reasoning_effort"] = effort.into();
        }
        let add_generation_prompt = fields.bool_or("add_generation_prompt", true)?;
        let tools = Tools::take(fields)?;
        let messages = Value::Array(messages?);
        Ok(Self { messages, tools, add_generation_prompt, variables })
    }

    /// Renders the conversation to the prompt's text. The chat template is a program that came with
    /// the checkpoint and may run long, so it runs on a blocking thread.
    pub(super) async fn render(self, ready: &Arc<Ready>, now_unix_s: u64) -> Result<String> {
        let text = Arc::clone(&ready.text);
        blocking("the chat template", move || self.written(&*text, now_unix_s)).await?
    }

    fn written(&self, text: &dyn Text, now_unix_s: u64) -> Result<String> {
        let rendered = text.render_chat(&tokenize::Chat {
            messages: &self.messages,
            tools: self.tools.as_ref().map(|tools| &tools.listed),
            add_generation_prompt: self.add_generation_prompt,
            variables: self.variables.as_ref(),
            now_unix_s,
        });
        rendered.map_err(|error| ApiError::from(error).at("messages"))
    }
}

/// Reads the request field `reasoning_effort`, and returns it if the chat template is to have it.
/// Little effort is what a model that does not reason makes anyway.
fn take_effort(fields: &mut Fields, reasoning: Reasoning) -> Result<Option<String>> {
    let name = "reasoning_effort";
    let Some(effort) = fields.string(name)? else { return Ok(None) };
    let hint = match (reasoning, effort.as_str()) {
        (Reasoning::Harmony, _) => return Ok(Some(effort)),
        (Reasoning::None, "none" | "minimal" | "low") => return Ok(None),
        (Reasoning::None, _) => "this model does not reason",
        (Reasoning::Think, _) => "give what the chat template knows in `chat_template_kwargs`",
    };
    let message = format!("`{name}` is not supported for this model; hint: {hint}");
    Err(ApiError::new(ErrorKind::UnsupportedField, message).at(name))
}

/// Normalizes one message of a chat request: its content becomes a string. Content parts other than
/// text, and a `function_call` or `audio` with a value, are refused; unknown keys are left for the
/// chat template.
fn message(index: usize, message: Value, budget: &Budget) -> Result<Value> {
    let name = |field: &str| format!("messages.{index}.{field}");
    let unsupported = |field: &str, what: &str| {
        let name = name(field);
        let error = ApiError::new(ErrorKind::UnsupportedField, format!("`{name}` {what}"));
        Err(error.at(&name))
    };
    let Value::Object(mut map) = message else {
        return Err(wrong_type(&format!("messages.{index}"), "an object", &message));
    };
    if !map.get("role").is_some_and(Value::is_string) {
        let found = map.remove("role").unwrap_or_default();
        return Err(wrong_type(&name("role"), "a string", &found));
    }
    let calls = take_calls(&mut map, &name("tool_calls"), budget)?;
    // Some clients always send these fields; without a value they ask for nothing.
    for field in ["function_call", "audio"] {
        if map.remove(field).is_some_and(|value| !value.is_null() && value != json!([])) {
            return unsupported(field, "is not supported");
        }
    }
    let text = match map.remove("content").unwrap_or_default() {
        Value::String(text) => text,
        // A message that only calls tools has no content.
        Value::Null if !calls.is_empty() => String::new(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| {
                let text = part.get("text").and_then(Value::as_str);
                text.filter(|_| part.get("type").is_some_and(|kind| kind == "text"))
            });
            match texts.collect::<Option<String>>() {
                Some(text) => text,
                None => return unsupported("content", "has parts that are not text"),
            }
        }
        other => {
            return Err(wrong_type(&name("content"), "a string or a list of text parts", &other));
        }
    };
    map.insert("content".into(), text.into());
    if !calls.is_empty() {
        map.insert("tool_calls".into(), calls.into());
    }
    Ok(Value::Object(map))
}

/// Removes the tool calls from a message and returns them; none if it has no such field. Clients
/// send a call's arguments as a JSON string; if it is an object it is parsed, since templates
/// expect an object.
fn take_calls(map: &mut Map<String, Value>, name: &str, budget: &Budget) -> Result<Vec<Value>> {
    let mut calls = match map.remove("tool_calls") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(calls)) => calls,
        Some(other) => return Err(wrong_type(name, "a list of calls", &other)),
    };
    for call in &mut calls {
        if !call["function"]["name"].is_string() {
            return Err(wrong_type(name, "a list of calls, each with `function.name`", call));
        }
        let arguments = call["function"]["arguments"].as_str();
        let parsed = arguments.map(|text| budget.read_text(name, text)).transpose()?;
        // Arguments that are not a JSON object stay a string.
        if let Some(Ok(arguments @ Value::Object(_))) = parsed {
            call["function"]["arguments"] = arguments;
        }
    }
    Ok(calls)
}

/// Format in which `/v1/chat/completions` writes its choices as JSON.
#[derive(Debug)]
struct Chat {
    /// Number from which the ids of the answer's tool calls are made.
    calls: u64,
    /// True if the model marks its reasoning.
    reasons: bool,
}

impl Chat {
    /// Returns the id of tool call number `index` of a choice: nine hexadecimal digits, because the
    /// templates of Mistral's models take only ids of nine letters and digits.
    fn call_id(&self, choice: usize, index: usize) -> String {
        let of_choice = mix(self.calls.wrapping_add(choice as u64));
        format!("{:09x}", mix(of_choice.wrapping_add(index as u64)) >> 28)
    }

    /// Builds the JSON of parts of tool calls, as a message or, with `streams`, as a delta has them.
    fn calls(&self, piece: &Piece<'_>, streams: bool) -> Value {
        let parts = piece.parts.calls.iter();
        let written = parts.map(|part| {
            let mut call = json!({"function": {"arguments": part.arguments}});
            if streams {
                call["index"] = part.index.into();
            }
            if let Some(name) = &part.name {
                call["function"]["name"] = name.as_str().into();
                call["type"] = "function".into();
                call["id"] = self.call_id(piece.index, part.index).into();
            }
            call
        });
        written.collect()
    }
}

impl Shape for Chat {
    const OBJECT: &'static str = "chat.completion";
    const CHUNK_OBJECT: &'static str = "chat.completion.chunk";
    const PROMPT_IDS_ON_TOP: bool = true;

    fn add(&self, writing: &Writing, piece: &Piece<'_>, choice: &mut Value) {
        let parts = &piece.parts;
        if !writing.options.stream {
            let mut message = json!({"role": "assistant", "content": parts.content});
            if self.reasons {
                add_reasoning(&mut message, parts);
            }
            if !parts.calls.is_empty() {
                message["tool_calls"] = self.calls(piece, false);
                if parts.content.is_empty() {
                    message["content"] = Value::Null;
                }
            }
            choice["message"] = message;
            return;
        }
        let mut delta = json!({});
        if !parts.calls.is_empty() {
            delta["tool_calls"] = self.calls(piece, true);
        }
        if !parts.reasoning.is_empty() {
            add_reasoning(&mut delta, parts);
        }
        // A token whose text is still held back yields an empty `content`: clients count chunks.
        if parts.reasoning.is_empty() || !parts.content.is_empty() {
            delta["content"] = parts.content.as_str().into();
        }
        // The role is part of the first token's chunk: clients would count a chunk of its own as a
        // token.
        if piece.first {
            delta["role"] = "assistant".into();
        }
        choice["delta"] = delta;
    }

    fn logprobs<'a>(
        &'a self,
        writing: &'a Writing,
        piece: &'a Piece<'_>,
    ) -> Option<impl Serialize + 'a> {
        logprobs::Chat::of(writing, piece)
    }
}

/// Adds the text of the reasoning to a message or delta under both names that clients use:
/// `reasoning_content`, and the newer `reasoning`.
fn add_reasoning(object: &mut Value, parts: &SplitText) {
    for name in ["reasoning_content", "reasoning"] {
        object[name] = parts.reasoning.as_str().into();
    }
}
