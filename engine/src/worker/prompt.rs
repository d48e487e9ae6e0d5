//! Log-probabilities of a prompt's own tokens, collected while the prompt is computed.

use super::Request;
use crate::logprobs::TokenLogprobs;

/// Log-probabilities of one prompt, collected so far. Prefill chunks come in order, and again from
/// the start after a preemption.
#[derive(Debug)]
pub(super) struct PromptLogprobs {
    top: usize,
    prompt_tokens: usize,
    /// Entry `i` is for the token at position `i + 1`: nothing predicts the first token.
    found: Vec<TokenLogprobs>,
}

impl PromptLogprobs {
    pub(super) fn new(request: &Request, prompt_tokens: usize) -> Self {
        let top = request.logprobs.unwrap_or(0);
        Self { top, prompt_tokens, found: Vec::with_capacity(prompt_tokens) }
    }

    /// True when every token of the prompt has its log-probability.
    pub(super) fn is_complete(&self) -> bool {
        self.found.len() + 1 >= self.prompt_tokens
    }

    /// Adds the log-probability that the logits at `position` give to the next token of the prompt.
    /// Positions that were added before a preemption are skipped.
    pub(super) fn push(&mut self, position: usize, tokens: &[u32], logits: &[f32]) {
        if position == self.found.len() && !self.is_complete() {
            self.found.push(TokenLogprobs::of(logits, tokens[position + 1], self.top));
        }
    }

    pub(super) fn finish(self) -> Vec<TokenLogprobs> {
        self.found
    }
}
