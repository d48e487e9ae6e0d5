//! Tokenizer: text to token ids and back, and the chat template of a checkpoint.
//!
//! Reads the checkpoint's tokenizer files or GGUF metadata. It must not know requests or a clock.

mod chat;
mod gguf;
mod harmony;
mod pieces;
mod reasoning;
mod stream;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub use chat::{ChatInput, ChatTemplate, TemplateError};
pub use reasoning::{Reasoning, SplitText, Splitter};
pub use stream::Detokenizer;

use crate::guide::{Opening, TokenBytes};
use engine_weights::{CheckpointError, ConfigSource, hex, read_json};
use pieces::Pieces;

/// Error of encoding or decoding: a text that cannot be tokenized, or an unknown token id.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum TokenizeError {
    #[error("failed to tokenize the text: {reason}")]
    Encode { reason: String },
    #[error("token id {id} is not in the vocabulary of {vocab_size}")]
    UnknownId { id: u32, vocab_size: usize },
}

/// The tokenizer of a checkpoint that cannot be used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum TokenizerError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("failed to read the tokenizer of `{path}`: {reason}")]
    Unusable { path: PathBuf, reason: String },
}

/// Tokenizer of a checkpoint, with its chat template and special tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pieces: Arc<Pieces>,
    template: Option<ChatTemplate>,
    reasoning: Reasoning,
    end_ids: Vec<u32>,
    bos_id: Option<u32>,
    sha256: String,
}

/// Contents of a tokenizer, read from files in a folder or from GGUF metadata.
struct Parts {
    /// Contents of the `tokenizer.json`.
    json: Vec<u8>,
    template: Option<String>,
    bos_id: Option<u32>,
    bos_token: Option<String>,
    eos_token: Option<String>,
    end_ids: Vec<u32>,
}

impl Tokenizer {
    /// Loads the tokenizer that belongs to `config`: `tokenizer.json` beside a config.json, or one
    /// rebuilt from GGUF metadata. `None` if the checkpoint has no tokenizer.
    ///
    /// # Errors
    /// The tokenizer exists but cannot be used.
    pub fn load(config: &ConfigSource) -> Result<Option<Self>, TokenizerError> {
        let parts = match config {
            ConfigSource::Json { path, json } => folder_parts(path, json)?,
            ConfigSource::Gguf(metadata) => gguf::parts(metadata)?,
        };
        parts.map(|parts| Self::new(config.path(), parts)).transpose()
    }

    fn new(path: &Path, parts: Parts) -> Result<Self, TokenizerError> {
        let unusable = |reason: String| TokenizerError::Unusable { path: path.to_owned(), reason };
        let mut inner = tokenizers::Tokenizer::from_bytes(&parts.json)
            .map_err(|err| unusable(err.to_string()))?;
        // Settings for training in the checkpoint must not truncate or pad prompts.
        inner.with_truncation(None).map_err(|err| unusable(err.to_string()))?;
        inner.with_padding(None);
        let reasoning = reasoning_of(&inner);
        let mut end_ids = parts.end_ids;
        // A checkpoint that lists no end tokens ends its answers with EOS.
        if end_ids.is_empty() {
            end_ids.extend(parts.eos_token.as_deref().and_then(|token| inner.token_to_id(token)));
        }
        // Answers in harmony also end with a tool call, which a checkpoint may not list.
        if reasoning == Reasoning::Harmony {
            end_ids.extend(harmony::ANSWER_ENDS.iter().filter_map(|mark| inner.token_to_id(mark)));
            end_ids.sort_unstable();
            end_ids.dedup();
        }
        let template = parts
            .template
            .map(|source| ChatTemplate::new(source, parts.bos_token, parts.eos_token))
            .transpose()
            .map_err(|err| unusable(format!("its chat template is wrong: {err}")))?;
        Ok(Self {
            pieces: Arc::new(Pieces::new(&inner)),
            inner,
            template,
            reasoning,
            end_ids,
            bos_id: parts.bos_id,
            sha256: hex(Sha256::digest(&parts.json).as_ref()),
        })
    }

    /// Token ids of `text`. Names of special tokens within it become their ids; with
    /// `add_special_tokens` those that the checkpoint puts around every text are added.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizeError> {
        self.inner
            .encode_fast(text, add_special_tokens)
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|err| TokenizeError::Encode { reason: err.to_string() })
    }

    /// Text of token ids; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// An id is not in the vocabulary.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizeError> {
        let mut bytes = Vec::new();
        for &id in ids {
            let piece = self
                .pieces
                .get(id)
                .ok_or(TokenizeError::UnknownId { id, vocab_size: self.pieces.len() })?;
            if !(skip_special && piece.is_special) {
                bytes.extend_from_slice(piece.bytes);
            }
        }
        // The tokenizer of such a vocabulary put a space before the text.
        let start = usize::from(self.pieces.strips_first_space() && bytes.first() == Some(&b' '));
        Ok(String::from_utf8_lossy(&bytes[start..]).into_owned())
    }

    /// Detokenizer for the tokens of one output.
    pub fn detokenizer(&self, skip_special: bool) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.pieces), skip_special)
    }

    /// Chat template of the checkpoint, if it has one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Renders the prompt for a conversation: with the checkpoint's chat template, else in the
    /// format that its special tokens show (harmony). `None` if neither is known.
    ///
    /// # Errors
    /// The template refuses the messages, or is faulty.
    pub fn render_chat(&self, input: &ChatInput<'_>) -> Option<Result<String, TemplateError>> {
        match (self.chat_template(), self.reasoning) {
            (Some(template), _) => Some(template.render(input)),
            (None, Reasoning::Harmony) => Some(harmony::render(input)),
            (None, _) => None,
        }
    }

    /// How the model marks its reasoning in the output.
    pub fn reasoning(&self) -> Reasoning {
        self.reasoning
    }

    /// Place in the answer where a structured output begins, after `prompt`, a rendered
    /// conversation: a model may reason first.
    pub fn opening(&self, prompt: &str) -> Opening {
        let id = |token: &str| self.inner.token_to_id(token);
        match self.reasoning {
            Reasoning::None => Opening::AtOnce,
            Reasoning::Think if reasoning::closes_thinking(prompt) => Opening::AtOnce,
            Reasoning::Think => match (id(reasoning::THINK), id(reasoning::THINK_END)) {
                (_, Some(close)) if reasoning::opens_thinking(prompt) => {
                    Opening::After(vec![close])
                }
                (Some(open), Some(close)) => Opening::Unless { open, close },
                _ => Opening::AtOnce,
            },
            Reasoning::Harmony => {
                self.encode(harmony::FINAL, false).map_or(Opening::AtOnce, Opening::After)
            }
        }
    }

    /// Bytes of every token, in order of the ids.
    pub fn token_bytes(&self) -> impl Iterator<Item = TokenBytes> {
        (0..self.pieces.len() as u32).map(|id| {
            let piece = self.pieces.get(id).expect("the id is below the number of tokens");
            TokenBytes { bytes: piece.bytes.to_vec(), is_special: piece.is_special }
        })
    }

    /// End tokens: ids with which the model ends an answer.
    pub fn end_ids(&self) -> &[u32] {
        &self.end_ids
    }

    /// BOS token: the id that every sequence begins with, if the model has one.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// Size of the vocabulary: one more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// SHA-256 of the tokenizer.json in hex. For a GGUF file, that of the tokenizer.json that is
    /// rebuilt from its metadata, with sorted keys and without white space.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }
}

/// How a model marks its reasoning, recognized by the special tokens of its vocabulary.
fn reasoning_of(inner: &tokenizers::Tokenizer) -> Reasoning {
    let has = |token: &&str| inner.token_to_id(token).is_some();
    if harmony::MARKS.iter().all(has) {
        Reasoning::Harmony
    } else if [reasoning::THINK, reasoning::THINK_END].iter().all(has) {
        Reasoning::Think
    } else {
        Reasoning::None
    }
}

/// Reads the tokenizer's files beside `config_path`; `None` if there is no tokenizer.json.
fn folder_parts(config_path: &Path, config: &Value) -> Result<Option<Parts>, TokenizerError> {
    let folder = config_path.parent().unwrap_or(Path::new("."));
    let path = folder.join("tokenizer.json");
    if !path.is_file() {
        return Ok(None);
    }
    let json = std::fs::read(&path)
        .map_err(|source| CheckpointError::Read { path: path.clone(), source })?;
    let optional = |name: &str| {
        let path = folder.join(name);
        if path.is_file() { read_json(&path) } else { Ok(Value::Null) }
    };
    let settings = optional("tokenizer_config.json")?;
    let generation = optional("generation_config.json")?;
    let template_path = folder.join("chat_template.jinja");
    // A template in a file of its own takes precedence.
    let template = if template_path.is_file() {
        let read = std::fs::read_to_string(&template_path);
        Some(read.map_err(|source| CheckpointError::Read { path: template_path, source })?)
    } else {
        template_of(&settings)
    };
    // Either file may list end tokens that the other lacks.
    let mut end_ids = ids_of(generation.get("eos_token_id"));
    end_ids.extend(ids_of(config.get("eos_token_id")));
    end_ids.sort_unstable();
    end_ids.dedup();
    Ok(Some(Parts {
        json,
        template,
        bos_id: ids_of(config.get("bos_token_id")).first().copied(),
        bos_token: token_text(&settings, "bos_token"),
        eos_token: token_text(&settings, "eos_token"),
        end_ids,
    }))
}

/// Chat template of a tokenizer_config.json: a string, or the entry `default` of a list of named
/// templates.
fn template_of(settings: &Value) -> Option<String> {
    match settings.get("chat_template")? {
        Value::String(text) => Some(text.clone()),
        Value::Array(named) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|entry| entry.get("template")?.as_str().map(str::to_owned)),
        _ => None,
    }
}

/// Text of a special token in a tokenizer_config.json: a string, or an object with `content`.
fn token_text(settings: &Value, key: &str) -> Option<String> {
    let token = settings.get(key)?;
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// Token ids of a JSON value that is one id or a list of ids.
fn ids_of(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}
