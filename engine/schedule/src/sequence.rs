//! A sequence as the scheduler sees it: its tokens, its pages, and how far it is computed.

use std::sync::Arc;

use super::pages::{PageId, PageKey};
use super::states::StateSlot;
use super::{PlannedSequence, SeqId};
use engine_core::{LogitRows, ScheduledSequence, StateSlots};

/// KV pages and state slots held by a sequence or by a step in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    pub(super) pages: Vec<PageId>,
    pub(super) states: Vec<StateSlot>,
}

/// Requirements of a sequence that restrict how the scheduler plans it; none by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Needs {
    /// True when every row must be computed, for example to read its logits, so the prefix cache is
    /// not used.
    pub all_rows: bool,
    /// Number of output tokens that the host must know before the row after them is planned,
    /// because the device does not sample these tokens by itself.
    pub known_tokens: usize,
}

/// A sequence: prompt and generated tokens, KV pages, and how far both are computed.
#[derive(Debug, Clone)]
pub struct Sequence {
    id: SeqId,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Length in tokens at which sampling ends: prompt and longest output.
    max_len: usize,
    /// Number of tokens after `tokens` that steps in flight sample: their values are not known yet.
    unknown: usize,
    /// Number of positions whose keys and values are in the pages once all planned steps are
    /// computed.
    pub(super) planned: usize,
    /// Number of positions to prefill: the prompt, and after a preemption also the output so far.
    pub(super) prefill_end: usize,
    /// Page table, shared with the steps in flight that use it.
    pub(super) pages: Arc<[PageId]>,
    /// State slot of the recurrent state, while the sequence runs and if the model has one.
    pub(super) state: Option<StateSlot>,
    /// Snapshot that the next scheduled rows start from. The sequence holds its state slot until
    /// then.
    pub(super) load: Option<StateSlot>,
    /// Prefix cache keys of the full pages, computed as far as needed. A preemption keeps them.
    pub(super) keys: Vec<PageKey>,
    /// Number of leading pages that are in the prefix cache.
    pub(super) registered: usize,
    pub(super) needs: Needs,
    /// Number of tokens found in the prefix cache at the first admission; none before it.
    pub(super) cached_tokens: Option<usize>,
    /// Number of the last step that computes rows of the sequence; none before the first.
    pub(super) last_step: Option<u64>,
}

impl Sequence {
    pub(super) fn new(id: SeqId, prompt: Vec<u32>, max_output: usize, needs: Needs) -> Self {
        assert!(!prompt.is_empty(), "sequence {id} has no prompt");
        Self {
            id,
            prompt_tokens: prompt.len(),
            // One token is always planned: the end of a prompt is sampled even if no output is
            // wanted.
            max_len: prompt.len() + max_output.max(1),
            unknown: 0,
            planned: 0,
            prefill_end: prompt.len(),
            tokens: prompt,
            pages: Arc::default(),
            state: None,
            load: None,
            keys: Vec::new(),
            registered: 0,
            needs,
            cached_tokens: None,
            last_step: None,
        }
    }

    /// Returns the tokens of prompt and output whose values are known.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the output tokens generated so far.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Returns the length of the prompt in tokens.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the number of tokens that the prefix cache saved at the first admission.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens.unwrap_or(0)
    }

    /// Returns the page table (block table): one KV page per `page_tokens` positions, in position
    /// order.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Returns true while rows of the prompt (after a preemption also of the output) are left to
    /// prefill.
    pub(super) fn prefilling(&self) -> bool {
        self.planned < self.prefill_end
    }

    /// Returns true if the next token can be computed: the prompt is planned, the last token is
    /// neither sampled nor being sampled, and the one before it is known where that is required.
    pub(super) fn decoding(&self) -> bool {
        // With a token in flight, the next row can be planned unless the host must choose that
        // token.
        let is_known =
            self.unknown == 0 || self.needs.known_tokens < self.len() - self.prompt_tokens;
        is_known && !self.prefilling() && self.planned < self.len() && self.len() < self.max_len
    }

    /// Returns true if the next row has no page yet.
    pub(super) fn needs_page(&self, page_tokens: usize) -> bool {
        self.pages.len() * page_tokens <= self.planned
    }

    /// Returns the number of tokens, those that steps in flight sample included.
    fn len(&self) -> usize {
        self.tokens.len() + self.unknown
    }

    /// Resets the sequence to uncomputed and returns its pages and state slots. After the next
    /// admission everything is recomputed.
    pub(super) fn rewind(&mut self) -> Held {
        self.planned = 0;
        self.registered = 0;
        let states = self.state.take().into_iter().chain(self.load.take()).collect();
        Held { pages: std::mem::take(&mut self.pages).to_vec(), states }
    }

    /// Appends the token that the oldest step in flight has sampled.
    pub(super) fn push(&mut self, token: u32) {
        let unknown = self.unknown.checked_sub(1);
        self.unknown = unknown.unwrap_or_else(|| panic!("sequence {} was not sampled", self.id));
        self.tokens.push(token);
    }

    /// Schedules the next `rows` rows in step number `step`. A token is sampled if they reach the end
    /// of the sequence.
    pub(super) fn advance(
        &mut self,
        rows: usize,
        save: Option<StateSlot>,
        step: u64,
    ) -> PlannedSequence {
        let (position, end) = (self.planned, self.planned + rows);
        assert!(rows > 0 && end <= self.len(), "sequence {} has no such rows", self.id);
        let state = self.state.map(|slot| StateSlots { slot, load: self.load.take(), save });
        let (pages, logits) = (Arc::clone(&self.pages), LogitRows::None);
        let planned = PlannedSequence {
            id: self.id,
            // Evaluated before `planned` advances below.
            prefill: self.prefilling(),
            samples: end == self.len(),
            unknown: end > self.tokens.len(),
            scheduled: ScheduledSequence { row: 0, rows, position, pages, logits, state },
        };
        self.planned = end;
        self.unknown += usize::from(planned.samples);
        self.last_step = Some(step);
        planned
    }
}
