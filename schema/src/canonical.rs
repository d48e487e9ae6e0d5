//! Canonical JSON (RFC 8785) and SHA-256 hashes of it.

use serde::Serialize;
use serde_json::{Number, Value};
use sha2::{Digest, Sha256};

/// Error for a value without a JSON form, such as a map whose keys are not strings.
#[derive(Debug, thiserror::Error)]
#[error("value has no canonical JSON form")]
pub struct CanonicalError(#[source] serde_json::Error);

/// Returns the RFC 8785 text of `value`: keys sorted by UTF-16 code units, no spaces, numbers as
/// ECMAScript writes them.
///
/// # Errors
/// `value` cannot be written as JSON.
pub fn to_canonical<T: Serialize>(value: &T) -> Result<String, CanonicalError> {
    let mut text = Vec::new();
    write_canonical(&serde_json::to_value(value).map_err(CanonicalError)?, &mut text);
    Ok(String::from_utf8(text).expect("JSON is UTF-8"))
}

/// Returns the SHA-256 of the canonical JSON of `value`, lower-case hex.
///
/// # Errors
/// `value` cannot be written as JSON.
pub fn sha256_of<T: Serialize>(value: &T) -> Result<String, CanonicalError> {
    Ok(sha256_hex(to_canonical(value)?.as_bytes()))
}

/// Returns the SHA-256 of `bytes`, lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

/// Returns `bytes` as lower-case hex, two digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Returns the SHA-256 of a record's canonical JSON without the key `record_sha256`, lower-case
/// hex.
///
/// # Errors
/// `record` cannot be written as JSON.
pub fn record_sha256<T: Serialize>(record: &T) -> Result<String, CanonicalError> {
    Ok(record_sha256_of(&serde_json::to_value(record).map_err(CanonicalError)?))
}

/// Returns the SHA-256 of a record's canonical JSON without the key `record_sha256`, lower-case
/// hex. The record is JSON that was already parsed.
pub fn record_sha256_of(record: &Value) -> String {
    let mut text = Vec::new();
    match record {
        Value::Object(map) => {
            write_object(map.iter().filter(|(key, _)| *key != "record_sha256"), &mut text);
        }
        other => write_canonical(other, &mut text),
    }
    sha256_hex(&text)
}

/// Appends the canonical JSON text of `value` to `out`. The library `serde_json_canonicalizer`
/// serializes every value into its own buffer before it can sort the keys; a check of many records
/// would spend a fifth of its time there.
fn write_canonical(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Array(list) => {
            out.push(b'[');
            for (index, below) in list.iter().enumerate() {
                out.extend((index > 0).then_some(b','));
                write_canonical(below, out);
            }
            out.push(b']');
        }
        Value::Object(map) => write_object(map.iter(), out),
        Value::Number(number) => write_number(number, out),
        // RFC 8785 and `serde_json` write these values alike.
        Value::Null | Value::Bool(_) | Value::String(_) => write_plain(value, out),
    }
}

fn write_object<'a>(entries: impl Iterator<Item = (&'a String, &'a Value)>, out: &mut Vec<u8>) {
    let mut entries: Vec<_> = entries.collect();
    // For ASCII, byte order equals UTF-16 order, and most keys are ASCII.
    entries.sort_unstable_by(|(a, _), (b, _)| match a.is_ascii() && b.is_ascii() {
        true => a.cmp(b),
        false => a.encode_utf16().cmp(b.encode_utf16()),
    });
    out.push(b'{');
    for (index, (key, below)) in entries.into_iter().enumerate() {
        out.extend((index > 0).then_some(b','));
        write_plain(key, out);
        out.push(b':');
        write_canonical(below, out);
    }
    out.push(b'}');
}

/// Smallest integer that is written as a double and not with all its digits: each integer below
/// 2^53 is an exact double.
const INTEGERS_END: u64 = 1 << 53;

fn write_number(number: &Number, out: &mut Vec<u8>) {
    let integer = number.as_u64().is_some_and(|integer| integer < INTEGERS_END);
    // All other numbers are doubles, as in ECMAScript, which has no integers.
    match number.as_f64().filter(|_| !integer) {
        Some(double) => out.extend(ryu_js::Buffer::new().format_finite(double).as_bytes()),
        None => write_plain(number, out),
    }
}

fn write_plain(value: &impl Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(out, value).expect("texts and numbers are JSON, and memory is writable");
}

/// Returns the text of a record file: sorted keys, two spaces of indent, a line feed at the end.
///
/// # Errors
/// `record` cannot be written as JSON.
pub fn to_file_text<T: Serialize>(record: &T) -> Result<String, CanonicalError> {
    let mut value = serde_json::to_value(record).map_err(CanonicalError)?;
    value.sort_all_objects();
    let mut text = serde_json::to_string_pretty(&value).map_err(CanonicalError)?;
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn canonical_form_sorts_keys_and_writes_ecmascript_numbers() {
        let value = json!({"b": 1.0, "a": [1e21, 0.1, null], "é": "\u{1}"});
        let expected = "{\"a\":[1e+21,0.1,null],\"b\":1,\"é\":\"\\u0001\"}";
        assert_eq!(to_canonical(&value).expect("canonical"), expected);
    }

    /// Returns a proptest strategy that generates JSON values whose keys are hard to sort and whose
    /// numbers are hard to write.
    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (0_u64..64).prop_map(|shift| Value::from((1_u64 << shift).wrapping_sub(1))),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 8, |below| {
            let key = prop_oneof!["[a-c_]{0,3}", "[\\u{10000}\\u{e000}\\u{fffd}a\\n\"]{0,3}"];
            prop_oneof![
                prop::collection::vec(below.clone(), 0..8).prop_map(Value::from),
                prop::collection::vec((key, below), 0..8)
                    .prop_map(|entries| Value::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_was_read_is_written_as_the_library_writes_it(value in any_json()) {
            let library = serde_json_canonicalizer::to_string(&value).expect("canonical");
            prop_assert_eq!(to_canonical(&value).expect("canonical"), library);
        }
    }

    #[test]
    fn a_records_hash_does_not_cover_itself() {
        let bare = json!({"schema": "run.v1", "id": "x"});
        let sealed = json!({"schema": "run.v1", "id": "x", "record_sha256": "abc"});
        assert_eq!(record_sha256(&bare).expect("hash"), record_sha256(&sealed).expect("hash"));
        let other = json!({"schema": "run.v1", "id": "y"});
        assert_ne!(record_sha256(&bare).expect("hash"), record_sha256(&other).expect("hash"));
    }
}
