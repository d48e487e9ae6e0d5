//! Scripts of the mock server as JSON; [`Script`] describes the format.

use anyhow::Context;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use whole_file::DATA_MAX;

/// Script of the mock server: its answers to completion requests, and the fixed answers of other
/// routes.
///
/// ```json
/// { "requests": [
///     { "when": {"body_contains": "\"max_tokens\":4"}, "times": 2,
///       "steady": {"first_us": 20000, "gap_us": 5000} },
///     { "events": [ {"at_us": 0, "text": "data: {\"choices\":[]}\n\n"}, {"at_us": 9, "action": "reset"} ] } ],
///   "routes": { "/health": {"body": {"status": "ok"}} } }
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Script {
    /// Name, version and source files of the real server that the script imitates, for readers
    /// only; empty if the script names no server.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Answers to requests, in order of precedence: a request gets the first answer that matches
    /// and is not used up, or status 404.
    pub requests: Vec<Answer>,
    /// Fixed answers by path, for any method and any number of requests.
    pub routes: BTreeMap<String, Route>,
    /// Delay before the handling of each accepted connection, in microseconds.
    pub accept_delay_us: u64,
}

/// Fixed answer of a route of the mock server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// HTTP status of the route's answer; by default 200.
    #[serde(default = "ok")]
    pub status: u16,
    /// Body of the route's answer: JSON, or plain text if it is a string.
    #[serde(default)]
    pub body: Value,
    /// Bodies of the answers to the second and later requests to the route, in order; the last one
    /// is repeated. If empty, all answers have the same body.
    #[serde(default)]
    pub later: Vec<Value>,
}

impl Route {
    /// Returns a route that gives the same answer to every request.
    pub fn of(status: u16, body: Value) -> Self {
        Self { status, body, later: Vec::new() }
    }

    /// Returns the route's answer to the request that follows `asked` earlier ones.
    pub fn turn(&self, asked: usize) -> Self {
        let later = asked.min(self.later.len()).checked_sub(1);
        let body = later.map_or(&self.body, |turn| &self.later[turn]).clone();
        Self::of(self.status, body)
    }
}

/// Scripted answer of the mock server to one or several requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Answer {
    /// Condition that a request must meet to get the answer.
    pub when: When,
    /// Number of requests that get the answer, by default 1; 0 means any number.
    pub times: u64,
    /// HTTP status of the scripted answer; by default 200.
    pub status: u16,
    /// Additional headers of the answer's response: values by header name.
    pub headers: BTreeMap<String, String>,
    /// Framing of the answer's body, which tells the client where it ends.
    pub framing: Framing,
    /// Time at which the response head is written, in microseconds from the arrival of the complete
    /// request.
    pub head_us: u64,
    /// Events of the answer, with the pieces of its body; ignored if `steady` is set.
    pub events: Vec<Scripted>,
    /// Rule from which the events of the answer's body are generated; `None` if they are listed.
    pub steady: Option<Steady>,
}

/// Condition that a request must meet to get a scripted answer; without any field, every request
/// matches.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// Number that the request must have in the order of arrival, from 0, not counting requests to
    /// fixed routes; `None` allows any.
    pub index: Option<u64>,
    /// Path that the request must have, such as `/generate`; `None` allows any.
    pub path: Option<String>,
    /// Text that the request body must contain, exactly as written; `None` allows any.
    pub body_contains: Option<String>,
    /// Text that the request head must contain, exactly as written; `None` allows any.
    pub head_contains: Option<String>,
}

/// Framing of a response body, which tells the client where it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// Body in the chunked transfer encoding of HTTP/1.1.
    #[default]
    Chunked,
    /// Body whose length is in the header `Content-Length`.
    Length,
    /// Body that ends when the connection is closed.
    Close,
    /// Raw bytes: the events are all that is written, without head or framing.
    Raw,
}

/// Scripted event of an answer: bytes to write or an action, at a given time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Scripted {
    /// Time of the event, in microseconds from the arrival of the complete request.
    pub at_us: u64,
    /// Bytes of the event to write, as text; if set, base64 bytes are ignored.
    pub text: Option<String>,
    /// Bytes of the event to write, as base64, for data that are not text.
    pub base64: Option<String>,
    /// Action on the connection, which is taken instead of writing bytes and ends the answer.
    pub action: Option<Action>,
}

/// Action on the connection with which a script ends an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Closes the connection, even if the answer is not complete.
    Close,
    /// Resets the connection (`SO_LINGER` of zero).
    Reset,
    /// Stops writing and keeps the connection open until the client closes it.
    Stall,
}

/// Rule by which the mock server generates a steady stream of tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Steady {
    /// Number of tokens in the answer; by default as many as the request asks for.
    pub tokens: Option<u64>,
    /// Time at which the first token is written, in microseconds from the arrival of the complete
    /// request.
    pub first_us: u64,
    /// Time between two chunks of the answer, in microseconds.
    pub gap_us: u64,
    /// Number of tokens in each chunk of the answer; the last chunk has the remainder.
    pub tokens_per_chunk: u64,
    /// Selects which chunks of the answer report the usage.
    pub usage: UsageWhen,
    /// Number that is added to the reported number of output tokens, to simulate a server that
    /// counts wrong.
    pub usage_error: i64,
    /// True to report with the usage how many prompt tokens were cached; without effect in
    /// Messages.
    pub details: bool,
    /// Number of prompt tokens that the usage reports as cached.
    pub cached_tokens: u64,
    /// API format and form of the chunks that the answer imitates.
    pub shape: Shape,
    /// True to send output token ids with every chunk, in API formats that have a field for them.
    pub token_ids: bool,
    /// True to end the stream with its last event: `[DONE]` or the API format's equivalent.
    pub done: bool,
    /// Delay from the last token to the events that follow it, such as a trailing usage, in
    /// microseconds.
    pub usage_delay_us: u64,
    /// True to end the stream's lines with CR LF instead of LF.
    pub crlf: bool,
}

impl Default for Steady {
    fn default() -> Self {
        Self {
            tokens: None,
            first_us: 0,
            gap_us: 0,
            tokens_per_chunk: 1,
            usage: UsageWhen::default(),
            usage_error: 0,
            details: true,
            cached_tokens: 0,
            shape: Shape::default(),
            token_ids: true,
            done: true,
            usage_delay_us: 0,
            crlf: false,
        }
    }
}

/// Place of the usage (token counts) in a steady stream of OpenAI's completions or chat. In the
/// other API formats only `never` has an effect, which leaves out the usage at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UsageWhen {
    /// Usage in an event of its own after the last token, which has no choice.
    #[default]
    Last,
    /// Usage in the chunk of the last token, which has text.
    Text,
    /// Usage so far in every chunk of the stream.
    Every,
    /// No usage in the stream, except in the first event of Messages.
    Never,
}

/// API format and form of chunks that a steady stream imitates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// OpenAI's completions, with the tokens in the field `text`.
    #[default]
    Completions,
    /// OpenAI's chat, with a first chunk at time 0 that has only the role.
    Chat,
    /// OpenAI's chat with the tokens in the field `reasoning_content`.
    ReasoningContent,
    /// OpenAI's chat with the tokens in the field `reasoning`.
    Reasoning,
    /// OpenAI's chat with the tokens in both `reasoning` and `reasoning_content`, like a server
    /// that keeps the old name beside the new.
    BothReasonings,
    /// OpenAI's chat with the tokens as arguments of a tool call.
    ToolCall,
    /// SGLang's `/generate`: all text and ids so far, and token counts, in each event.
    Generate,
    /// Events of OpenAI's Responses, with usage in the closing event.
    Responses,
    /// Events of Anthropic's Messages format, which has usage in the first event and in
    /// `message_delta`.
    Messages,
}

fn ok() -> u16 {
    200
}

impl Script {
    /// Reads the script of the mock server at `path`.
    ///
    /// # Errors
    /// The file cannot be read or is not a script.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = whole_file::read(path, "script", DATA_MAX)?;
        serde_json::from_slice(&text).with_context(|| format!("`{shown}` is not a script"))
    }

    /// Returns the script of a well-behaved server: it is ready, lists one model, accepts a reset
    /// of its prefix cache, and gives each request a steady stream of as many tokens as requested,
    /// in the API format of its route for `/generate`, `/v1/responses` and `/v1/messages`, and as
    /// OpenAI's completions for every other path but `/v1/embeddings`, which gives an embedding.
    pub fn steady() -> Self {
        let routes = [
            ("/health", json!({"status": "ok"})),
            (
                "/v1/models",
                json!({"object": "list", "data": [{"id": "emitter", "object": "model"}]}),
            ),
            ("/reset_prefix_cache", json!({"freed_pages": 0})),
            ("/metrics", json!("")),
        ];
        let answer = |path: Option<&str>, shape| Answer {
            when: When { path: path.map(str::to_owned), ..When::default() },
            times: 0,
            ..Answer::steady(Steady { shape, ..Steady::default() })
        };
        let embedding = json!({"object": "embedding", "index": 0, "embedding": [0.6, -0.8]});
        let usage = json!({"prompt_tokens": 1, "total_tokens": 1});
        let document = json!({"object": "list", "data": [embedding], "usage": usage});
        let embeddings = Answer {
            when: When { path: Some("/v1/embeddings".to_owned()), ..When::default() },
            times: 0,
            ..Answer::document(&document)
        };
        Self {
            requests: vec![
                embeddings,
                answer(Some("/generate"), Shape::Generate),
                answer(Some("/v1/responses"), Shape::Responses),
                answer(Some("/v1/messages"), Shape::Messages),
                answer(None, Shape::Completions),
            ],
            routes: routes.map(|(path, body)| (path.to_owned(), Route::of(200, body))).into(),
            ..Self::default()
        }
    }
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            when: When::default(),
            times: 1,
            status: 200,
            headers: BTreeMap::new(),
            framing: Framing::default(),
            head_us: 0,
            events: Vec::new(),
            steady: None,
        }
    }
}

impl Answer {
    /// Creates a scripted answer with status 200 and the given events, for one request.
    pub fn events(events: Vec<Scripted>) -> Self {
        Self { events, ..Self::default() }
    }

    /// Creates a scripted answer with status 200 that is the JSON document `body`, for one request.
    pub fn document(body: &Value) -> Self {
        let kind = ("Content-Type".to_owned(), "application/json".to_owned());
        let events = vec![Scripted::text(0, body.to_string())];
        Self { headers: [kind].into(), framing: Framing::Length, ..Self::events(events) }
    }

    /// Creates a scripted answer with status 200 whose events follow the rule `steady`, for one
    /// request.
    pub fn steady(steady: Steady) -> Self {
        Self { steady: Some(steady), ..Self::default() }
    }
}

impl Scripted {
    /// Creates a scripted event that writes `text` at `at_us` microseconds.
    pub fn text(at_us: u64, text: impl Into<String>) -> Self {
        Self { at_us, text: Some(text.into()), ..Self::default() }
    }

    /// Creates a scripted event that takes `action` at `at_us` microseconds.
    pub fn action(at_us: u64, action: Action) -> Self {
        Self { at_us, action: Some(action), ..Self::default() }
    }
}
