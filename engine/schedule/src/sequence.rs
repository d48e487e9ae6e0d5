//! One sequence: its tokens, and how far the KV cache holds them.

use super::flight::Held;
use super::pages::{PageId, PageKey};
use super::states::StateId;
use super::{SeqId, Slot, SlotState};

/// What a sequence needs besides pages; by default nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// Every row of it has to be computed: nothing is looked up in the prefix cache.
    pub all_rows: bool,
    /// So many of its first tokens have to be known before the row after them is planned: the device
    /// does not sample these by itself.
    pub known_tokens: usize,
}

/// A prompt and what was generated from it so far.
#[derive(Debug, Clone)]
pub struct Sequence {
    id: SeqId,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// No token is sampled beyond this length.
    max_len: usize,
    /// Tokens after `tokens` that steps in flight sample: their number is known, they are not.
    unknown: usize,
    /// Positions below this are in the pages once all planned steps are computed.
    pub(super) planned: usize,
    /// Positions below this are prefilled: the prompt, and after a preemption the output so far.
    pub(super) prefill_end: usize,
    pub(super) pages: Vec<PageId>,
    /// Where the recurrent state is, while running and if the model has one.
    pub(super) state: Option<StateId>,
    /// The snapshot that the next slot begins from; held.
    pub(super) load: Option<StateId>,
    /// Keys of the full pages, as far as they were needed; they outlive a preemption.
    pub(super) keys: Vec<PageKey>,
    /// Leading pages that the prefix cache knows.
    pub(super) registered: usize,
    pub(super) needs: Needs,
    /// Prompt tokens found in the prefix cache at the first admission; none before it.
    pub(super) cached_tokens: Option<usize>,
}

impl Sequence {
    pub(super) fn new(id: SeqId, prompt: Vec<u32>, max_output: usize, needs: Needs) -> Self {
        assert!(!prompt.is_empty(), "sequence {id} has no prompt");
        Self {
            id,
            prompt_tokens: prompt.len(),
            // The end of a prompt is sampled from even where nobody wants the token.
            max_len: prompt.len() + max_output.max(1),
            unknown: 0,
            planned: 0,
            prefill_end: prompt.len(),
            tokens: prompt,
            pages: Vec::new(),
            state: None,
            load: None,
            keys: Vec::new(),
            registered: 0,
            needs,
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
        self.planned < self.prefill_end
    }

    /// Whether its next token can be computed: the prompt is planned, its last token is not sampled
    /// yet, nor on its way, and the one before is known if it has to be.
    pub(super) fn decoding(&self) -> bool {
        let is_known =
            self.unknown == 0 || self.needs.known_tokens < self.len() - self.prompt_tokens;
        is_known && !self.prefilling() && self.planned < self.len() && self.len() < self.max_len
    }

    /// Whether its next row has no page yet.
    pub(super) fn needs_page(&self, page_tokens: usize) -> bool {
        self.pages.len() * page_tokens <= self.planned
    }

    /// Tokens, those on their way included.
    fn len(&self) -> usize {
        self.tokens.len() + self.unknown
    }

    /// Forgets pages and state: everything is computed anew at the next admission.
    pub(super) fn rewind(&mut self) -> Held {
        self.planned = 0;
        self.registered = 0;
        let states = self.state.take().into_iter().chain(self.load.take()).collect();
        Held { pages: std::mem::take(&mut self.pages), states }
    }

    /// The token that the oldest step in flight has sampled.
    pub(super) fn push(&mut self, token: u32) {
        let unknown = self.unknown.checked_sub(1);
        self.unknown = unknown.unwrap_or_else(|| panic!("sequence {} was not sampled", self.id));
        self.tokens.push(token);
    }

    /// Plans the next `rows` rows. A token is sampled where they reach the end of what there is.
    pub(super) fn advance(&mut self, rows: usize, save: Option<StateId>) -> Slot {
        let (position, end) = (self.planned, self.planned + rows);
        assert!(rows > 0 && end <= self.len(), "sequence {} has no such rows", self.id);
        let slot = Slot {
            id: self.id,
            position,
            rows,
            prefill: self.prefilling(),
            samples: end == self.len(),
            unknown: end > self.tokens.len(),
            state: self.state.map(|place| SlotState { place, load: self.load.take(), save }),
        };
        self.planned = end;
        self.unknown += usize::from(slot.samples);
        slot
    }
}
