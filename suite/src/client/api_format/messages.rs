//! Parser of one event of Anthropic's Messages stream. The event's kind is part of the data, so
//! `event:` lines are not needed. Unknown kinds are ignored, as the protocol requires.
//!
//! Source: Anthropic's API reference, "Streaming Messages".

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use crate::client::delta::{Chunk, Event, Usage, words_of};

/// Usage in the first event of a stream, which the last event need not repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::client) struct Opening {
    usage: WireUsage,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    message: Option<Message>,
    #[serde(borrow)]
    delta: Option<Part<'a>>,
    #[serde(borrow)]
    content_block: Option<Part<'a>>,
    usage: Option<WireUsage>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Message {
    usage: Option<WireUsage>,
}

/// Usage of an event. `input_tokens` does not include tokens read from or written to the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
struct WireUsage {
    input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    output_tokens: Option<u64>,
}

/// Part of the answer: the beginning of a content block, or what is added to one.
#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow)]
    thinking: Option<Cow<'a, str>>,
    /// Name of the called tool.
    name: Option<String>,
    partial_json: Option<String>,
    #[serde(borrow)]
    stop_reason: Option<Cow<'a, str>>,
}

pub(super) fn read<'a>(
    data: &'a [u8],
    opening: &mut Opening,
) -> Result<Event<'a>, serde_json::Error> {
    let wire: Wire<'a> = serde_json::from_slice(data)?;
    if let Some(error) = &wire.error {
        return Ok(Event::Error(words_of(error)));
    }
    let Some(kind) = wire.kind.as_deref() else {
        return Err(serde_json::Error::custom("missing field `type`"));
    };
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

impl WireUsage {
    /// Combines this usage with that of the first event, `before`, which may be the only one with
    /// prompt counts. Returns `None` where the output is not counted.
    fn after(self, before: Self) -> Option<Usage> {
        let cached = self.cache_read_input_tokens.or(before.cache_read_input_tokens);
        let stored = self.cache_creation_input_tokens.or(before.cache_creation_input_tokens);
        let input = self.input_tokens.or(before.input_tokens).unwrap_or(0);
        Some(Usage {
            prompt_tokens: input + cached.unwrap_or(0) + stored.unwrap_or(0),
            completion_tokens: self.output_tokens?,
            cached_tokens: cached,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(data: &'a str, opening: &mut Opening) -> Event<'a> {
        read(data.as_bytes(), opening).unwrap_or_else(|error| panic!("{data}: {error}"))
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
        assert!(read(br#"{"choices":[]}"#, &mut opening).is_err(), "of another dialect");
        assert!(read(b"{\"type\":\"mess", &mut opening).is_err());
    }
}
