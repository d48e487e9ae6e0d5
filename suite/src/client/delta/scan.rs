//! Fast parser for chunks of OpenAI's formats with the usual JSON fields, in one pass and without a
//! document tree.
//!
//! A saturated client spends most of its time on JSON, and few of a chunk's two hundred bytes
//! matter. Anything unusual (errors, tool calls, malformed data) is left to
//! [`super::parse_any`], which defines the result: where this parser succeeds, both agree.

use std::borrow::Cow;

use super::{Chunk, Usage};

/// Number of bytes at the beginning of a string that are searched one by one for its end, before
/// `memchr` is used.
const SHORT: usize = 16;
/// Maximum number of levels of nesting in a JSON value that the fast parser passes over; a chunk
/// with a deeper one is left to the full parser. `logprobs` has four levels.
const DEPTH_MAX: u32 = 16;

/// Parses the chunk in `data`, or returns `None` where the full JSON parser is needed.
pub(super) fn scan(data: &[u8]) -> Option<Chunk<'_>> {
    let mut cursor = Cursor { bytes: data, at: 0 };
    let mut chunk = Chunk::default();
    cursor.object(|key, cursor| match key {
        b"choices" => cursor.choices(&mut chunk),
        b"usage" => cursor.usage().map(|usage| chunk.usage = usage),
        b"object" => {
            let object = cursor.text()?;
            (object.as_deref() != Some("error")).then_some(())
        }
        // With `object`, these fields belong to an error; null means that there is none.
        b"error" | b"message" => cursor.null().then_some(()),
        _ => cursor.skip(DEPTH_MAX),
    })?;
    cursor.white();
    (cursor.at == data.len()).then_some(chunk)
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn choices(&mut self, chunk: &mut Chunk<'a>) -> Option<()> {
        if self.null() {
            return Some(());
        }
        self.array(|cursor| {
            // `usage` may precede `choices` in the document.
            let mut choice = Chunk { usage: chunk.usage, has_choice: true, ..Chunk::default() };
            let index = cursor.choice(&mut choice)?;
            // Only the first choice 0 counts, as in the full parser.
            if index == 0 && !chunk.has_choice {
                *chunk = choice;
            }
            Some(())
        })
    }

    fn choice(&mut self, choice: &mut Chunk<'a>) -> Option<u64> {
        let (mut index, mut delta) = (0, None);
        self.object(|key, cursor| match key {
            b"index" => cursor.number().map(|number| index = number),
            b"text" => cursor.text().map(|text| choice.content = text),
            b"delta" => cursor.delta(choice).map(|content| delta = content),
            b"token_ids" => cursor.ids().map(|ids| choice.ids = ids),
            b"finish_reason" => cursor.text().map(|reason| choice.finish_reason = reason),
            _ => cursor.skip(DEPTH_MAX),
        })?;
        choice.content = choice.content.take().or(delta);
        Some(index)
    }

    /// Parses a chunk's `delta` and returns its `content`; the reasoning text of the delta is
    /// stored in `choice`.
    fn delta(&mut self, choice: &mut Chunk<'a>) -> Option<Option<Cow<'a, str>>> {
        if self.null() {
            return Some(None);
        }
        let (mut content, mut other) = (None, None);
        self.object(|key, cursor| match key {
            b"content" => cursor.text().map(|text| content = text),
            b"role" => cursor.text().map(|role| choice.has_role = role.is_some()),
            b"reasoning" => cursor.text().map(|text| choice.reasoning = text),
            b"reasoning_content" => cursor.text().map(|text| other = text),
            b"tool_calls" | b"function_call" => cursor.null().then_some(()),
            _ => cursor.skip(DEPTH_MAX),
        })?;
        choice.reasoning = choice.reasoning.take().or(other);
        Some(content)
    }

    fn usage(&mut self) -> Option<Option<Usage>> {
        if self.null() {
            return Some(None);
        }
        let mut usage = Usage::default();
        self.object(|key, cursor| match key {
            b"prompt_tokens" => cursor.number().map(|count| usage.prompt_tokens = count),
            b"completion_tokens" if cursor.null() => Some(()),
            b"completion_tokens" => cursor.number().map(|count| usage.completion_tokens = count),
            b"prompt_tokens_details" if cursor.null() => Some(()),
            b"prompt_tokens_details" => cursor.object(|key, cursor| match key {
                b"cached_tokens" if cursor.null() => Some(()),
                b"cached_tokens" => cursor.number().map(|count| usage.cached_tokens = Some(count)),
                _ => cursor.skip(DEPTH_MAX),
            }),
            _ => cursor.skip(DEPTH_MAX),
        })?;
        Some(Some(usage))
    }

    fn ids(&mut self) -> Option<Option<Vec<u32>>> {
        if self.null() {
            return Some(None);
        }
        let mut ids = Vec::new();
        self.array(|cursor| {
            ids.push(u32::try_from(cursor.number()?).ok()?);
            Some(())
        })?;
        Some(Some(ids))
    }

    fn object(&mut self, mut field: impl FnMut(&[u8], &mut Self) -> Option<()>) -> Option<()> {
        self.take(b'{')?;
        if self.take(b'}').is_some() {
            return Some(());
        }
        loop {
            let (key, escaped) = self.string()?;
            self.take(b':')?;
            // An escaped key may spell a known name: leave it to the full parser.
            if escaped {
                return None;
            }
            field(key, self)?;
            if self.take(b',').is_none() {
                return self.take(b'}');
            }
        }
    }

    fn array(&mut self, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.take(b'[')?;
        if self.take(b']').is_some() {
            return Some(());
        }
        loop {
            item(self)?;
            if self.take(b',').is_none() {
                return self.take(b']');
            }
        }
    }

    /// Passes over a JSON value of any kind with at most `depth` levels of nesting; returns `None`
    /// for a deeper or malformed one.
    fn skip(&mut self, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        self.white();
        match self.bytes.get(self.at)? {
            b'"' => self.string().map(|_| ()),
            b'{' => self.object(|_, cursor| cursor.skip(depth)),
            b'[' => self.array(|cursor| cursor.skip(depth)),
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => self.any_number(),
        }
    }

    /// Parses a JSON string or null; the inner `None` means null, the outer one that it is neither.
    fn text(&mut self) -> Option<Option<Cow<'a, str>>> {
        if self.null() {
            return Some(None);
        }
        let (raw, escaped) = self.string()?;
        if !escaped {
            return Some(Some(Cow::Borrowed(std::str::from_utf8(raw).ok()?)));
        }
        if let Some(text) = unescape(raw) {
            return Some(Some(Cow::Owned(text)));
        }
        // Other escapes are rare and left to the library.
        let quoted = &self.bytes[self.at - raw.len() - 2..self.at];
        serde_json::from_slice(quoted).ok().map(|text| Some(Cow::Owned(text)))
    }

    /// Returns the bytes of a JSON string between its quotes, and true if they contain escapes.
    fn string(&mut self) -> Option<(&'a [u8], bool)> {
        self.take(b'"')?;
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = self.bytes.get(self.at..)?;
            self.at += special(rest)?;
            if self.bytes[self.at] == b'"' {
                let raw = &self.bytes[start..self.at];
                self.at += 1;
                return Some((raw, escaped));
            }
            escaped = true;
            // Skip the backslash and the escaped character, which may be a quote.
            self.at += 2;
        }
    }

    /// Parses a non-negative integer of at most eighteen digits in JSON; `None` for any other
    /// value.
    fn number(&mut self) -> Option<u64> {
        self.white();
        let digits = self.bytes[self.at..].iter().take_while(|byte| byte.is_ascii_digit());
        let (mut value, mut count) = (0, 0);
        for digit in digits {
            value = value * 10 + u64::from(digit - b'0');
            count += 1;
            if count > 18 {
                return None;
            }
        }
        // Leading zeros, fractions and exponents are left to the full parser.
        let padded = count > 1 && self.bytes[self.at] == b'0';
        self.at += count;
        let ends = !matches!(self.bytes.get(self.at), Some(b'.' | b'e' | b'E'));
        (count > 0 && !padded && ends).then_some(value)
    }

    fn any_number(&mut self) -> Option<()> {
        let number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = self.bytes[self.at..].iter().take_while(number).count();
        self.at += length;
        (length > 0).then_some(())
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.bytes[self.at..].starts_with(word).then(|| self.at += word.len())
    }

    fn null(&mut self) -> bool {
        self.white();
        self.word(b"null").is_some()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        self.white();
        (self.bytes.get(self.at) == Some(&byte)).then(|| self.at += 1)
    }

    fn white(&mut self) {
        let white = |byte: &&u8| matches!(byte, b' ' | b'\n' | b'\r' | b'\t');
        self.at += self.bytes[self.at..].iter().take_while(white).count();
    }
}

/// Returns the position of the first quote or backslash in the bytes of a JSON string. Most strings
/// are too short for `memchr` to pay off.
fn special(bytes: &[u8]) -> Option<usize> {
    let (short, rest) = bytes.split_at(bytes.len().min(SHORT));
    let found = short.iter().position(|byte| matches!(byte, b'"' | b'\\'));
    found.or_else(|| memchr::memchr2(b'"', b'\\', rest).map(|at| at + short.len()))
}

/// Returns the text of the JSON string `raw` with its escapes decoded; `None` if it has escapes
/// other than `\n`, `\t`, `\r`, `\"`, `\\` and `\/`, or is not UTF-8.
fn unescape(raw: &[u8]) -> Option<String> {
    let mut text = Vec::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        text.extend_from_slice(&rest[..at]);
        text.push(match rest.get(at + 1)? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            letter @ (b'"' | b'\\' | b'/') => *letter,
            _ => return None,
        });
        rest = &rest[at + 2..];
    }
    text.extend_from_slice(rest);
    String::from_utf8(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::delta::{Event, parse_any};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn same(text: &str) {
        match (scan(text.as_bytes()), parse_any(text.as_bytes())) {
            (None, _) => {}
            (Some(chunk), Ok(Event::Chunk(other))) => assert_eq!(chunk, other, "{text}"),
            (Some(chunk), other) => panic!("{text} gave {chunk:?} and {other:?}"),
        }
    }

    #[test]
    fn the_chunks_of_known_servers_need_no_other_reader() {
        for text in [
            r#"{"id":"c-1","object":"text_completion","created":1700000000,"model":"m","choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null,"token_ids":[7,8]}]}"#,
            r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"role":"assistant","content":"\n\"\t\\/\u00e9","tool_calls":null},"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":null}"#,
            r#"{ "choices" : [ {"index":1,"text":"x"}, {"delta":{"reasoning_content":"r","content":null}} ] , "usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2,"prompt_tokens_details":null}}"#,
            r#"{"choices":[{"text":"\n\t\r\"\\\/ and a text of more than sixteen bytes\n"}]}"#,
        ] {
            assert!(scan(text.as_bytes()).is_some(), "{text}");
            same(text);
        }
    }

    #[test]
    fn what_is_unusual_is_left_to_the_other_reader() {
        for text in [
            "",
            "{",
            "[]",
            "<html>",
            r#"{"choices":[{"te"#,
            r#"{"choices":[]} x"#,
            r#"{"choices":[],}"#,
            r#"{"error":{"message":"no"}}"#,
            r#"{"object":"error","message":"no"}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}"#,
            r#"{"choices":[{"index":0.0}]}"#,
            r#"{"usage":{"prompt_tokens":-1}}"#,
            r#"{"usage":{"prompt_tokens":01}}"#,
            r#"{"choices":[{"text":"\x"}]}"#,
            r#"{"a":tru}"#,
            r#"{"choices":[{"text":"cut\"#,
        ] {
            assert_eq!(scan(text.as_bytes()), None, "{text}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map(".{0,6}", inner, 0..3).prop_map(|map| Value::from(
                    map.into_iter().collect::<serde_json::Map<_, _>>()
                )),
            ]
        })
    }

    proptest! {
        #[test]
        fn both_readers_read_the_same(
            text in ".{0,20}", reasoning in prop::option::of(".{0,8}"), index in 0_u32..2,
            ids in prop::option::of(prop::collection::vec(any::<u32>(), 0..4)),
            count in any::<u64>(), other in value(), cut in any::<prop::sample::Index>(),
        ) {
            let chunk = json!({
                "id": other.clone(), "object": "x",
                "choices": [{"index": index, "text": text, "token_ids": ids, "extra": other},
                            {"index": 0, "delta": {"content": text, "reasoning": reasoning}}],
                "usage": {"prompt_tokens": count, "completion_tokens": null},
            });
            let whole = chunk.to_string();
            same(&whole);
            prop_assert!(scan(&whole.as_bytes()[..cut.index(whole.len())]).is_none());
        }
    }
}
