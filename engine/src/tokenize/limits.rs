//! Limits on a checkpoint's tokenizer: what its library would allocate without a bound, or panic on,
//! is refused before a request's text is tokenized. It must not know requests.

use std::panic::{AssertUnwindSafe, catch_unwind};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokenizers::Tokenizer;

/// Limit on [`growth`]. It is about 1,100 for tokenizers that Hugging Face's converter makes of
/// SentencePiece models with a table of characters, and 24 or less for most others.
const GROWTH_MAX: usize = 2048;

/// Text on which no tokenizer may panic: several scripts, white space and digits.
const PROBE: &str = "A né, 12\n 机";

/// Part of a tokenizer.json that is checked before the library reads it.
#[derive(Deserialize)]
struct Outline {
    #[serde(default)]
    normalizer: Value,
}

/// Reads a tokenizer.json. Returns the tokenizer, without the truncation and padding that the file
/// may ask for, and its [`growth`].
///
/// # Errors
/// The reason why the library cannot read or use it, or the limit that it exceeds.
pub(super) fn read(json: &[u8]) -> Result<(Tokenizer, usize), String> {
    let outline: Outline = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    check_charsmaps(&outline.normalizer)?;
    // The library panics on some of what a checkpoint may say.
    let read = catch_unwind(|| Tokenizer::from_bytes(json));
    let read = read.map_err(|_| "the tokenizer library panicked on it".to_owned())?;
    let mut tokenizer = read.map_err(|error| error.to_string())?;
    // Settings for training in the checkpoint must not truncate or pad prompts.
    tokenizer.with_truncation(None).map_err(|error| error.to_string())?;
    tokenizer.with_padding(None);
    let steps = [
        as_json(tokenizer.get_normalizer()),
        as_json(tokenizer.get_pre_tokenizer()),
        as_json(tokenizer.get_post_processor()),
    ];
    let growth = steps.iter().map(growth).fold(1, usize::saturating_mul);
    if growth > GROWTH_MAX {
        return Err(format!(
            "its steps before and after the vocabulary can make a text {growth} times as long; the \
             limit is {GROWTH_MAX}"
        ));
    }
    // An error is no reason: a vocabulary may lack characters of the probe.
    let probed = catch_unwind(AssertUnwindSafe(|| drop(tokenizer.encode_fast(PROBE, true))));
    match probed {
        Ok(()) => Ok((tokenizer, growth)),
        Err(_) => Err("the tokenizer library panics where it tokenizes a short text".to_owned()),
    }
}

fn as_json(step: Option<&impl Serialize>) -> Value {
    step.and_then(|step| serde_json::to_value(step).ok()).unwrap_or_default()
}

/// Checks every table of characters in `normalizer`: the library allocates what its header claims.
fn check_charsmaps(normalizer: &Value) -> Result<(), String> {
    match normalizer {
        Value::Array(parts) => parts.iter().try_for_each(check_charsmaps),
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get(CHARSMAP)
                && replacements(text).is_none()
            {
                return Err(format!("its `{CHARSMAP}` is cut off, or claims more than it has"));
            }
            fields.values().try_for_each(check_charsmaps)
        }
        _ => Ok(()),
    }
}

/// Field of the normalizer `Precompiled` of SentencePiece: in Base64 the length of a trie as four
/// bytes, the trie, and the texts that replace others, each ended by a zero byte.
const CHARSMAP: &str = "precompiled_charsmap";

/// Returns the texts in a [`CHARSMAP`]; `None` if it is not Base64 or shorter than its trie.
fn replacements(charsmap: &str) -> Option<Vec<u8>> {
    let mut bytes = BASE64_STANDARD.decode(charsmap).ok()?;
    let trie_bytes = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
    let start = trie_bytes.checked_add(size_of::<u32>())?;
    (start <= bytes.len()).then(|| bytes.split_off(start))
}

/// Returns the largest number of bytes that a step of a tokenizer makes of one byte of a text, or of
/// tokens that it makes of one token: an upper bound, which few texts reach.
fn growth(step: &Value) -> usize {
    let length = |key: &str| step[key].as_str().map_or(0, str::len);
    let own = match step["type"].as_str().unwrap_or_default() {
        // A byte becomes a character of two bytes at most. A space may precede each part.
        "ByteLevel" if step["add_prefix_space"] == true => 4,
        "ByteLevel" => 2,
        // Published for Unicode's normalization forms in UTF-8.
        "NFC" | "NFD" => 3,
        "NFKC" | "NFKD" => 11,
        "Lowercase" => 2,
        // It puts spaces around ideographs, decomposes and lower-cases.
        "BertNormalizer" => 9,
        "Prepend" => 1 + length("prepend"),
        "Metaspace" => 1 + length("replacement"),
        "Replace" => match step["pattern"]["String"].as_str() {
            Some(pattern) if !pattern.is_empty() => length("content").div_ceil(pattern.len()),
            // An expression may match the empty text.
            _ => 1 + length("content"),
        },
        "Precompiled" => {
            let texts = step[CHARSMAP].as_str().and_then(replacements).unwrap_or_default();
            texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or(1)
        }
        "TemplateProcessing" => template_growth(step),
        _ => 1,
    };
    let parts = ["normalizers", "pretokenizers", "processors"].iter();
    let parts = parts.filter_map(|key| step[*key].as_array()).flatten();
    parts.map(growth).fold(own.max(1), usize::saturating_mul)
}

/// Returns the number of times that a template has the text, and of its special tokens.
fn template_growth(template: &Value) -> usize {
    let pieces = template["single"].as_array().map_or(&[][..], Vec::as_slice);
    let count = |piece: &Value| match piece["SpecialToken"]["id"].as_str() {
        Some(id) => template["special_tokens"][id]["ids"].as_array().map_or(1, Vec::len),
        None => 1,
    };
    pieces.iter().map(count).fold(0, usize::saturating_add)
}
