//! Parser of one event of SGLang's native `/generate`, which repeats the text and ids so far and
//! has a running token count.
//!
//! Source: `sglang/srt/entrypoints/http_server.py` and `sglang/srt/managers/tokenizer_manager.py`.
//! With `--incremental-streaming-output`, events have only the new text and ids; the count still
//! covers the whole answer.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::Value;

use super::SoFar;
use crate::client::delta::{Chunk, Event, Usage, words_of};

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow)]
    text: Option<Cow<'a, str>>,
    output_ids: Option<Vec<u32>>,
    meta_info: Option<Meta>,
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Meta {
    #[serde(default)]
    prompt_tokens: u64,
    completion_tokens: Option<u64>,
    cached_tokens: Option<u64>,
    /// Object with the kind of the end; older servers send only a word.
    #[serde(default)]
    finish_reason: Value,
}

/// Parses an event, given the answer `so_far`.
pub(super) fn read<'a>(data: &'a [u8], so_far: SoFar<'_>) -> Result<Event<'a>, serde_json::Error> {
    let wire: Wire<'a> = serde_json::from_slice(data)?;
    if let Some(error) = &wire.error {
        return Ok(Event::Error(words_of(error)));
    }
    let meta = wire.meta_info.unwrap_or_default();
    let finish = &meta.finish_reason;
    let kind = finish["type"].as_str().or_else(|| finish.as_str());
    // SGLang reports an aborted request as a finish reason.
    if finish["type"] == "abort" {
        let message = finish["message"].as_str().unwrap_or("the answer was aborted");
        return Ok(Event::Error(message.to_owned()));
    }
    let finish_reason = kind.map(|kind| Cow::Owned(kind.to_owned()));
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

/// Returns the part of `text` after `before`: nothing where the server removed a stop string at the
/// end, and all of `text` where it does not continue `before`, because the server sends only what
/// is new.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chunk(data: &str, text: &str, tokens: u64) -> (String, Option<Vec<u32>>) {
        match read(data.as_bytes(), SoFar { text, tokens }).unwrap() {
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
        let Ok(Event::Chunk(chunk)) = read(data, before) else { panic!("a chunk") };
        assert_eq!(chunk.finish_reason.as_deref(), Some("length"));
        let usage = Usage { prompt_tokens: 5, completion_tokens: 1, cached_tokens: Some(4) };
        assert_eq!((chunk.usage, chunk.has_choice), (Some(usage), true));
        for data in [
            r#"{"error":{"message":"no pages"}}"#,
            r#"{"text":"","meta_info":{"finish_reason":{"type":"abort","message":"no pages"}}}"#,
        ] {
            let event = read(data.as_bytes(), before).unwrap();
            assert!(matches!(event, Event::Error(ref text) if text == "no pages"), "{data}");
        }
        assert!(read(b"{\"text\":\"cut", before).is_err());
    }
}
