//! Parser of one streaming event in OpenAI's API formats, completions and chat, including the
//! additions of the measured engines. It does not deal with time stamps.

mod scan;

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use self::scan::scan;

/// Parsed event of an answer stream, of any API format.
#[derive(Debug)]
pub enum Event<'a> {
    /// End of the answer stream: `[DONE]` or the API format's equivalent.
    Done,
    /// Chunk of the answer stream; more may follow.
    Chunk(Chunk<'a>),
    /// Chunk that is the last of the answer stream.
    Last(Chunk<'a>),
    /// Embedding: a complete answer without output tokens, with the usage that it reports.
    Embedding(Option<Usage>),
    /// Event without content that only keeps the connection alive.
    KeepAlive,
    /// Error that the server reports within the answer stream, with its message.
    Error(String),
}

/// Chunk of a streamed answer, with what it contains of text, token ids, finish reason and usage.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Reasoning text in the chunk, whatever its field is called in the API format; `None` without
    /// such a field.
    pub reasoning: Option<Cow<'a, str>>,
    /// Answer text in the chunk, without reasoning; `None` if the chunk has no such field.
    pub content: Option<Cow<'a, str>>,
    /// Text of tool calls in the chunk (function names and arguments, possibly empty), which also
    /// consists of tokens; `None` without a tool call.
    pub tool_call: Option<String>,
    /// Output token ids in the chunk; `None` where the chunk has no field for them.
    pub ids: Option<Vec<u32>>,
    /// Finish reason of the answer, in the server's words; `None` in a chunk that gives none.
    pub finish_reason: Option<Cow<'a, str>>,
    /// True when the chunk has a choice, a part of the answer; false for chunks such as a trailing
    /// one that has only usage.
    pub has_choice: bool,
    /// True when the chunk announces the role of the speaker, which is no part of the answer.
    pub has_role: bool,
    /// Token usage that the chunk reports; `None` if it reports none.
    pub usage: Option<Usage>,
}

/// Token usage that the server reports, for the answer so far or for the complete answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of prompt tokens of the request; zero where the server does not report it.
    pub prompt_tokens: u64,
    /// Number of output tokens of the answer, including reasoning; zero where the server does not
    /// report it.
    pub completion_tokens: u64,
    /// Number of prompt tokens found in the prefix cache; `None` where the server does not report
    /// it.
    pub cached_tokens: Option<u64>,
}

/// Parses the data of one event of OpenAI's completions or chat completions.
///
/// # Errors
/// The data are not JSON of these formats.
pub fn parse(data: &[u8]) -> Result<Event<'_>, serde_json::Error> {
    let trimmed = data.trim_ascii();
    if trimmed == b"[DONE]" {
        return Ok(Event::Done);
    }
    // Fast path: nearly all chunks have a usual shape.
    if let Some(chunk) = scan(trimmed) {
        return Ok(Event::Chunk(chunk));
    }
    parse_any(trimmed)
}

/// Parses an event of OpenAI's formats with any fields by a full JSON parser. Where [`scan()`]
/// succeeds, both give the same result.
pub(super) fn parse_any(trimmed: &[u8]) -> Result<Event<'_>, serde_json::Error> {
    let wire: Wire<'_> = serde_json::from_slice(trimmed)?;
    if let Some(message) = wire.error_message() {
        return Ok(Event::Error(message));
    }
    Ok(Event::Chunk(wire.into_chunk()))
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<WireChoice<'a>>>,
    usage: Option<WireUsage>,
    error: Option<Value>,
    #[serde(borrow)]
    object: Option<Cow<'a, str>>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct WireChoice<'a> {
    #[serde(default)]
    index: u32,
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    delta: Option<WireDelta<'a>>,
    token_ids: Option<Vec<u32>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct WireDelta<'a> {
    #[serde(borrow)]
    role: Option<Cow<'a, str>>,
    #[serde(borrow)]
    content: Option<Cow<'a, str>>,
    /// Reasoning text of a delta, under SGLang's and LMDeploy's field name; `None` without the
    /// field.
    #[serde(borrow)]
    reasoning_content: Option<Cow<'a, str>>,
    /// Reasoning text of a delta, under vLLM's field name; `None` without the field.
    #[serde(borrow)]
    reasoning: Option<Cow<'a, str>>,
    tool_calls: Option<Vec<Value>>,
    function_call: Option<Value>,
}

#[derive(Deserialize)]
struct WireUsage {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
}

/// Details of a request's prompt tokens, as servers report them beside the usage.
#[derive(Deserialize)]
pub(super) struct PromptDetails {
    /// Number of prompt tokens that the server found in its prefix cache; `None` if not reported.
    pub cached_tokens: Option<u64>,
}

/// Returns the `message` of a server's error, or the whole error where it has none: a string as it
/// is, another value as JSON text.
pub(super) fn words_of(error: &Value) -> String {
    let message = error.get("message").unwrap_or(error);
    message.as_str().map_or_else(|| message.to_string(), str::to_owned)
}

impl<'a> Wire<'a> {
    fn error_message(&self) -> Option<String> {
        if let Some(error) = &self.error {
            return Some(words_of(error));
        }
        (self.object.as_deref() == Some("error"))
            .then(|| self.message.as_deref().unwrap_or("error without a message").to_owned())
    }

    fn into_chunk(self) -> Chunk<'a> {
        let usage = self.usage.map(|usage| Usage {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens.unwrap_or(0),
            cached_tokens: usage.prompt_tokens_details.and_then(|details| details.cached_tokens),
        });
        let mut chunk = Chunk { usage, ..Chunk::default() };
        // Each request asks for one answer (`n` = 1), so other choices are ignored.
        let choice = self.choices.unwrap_or_default().into_iter().find(|choice| choice.index == 0);
        let Some(choice) = choice else { return chunk };
        chunk.has_choice = true;
        chunk.ids = choice.token_ids;
        chunk.finish_reason = choice.finish_reason;
        chunk.content = choice.text;
        if let Some(delta) = choice.delta {
            chunk.has_role = delta.role.is_some();
            chunk.tool_call = delta.tool_text();
            // Some servers send the same reasoning under both names; it counts once.
            chunk.reasoning = delta.reasoning.or(delta.reasoning_content);
            chunk.content = chunk.content.or(delta.content);
        }
        chunk
    }
}

impl WireDelta<'_> {
    fn tool_text(&self) -> Option<String> {
        let calls = self.tool_calls.as_deref().unwrap_or_default();
        let functions = calls.iter().map(|call| &call["function"]).chain(&self.function_call);
        let mut functions = functions.peekable();
        // A call without name and arguments is still a tool call; no call at all is none.
        functions.peek()?;
        let words = functions.flat_map(|function| [&function["name"], &function["arguments"]]);
        Some(words.filter_map(Value::as_str).collect())
    }
}

impl Chunk<'_> {
    /// Iterates over the texts of the chunk: reasoning, answer and tool call.
    pub fn words(&self) -> impl Iterator<Item = &str> {
        let tool = self.tool_call.as_deref();
        [self.reasoning.as_deref(), self.content.as_deref(), tool].into_iter().flatten()
    }

    /// True when the chunk is a part of the answer whose text is empty, without token ids: it may
    /// hold a token that has no text.
    pub fn is_empty_text(&self) -> bool {
        let is_empty = self.content.as_deref() == Some("") && self.words().all(str::is_empty);
        is_empty && !self.has_role && self.ids.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(data: &str) -> Chunk<'_> {
        match parse(data.as_bytes()).unwrap() {
            Event::Chunk(chunk) => chunk,
            other => panic!("{data} gave {other:?}"),
        }
    }

    #[test]
    fn text_is_found_under_every_name() {
        let cases = [
            (r#"{"choices":[{"index":0,"text":"a\n"}]}"#, "a\n"),
            (r#"{"choices":[{"delta":{"content":"b"}}]}"#, "b"),
            (r#"{"choices":[{"delta":{"reasoning_content":"c","content":null}}]}"#, "c"),
            (r#"{"choices":[{"delta":{"reasoning":"d","reasoning_content":"d"}}]}"#, "d"),
            (r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#, ""),
            (r#"{"choices":[{"index":1,"text":"other"}]}"#, ""),
            (r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#, ""),
            (r#"{"choices":null,"usage":null}"#, ""),
        ];
        for (data, expected) in cases {
            assert_eq!(chunk(data).words().collect::<String>(), expected, "{data}");
        }
        let tool =
            |call: &str| chunk(&format!(r#"{{"choices":[{{"delta":{{{call}}}}}]}}"#)).tool_call;
        assert_eq!(tool(r#""tool_calls":[{"index":0}]"#).as_deref(), Some(""));
        assert_eq!(tool(r#""tool_calls":[]"#), None);
        let call = r#""tool_calls":[{"function":{"name":"f","arguments":"{\"a\":"}}]"#;
        assert_eq!(tool(call).as_deref(), Some("f{\"a\":"));
        assert_eq!(tool(r#""function_call":{"arguments":"1}"}"#).as_deref(), Some("1}"));
    }

    #[test]
    fn ids_usage_and_finish_are_read() {
        let chunk = chunk(
            r#"{"choices":[{"text":"","token_ids":[1,2],"finish_reason":"length"}],
                "usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":4}}}"#,
        );
        assert_eq!(chunk.ids, Some(vec![1, 2]));
        assert_eq!(chunk.finish_reason.as_deref(), Some("length"));
        let usage = Usage { prompt_tokens: 5, completion_tokens: 2, cached_tokens: Some(4) };
        assert_eq!(chunk.usage, Some(usage));
    }

    #[test]
    fn errors_and_ends_are_told_from_chunks() {
        assert!(matches!(parse(b" [DONE] "), Ok(Event::Done)));
        for data in [
            r#"{"error":{"message":"too long","code":400}}"#,
            r#"{"error":"too long"}"#,
            r#"{"object":"error","message":"too long"}"#,
        ] {
            let event = parse(data.as_bytes()).unwrap();
            assert!(matches!(event, Event::Error(ref text) if text == "too long"), "{data}");
        }
        assert!(parse(b"{\"choices\":[{\"te").is_err());
        assert!(parse(b"<html>").is_err());
    }
}
