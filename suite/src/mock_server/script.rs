//! Scripts of the mock server as JSON; see [`Script`] for their shape.

use anyhow::Context;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Script of the mock server: its answers to requests and routes.
///
/// ```json
/// { "requests": [
///     { "when": {"body_contains": "\"max_tokens\":4"}, "times": 2,
///       "steady": {"first_us": 20000, "gap_us": 5000} },
///     { "events": [ {"at_us": 0, "text": "data: {\"choices\":[]}\n\n"}, {"at_us": 9, "action": "reset"} ] } ],
///   "routes": { "/health": {"body": {"status": "ok"}} } }
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// Reference for real servers that behave like this script.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Answers in order: a request gets the first one that matches and is not used up, or status
    /// 404.
    #[serde(default)]
    pub requests: Vec<Answer>,
    /// Fixed answers by path, for any method and any number of requests.
    #[serde(default)]
    pub routes: BTreeMap<String, Route>,
    /// Delay before each connection is accepted, in microseconds.
    #[serde(default)]
    pub accept_delay_us: u64,
}

/// Fixed answer of a route.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// HTTP status of the answer.
    #[serde(default = "ok")]
    pub status: u16,
    /// Body of the answer: JSON, or plain text for a string.
    #[serde(default)]
    pub body: Value,
    /// Bodies for the second and later requests, in order; the last one is repeated.
    #[serde(default)]
    pub later: Vec<Value>,
}

impl Route {
    /// Makes the same answer to every request.
    pub fn of(status: u16, body: Value) -> Self {
        Self { status, body, later: Vec::new() }
    }

    /// Returns the answer to a request after `asked` earlier ones.
    pub fn turn(&self, asked: usize) -> Self {
        let later = asked.min(self.later.len()).checked_sub(1);
        let body = later.map_or(&self.body, |turn| &self.later[turn]).clone();
        Self::of(self.status, body)
    }
}

/// Answer to one or several requests.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Condition that a request must meet to get this answer.
    #[serde(default)]
    pub when: When,
    /// Number of requests that get this answer; 0 for any number.
    #[serde(default = "once")]
    pub times: u64,
    /// HTTP status of the answer.
    #[serde(default = "ok")]
    pub status: u16,
    /// Additional response headers: name to value.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Framing of the body, which tells the client where it ends.
    #[serde(default)]
    pub framing: Framing,
    /// Time of the response head in microseconds, from the arrival of the whole request.
    #[serde(default)]
    pub head_us: u64,
    /// Body of the answer, piece by piece.
    #[serde(default)]
    pub events: Vec<Scripted>,
    /// Rule that makes the body's events, instead of a list.
    pub steady: Option<Steady>,
}

/// Condition on a request; without any field, every request matches.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// Number of the request, from 0, not counting requests to fixed routes.
    pub index: Option<u64>,
    /// Path that the request must have.
    pub path: Option<String>,
    /// Text that the request body must contain, exactly as written.
    pub body_contains: Option<String>,
    /// Text that the request head must contain, exactly as written.
    pub head_contains: Option<String>,
}

/// Framing of a response body, which tells the client where it ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// Chunked transfer encoding of HTTP/1.1.
    #[default]
    Chunked,
    /// Fixed length in `Content-Length`.
    Length,
    /// Body that ends with the connection.
    Close,
    /// Raw bytes: the events are all that is written, without head or framing.
    Raw,
}

/// Scripted event: bytes or an action at a given time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    /// Time of the event in microseconds, from the arrival of the whole request.
    #[serde(default)]
    pub at_us: u64,
    /// Bytes to write, as text.
    pub text: Option<String>,
    /// Bytes to write, as base64, for data that are not text.
    pub base64: Option<String>,
    /// Action on the connection, after any bytes.
    pub action: Option<Action>,
}

/// Action of a script on the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Closes the connection, whatever is still to be sent.
    Close,
    /// Resets the connection (`SO_LINGER` of zero).
    Reset,
    /// Stops writing and keeps the connection open until the client gives up.
    Stall,
}

/// Rule for a steady stream of tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Steady {
    /// Number of tokens; by default as many as the request asks for.
    pub tokens: Option<u64>,
    /// Time of the first token in microseconds, from the arrival of the request.
    pub first_us: u64,
    /// Time between two chunks, in microseconds.
    pub gap_us: u64,
    /// Number of tokens in each chunk; the last chunk has the remainder.
    pub tokens_per_chunk: u64,
    /// Place of the usage in the stream.
    pub usage: UsageWhen,
    /// Error to add to the reported token count, to simulate a server that counts wrong.
    pub usage_error: i64,
    /// True to report with the usage that no prompt token was cached.
    pub details: bool,
    /// API format and chunk shape to imitate.
    pub shape: Shape,
    /// True to send output token ids with every chunk.
    pub token_ids: bool,
    /// True to end the stream with its last event: `[DONE]` or the API format's equivalent.
    pub done: bool,
    /// Delay before the trailing usage, in microseconds.
    pub usage_delay_us: u64,
    /// True to end lines with CR LF instead of LF.
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
            shape: Shape::default(),
            token_ids: true,
            done: true,
            usage_delay_us: 0,
            crlf: false,
        }
    }
}

/// Place of the usage (token counts) in a steady stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UsageWhen {
    /// Usage in an event of its own after the last token.
    #[default]
    Last,
    /// Usage in the chunk of the last token.
    Text,
    /// Running usage in every chunk.
    Every,
    /// No usage anywhere in the stream.
    Never,
}

/// API format and chunk shape that a steady stream imitates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// Chunks of OpenAI's completions.
    #[default]
    Completions,
    /// Chat, with a first chunk at time 0 that has only the role.
    Chat,
    /// Chat with its tokens in `reasoning_content`.
    ReasoningContent,
    /// Chat with its tokens in `reasoning`.
    Reasoning,
    /// Chat with its tokens in both reasoning fields, like a server that keeps the old name beside
    /// the new.
    BothReasonings,
    /// Chat with its tokens as arguments of a tool call.
    ToolCall,
    /// SGLang's `/generate`: all text and ids so far, and counts, in each event.
    Generate,
    /// OpenAI's Responses, with usage in the closing event.
    Responses,
    /// Events of Anthropic's Messages.
    Messages,
}

fn ok() -> u16 {
    200
}

fn once() -> u64 {
    1
}

impl Script {
    /// Reads the script at `path`.
    ///
    /// # Errors
    /// The file cannot be read or is not a script.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read(path).with_context(|| format!("cannot read script `{shown}`"))?;
        serde_json::from_slice(&text).with_context(|| format!("`{shown}` is not a script"))
    }

    /// Returns the script of a well-behaved server: ready, one model, a cache that can be emptied,
    /// and for each request a steady stream of as many tokens as requested, in the API format of
    /// its route.
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
        Self {
            requests: vec![
                answer(Some("/generate"), Shape::Generate),
                answer(Some("/v1/responses"), Shape::Responses),
                answer(Some("/v1/messages"), Shape::Messages),
                answer(None, Shape::Completions),
            ],
            routes: routes.map(|(path, body)| (path.to_owned(), Route::of(200, body))).into(),
            accept_delay_us: 0,
            source: String::new(),
        }
    }
}

impl Answer {
    /// Creates an answer with status 200 and these events, for one request.
    pub fn events(events: Vec<Scripted>) -> Self {
        Self {
            when: When::default(),
            times: 1,
            status: 200,
            headers: BTreeMap::new(),
            framing: Framing::default(),
            head_us: 0,
            events,
            steady: None,
        }
    }

    /// Creates an answer by rule, for one request.
    pub fn steady(steady: Steady) -> Self {
        Self { steady: Some(steady), ..Self::events(Vec::new()) }
    }
}

impl Scripted {
    /// Creates an event that writes text at a given time.
    pub fn text(at_us: u64, text: impl Into<String>) -> Self {
        Self { at_us, text: Some(text.into()), ..Self::default() }
    }

    /// Creates an event with an action at a given time.
    pub fn action(at_us: u64, action: Action) -> Self {
        Self { at_us, action: Some(action), ..Self::default() }
    }
}
