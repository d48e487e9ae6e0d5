//! What the worker and the front end ask of a tokenizer.

use std::error::Error;
use std::fmt;
use std::sync::OnceLock;

use serde_json::Value;

use crate::guide::{GrammarError, Grammars, Guide, Opening, Structure};
use crate::tokenize::{self, ChatInput, Reasoning, Tokenizer};

/// A conversation that is to become a prompt.
#[derive(Debug, Clone, Copy)]
pub struct Chat<'a> {
    /// List of objects with `role` and `content`.
    pub messages: &'a Value,
    /// Whether it ends with what the model's answer begins with.
    pub add_generation_prompt: bool,
    /// Object of further variables of the model's template, or none.
    pub variables: Option<&'a Value>,
    /// Seconds since 1970, for templates that state the date.
    pub now_unix_s: u64,
}

/// A tokenizer cannot do what was asked.
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

/// Text to tokens and back, for one model.
pub trait Text: Send + Sync + fmt::Debug {
    /// The tokens of a text, with those that the model wants around it if asked.
    ///
    /// # Errors
    /// The text cannot be tokenized.
    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TextError>;

    /// The text of tokens, special ones left out. Ids are below the vocabulary's size.
    fn decode(&self, tokens: &[u32]) -> String;

    /// The bytes of one token as it stands in running text; special tokens by their names.
    fn token_bytes(&self, token: u32) -> Vec<u8>;

    /// Turns a stream of tokens into text, special ones by their names if they are to be shown.
    fn detokenizer(&self, shows_special: bool) -> Box<dyn Detokenizer>;

    /// Tokens with which the model ends an answer.
    fn end_tokens(&self) -> &[u32];

    /// A conversation as the model was taught to see it.
    ///
    /// # Errors
    /// There is no template, or it refuses these messages.
    fn render_chat(&self, chat: &Chat<'_>) -> Result<String, TextError>;

    /// How the model sets its reasoning apart from its answer.
    fn reasoning(&self) -> Reasoning {
        Reasoning::None
    }

    /// A guide along `structure`; after `chat`, a rendered conversation, the model may think first.
    ///
    /// # Errors
    /// The structure cannot be followed.
    fn guide(&self, structure: &Structure, chat: Option<&str>) -> Result<Guide, TextError>;
}

/// The text of one sequence, token by token.
pub trait Detokenizer: Send + fmt::Debug {
    /// Text that is certain now; empty while a character is unfinished.
    fn push(&mut self, token: u32) -> String;

    /// What was held back; an unfinished character becomes U+FFFD.
    fn finish(&mut self) -> String;
}

/// The tokenizer of a checkpoint; one without leaves ids as the only language.
#[derive(Debug)]
pub struct CheckpointText {
    tokenizer: Option<Tokenizer>,
    /// Made when the first structured answer is asked for: it takes a while, and most never do.
    grammars: OnceLock<Result<Grammars, GrammarError>>,
}

impl CheckpointText {
    /// The text of a model with `tokenizer`, or without any.
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
        // A model may have more logits than its tokenizer has tokens; those have no text.
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

/// The text of tokens that have none.
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

/// An error with its causes, since the client sees no log.
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

/// Length of the longest end of `text` that begins `mark`, whole marks left out.
pub(crate) fn overlap(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|&n| mark.is_char_boundary(n) && text.as_bytes().ends_with(&mark.as_bytes()[..n]))
        .unwrap_or(0)
}
