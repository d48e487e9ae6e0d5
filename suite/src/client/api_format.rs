//! Readers of answer streams, one for each API format, that turn events into `delta` types. They do
//! not deal with time stamps or with splitting bytes into events. The kind of an event is part of
//! its data, so `event:` lines are not needed.
//!
//! SGLang's native `/generate` repeats the text and ids so far and has a running token count. With
//! `--incremental-streaming-output`, events have only the new text and ids; the count still covers the
//! whole answer. Source: `sglang/srt/entrypoints/http_server.py` and
//! `sglang/srt/managers/tokenizer_manager.py`.
//!
//! OpenAI's Responses: kinds without answer text give an empty chunk. Source: OpenAI's API reference,
//! "Responses: streaming events".
//!
//! OpenAI's embeddings, whose answer is one document, have their own file.
//!
//! Anthropic's Messages: unknown kinds are ignored, as the protocol requires. Source: Anthropic's API
//! reference, "Streaming Messages".

use std::borrow::Cow;

use schema::engine::ApiFormat;
use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use super::delta::{Chunk, Event, PromptDetails, Usage, parse, words_of};
use super::embeddings::read_embeddings;

/// Answer received before the current event, for API formats whose events repeat the answer so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct SoFar<'a> {
    /// Text of the answer so far, including reasoning and tool calls.
    pub text: &'a str,
    /// Number of output tokens received before the current event, by the server's count.
    pub tokens: u64,
}

/// Parser of the event data of one answer stream; the enum's variant selects the API format.
#[derive(Debug, Default)]
pub(super) enum Reader {
    /// Reader for OpenAI's completions and chat completions, whose chunks differ only in their
    /// fields.
    #[default]
    OpenAi,
    Generate,
    Responses,
    Messages(Opening),
    Embeddings,
}

impl Reader {
    /// Returns a reader for a new answer stream in the API format `dialect`.
    pub fn of(dialect: ApiFormat) -> Self {
        match dialect {
            ApiFormat::Completions | ApiFormat::Chat => Self::OpenAi,
            ApiFormat::Generate => Self::Generate,
            ApiFormat::Responses => Self::Responses,
            ApiFormat::Messages => Self::Messages(Opening::default()),
            ApiFormat::Embeddings => Self::Embeddings,
        }
    }

    /// True when an answer is one document, which is read whole, instead of a stream of events.
    pub fn is_document(&self) -> bool {
        matches!(self, Self::Embeddings)
    }

    /// Parses the data of the answer stream's next event.
    ///
    /// # Errors
    /// The data are not JSON of the API format.
    pub fn read<'a>(
        &mut self,
        data: &'a [u8],
        so_far: SoFar<'_>,
    ) -> Result<Event<'a>, serde_json::Error> {
        match self {
            Self::OpenAi => parse(data),
            // Servers also end other formats with `[DONE]`, even where the format does not define
            // it.
            _ if data.trim_ascii() == b"[DONE]" => Ok(Event::Done),
            Self::Generate => read_generate(data, so_far),
            Self::Responses => read_responses(data),
            Self::Messages(opening) => read_messages(data, opening),
            Self::Embeddings => read_embeddings(data),
        }
    }
}

#[derive(Deserialize)]
struct GenerateEvent<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    output_ids: Option<Vec<u32>>,
    meta_info: Option<GenerateMeta>,
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
struct GenerateMeta {
    #[serde(default)]
    prompt_tokens: u64,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    /// Finish reason in an event of SGLang's `/generate`; `None` while the answer goes on.
    finish_reason: Option<GenerateFinish>,
}

/// Finish reason of an answer of SGLang's `/generate`: an object with a `type` and sometimes a
/// message; older servers send only the type, as a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum GenerateFinish {
    Object {
        #[serde(rename = "type")]
        kind: String,
        message: Option<String>,
    },
    Word(String),
}

/// Parses the data of an event of SGLang's `/generate`; `so_far` is the answer before the event.
fn read_generate<'a>(data: &'a [u8], so_far: SoFar<'_>) -> Result<Event<'a>, serde_json::Error> {
    let wire: GenerateEvent<'a> = serde_json::from_slice(data)?;
    if let Some(error) = &wire.error {
        return Ok(Event::Error(words_of(error)));
    }
    let meta = wire.meta_info.unwrap_or_default();
    let finish_reason = match meta.finish_reason {
        // SGLang reports an aborted request as a finish reason.
        Some(GenerateFinish::Object { kind, message }) if kind == "abort" => {
            return Ok(Event::Error(
                message.unwrap_or_else(|| "the answer was aborted".to_owned()),
            ));
        }
        Some(GenerateFinish::Object { kind, .. } | GenerateFinish::Word(kind)) => {
            Some(Cow::Owned(kind))
        }
        None => None,
    };
    let usage = meta.completion_tokens.map(|completion_tokens| Usage {
        prompt_tokens: meta.prompt_tokens,
        completion_tokens,
        cached_tokens: meta.cached_tokens,
    });
    // Fewer ids than counted tokens means that events have only what is new.
    let pieces = usage.zip(wire.output_ids.as_ref());
    let pieces = pieces.is_some_and(|(usage, ids)| (ids.len() as u64) < usage.completion_tokens);
    let content = match wire.text {
        Some(text) if !pieces => Some(beyond(text, so_far.text)),
        text => text,
    };
    let ids = usage.zip(wire.output_ids).map(|(usage, mut ids)| {
        // A list that repeats earlier ids ends with the new ones.
        let new = usage.completion_tokens.saturating_sub(so_far.tokens);
        let known = ids.len().saturating_sub(usize::try_from(new).unwrap_or(usize::MAX));
        ids.drain(..known);
        ids
    });
    let chunk = Chunk { content, ids, finish_reason, has_choice: true, usage, ..Chunk::default() };
    Ok(Event::Chunk(chunk))
}

/// Returns the new part of an event's `text`, given the answer so far, `before`: nothing where
/// `before` begins with `text`, such as after the removal of a stop string; what follows `before`
/// where `text` begins with it; otherwise all of `text`, because the server sends only what is new.
fn beyond<'a>(text: Cow<'a, str>, before: &str) -> Cow<'a, str> {
    if before.starts_with(&*text) {
        return Cow::Borrowed("");
    }
    if !text.starts_with(before) {
        return text;
    }
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[before.len()..]),
        Cow::Owned(mut text) => {
            text.drain(..before.len());
            Cow::Owned(text)
        }
    }
}

#[derive(Deserialize)]
struct ResponsesEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    delta: Option<Cow<'a, str>>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    response: Option<Response>,
    item: Option<OutputItem>,
    error: Option<Value>,
}

/// Object `response` in an event of OpenAI's Responses format, with the fields that the client
/// needs. The answer's whole output, which the last event repeats in it, is skipped: reading it
/// would take time from the measurement.
#[derive(Default, Deserialize)]
struct Response {
    status: Option<String>,
    usage: Option<ResponsesUsage>,
    error: Option<Value>,
    incomplete_details: Option<Incomplete>,
}

#[derive(Deserialize)]
struct Incomplete {
    reason: Option<String>,
}

#[derive(Deserialize)]
struct ResponsesUsage {
    input_tokens: u64,
    output_tokens: u64,
    input_tokens_details: Option<PromptDetails>,
}

/// Output item that an event of OpenAI's Responses announces, such as a message or a function call.
#[derive(Deserialize)]
struct OutputItem {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: Option<String>,
}

fn read_responses(data: &[u8]) -> Result<Event<'_>, serde_json::Error> {
    let wire: ResponsesEvent<'_> = serde_json::from_slice(data)?;
    let Some(kind) = wire.kind.as_deref() else {
        let error = wire.error.as_ref().ok_or_else(missing_type)?;
        return Ok(Event::Error(words_of(error)));
    };
    let response = wire.response.unwrap_or_default();
    let piece = Chunk { has_choice: true, ..Chunk::default() };
    Ok(match kind {
        "response.output_text.delta" | "response.refusal.delta" => {
            Event::Chunk(Chunk { content: wire.delta, ..piece })
        }
        "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
            Event::Chunk(Chunk { reasoning: wire.delta, ..piece })
        }
        "response.function_call_arguments.delta" => {
            Event::Chunk(Chunk { tool_call: wire.delta.map(Cow::into_owned), ..piece })
        }
        "response.output_item.added" => {
            let call = wire.item.filter(|item| item.kind.as_deref() == Some("function_call"));
            // The name of the function consists of tokens too.
            let tool_call = call.map(|call| call.name.unwrap_or_default());
            Event::Chunk(Chunk { tool_call, ..piece })
        }
        "response.completed" | "response.incomplete" => Event::Last(responses_end(response)),
        "response.failed" => {
            let message = response.error.as_ref().map(words_of);
            Event::Error(message.unwrap_or_else(|| "the answer failed, no reason given".to_owned()))
        }
        "error" => {
            let message = wire.message.map(Cow::into_owned);
            let message = message.or_else(|| wire.error.as_ref().map(words_of));
            Event::Error(message.unwrap_or_else(|| "error without a message".to_owned()))
        }
        // Other kinds (created, in progress, done) repeat text or have none.
        _ => Event::Chunk(Chunk::default()),
    })
}

/// Returns the final chunk of an answer in OpenAI's Responses format: its usage, and as finish
/// reason the reason why the answer is incomplete, else its status.
fn responses_end(response: Response) -> Chunk<'static> {
    let usage = response.usage.map(|usage| Usage {
        prompt_tokens: usage.input_tokens,
        completion_tokens: usage.output_tokens,
        cached_tokens: usage.input_tokens_details.and_then(|details| details.cached_tokens),
    });
    let reason = response.incomplete_details.and_then(|details| details.reason);
    Chunk { finish_reason: reason.or(response.status).map(Cow::Owned), usage, ..Chunk::default() }
}

fn missing_type() -> serde_json::Error {
    serde_json::Error::custom("missing field `type`")
}

/// Usage in the first event of a stream in Anthropic's Messages format, which the last event need
/// not repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Opening {
    usage: MessagesUsage,
}

#[derive(Deserialize)]
struct MessagesEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    message: Option<Message>,
    #[serde(borrow)]
    delta: Option<Part<'a>>,
    #[serde(borrow)]
    content_block: Option<Part<'a>>,
    usage: Option<MessagesUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    usage: Option<MessagesUsage>,
}

/// Usage in an event of Anthropic's Messages format. `input_tokens` does not include tokens read
/// from or written to the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct MessagesUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// Part of an answer in Anthropic's Messages format: the beginning of a content block, a delta
/// added to a block, or the delta with the stop reason.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    thinking: Option<Cow<'a, str>>,
    /// Name of the called tool, at the beginning of a tool call's content block; `None` elsewhere.
    name: Option<String>,
    partial_json: Option<String>,
    #[serde(borrow)]
    stop_reason: Option<Cow<'a, str>>,
}

fn read_messages<'a>(
    data: &'a [u8],
    opening: &mut Opening,
) -> Result<Event<'a>, serde_json::Error> {
    let wire: MessagesEvent<'a> = serde_json::from_slice(data)?;
    if let Some(error) = &wire.error {
        return Ok(Event::Error(words_of(error)));
    }
    let kind = wire.kind.as_deref().ok_or_else(missing_type)?;
    let piece = Chunk { has_choice: true, ..Chunk::default() };
    Ok(match (kind, wire.delta, wire.content_block) {
        ("message_start", ..) => {
            opening.usage = wire.message.and_then(|message| message.usage).unwrap_or_default();
            // Its output count is a placeholder, so the event reports no usage.
            Event::Chunk(Chunk::default())
        }
        ("content_block_start", _, Some(block)) => {
            let Part { text: content, thinking: reasoning, name: tool_call, .. } = block;
            Event::Chunk(Chunk { content, reasoning, tool_call, ..piece })
        }
        ("content_block_delta", Some(delta), _) => {
            let Part { text: content, thinking: reasoning, partial_json: tool_call, .. } = delta;
            // A tool call without arguments has an empty part, which is not a token.
            let tool_call = tool_call.filter(|part| !part.is_empty());
            Event::Chunk(Chunk { content, reasoning, tool_call, ..piece })
        }
        ("message_delta", delta, _) => {
            let finish_reason = delta.and_then(|delta| delta.stop_reason);
            let usage = wire.usage.and_then(|usage| usage.after(opening.usage));
            Event::Chunk(Chunk { finish_reason, usage, ..Chunk::default() })
        }
        ("message_stop", ..) => Event::Done,
        ("ping", ..) => Event::KeepAlive,
        ("error", ..) => Event::Error("error without a message".to_owned()),
        _ => Event::Chunk(Chunk::default()),
    })
}

impl MessagesUsage {
    /// Combines the usage in the last event of a Messages stream with that of the first event,
    /// `before`, which may be the only one with prompt token counts. Returns `None` where the last
    /// event has no output token count.
    fn after(self, before: Self) -> Option<Usage> {
        let cached = self.cache_read_input_tokens.or(before.cache_read_input_tokens);
        let stored = self.cache_creation_input_tokens.or(before.cache_creation_input_tokens);
        let input = self.input_tokens.or(before.input_tokens).unwrap_or(0);
        Some(Usage {
            prompt_tokens: [cached, stored].into_iter().flatten().fold(input, u64::saturating_add),
            completion_tokens: self.output_tokens?,
            cached_tokens: cached,
        })
    }
}

#[cfg(test)]
mod generate_tests {
    use super::*;
    use serde_json::json;

    fn chunk(data: &str, text: &str, tokens: u64) -> (String, Option<Vec<u32>>) {
        match read_generate(data.as_bytes(), SoFar { text, tokens }).unwrap() {
            Event::Chunk(chunk) => (chunk.words().collect(), chunk.ids),
            other => panic!("{data} gave {other:?}"),
        }
    }

    #[test]
    fn of_a_text_so_far_only_what_is_new_counts() {
        let event = |text: &str, ids: Value, count: u64| {
            json!({"text": text, "output_ids": ids,
                   "meta_info": {"prompt_tokens": 3, "completion_tokens": count}})
            .to_string()
        };
        let cases = [
            ("the first", event("a", json!([1]), 1), "", 0, "a", Some(vec![1])),
            ("two more", event("a\"b\n", json!([1, 2, 3]), 3), "a", 1, "\"b\n", Some(vec![2, 3])),
            ("no ids", event("ab", Value::Null, 2), "a", 1, "b", None),
            ("a token without text", event("a", json!([1, 2]), 2), "a", 1, "", Some(vec![2])),
            ("a piece", event("b", json!([2]), 2), "a", 1, "b", Some(vec![2])),
            ("a piece as the text before", event("a", json!([2]), 2), "a", 1, "a", Some(vec![2])),
            ("a stop string cut off", event("a", json!([1, 2]), 2), "ab", 2, "", Some(vec![])),
            ("pieces without ids", event("b", Value::Null, 2), "a", 1, "b", None),
        ];
        for (claim, data, text, tokens, words, ids) in cases {
            assert_eq!(chunk(&data, text, tokens), (words.to_owned(), ids), "{claim}");
        }
    }

    #[test]
    fn counts_and_endings_are_read() {
        let data =
            br#"{"text":"a","meta_info":{"id":"x","finish_reason":{"type":"length","length":1},
            "prompt_tokens":5,"completion_tokens":1,"cached_tokens":4,"e2e_latency":0.1}}"#;
        let before = SoFar { text: "", tokens: 0 };
        let Ok(Event::Chunk(chunk)) = read_generate(data, before) else { panic!("a chunk") };
        assert_eq!(chunk.finish_reason.as_deref(), Some("length"));
        let usage = Usage { prompt_tokens: 5, completion_tokens: 1, cached_tokens: Some(4) };
        assert_eq!((chunk.usage, chunk.has_choice), (Some(usage), true));
        for data in [
            r#"{"error":{"message":"no pages"}}"#,
            r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"no pages"}}}"#,
        ] {
            let event = read_generate(data.as_bytes(), before).unwrap();
            assert!(matches!(event, Event::Error(ref text) if text == "no pages"), "{data}");
        }
        assert!(read_generate(b"{\"text\":\"cut", before).is_err());
    }
}

#[cfg(test)]
mod responses_tests {
    use super::*;

    fn chunk(data: &str) -> Chunk<'_> {
        match read_responses(data.as_bytes()).unwrap() {
            Event::Chunk(chunk) | Event::Last(chunk) => chunk,
            other => panic!("{data} gave {other:?}"),
        }
    }

    #[test]
    fn words_are_found_in_every_kind_of_delta() {
        let cases = [
            (r#"{"type":"response.output_text.delta","item_id":"m","delta":"a\n"}"#, "a\n"),
            (r#"{"type":"response.reasoning_text.delta","delta":"b"}"#, "b"),
            (r#"{"type":"response.reasoning_summary_text.delta","delta":"c"}"#, "c"),
            (r#"{"type":"response.function_call_arguments.delta","delta":"{"}"#, "{"),
            (
                r#"{"type":"response.output_item.added","item":{"type":"function_call","name":"f"}}"#,
                "f",
            ),
            (r#"{"type":"response.output_item.added","item":{"type":"message"}}"#, ""),
            (r#"{"type":"response.output_text.done","text":"a\n"}"#, ""),
            (r#"{"type":"response.created","response":{"status":"in_progress","usage":null}}"#, ""),
            (r#"{"type":"response.of_tomorrow","delta":"x"}"#, ""),
        ];
        for (data, expected) in cases {
            assert_eq!(chunk(data).words().collect::<String>(), expected, "{data}");
        }
        assert_eq!(chunk(cases[1].0).content, None, "reasoning is no content");
    }

    #[test]
    fn counts_and_endings_are_read() {
        let usage = r#""usage":{"input_tokens":5,"output_tokens":2,"total_tokens":7,"input_tokens_details":{"cached_tokens":4}}"#;
        let completed = format!(
            r#"{{"type":"response.completed","response":{{"status":"completed",{usage}}}}}"#
        );
        let incomplete = format!(
            r#"{{"type":"response.incomplete","response":{{"status":"incomplete","error":null,
                "incomplete_details":{{"reason":"max_output_tokens"}},{usage}}}}}"#
        );
        for (data, reason) in [(completed, "completed"), (incomplete, "max_output_tokens")] {
            assert!(matches!(read_responses(data.as_bytes()), Ok(Event::Last(_))), "{data}");
            let chunk = chunk(&data);
            assert_eq!(chunk.finish_reason.as_deref(), Some(reason));
            let usage = Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: Some(4) };
            assert_eq!((chunk.usage, chunk.has_choice), (Some(usage), false));
        }
    }

    #[test]
    fn errors_are_told_from_pieces() {
        for data in [
            r#"{"type":"error","code":"server_error","message":"no pages","param":null}"#,
            r#"{"type":"error","error":{"message":"no pages"}}"#,
            r#"{"error":{"message":"no pages"}}"#,
            r#"{"type":"response.failed","response":{"status":"failed","error":{"code":"c","message":"no pages"}}}"#,
        ] {
            let event = read_responses(data.as_bytes()).unwrap();
            assert!(matches!(event, Event::Error(ref text) if text == "no pages"), "{data}");
        }
        assert!(read_responses(br#"{"choices":[]}"#).is_err(), "an event of another dialect");
        assert!(read_responses(b"{\"type\":\"resp").is_err());
    }
}

#[cfg(test)]
mod messages_tests {
    use super::*;

    fn event<'a>(data: &'a str, opening: &mut Opening) -> Event<'a> {
        read_messages(data.as_bytes(), opening).unwrap_or_else(|error| panic!("{data}: {error}"))
    }

    #[test]
    fn words_are_found_in_every_kind_of_delta() {
        let delta =
            |inner: &str| format!(r#"{{"type":"content_block_delta","index":0,"delta":{inner}}}"#);
        let start =
            |inner: &str| format!(r#"{{"type":"content_block_start","content_block":{inner}}}"#);
        let cases = [
            (delta(r#"{"type":"text_delta","text":"a\n"}"#), "a\n", (true, false, false)),
            (delta(r#"{"type":"thinking_delta","thinking":"b"}"#), "b", (false, true, false)),
            (delta(r#"{"type":"input_json_delta","partial_json":"{"}"#), "{", (false, false, true)),
            (delta(r#"{"type":"input_json_delta","partial_json":""}"#), "", (false, false, false)),
            (delta(r#"{"type":"signature_delta","signature":"x"}"#), "", (false, false, false)),
            (start(r#"{"type":"text","text":""}"#), "", (true, false, false)),
            (start(r#"{"type":"tool_use","name":"f","input":{}}"#), "f", (false, false, true)),
            (r#"{"type":"of_tomorrow"}"#.to_owned(), "", (false, false, false)),
        ];
        for (data, words, places) in cases {
            let mut opening = Opening::default();
            let Event::Chunk(chunk) = event(&data, &mut opening) else { panic!("{data}") };
            assert_eq!(chunk.words().collect::<String>(), words, "{data}");
            let found =
                (chunk.content.is_some(), chunk.reasoning.is_some(), chunk.tool_call.is_some());
            assert_eq!(found, places, "{data}");
        }
    }

    #[test]
    fn the_prompts_count_of_the_first_event_stands_beside_the_answers_of_the_last() {
        let start = r#"{"type":"message_start","message":{"role":"assistant","usage":
            {"input_tokens":5,"cache_read_input_tokens":16,"output_tokens":1}}}"#;
        let mut opening = Opening::default();
        let Event::Chunk(first) = event(start, &mut opening) else { panic!("a chunk") };
        assert_eq!(first, Chunk::default(), "its output tokens are no count of the answer");
        let end = r#"{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":7}}"#;
        let Event::Chunk(last) = event(end, &mut opening) else { panic!("a chunk") };
        let usage = Usage { prompt_tokens: 21, completion_tokens: 7, cached_tokens: Some(16) };
        assert_eq!((last.usage, last.finish_reason.as_deref()), (Some(usage), Some("max_tokens")));
        assert!(matches!(event(r#"{"type":"message_stop"}"#, &mut opening), Event::Done));
        assert!(matches!(event(r#"{"type":"ping"}"#, &mut opening), Event::KeepAlive));
    }

    #[test]
    fn errors_are_told_from_pieces() {
        let mut opening = Opening::default();
        for data in [
            r#"{"type":"error","error":{"type":"overloaded_error","message":"no pages"}}"#,
            r#"{"error":"no pages"}"#,
        ] {
            let event = event(data, &mut opening);
            assert!(matches!(event, Event::Error(ref text) if text == "no pages"), "{data}");
        }
        assert!(read_messages(br#"{"choices":[]}"#, &mut opening).is_err(), "of another dialect");
        assert!(read_messages(b"{\"type\":\"mess", &mut opening).is_err());
    }
}
