//! What the worker and the front end ask of a tokenizer.

use std::fmt;

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: String,
    pub content: String,
}

/// A tokenizer cannot do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    #[error("failed to tokenize the text: {0}")]
    Tokenize(String),
    #[error("failed to apply the model's chat template: {0}")]
    Template(String),
    #[error("the model has no chat template")]
    NoTemplate,
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

    /// Turns a stream of tokens into text.
    fn detokenizer(&self) -> Box<dyn Detokenizer>;

    /// Tokens with which the model ends an answer.
    fn end_tokens(&self) -> &[u32];

    /// A conversation as the model was taught to see it.
    ///
    /// # Errors
    /// There is no template, or it refuses these messages.
    fn render_chat(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TextError>;
}

/// The text of one sequence, token by token.
pub trait Detokenizer: Send + fmt::Debug {
    /// Text that is certain now; empty while a character is unfinished.
    fn push(&mut self, token: u32) -> String;

    /// What was held back; an unfinished character becomes U+FFFD.
    fn finish(&mut self) -> String;
}
