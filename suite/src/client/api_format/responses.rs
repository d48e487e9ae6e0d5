//! Parser of one event of OpenAI's Responses stream. The event's kind is part of the data, so
//! `event:` lines are not needed. Kinds without answer text give an empty chunk.
//!
//! Source: OpenAI's API reference, "Responses: streaming events".

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::Error as _;
use serde_json::Value;

use crate::client::delta::{Chunk, Event, Usage, words_of};

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    delta: Option<Cow<'a, str>>,
    #[serde(borrow)]
    message: Option<Cow<'a, str>>,
    #[serde(default)]
    response: Value,
    /// Output item that an event announces: a message or a function call.
    #[serde(default)]
    item: Value,
    error: Option<Value>,
}

pub(super) fn read(data: &[u8]) -> Result<Event<'_>, serde_json::Error> {
    let wire: Wire<'_> = serde_json::from_slice(data)?;
    let Some(kind) = wire.kind.as_deref() else {
        let error = wire.error.as_ref().ok_or_else(missing_type)?;
        return Ok(Event::Error(words_of(error)));
    };
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
            let is_call = wire.item["type"] == "function_call";
            // The name of the function consists of tokens too.
            let tool_call =
                is_call.then(|| wire.item["name"].as_str().unwrap_or_default().to_owned());
            Event::Chunk(Chunk { tool_call, ..piece })
        }
        "response.completed" | "response.incomplete" => Event::Last(end(&wire.response)),
        "response.failed" => {
            let error = Some(&wire.response["error"]).filter(|error| !error.is_null());
            let message = error.map(words_of);
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

/// Returns the final chunk: usage, and as finish reason why the answer is incomplete, else its
/// status.
fn end(response: &Value) -> Chunk<'static> {
    let usage = &response["usage"];
    let counts = usage["input_tokens"].as_u64().zip(usage["output_tokens"].as_u64());
    let usage = counts.map(|(prompt_tokens, completion_tokens)| Usage {
        prompt_tokens,
        completion_tokens,
        cached_tokens: usage["input_tokens_details"]["cached_tokens"].as_u64(),
    });
    let reason = response["incomplete_details"]["reason"].as_str();
    let reason = reason.or_else(|| response["status"].as_str());
    let finish_reason = reason.map(|reason| Cow::Owned(reason.to_owned()));
    Chunk { finish_reason, usage, ..Chunk::default() }
}

fn missing_type() -> serde_json::Error {
    serde_json::Error::custom("missing field `type`")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(data: &str) -> Chunk<'_> {
        match read(data.as_bytes()).unwrap() {
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
            assert!(matches!(read(data.as_bytes()), Ok(Event::Last(_))), "{data}");
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
            let event = read(data.as_bytes()).unwrap();
            assert!(matches!(event, Event::Error(ref text) if text == "no pages"), "{data}");
        }
        assert!(read(br#"{"choices":[]}"#).is_err(), "an event of another dialect");
        assert!(read(b"{\"type\":\"resp").is_err());
    }
}
