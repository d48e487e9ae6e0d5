//! Headers that a user adds to all requests to a server: its API key, and any others by name. They
//! enter no record, since each of them may be a secret.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use anyhow::Context;

/// Largest file with an API key, in bytes, as in the engine.
const KEY_MAX: u64 = 4 << 10;

/// Names of headers that the client sets itself, in lower case: another value would break the
/// request.
const OWN: [&str; 6] =
    ["accept", "connection", "content-length", "content-type", "host", "transfer-encoding"];

/// Shortest part of a header's value that is masked, in bytes: a shorter one is no secret, and may
/// stand in any text.
const MASKED_MIN: usize = 8;

/// API key of a server, which is never printed.
#[derive(Clone)]
pub struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key")
    }
}

impl Key {
    /// Reads an API key from the file at `path`.
    ///
    /// # Errors
    /// The file cannot be read, is not a regular file, has more than 4 KiB, or does not hold exactly
    /// one line of visible ASCII characters.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let text = whole_file::read_text(path, "key file", KEY_MAX)?;
        Self::of(&text).with_context(|| {
            format!("key file `{}` must hold one line of visible ASCII characters", path.display())
        })
    }

    /// Returns the key in `text` without surrounding white space, or `None` where the rest is empty
    /// or has other than visible ASCII characters.
    pub fn of(text: &str) -> Option<Self> {
        let key = text.trim();
        let fits = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic());
        fits.then(|| Self(key.to_owned()))
    }
}

/// Header of all requests besides those of the client, whose value is never printed.
#[derive(Clone)]
pub struct Header {
    name: String,
    value: String,
}

impl fmt::Debug for Header {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Header({})", self.name)
    }
}

impl FromStr for Header {
    type Err = String;

    /// Parses `NAME=VALUE`; the error does not quote the value.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("give it as `NAME=VALUE`")?;
        let (name, value) = (name.trim(), value.trim());
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err("its name is not that of an HTTP header".to_owned());
        }
        if OWN.contains(&name.to_ascii_lowercase().as_str()) {
            return Err(format!("the client sets `{name}` itself"));
        }
        if !value.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
            return Err(format!("the value of `{name}` has other than visible ASCII characters"));
        }
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

/// Returns the lines of a request's head for the API key and the other headers; an `Authorization`
/// among those replaces the key, as in vLLM's tool.
pub fn lines(key: Option<&Key>, others: &[Header]) -> String {
    let is_authorization = |header: &Header| header.name.eq_ignore_ascii_case("authorization");
    let key = key.filter(|_| !others.iter().any(is_authorization));
    let key = key.map(|Key(key)| format!("Authorization: Bearer {key}\r\n"));
    let others = others.iter().map(|Header { name, value }| format!("{name}: {value}\r\n"));
    key.into_iter().chain(others).collect()
}

/// Returns `text`, which a server wrote, with `***` in place of the API key and of the values of the
/// user's other headers in the `head` of a request: a server may repeat them in an error. Of one that
/// is cut off at the end of `text`, the beginning is masked.
pub fn masked(text: &str, head: &str) -> String {
    let is_own = |name: &str| OWN.contains(&name.to_ascii_lowercase().as_str());
    let values = head.lines().filter_map(|line| line.split_once(": "));
    let values = values.filter(|(name, _)| !is_own(name)).map(|(_, value)| value);
    let mut text = text.to_owned();
    // `Bearer` and the key are parts of one value.
    for secret in values.flat_map(str::split_whitespace).filter(|part| part.len() >= MASKED_MIN) {
        // JSON may escape a slash.
        text = text.replace(secret, "***").replace(&secret.replace('/', "\\/"), "***");
        let whole = text.trim_end_matches('…');
        let begun = (MASKED_MIN..secret.len()).rev().find(|&end| whole.ends_with(&secret[..end]));
        if let Some(length) = begun {
            text = format!("{}***", &whole[..whole.len() - length]);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_repeats_of_the_users_headers_is_masked() {
        let head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: \
                    application/json\r\nAuthorization: Bearer s3cret/key-1\r\nX-Team: blue\r\n";
        for (said, shown) in [
            ("bad key s3cret/key-1, s3cret\\/key-1", "bad key ***, ***"),
            ("bad key s3cret/k…", "bad key ***"),
            ("Bearer of blue: no application/json", "Bearer of blue: no application/json"),
            ("s3c", "s3c"),
        ] {
            assert_eq!(masked(said, head), shown);
        }
    }
}
