//! Rebuilds a tokenizer.json from the metadata of a GGUF file.
//!
//! Named pre-tokenizers split a text as llama.cpp's do (`llama-vocab.cpp`), since token ids must
//! equal those of llama.cpp.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Parts, TokenizerError};
use engine_weights::gguf::Metadata;

/// Type in GGUF metadata of the unknown token, whose name is recognized within a text as a special
/// token.
const UNKNOWN: i64 = 2;
/// Type in GGUF metadata of control tokens, whose names are recognized within a text as special
/// tokens.
const CONTROL: i64 = 3;
/// Type in GGUF metadata of user-defined tokens, whose names are recognized within a text but are
/// not special.
const USER_DEFINED: i64 = 4;

/// Regular expression of GPT-2's pre-tokenizer.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)";
/// Regular expression of Llama 3's pre-tokenizer.
const LLAMA3: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Regular expression of Qwen2's pre-tokenizer.
const QWEN2: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Regular expression of Qwen3.5's pre-tokenizer, from its tokenizer.json: combining marks belong
/// to the letters before.
const QWEN35: &str = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Regular expression of gpt-oss's pre-tokenizer, from the tokenizer.json of gpt-oss-20b.
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Pre-tokenizer of a GGUF file: how a text is cut into words before BPE merges are applied.
struct PreTokenizer {
    /// Regular expressions of a pre-tokenizer, applied in this order: each isolates its matches
    /// from the text between.
    splits: &'static [&'static str],
    /// True if a word that is a vocabulary token itself skips the BPE merges.
    ignore_merges: bool,
    adds_bos: bool,
}

/// Names of the supported pre-tokenizers of GGUF files, as an error message lists them. Other names
/// of the same pre-tokenizers (aliases) are supported, too, but not listed.
const KNOWN: &str = "default, gpt-2, gpt-4o, llama-bpe, qwen2, qwen35, smollm";

fn pre_tokenizer(name: &str) -> Option<PreTokenizer> {
    let plain = |splits| PreTokenizer { splits, ignore_merges: false, adds_bos: false };
    Some(match name {
        "gpt-2" => plain(&[GPT2]),
        "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
        "smollm" => plain(&[r"\p{N}", GPT2]),
        "qwen2" => plain(&[QWEN2]),
        "qwen35" => plain(&[QWEN35]),
        "gpt-4o" => PreTokenizer { splits: &[O200K], ignore_merges: true, adds_bos: false },
        "llama-bpe" | "llama3" | "llama-v3" => {
            PreTokenizer { splits: &[LLAMA3], ignore_merges: true, adds_bos: true }
        }
        _ => return None,
    })
}

/// Reads the tokenizer from the metadata of a GGUF file; `None` if the file has none.
///
/// # Errors
/// The kind of tokenizer or its pre-tokenizer is not supported, or the metadata are incomplete or
/// contradict each other.
pub(super) fn parts(metadata: &Metadata) -> Result<Option<Parts>, TokenizerError> {
    if metadata.get("tokenizer.ggml.model").is_none() {
        return Ok(None);
    }
    let unusable =
        |reason: String| TokenizerError::Unusable { path: metadata.path.clone(), reason };
    let model = metadata.text("tokenizer.ggml.model")?;
    if model != "gpt2" {
        return Err(unusable(format!("model `{model}` is not supported; hint: gpt2")));
    }
    let name = match metadata.get("tokenizer.ggml.pre") {
        // Older files do not name their pre-tokenizer.
        None => "default",
        Some(_) => metadata.text("tokenizer.ggml.pre")?,
    };
    let pre = pre_tokenizer(name).ok_or_else(|| {
        unusable(format!("pre-tokenizer `{name}` is not supported; hint: {KNOWN}"))
    })?;
    let tokens = metadata.texts("tokenizer.ggml.tokens")?;
    let id = |key: &str| -> Result<Option<u32>, TokenizerError> {
        match metadata.optional_integer(&format!("tokenizer.ggml.{key}_token_id"))? {
            None => Ok(None),
            Some(id) if id < tokens.len() => Ok(Some(id as u32)),
            Some(id) => {
                let key = format!("tokenizer.ggml.{key}_token_id");
                Err(unusable(format!("`{key}` is {id}, but ids are below {}", tokens.len())))
            }
        }
    };
    let text = |id: Option<u32>| id.map(|id| tokens[id as usize].clone());
    let (bos_id, eos_id) = (id("bos")?, id("eos")?);
    // Chat models end an answer with EOT or EOM rather than EOS.
    let mut end_ids: Vec<u32> = eos_id.into_iter().chain(id("eot")?).chain(id("eom")?).collect();
    end_ids.sort_unstable();
    end_ids.dedup();
    let template = match metadata.get("tokenizer.chat_template") {
        None => None,
        Some(_) => Some(metadata.text("tokenizer.chat_template")?.to_owned()),
    };
    // Without the flag, BOS depends on the pre-tokenizer, as in llama.cpp.
    let adds_bos = metadata.flag("tokenizer.ggml.add_bos_token").unwrap_or(pre.adds_bos);
    let adds_eos = metadata.flag("tokenizer.ggml.add_eos_token").unwrap_or(false);
    let before = bos_id.filter(|_| adds_bos);
    let after = eos_id.filter(|_| adds_eos);
    let mut json = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(metadata, tokens)?,
        "normalizer": null,
        "pre_tokenizer": pre_tokenizer_json(&pre),
        "post_processor": post_processor(before, after, tokens),
        "decoder": byte_level(),
        "model": {
            "type": "BPE",
            "ignore_merges": pre.ignore_merges,
            "vocab": vocabulary(tokens),
            "merges": merges(metadata).map_err(unusable)?,
        },
    });
    // The digest that identifies a tokenizer is over JSON with sorted keys.
    json.sort_all_objects();
    let json = json.to_string().into_bytes();
    let (bos_token, eos_token) = (text(bos_id), text(eos_id));
    Ok(Some(Parts { json, template, bos_id, bos_token, eos_token, end_ids }))
}

fn vocabulary(tokens: &[String]) -> BTreeMap<&str, usize> {
    tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect()
}

fn merges(metadata: &Metadata) -> Result<Vec<[&str; 2]>, String> {
    let lines = metadata.texts("tokenizer.ggml.merges").map_err(|err| err.to_string())?;
    lines
        .iter()
        .map(|line| match line.split_once(' ') {
            Some((left, right)) => Ok([left, right]),
            None => Err(format!("merge `{line}` is not two tokens")),
        })
        .collect()
}

fn added_tokens(metadata: &Metadata, tokens: &[String]) -> Result<Vec<Value>, TokenizerError> {
    let kinds = metadata.integers("tokenizer.ggml.token_type")?;
    Ok(tokens
        .iter()
        .zip(kinds)
        .enumerate()
        .filter(|(_, (_, kind))| matches!(**kind, UNKNOWN | CONTROL | USER_DEFINED))
        .map(|(id, (token, kind))| {
            json!({
                "id": id, "content": token, "special": *kind != USER_DEFINED,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect())
}

fn byte_level() -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    })
}

fn pre_tokenizer_json(pre: &PreTokenizer) -> Value {
    let splits = pre.splits.iter().map(|regex| {
        json!({
            "type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false,
        })
    });
    let steps: Vec<Value> = splits.chain([byte_level()]).collect();
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// Builds the `post_processor` of a tokenizer.json, which puts the tokens `before` and `after`
/// around every text; `None` puts none.
fn post_processor(before: Option<u32>, after: Option<u32>, tokens: &[String]) -> Value {
    if before.is_none() && after.is_none() {
        return byte_level();
    }
    let token = |id: Option<u32>| id.map(|id| (id, tokens[id as usize].as_str()));
    let (before, after) = (token(before), token(after));
    let special =
        |text: &str, segment: u8| json!({"SpecialToken": {"id": text, "type_id": segment}});
    let around = |inner: &[Value]| {
        let first = before.iter().map(|(_, text)| special(text, 0));
        let last = after.iter().map(|(_, text)| special(text, 0));
        first.chain(inner.iter().cloned()).chain(last).collect::<Vec<_>>()
    };
    let sequence = |id: &str, segment: u8| json!({"Sequence": {"id": id, "type_id": segment}});
    let specials: BTreeMap<&str, Value> = before
        .iter()
        .chain(&after)
        .map(|(id, text)| (*text, json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    json!({
        "type": "TemplateProcessing",
        "single": around(&[sequence("A", 0)]),
        "pair": around(&[sequence("A", 0), sequence("B", 1)]),
        "special_tokens": specials,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_lists_the_pre_tokenizers() {
        assert!(KNOWN.split(", ").all(|name| pre_tokenizer(name).is_some()));
        let readme = include_str!("../../README.md");
        assert!(readme.contains(&format!("pre-tokenizers {KNOWN}.")), "README.md lists {KNOWN}");
    }
}
