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
    /// Number of output tokens, from the first on, that the device does not sample by itself: the
    /// host must know each of them before the row after it is planned.
    pub known_tokens: usize,
}

/// A sequence of the scheduler: prompt and generated tokens, KV pages, and how many of its
/// positions are planned.
#[derive(Debug, Clone)]
pub struct Sequence {
    id: SeqId,
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Limit on the sequence's number of tokens, prompt and output together: sampling ends at this
    /// length.
    max_len: usize,
    /// Number of tokens that steps in flight sample for the sequence: they follow `tokens`, and
    /// their values are not known yet.
    unknown: usize,
    /// Draft tokens that may follow `tokens`, for the sequence's next decode step.
    pub(super) drafts: Vec<u32>,
    /// Number of positions whose keys and values are in the sequence's pages once all planned steps
    /// have completed.
    pub(super) planned: usize,
    /// Number of positions to prefill: the prompt, and after a preemption also the output so far.
    pub(super) prefill_end: usize,
    /// Page table: KV pages in position order, shared with the steps in flight that use it.
    pub(super) pages: Arc<[PageId]>,
    /// State slot of the sequence's recurrent state; `None` while the sequence waits, and for a
    /// model without such state.
    pub(super) state: Option<StateSlot>,
    /// State slot of the snapshot from which the sequence's next rows start, `None` if they start
    /// from its own state. The sequence holds the snapshot's slot until those rows are scheduled.
    pub(super) load: Option<StateSlot>,
    /// Prefix cache keys of the sequence's full pages, computed only as far as they were needed. A
    /// preemption keeps them.
    pub(super) keys: Vec<PageKey>,
    /// Number of the sequence's first pages that were found in the prefix cache, were added to it,
    /// or had an equal page in it when they were filled.
    pub(super) registered: usize,
    pub(super) needs: Needs,
    /// Number of prompt tokens found in the prefix cache at the sequence's first admission; `None`
    /// before it.
    pub(super) cached_tokens: Option<usize>,
    /// Index, counted from 0, of the last planned step that computes rows of the sequence; `None`
    /// before the first.
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
            drafts: Vec::new(),
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

    /// Returns the sequence's prompt and output tokens, as far as their values are known.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the output tokens of the sequence whose values are known.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_tokens..]
    }

    /// Returns the length of the sequence's prompt in tokens.
    pub fn prompt_tokens(&self) -> usize {
        self.prompt_tokens
    }

    /// Returns the number of prompt tokens found in the prefix cache at the sequence's first
    /// admission; 0 before it.
    pub fn cached_tokens(&self) -> usize {
        self.cached_tokens.unwrap_or(0)
    }

    /// Returns the page table (block table): one KV page per `page_tokens` positions, in position
    /// order; empty while the sequence waits.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Returns true while rows of the sequence's prompt (after a preemption also of its output) are
    /// not planned yet.
    pub(super) fn prefilling(&self) -> bool {
        self.planned < self.prefill_end
    }

    /// Returns true if the row of the sequence's last token can be planned: its prefill is planned,
    /// a further token may be sampled, and the last token is known where `needs` demands it.
    pub(super) fn decoding(&self) -> bool {
        // With a token in flight, the next row can be planned unless the host must choose that
        // token.
        let is_known =
            self.unknown == 0 || self.needs.known_tokens < self.len() - self.prompt_tokens;
        is_known && !self.prefilling() && self.planned < self.len() && self.len() < self.max_len
    }

    /// Takes `drafts` as tokens that may follow the sequence's last one, at most `most` of them and
    /// as many as the sequence may still grow by. Ignores them unless the sequence decodes and the
    /// device samples its next tokens.
    pub(super) fn propose(&mut self, mut drafts: Vec<u32>, most: usize) {
        let samples_on_device = self.needs.known_tokens <= self.output().len();
        if self.unknown == 0 && self.decoding() && samples_on_device {
            // The token after the last draft is sampled too.
            drafts.truncate(most.min(self.max_len - self.len() - 1));
            self.drafts = drafts;
        }
    }

    /// Takes back the rows of drafts that turned out wrong, after the sampled tokens were appended:
    /// the row of the last token is computed next.
    pub(super) fn settle(&mut self) {
        self.unknown = 0;
        self.planned = self.tokens.len() - 1;
    }

    /// Returns true if the next row to plan has no KV page yet.
    pub(super) fn needs_page(&self, page_tokens: usize) -> bool {
        self.pages.len() * page_tokens <= self.planned
    }

    /// Returns the number of the sequence's tokens, including those that steps in flight sample.
    fn len(&self) -> usize {
        self.tokens.len() + self.unknown
    }

    /// Marks all of the sequence's positions as not computed and returns its pages and state slots.
    /// After the next admission everything is recomputed that the prefix cache does not have.
    pub(super) fn rewind(&mut self) -> Held {
        self.planned = 0;
        self.registered = 0;
        self.drafts.clear();
        let states = self.state.take().into_iter().chain(self.load.take()).collect();
        Held { pages: std::mem::take(&mut self.pages).to_vec(), states }
    }

    /// Appends the value of the sequence's oldest unknown token, which a completed step has
    /// sampled.
    pub(super) fn push(&mut self, token: u32) {
        let unknown = self.unknown.checked_sub(1);
        self.unknown = unknown.unwrap_or_else(|| panic!("sequence {} was not sampled", self.id));
        self.tokens.push(token);
    }

    /// Schedules the sequence's next `rows` rows, and those of its drafts after them, in step number
    /// `step`, and returns them for the plan. A token is sampled if they reach the end of the
    /// sequence, and one after each draft; `save` is the state slot for a snapshot after them, if
    /// one is taken.
    pub(super) fn advance(
        &mut self,
        rows: usize,
        save: Option<StateSlot>,
        step: u64,
    ) -> PlannedSequence {
        let (position, end) = (self.planned, self.planned + rows);
        assert!(rows > 0 && end <= self.len(), "sequence {} has no such rows", self.id);
        let drafts = std::mem::take(&mut self.drafts);
        assert!(drafts.is_empty() || end == self.len(), "drafts follow the last token");
        let rows = rows + drafts.len();
        let state = self.state.map(|slot| StateSlots { slot, load: self.load.take(), save });
        let (pages, logits) = (Arc::clone(&self.pages), LogitRows::None);
        let planned = PlannedSequence {
            id: self.id,
            // Evaluated before `planned` advances below.
            prefill: self.prefilling(),
            samples: end == self.len(),
            unknown: end > self.tokens.len(),
            drafts,
            scheduled: ScheduledSequence { row: 0, rows, position, pages, logits, state },
        };
        self.planned = end + planned.drafts.len();
        self.unknown += if planned.samples { 1 + planned.drafts.len() } else { 0 };
        self.last_step = Some(step);
        planned
    }
}
