//! What the emitter is told to do: a script as JSON. See [`Script`] for the shape.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A whole script.
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
    /// Where its author read that a server does so.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// A request takes the first of these that fits it and is not used up; one that finds none is
    /// answered with 404.
    #[serde(default)]
    pub requests: Vec<Answer>,
    /// Answers by path, any method, as often as asked.
    #[serde(default)]
    pub routes: BTreeMap<String, Route>,
    /// Wait before each connection is accepted.
    #[serde(default)]
    pub accept_delay_us: u64,
}

/// A fixed answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// Of HTTP.
    #[serde(default = "ok")]
    pub status: u16,
    /// JSON, or plain text where it is a string.
    #[serde(default)]
    pub body: Value,
    /// What the second and later questions are answered, in turn; the last again and again.
    #[serde(default)]
    pub later: Vec<Value>,
}

impl Route {
    /// The answer to a question before which `asked` came.
    #[must_use]
    pub fn turn(&self, asked: usize) -> Self {
        let later = asked.min(self.later.len()).checked_sub(1);
        let body = later.map_or(&self.body, |turn| &self.later[turn]).clone();
        Self { status: self.status, body, later: Vec::new() }
    }
}

/// The answer to one request, or to several alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Which requests it is for.
    #[serde(default)]
    pub when: When,
    /// How many requests it answers; 0 for any number.
    #[serde(default = "once")]
    pub times: u64,
    /// Of HTTP.
    #[serde(default = "ok")]
    pub status: u16,
    /// Names to values, beside those that the framing needs.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// How the body's end is told.
    #[serde(default)]
    pub framing: Framing,
    /// When the head is written, from the arrival of the whole request.
    #[serde(default)]
    pub head_us: u64,
    /// The body, piece by piece.
    #[serde(default)]
    pub events: Vec<Scripted>,
    /// Events made by rule instead of by list.
    pub steady: Option<Steady>,
}

/// Which requests an answer is for. Empty: any.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The n-th request that is no route, from 0.
    pub index: Option<u64>,
    /// The path of the route.
    pub path: Option<String>,
    /// Text of the request's body, as it was written.
    pub body_contains: Option<String>,
    /// Text of the request's head, as it was written.
    pub head_contains: Option<String>,
}

/// How the body's end is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// Chunks of HTTP/1.1.
    #[default]
    Chunked,
    /// `Content-Length`.
    Length,
    /// The end of the connection is the end of the body.
    Close,
    /// No head, no framing: the events are the bytes on the wire.
    Raw,
}

/// Bytes or an action, at a time from the arrival of the whole request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scripted {
    /// When.
    #[serde(default)]
    pub at_us: u64,
    /// Bytes that are text.
    pub text: Option<String>,
    /// Bytes that are not.
    pub base64: Option<String>,
    /// What is done after any bytes.
    pub action: Option<Action>,
}

/// What is done to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Ends the connection, whatever is still to come.
    Close,
    /// Breaks it (`SO_LINGER` of zero).
    Reset,
    /// Writes no more and keeps it open until the client gives up.
    Stall,
}

/// A regular stream of tokens.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Steady {
    /// Tokens; by default as many as the request asks for.
    pub tokens: Option<u64>,
    /// First token, from the arrival of the request.
    pub first_us: u64,
    /// Between two chunks.
    pub gap_us: u64,
    /// Tokens in each chunk but the last, which has what is left.
    pub tokens_per_chunk: u64,
    /// Where the counts stand.
    pub usage: UsageWhen,
    /// Added to every count of the server: a server that counts wrong.
    pub usage_error: i64,
    /// Tell with the counts how much of the prompt was cached: none of it.
    pub details: bool,
    /// Which route's chunks.
    pub shape: Shape,
    /// Give output ids with every chunk.
    pub token_ids: bool,
    /// Close the stream with its last event: `[DONE]`, or what the shape has for it.
    pub done: bool,
    /// Wait before the trailing usage.
    pub usage_delay_us: u64,
    /// All events of an answer end their lines so.
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

/// Where the answer tells its numbers of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UsageWhen {
    /// In an event of its own, behind the last token.
    #[default]
    Last,
    /// With the last token.
    Text,
    /// With every token, as a running count.
    Every,
    /// Nowhere.
    Never,
}

/// Which route's chunks are imitated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// OpenAI's completions.
    #[default]
    Completions,
    /// Chat, with a chunk at once that carries only the role.
    Chat,
    /// Chat whose tokens are under `reasoning_content`.
    ReasoningContent,
    /// Chat whose tokens are under `reasoning`.
    Reasoning,
    /// Chat whose tokens are under both, as a server sends that keeps the old name beside the new.
    BothReasonings,
    /// Chat whose tokens are the arguments of a tool call.
    ToolCall,
    /// SGLang's native route: all of text and ids so far, and counts, with each chunk.
    Generate,
    /// OpenAI's Responses; its usage comes with the closing event.
    Responses,
    /// Anthropic's Messages.
    Messages,
}

fn ok() -> u16 {
    200
}

fn once() -> u64 {
    1
}

/// A script that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file cannot be read.
    #[error("cannot read script `{path}`")]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// Its text is no script.
    #[error("`{path}` is not a script")]
    Json {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
}

impl Script {
    /// Reads the script at `path`.
    ///
    /// # Errors
    /// The file cannot be read or has another shape.
    pub fn open(path: &Path) -> Result<Self, ScriptError> {
        let text = std::fs::read(path)
            .map_err(|source| ScriptError::Read { path: path.to_owned(), source })?;
        serde_json::from_slice(&text)
            .map_err(|source| ScriptError::Json { path: path.to_owned(), source })
    }
}

impl Script {
    /// A server as every client hopes for: ready, one model, a cache that empties, and a steady
    /// stream of as many tokens as a request asks for, in the words of its route.
    #[must_use]
    pub fn steady() -> Self {
        let route = |body: Value| Route { status: ok(), body, later: Vec::new() };
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
            routes: routes.map(|(path, body)| (path.to_owned(), route(body))).into(),
            accept_delay_us: 0,
            source: String::new(),
        }
    }
}

impl Answer {
    /// An answer of status 200 with `events`, once.
    #[must_use]
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

    /// An answer made by rule, once.
    #[must_use]
    pub fn steady(steady: Steady) -> Self {
        Self { steady: Some(steady), ..Self::events(Vec::new()) }
    }
}

impl Scripted {
    /// Text at a time.
    #[must_use]
    pub fn text(at_us: u64, text: impl Into<String>) -> Self {
        Self { at_us, text: Some(text.into()), ..Self::default() }
    }

    /// An action at a time.
    #[must_use]
    pub fn action(at_us: u64, action: Action) -> Self {
        Self { at_us, action: Some(action), ..Self::default() }
    }
}
