//! Log-probabilities of a prompt's own tokens, gathered while it is computed.

use super::Request;
use crate::logprobs::TokenLogprobs;

/// Those of one sequence. Chunks come in order, and again from the start after a preemption.
#[derive(Debug)]
pub(super) struct PromptLogprobs {
    top: usize,
    prompt_tokens: usize,
    /// Entry `i` is about the token at position `i + 1`: nothing foretells the first.
    found: Vec<TokenLogprobs>,
}

impl PromptLogprobs {
    pub(super) fn new(request: &Request, prompt_tokens: usize) -> Self {
        let top = request.logprobs.unwrap_or(0);
        Self { top, prompt_tokens, found: Vec::with_capacity(prompt_tokens) }
    }

    /// Whether no further row is of use.
    pub(super) fn is_complete(&self) -> bool {
        self.found.len() + 1 >= self.prompt_tokens
    }

    /// Takes the logits at `position` of a sequence.
    pub(super) fn push(&mut self, position: usize, tokens: &[u32], logits: &[f32]) {
        if position == self.found.len() && !self.is_complete() {
            self.found.push(TokenLogprobs::of(logits, tokens[position + 1], self.top));
        }
    }

    pub(super) fn finish(self) -> Vec<TokenLogprobs> {
        self.found
    }
}
