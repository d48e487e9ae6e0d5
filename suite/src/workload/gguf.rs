//! Reader of the tokenizer in the metadata of a GGUF file; tensors are not read.
//!
//! The suite counts tokens independently so that it can check an engine's counts, and therefore
//! shares no code with the engine's reader. Lengths in the file are not trusted: each has a bound,
//! and the data must be present. Format: <https://github.com/ggml-org/ggml>, `docs/gguf.md`,
//! version 3.

use anyhow::{Context, bail, ensure};
use std::io::Read;

use serde::Serialize;

/// Longest accepted string in GGUF metadata, in bytes; chat templates are the longest in use, with
/// tens of kilobytes.
const STRING_MAX: u64 = 1 << 20;
/// Largest accepted number of elements in an array of GGUF metadata; vocabularies have up to
/// 262,144.
const ARRAY_MAX: u64 = 1 << 22;
/// Largest accepted number of metadata entries in a GGUF file.
const ENTRIES_MAX: u64 = 1 << 16;

/// Tokenizer of a GGUF file. The suite's `tokenizer_sha256` of such a file is the SHA-256 of the
/// canonical JSON of this structure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GgufTokenizer {
    /// Value of `tokenizer.ggml.add_bos_token`; false where the file has none.
    pub add_bos: bool,
    pub bos: Option<u32>,
    /// Value of `tokenizer.chat_template`; empty where the file has none. It changes no token, so it
    /// is no part of the hash.
    #[serde(skip)]
    pub chat_template: String,
    pub eos: Option<u32>,
    /// BPE merges of the tokenizer in order of rank, each as `left right`.
    pub merges: Vec<String>,
    /// Value of `tokenizer.ggml.model`, the kind of tokenizer, such as `gpt2`; empty where the file
    /// has none.
    pub model: String,
    /// Value of `tokenizer.ggml.pre`, the pre-tokenizer, such as `smollm`; empty where the file has
    /// none.
    pub pre: String,
    /// Type of each token of the vocabulary: 1 normal, 2 unknown, 3 control, 4 user-defined, 5
    /// unused, 6 byte.
    pub token_types: Vec<u32>,
    pub tokens: Vec<String>,
}

const CUT_SHORT: &str = "cannot read the head of the file";

const UINT32: u32 = 4;
const INT32: u32 = 5;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Reads the tokenizer from the metadata of a GGUF file.
///
/// # Errors
/// `input` cannot be read or is not GGUF of version 2 or 3, or its metadata are cut short, are
/// malformed, have a tokenizer key of another type, or state lengths beyond the accepted ones.
pub fn read_tokenizer(input: impl Read) -> anyhow::Result<GgufTokenizer> {
    let mut head = Head { input };
    let magic: [u8; 4] = head.bytes()?;
    ensure!(&magic == b"GGUF", "not a GGUF file: it begins with {magic:02x?}");
    let version = head.u32()?;
    let is_known = (2..=3).contains(&version);
    ensure!(is_known, "GGUF version {version} is not supported, only 2 and 3 are");
    let _tensors = head.u64()?;
    let entries = head.u64()?;
    bounded("number of metadata entries", entries, ENTRIES_MAX)?;
    let mut tokenizer = GgufTokenizer::default();
    for _ in 0..entries {
        let key = head.string("key")?;
        let kind = head.u32()?;
        match key.as_str() {
            "tokenizer.ggml.model" => tokenizer.model = head.expect_string(&key, kind)?,
            "tokenizer.ggml.pre" => tokenizer.pre = head.expect_string(&key, kind)?,
            "tokenizer.ggml.tokens" => tokenizer.tokens = head.expect_strings(&key, kind)?,
            "tokenizer.ggml.merges" => tokenizer.merges = head.expect_strings(&key, kind)?,
            "tokenizer.ggml.token_type" => tokenizer.token_types = head.expect_u32s(&key, kind)?,
            "tokenizer.ggml.bos_token_id" => tokenizer.bos = Some(head.expect_u32(&key, kind)?),
            "tokenizer.ggml.eos_token_id" => tokenizer.eos = Some(head.expect_u32(&key, kind)?),
            "tokenizer.chat_template" => {
                tokenizer.chat_template = head.expect_string(&key, kind)?
            }
            "tokenizer.ggml.add_bos_token" => tokenizer.add_bos = head.expect_bool(&key, kind)?,
            _ => head.skip(kind, 0)?,
        }
    }
    Ok(tokenizer)
}

fn bounded(what: &'static str, found: u64, max: u64) -> anyhow::Result<()> {
    ensure!(found <= max, "{what} of {found} is beyond the {max} that are accepted");
    Ok(())
}

struct Head<R> {
    input: R,
}

impl<R: Read> Head<R> {
    fn bytes<const N: usize>(&mut self) -> anyhow::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes).context(CUT_SHORT)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> anyhow::Result<u32> {
        Ok(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> anyhow::Result<u64> {
        Ok(u64::from_le_bytes(self.bytes()?))
    }

    fn string(&mut self, what: &'static str) -> anyhow::Result<String> {
        let length = self.u64()?;
        bounded(what, length, STRING_MAX)?;
        let mut bytes = Vec::new();
        // Memory grows with the bytes that are present, not with the stated length.
        let read = (&mut self.input).take(length).read_to_end(&mut bytes).context(CUT_SHORT)?;
        if read as u64 != length {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)).context(CUT_SHORT);
        }
        String::from_utf8(bytes).with_context(|| format!("`{what}` is not text in UTF-8"))
    }

    fn expect_string(&mut self, key: &str, kind: u32) -> anyhow::Result<String> {
        wanted(key, kind, kind == STRING, "a string")?;
        self.string("string")
    }

    fn expect_u32(&mut self, key: &str, kind: u32) -> anyhow::Result<u32> {
        wanted(key, kind, kind == UINT32, "a 32-bit number")?;
        self.u32()
    }

    fn expect_bool(&mut self, key: &str, kind: u32) -> anyhow::Result<bool> {
        wanted(key, kind, kind == BOOL, "a boolean")?;
        Ok(self.bytes::<1>()?[0] != 0)
    }

    fn array(&mut self, key: &str, kind: u32) -> anyhow::Result<(u32, u64)> {
        wanted(key, kind, kind == ARRAY, "an array")?;
        self.array_head()
    }

    /// Reads the beginning of an array in GGUF metadata and returns the type of its elements and
    /// the number of elements.
    fn array_head(&mut self) -> anyhow::Result<(u32, u64)> {
        let (element, length) = (self.u32()?, self.u64()?);
        bounded("array", length, ARRAY_MAX)?;
        Ok((element, length))
    }

    fn expect_strings(&mut self, key: &str, kind: u32) -> anyhow::Result<Vec<String>> {
        let (element, length) = self.array(key, kind)?;
        wanted(key, element, element == STRING, "an array of strings")?;
        (0..length).map(|_| self.string("element")).collect()
    }

    fn expect_u32s(&mut self, key: &str, kind: u32) -> anyhow::Result<Vec<u32>> {
        let (element, length) = self.array(key, kind)?;
        // Token types are signed numbers in some files, unsigned in others.
        let number = matches!(element, UINT32 | INT32);
        wanted(key, element, number, "an array of 32-bit numbers")?;
        (0..length).map(|_| self.u32()).collect()
    }

    /// Skips a metadata value of type `kind` in a GGUF file; `depth` is the number of arrays around
    /// it, of which four are accepted.
    fn skip(&mut self, kind: u32, depth: u32) -> anyhow::Result<()> {
        let size = match kind {
            0 | 1 | BOOL => 1,
            2 | 3 => 2,
            UINT32 | INT32 | 6 => 4,
            10..=12 => 8,
            STRING => return self.string("string").map(drop),
            ARRAY if depth < 4 => {
                let (element, length) = self.array_head()?;
                return (0..length).try_for_each(|_| self.skip(element, depth + 1));
            }
            unknown => bail!("value type {unknown} is unknown"),
        };
        let mut value = [0; 8];
        self.input.read_exact(&mut value[..size]).context(CUT_SHORT)
    }
}

fn wanted(key: &str, found: u32, right: bool, wanted: &'static str) -> anyhow::Result<()> {
    ensure!(right, "`{key}` has type {found}, not {wanted}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(value: &str) -> Vec<u8> {
        [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
    }

    fn strings(values: &[&str]) -> Vec<u8> {
        let mut bytes = STRING.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        values.iter().for_each(|value| bytes.extend(text(value)));
        bytes
    }

    fn file(entries: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.extend((entries.len() as u64).to_le_bytes());
        for (key, kind, value) in entries {
            bytes.extend(text(key));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        bytes
    }

    fn sample() -> Vec<u8> {
        file(&[
            ("general.name", STRING, text("tiny")),
            ("tokenizer.ggml.model", STRING, text("gpt2")),
            ("general.scores", ARRAY, [&6_u32.to_le_bytes()[..], &[0; 8]].concat()),
            ("tokenizer.ggml.tokens", ARRAY, strings(&["a", "b", "ab"])),
            ("tokenizer.ggml.merges", ARRAY, strings(&["a b"])),
            ("tokenizer.ggml.bos_token_id", UINT32, 1_u32.to_le_bytes().to_vec()),
            ("tokenizer.ggml.add_bos_token", BOOL, vec![1]),
            ("tokenizer.chat_template", STRING, text("{{ x }}")),
        ])
    }

    #[test]
    fn the_tokenizers_keys_are_read_and_others_passed_over() {
        let tokenizer = read_tokenizer(sample().as_slice()).unwrap();
        let expected = GgufTokenizer {
            add_bos: true,
            bos: Some(1),
            chat_template: "{{ x }}".into(),
            merges: vec!["a b".into()],
            model: "gpt2".into(),
            tokens: vec!["a".into(), "b".into(), "ab".into()],
            ..GgufTokenizer::default()
        };
        assert_eq!(tokenizer, expected);
    }

    #[test]
    fn a_head_cut_anywhere_is_an_error_and_never_a_panic() {
        let whole = sample();
        for length in 0..whole.len() {
            assert!(read_tokenizer(&whole[..length]).is_err(), "cut after {length} bytes");
        }
    }

    #[test]
    fn lengths_beyond_every_model_are_refused_before_anything_is_allocated() {
        let huge = [&STRING.to_le_bytes()[..], &u64::MAX.to_le_bytes()].concat();
        let error = read_tokenizer(file(&[("tokenizer.ggml.tokens", ARRAY, huge)]).as_slice());
        assert!(error.unwrap_err().to_string().contains("is beyond the"));
        let long = u64::MAX.to_le_bytes().to_vec();
        let error = read_tokenizer(file(&[("general.name", STRING, long)]).as_slice());
        assert!(error.unwrap_err().to_string().contains("is beyond the"));
    }

    #[test]
    fn a_key_of_another_type_is_named() {
        let error = read_tokenizer(file(&[("tokenizer.ggml.model", BOOL, vec![1])]).as_slice());
        assert_eq!(
            error.unwrap_err().to_string(),
            "`tokenizer.ggml.model` has type 7, not a string"
        );
    }
}
