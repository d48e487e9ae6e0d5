//! Interface between a tokenizer and its users, the engine loop and the HTTP routes: encode,
//! detokenize, render chats, build guides for structured output.

use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use serde_json::Value;

use crate::guide::{GrammarError, Grammars, Guide, Opening, Structure};
use crate::tokenize::{self, ChatInput, Reasoning, Tokenizer};

/// Conversation to render with the model's chat template.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// Messages: a JSON array of objects with `role` and `content`.
    pub messages: &'a Value,
    /// True to end the prompt with the header of the model's next answer.
    pub add_generation_prompt: bool,
    /// Further variables for the chat template, a JSON object, or `None`.
    pub variables: Option<&'a Value>,
    /// Current time in seconds since 1970, for templates that print the date.
    pub now_unix_s: u64,
}

/// Error of a tokenizer, a chat template or a guide.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum TextError {
    #[error("{0}")]
    Tokenize(String),
    #[error("{0}")]
    Template(String),
    #[error("the model has no chat template; hint: use `/v1/completions`")]
    NoTemplate,
    #[error("the model has no tokenizer; hint: give prompts as token ids")]
    NoTokenizer,
    #[error("{0}")]
    Structure(#[from] GrammarError),
}

/// Tokenizer of one model as the engine uses it: text to token ids and back.
pub trait Text: Send + Sync + fmt::Debug {
    /// Token ids of `text`; with `add_special_tokens` those that the model expects around it as
    /// well.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError>;

    /// Text of `tokens` without special tokens. Every id is below the vocabulary's size.
    fn decode(&self, tokens: &[u32]) -> String;

    /// Bytes of one token as they stand in running text; the name of a special token.
    fn token_bytes(&self, token: u32) -> Vec<u8>;

    /// Detokenizer for a new output; with `shows_special` special tokens appear by their names.
    fn detokenizer(&self, shows_special: bool) -> Box<dyn Detokenizer>;

    /// End tokens: the ids with which the model ends an answer.
    fn end_tokens(&self) -> &[u32];

    /// Prompt for a conversation, rendered with the model's chat template.
    ///
    /// # Errors
    /// The model has no chat template, or the template refuses the messages.
    fn render_chat(&self, chat: &Chat<'_>) -> Result<String, TextError>;

    /// How the model marks its reasoning in the output.
    fn reasoning(&self) -> Reasoning {
        Reasoning::None
    }

    /// Guide that keeps an output within `structure`. `chat` is the rendered conversation, if any:
    /// after it the model may reason before the structured answer begins.
    ///
    /// # Errors
    /// The structure is not valid, or no grammar can express it.
    fn guide(&self, structure: &Structure, chat: Option<&str>) -> Result<Guide, TextError>;
}

/// Incremental detokenizer: turns the tokens of one sequence into text, token by token.
pub trait Detokenizer: Send + fmt::Debug {
    /// Text that `token` completes; empty while a character is unfinished.
    fn push(&mut self, token: u32) -> String;

    /// Text that was held back at the end of the output; an unfinished character becomes U+FFFD.
    fn finish(&mut self) -> String;
}

/// Tokenizer of a checkpoint, if it has one. Without a tokenizer prompts must be token ids, and
/// outputs have no text.
#[derive(Debug)]
pub struct CheckpointText {
    tokenizer: Option<Tokenizer>,
    /// Grammars for structured output, made on the first request that needs them: it takes long,
    /// and most servers never need them.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl CheckpointText {
    /// Wraps `tokenizer`, or `None` for a checkpoint without one.
    pub fn new(tokenizer: Option<Tokenizer>) -> Self {
        Self { tokenizer, grammars: OnceLock::new() }
    }

    fn tokenizer(&self) -> Result<&Tokenizer, TextError> {
        self.tokenizer.as_ref().ok_or(TextError::NoTokenizer)
    }
}

impl Text for CheckpointText {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError> {
        let ids = self.tokenizer()?.encode(text, add_special_tokens);
        ids.map_err(|error| TextError::Tokenize(chain(&error)))
    }

    fn decode(&self, tokens: &[u32]) -> String {
        let Some(tokenizer) = &self.tokenizer else { return String::new() };
        // A model may have more logits than its tokenizer has tokens; ids beyond those have no
        // text.
        let known: Vec<u32> =
            tokens.iter().copied().filter(|id| (*id as usize) < tokenizer.vocab_size()).collect();
        tokenizer.decode(&known, true).unwrap_or_default()
    }

    fn token_bytes(&self, token: u32) -> Vec<u8> {
        let text =
            self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.decode(&[token], false).ok());
        text.unwrap_or_default().into_bytes()
    }

    fn detokenizer(&self, shows_special: bool) -> Box<dyn Detokenizer> {
        match &self.tokenizer {
            Some(tokenizer) => Box::new(tokenizer.detokenizer(!shows_special)),
            None => Box::new(Silent),
        }
    }

    fn end_tokens(&self) -> &[u32] {
        self.tokenizer.as_ref().map_or(&[], Tokenizer::end_ids)
    }

    fn render_chat(&self, chat: &Chat<'_>) -> Result<String, TextError> {
        let input = ChatInput {
            messages: chat.messages,
            tools: None,
            add_generation_prompt: chat.add_generation_prompt,
            variables: chat.variables,
            now_unix_s: i64::try_from(chat.now_unix_s).unwrap_or(i64::MAX),
        };
        let rendered = self.tokenizer()?.render_chat(&input).ok_or(TextError::NoTemplate)?;
        rendered.map_err(|error| TextError::Template(chain(&error)))
    }

    fn reasoning(&self) -> Reasoning {
        self.tokenizer.as_ref().map_or(Reasoning::None, Tokenizer::reasoning)
    }

    fn guide(&self, structure: &Structure, chat: Option<&str>) -> Result<Guide, TextError> {
        let tokenizer = self.tokenizer()?;
        let grammars = self
            .grammars
            .get_or_init(|| Grammars::new(tokenizer.token_bytes(), tokenizer.end_ids()))
            .as_ref()
            .map_err(Clone::clone)?;
        let opening = chat.map_or(Opening::AtOnce, |prompt| tokenizer.opening(prompt));
        Ok(grammars.guide(structure, opening)?)
    }
}

impl Detokenizer for tokenize::Detokenizer {
    fn push(&mut self, token: u32) -> String {
        let mut text = String::new();
        self.push(token, &mut text);
        text
    }

    fn finish(&mut self) -> String {
        let mut text = String::new();
        self.finish(&mut text);
        text
    }
}

/// Detokenizer of a model without a tokenizer: all text is empty.
#[derive(Debug)]
struct Silent;

impl Detokenizer for Silent {
    fn push(&mut self, _token: u32) -> String {
        String::new()
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

/// Message of an error followed by those of its causes, because a client does not see the log.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Length in bytes of the longest suffix of `text` that is a proper prefix of `mark`: text that may
/// become the mark with the next piece.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|&n| mark.is_char_boundary(n) && text.as_bytes().ends_with(&mark.as_bytes()[..n]))
        .unwrap_or(0)
}
