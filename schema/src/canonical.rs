//! Canonical JSON (RFC 8785) and the SHA-256 sums that are taken over it.

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

/// A value that has no JSON form, such as a map with keys that are not strings.
#[derive(Debug, thiserror::Error)]
#[error("value has no canonical JSON form")]
pub struct CanonicalError(#[source] serde_json::Error);

/// RFC 8785 text of `value`: keys sorted by UTF-16 code units, no spaces, ECMAScript numbers.
///
/// # Errors
/// `value` cannot be written as JSON.
pub fn to_canonical<T: Serialize>(value: &T) -> Result<String, CanonicalError> {
    serde_json_canonicalizer::to_string(value).map_err(CanonicalError)
}

/// Lower-case hex SHA-256 of the canonical JSON of `value`.
///
/// # Errors
/// `value` cannot be written as JSON.
pub fn sha256_of<T: Serialize>(value: &T) -> Result<String, CanonicalError> {
    Ok(sha256_hex(to_canonical(value)?.as_bytes()))
}

/// Lower-case hex SHA-256 of `bytes`.
#[must_use]
pub fn sha256_hex(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

/// Lower-case hex of `bytes`.
#[must_use]
pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// The SHA-256 of a record: over its canonical JSON without the key `record_sha256` itself.
///
/// # Errors
/// `record` cannot be written as JSON.
pub fn record_sha256<T: Serialize>(record: &T) -> Result<String, CanonicalError> {
    let mut value = serde_json::to_value(record).map_err(CanonicalError)?;
    if let Value::Object(map) = &mut value {
        map.remove("record_sha256");
    }
    sha256_of(&value)
}

/// The text of a record's file: sorted keys, two spaces, a line feed at the end.
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
    use serde_json::json;

    #[test]
    fn canonical_form_sorts_keys_and_writes_ecmascript_numbers() {
        let value = json!({"b": 1.0, "a": [1e21, 0.1, null], "é": "\u{1}"});
        let expected = "{\"a\":[1e+21,0.1,null],\"b\":1,\"é\":\"\\u0001\"}";
        assert_eq!(to_canonical(&value).expect("canonical"), expected);
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
