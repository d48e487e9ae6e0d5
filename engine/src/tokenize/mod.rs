//! Tokenizer of a checkpoint: text to token ids and back, the rendering of chats, and guides for
//! structured output. The engine loop and the HTTP routes use it through the trait [`Text`].
//!
//! Reads the checkpoint's tokenizer files or GGUF metadata. It must not know requests or a clock.

mod detokenizer;
mod fewest;
mod gguf;
mod harmony;
mod limits;
mod marks;
mod reasoning;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub use crate::chat_template::Chat;
pub use detokenizer::Detokenizer;
pub use marks::overlap;
pub use reasoning::{Reasoning, SplitText, Splitter};

use crate::chat_template::{ChatTemplate, TemplateError};
use crate::guide::{Grammars, Guide, IsWanted, Opening, Structure, TextError};
use crate::tools::{self, Format};
use detokenizer::{Pieces, TableDetokenizer};
use engine_weights::{CheckpointError, ConfigSource, hex, read, read_json, read_small_text};
use fewest::Cover;

/// Limit on the size in bytes of a tokenizer.json; those of published models have up to 40 MB.
const TOKENIZER_BYTES_MAX: u64 = 128 << 20;

/// Tokenizer of one model as the engine uses it. The default methods are those of a model without a
/// tokenizer: prompts must be token ids, and outputs have no text.
pub trait Text: Send + Sync + fmt::Debug {
    /// Tokenizes `text`, in which names of special tokens become their ids. With
    /// `add_special_tokens` the token ids include those that the model expects around a text.
    ///
    /// # Errors
    /// The model has no tokenizer, or the text cannot be tokenized.
    fn encode(&self, _text: &str, _add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        Err(no_tokenizer())
    }

    /// Returns a number of tokens that `text` has at least, found without tokenizing it, so that a
    /// text that is far too long is refused at little cost; 0 if nothing is known. The text is read
    /// only as far as the number is at most `enough`.
    fn fewest_tokens(&self, _text: &str, _enough: usize) -> usize {
        0
    }

    /// Returns the number of times, at most, that the tokenizer makes a text longer before it looks
    /// for tokens, which lengthens its work as much.
    fn growth(&self) -> usize {
        1
    }

    /// Decodes `tokens` to text, without special tokens; empty if the model has no tokenizer.
    fn decode(&self, _tokens: &[u32]) -> String {
        String::new()
    }

    /// Returns the UTF-8 bytes of the text to which one token decodes by itself, or of the name of
    /// a special token; bytes that are not UTF-8 become U+FFFD. Empty if the model has no
    /// tokenizer.
    fn token_bytes(&self, _token: u32) -> Vec<u8> {
        Vec::new()
    }

    /// Creates the detokenizer of a new output; with `shows_special` special tokens appear by their
    /// names. The output has no text if the model has no tokenizer.
    fn detokenizer(&self, _shows_special: bool) -> Box<dyn Detokenizer> {
        Box::new(NoTokenizer)
    }

    /// Returns the ids of the end tokens, with which the model ends an answer; empty if the model
    /// has no tokenizer or its checkpoint names none.
    fn end_tokens(&self) -> &[u32] {
        &[]
    }

    /// Renders the prompt for a conversation with the model's chat template.
    ///
    /// # Errors
    /// The model has no tokenizer or no chat template, or the template refuses the messages, is
    /// faulty or exceeds a limit.
    fn render_chat(&self, _chat: &Chat<'_>) -> Result<String, TextError> {
        Err(no_tokenizer())
    }

    /// Returns the format in which the model marks its reasoning in the output.
    fn reasoning(&self) -> Reasoning {
        Reasoning::None
    }

    /// Returns what clients that render conversations themselves need; `None` if the model has no
    /// tokenizer.
    fn info(&self) -> Option<TokenizerInfo> {
        None
    }

    /// Returns how the model writes tool calls; `None` if its format is not known.
    fn calls(&self) -> Option<CallFormat> {
        None
    }

    /// Builds the guide that keeps an output within `structure`. `chat` is the rendered
    /// conversation, if any: after it the model may reason before the structured answer begins. The
    /// guide is given up once `is_wanted` returns false.
    ///
    /// # Errors
    /// The model has no tokenizer or no end token, the structure is not valid, the grammar engine
    /// does not support it or the vocabulary, or nobody waits for the guide.
    fn guide(
        &self,
        _structure: &Structure,
        _chat: Option<&str>,
        _is_wanted: IsWanted<'_>,
    ) -> Result<Guide, TextError> {
        Err(no_tokenizer())
    }
}

/// Special tokens and chat template of a tokenizer, as the checkpoint has them. The names are those
/// of Hugging Face's tokenizer_config.json.
#[derive(Debug, Clone, Serialize)]
pub struct TokenizerInfo {
    /// Text of the BOS token; `None` if the checkpoint names none.
    pub bos_token: Option<String>,
    /// Text of the EOS token; `None` if the checkpoint names none.
    pub eos_token: Option<String>,
    /// Source of the chat template, a Jinja program; `None` if the checkpoint has none.
    pub chat_template: Option<String>,
}

/// How a model writes tool calls in the text of its answers.
#[derive(Debug, Clone, Copy)]
pub struct CallFormat {
    /// Marks around names and arguments.
    pub format: &'static Format,
    /// True if some of its marks are special tokens, which the detokenizer must keep in the text.
    pub has_special: bool,
}

fn no_tokenizer() -> TextError {
    TextError("the model has no tokenizer; hint: give prompts as token ids".into())
}

/// Stand-in for the tokenizer of a model that has none.
#[derive(Debug, Clone, Copy)]
pub struct NoTokenizer;

impl Text for NoTokenizer {}

impl Detokenizer for NoTokenizer {
    fn push(&mut self, _token: u32) -> String {
        String::new()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// Error: a checkpoint has a tokenizer, but it cannot be read or used.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum TokenizerError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("failed to read the tokenizer of `{path}`: {reason}")]
    Unusable { path: PathBuf, reason: String },
    #[error("no thread can be started to compile the chat template: {0}")]
    NoThread(io::Error),
}

/// Tokenizer of a checkpoint, with its chat template and special tokens.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    growth: usize,
    pieces: Arc<Pieces>,
    info: TokenizerInfo,
    template: Option<ChatTemplate>,
    reasoning: Reasoning,
    calls: Option<CallFormat>,
    end_ids: Vec<u32>,
    /// Id of the BOS token that the checkpoint names; `None` if it names none. Whether texts begin
    /// with it is up to the tokenizer.
    pub bos_id: Option<u32>,
    /// SHA-256 of the tokenizer.json in hex. For a GGUF file, that of the tokenizer.json that is
    /// rebuilt from its metadata, with sorted keys and without white space.
    pub sha256: String,
    /// Grammar engine for structured output, built on the first request that needs it: building
    /// takes long, and most servers never need it.
    grammars: OnceLock<Result<Grammars, TextError>>,
    /// Lower bound on the tokens of a text, built for the first text that may be too long; `None`
    /// inside if this tokenizer has no bound.
    cover: OnceLock<Option<Cover>>,
}

/// Contents of a tokenizer, read from files in a folder or from GGUF metadata.
struct Parts {
    /// Contents of the checkpoint's `tokenizer.json`, or of one that is rebuilt from GGUF metadata.
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
    /// The tokenizer exists but cannot be read or used.
    pub fn load(config: &ConfigSource) -> Result<Option<Self>, TokenizerError> {
        let parts = match config {
            ConfigSource::Json { path, json } => folder_parts(path, json)?,
            ConfigSource::Gguf(metadata) => gguf::parts(metadata)?,
        };
        parts.map(|parts| Self::new(config.path(), parts)).transpose()
    }

    fn new(path: &Path, parts: Parts) -> Result<Self, TokenizerError> {
        let unusable = |reason: String| TokenizerError::Unusable { path: path.to_owned(), reason };
        let (inner, growth) = limits::read(&parts.json).map_err(unusable)?;
        let pieces = Pieces::new(&inner).map_err(unusable)?;
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
        let calls = calls_of(&inner, reasoning, parts.template.as_deref());
        let info = TokenizerInfo {
            bos_token: parts.bos_token.clone(),
            eos_token: parts.eos_token.clone(),
            chat_template: parts.template.clone(),
        };
        let template = parts
            .template
            .map(|source| ChatTemplate::new(source, parts.bos_token, parts.eos_token))
            .transpose()
            .map_err(|error| match error {
                TemplateError::Wrong(error) => {
                    unusable(format!("its chat template is wrong: {error}"))
                }
                TemplateError::NoThread(error) => TokenizerError::NoThread(error),
            })?;
        Ok(Self {
            pieces: Arc::new(pieces),
            inner,
            growth,
            info,
            template,
            reasoning,
            calls,
            end_ids,
            bos_id: parts.bos_id,
            sha256: hex(Sha256::digest(&parts.json).as_ref()),
            grammars: OnceLock::new(),
            cover: OnceLock::new(),
        })
    }

    /// Returns the position in the answer to `prompt`, a rendered conversation, at which a
    /// structured output begins: a model may reason first.
    fn opening(&self, prompt: &str) -> Opening {
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
}

impl Text for Tokenizer {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self.inner.encode_fast(text, add_special_tokens);
        let encoding =
            encoding.map_err(|error| TextError(format!("failed to tokenize the text: {error}")))?;
        Ok(encoding.get_ids().to_vec())
    }

    fn fewest_tokens(&self, text: &str, enough: usize) -> usize {
        let cover = self.cover.get_or_init(|| Cover::new(&self.inner, &self.pieces));
        cover.as_ref().map_or(0, |cover| cover.fewest_tokens(text, enough))
    }

    fn growth(&self) -> usize {
        self.growth
    }

    fn decode(&self, tokens: &[u32]) -> String {
        self.pieces.decode(tokens, true)
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        self.pieces.decode(&[token], false).into_bytes()
    }

    fn detokenizer(&self, shows_special: bool) -> Box<dyn Detokenizer> {
        Box::new(TableDetokenizer::new(Arc::clone(&self.pieces), !shows_special))
    }

    fn end_tokens(&self) -> &[u32] {
        &self.end_ids
    }

    fn render_chat(&self, chat: &Chat<'_>) -> Result<String, TextError> {
        match (&self.template, self.reasoning) {
            (Some(template), _) => template.render(chat),
            // Special tokens in the vocabulary show this format.
            (None, Reasoning::Harmony) => harmony::render(chat),
            (None, _) => {
                Err(TextError("the model has no chat template; hint: use `/v1/completions`".into()))
            }
        }
    }

    fn reasoning(&self) -> Reasoning {
        self.reasoning
    }

    fn info(&self) -> Option<TokenizerInfo> {
        Some(self.info.clone())
    }

    fn calls(&self) -> Option<CallFormat> {
        self.calls
    }

    fn guide(
        &self,
        structure: &Structure,
        chat: Option<&str>,
        is_wanted: IsWanted<'_>,
    ) -> Result<Guide, TextError> {
        let grammars =
            self.grammars.get_or_init(|| Grammars::new(self.pieces.all(), &self.end_ids));
        let opening = match (structure, self.reasoning) {
            // Calls stand in messages of their own, before and after any other.
            (Structure::Calls(_), Reasoning::Harmony) => Opening::AtOnce,
            _ => chat.map_or(Opening::AtOnce, |prompt| self.opening(prompt)),
        };
        grammars.as_ref().map_err(Clone::clone)?.guide(structure, opening, is_wanted)
    }
}

/// Recognizes the format in which a model marks its reasoning, by the special tokens of its
/// vocabulary.
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

/// Recognizes the format in which a model writes tool calls, by its chat template.
fn calls_of(
    inner: &tokenizers::Tokenizer,
    reasoning: Reasoning,
    template: Option<&str>,
) -> Option<CallFormat> {
    let format = match reasoning {
        Reasoning::Harmony => &tools::HARMONY,
        _ => Format::of(template?)?,
    };
    let added = inner.get_added_tokens_decoder();
    let mut special = added.values().filter(|token| token.special);
    Some(CallFormat { format, has_special: special.any(|token| format.names(&token.content)) })
}

/// Reads the tokenizer's files and the chat template in the folder of the config.json at
/// `config_path`; `None` if there is no tokenizer.json.
fn folder_parts(config_path: &Path, config: &Value) -> Result<Option<Parts>, TokenizerError> {
    let folder = config_path.parent().unwrap_or(Path::new("."));
    let path = folder.join("tokenizer.json");
    if !path.is_file() {
        return Ok(None);
    }
    let json = read(&path, TOKENIZER_BYTES_MAX)?;
    let optional = |name: &str| {
        let path = folder.join(name);
        if path.is_file() { read_json(&path) } else { Ok(Value::Null) }
    };
    let settings = optional("tokenizer_config.json")?;
    let generation = optional("generation_config.json")?;
    let template_path = folder.join("chat_template.jinja");
    // A template in a file of its own takes precedence.
    let template = if template_path.is_file() {
        Some(read_small_text(&template_path)?)
    } else {
        template_of(&settings)
    };
    // Either file may list end tokens that the other lacks.
    let mut end_ids = end_ids(&folder.join("generation_config.json"), &generation)?;
    end_ids.extend(self::end_ids(config_path, config)?);
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

/// Returns the chat template in a tokenizer_config.json: a string, or the entry `default` of a list
/// of named templates.
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

/// Returns the text of a special token in a tokenizer_config.json, where it is a string or an
/// object with `content`.
fn token_text(settings: &Value, key: &str) -> Option<String> {
    let token = settings.get(key)?;
    token.as_str().or_else(|| token.get("content")?.as_str()).map(str::to_owned)
}

/// Reads the ids of the end tokens that the configuration at `path` lists as one id or a list.
fn end_ids(path: &Path, config: &Value) -> Result<Vec<u32>, TokenizerError> {
    let key = "eos_token_id";
    let value = config.get(key).filter(|value| !value.is_null());
    let ids = ids_of(value);
    let wanted = match value {
        None => 0,
        Some(Value::Array(items)) => items.len(),
        Some(_) => 1,
    };
    if ids.len() == wanted {
        return Ok(ids);
    }
    let reason = "it is neither a token id nor a list of token ids";
    Err(CheckpointError::config(path, key, reason).into())
}

/// Returns the token ids in a JSON value that is one id or a list of ids.
fn ids_of(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(ids)) => ids.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}
