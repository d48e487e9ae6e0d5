//! One sequence: its tokens, and how far the KV cache holds them.

use super::pages::{PageId, PageKey};
use super::{SeqId, Slot};

/// A prompt and what was generated from it so far.
#[derive(Debug, Clone)]
pub struct Sequence {
    id: SeqId,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Positions below this are in the pages.
    pub(super) computed: usize,
    /// Positions below this are prefilled: the prompt, and after a preemption the output so far.
    pub(super) prefill_end: usize,
    pub(super) pages: Vec<PageId>,
    /// Keys of the full pages, as far as they were needed; they outlive a preemption.
    pub(super) keys: Vec<PageKey>,
    /// Leading pages that the prefix cache knows.
    pub(super) registered: usize,
    /// Whether the prefix cache may spare it rows.
    pub(super) reuses: bool,
    /// Prompt tokens found in the prefix cache at the first admission; none before it.
    pub(super) cached_tokens: Option<usize>,
}

impl Sequence {
    pub(super) fn new(id: SeqId, prompt: Vec<u32>) -> Self {
        assert!(!prompt.is_empty(), "sequence {id} has no prompt");
        Self {
            id,
            prompt_tokens: prompt.len(),
            prefill_end: prompt.len(),
            tokens: prompt,
            computed: 0,
            pages: Vec::new(),
            keys: Vec::new(),
            registered: 0,
            reuses: true,
            cached_tokens: None,
        }
    }

    /// Prompt and output.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens generated so far.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Length of the prompt.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Prompt tokens that the prefix cache spared at the first admission.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens.unwrap_or(0)
    }

    /// The page table, one entry per page of positions.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    pub(super) fn prefilling(&self) -> bool {
        self.computed < self.prefill_end
    }

    /// Forgets the pages: everything is computed anew at the next admission.
    pub(super) fn rewind(&mut self) -> Vec<PageId> {
        self.computed = 0;
        self.registered = 0;
        self.prefill_end = self.tokens.len();
        std::mem::take(&mut self.pages)
    }

    pub(super) fn push(&mut self, token: u32) {
        assert_eq!(self.computed, self.tokens.len(), "sequence {} was not computed", self.id);
        self.tokens.push(token);
    }

    /// The next `rows` rows. A token is sampled where they reach the end of what is known.
    pub(super) fn slot(&self, rows: usize) -> Slot {
        let end = self.computed + rows;
        assert!(rows > 0 && end <= self.tokens.len(), "sequence {} has no such rows", self.id);
        Slot {
            id: self.id,
            position: self.computed,
            rows,
            prefill: self.prefilling(),
            samples: end == self.tokens.len(),
        }
    }
}
