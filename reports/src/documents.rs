//! Splits a text into JSON values, one after another or in lists, and parses them with the lines on
//! which they stand. Knows no benchmark tool.

use serde_json::{Map, Value};

use super::Unread;

/// JSON object of a text.
#[derive(Debug)]
pub struct Document {
    pub object: Value,
    /// Numbers of its first and last line in the text, from 1.
    pub lines: (u64, u64),
}

impl Document {
    /// Returns the error that the object is no `what`, such as a result of the tool whose the text is.
    pub fn unread(&self, what: &str) -> Unread {
        Unread { line: self.lines.0, why: format!("an object that is no {what}") }
    }
}

/// Text of a JSON object or list, from its opening bracket.
struct Span<'a> {
    text: &'a str,
    lines: (u64, u64),
    /// True if the text has the closing bracket.
    closed: bool,
}

/// Reads the JSON objects of `text`, which stand one after another, in lists, or both. An object
/// that cannot be parsed gives an error with its first line. `None` for a text that has anything
/// else between objects and lists.
pub fn documents(text: &str) -> Option<Vec<Result<Document, Unread>>> {
    let mut found = Vec::new();
    for span in spans(text, 1)? {
        let Some(inner) = span.text.strip_prefix('[') else {
            found.push(document(&span));
            continue;
        };
        let inner = if span.closed { &inner[..inner.len() - 1] } else { inner };
        found.extend(spans(inner, span.lines.0)?.iter().map(document));
        if !span.closed {
            let why = "a JSON list without its end: part of the file is lost".to_owned();
            found.push(Err(Unread { line: span.lines.1, why }));
        }
    }
    Some(found)
}

fn document(span: &Span<'_>) -> Result<Document, Unread> {
    let object = parse(span.text).map_err(|why| Unread { line: span.lines.0, why })?;
    Ok(Document { object: Value::Object(object), lines: span.lines })
}

/// Returns the outermost JSON objects and lists of `text`, whose first line has the number `line`;
/// only the last may lack its closing bracket. `None` if anything except white space and commas
/// stands between them.
fn spans(text: &str, mut line: u64) -> Option<Vec<Span<'_>>> {
    let mut spans = Vec::new();
    let (mut quoted, mut escaped, mut depth) = (false, false, 0_usize);
    let (mut from, mut first) = (0, line);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'\n' => line += 1,
            b'"' if depth > 0 && !escaped => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => {
                if depth == 0 {
                    (from, first) = (at, line);
                }
                depth += 1;
            }
            b'}' | b']' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    let text = &text[from..=at];
                    spans.push(Span { text, lines: (first, line), closed: true });
                }
            }
            _ if depth > 0 || byte == b',' || byte.is_ascii_whitespace() => {}
            _ => return None,
        }
        escaped = quoted && byte == b'\\' && !escaped;
    }
    if depth > 0 {
        spans.push(Span { text: &text[from..], lines: (first, line), closed: false });
    }
    Some(spans)
}

/// Parses a JSON object as Python writes it, where numbers may be `Infinity` and `NaN`.
pub fn parse(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(&strict(text)).map_err(|error| format!("not a JSON object: {error}"))
}

/// Returns `text` as strict JSON: `Infinity` becomes the string `inf`, and `-Infinity` and `NaN`
/// become `null`, outside of strings.
fn strict(text: &str) -> String {
    let outside = |part: &str| {
        // `-Infinity` is replaced first, because it contains the other word.
        part.replace("-Infinity", "null").replace("Infinity", "\"inf\"").replace("NaN", "null")
    };
    let mut strict = String::with_capacity(text.len());
    let (mut quoted, mut escaped, mut from) = (false, false, 0);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => {
                let part = &text[from..at];
                strict.push_str(&if quoted { part.to_owned() } else { outside(part) });
                strict.push('"');
                (quoted, from) = (!quoted, at + 1);
            }
            _ => {}
        }
        escaped = quoted && byte == b'\\' && !escaped;
    }
    strict.push_str(&outside(&text[from..]));
    strict
}
