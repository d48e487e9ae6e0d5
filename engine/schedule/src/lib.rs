//! Chooses what each step computes: sequences, pages of the KV cache and the prefix cache.
//!
//! Bookkeeping only. It knows no device, no tensor, no text and no clock: the same calls give the
//! same plans, so that a trace can be drawn and compared in a test.
//!
//! A step goes `Scheduler::plan` (what to run), then the model, then `Scheduler::commit` (it ran),
//! then `append` or `remove` for each sampled sequence that still lives. Where the device runs
//! ahead, up to `Limits::run_ahead` steps are in flight when the next is planned: the tokens that
//! they sample are unknown then, and what they use is not given to others.

#![warn(missing_docs)]

mod by_sequence;
mod flight;
mod pages;
mod scheduler;
mod sequence;
mod states;
mod step;
#[cfg(test)]
mod tests;

pub use by_sequence::BySequence;
pub use pages::{PageId, PageKey};
pub use scheduler::{Scheduler, Totals};
pub use sequence::{Needs, Sequence};
pub use states::StateId;

use std::fmt;

/// One sequence of one request. Ids grow with arrival, and age decides who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeqId(pub u64);

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// What a plan may not exceed; fixed for the life of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Sequences that run at once.
    pub max_batch_size: usize,
    /// Tokens of a step. Only where running sequences leave less than one chunk of it does a step
    /// exceed it, by at most that chunk.
    pub token_budget: usize,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_seq_len: usize,
    /// Pages of the KV cache.
    pub pages: usize,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Chunks of a prompt end on absolute multiples of this, the last of a prompt excepted.
    pub chunk_tokens: usize,
    /// Whether full pages are kept for later prompts that begin alike.
    pub prefix_cache: bool,
    /// Places for recurrent state, of models that have any.
    pub states: Option<StateLimits>,
    /// Steps that may be in flight while the next is planned.
    pub run_ahead: usize,
}

/// Places for recurrent state: one for each running sequence, the others for snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// All of them, at least one.
    pub places: usize,
    /// Snapshots are taken at absolute multiples of this, in tokens; whole pages and chunks.
    pub interval: usize,
}

impl Limits {
    /// Pages that `tokens` positions take.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// The longest output that a prompt can have here, 0 if the prompt itself does not fit.
    pub fn max_output(&self, prompt_tokens: usize) -> usize {
        self.max_seq_len.min(self.pages * self.page_tokens).saturating_sub(prompt_tokens)
    }

    /// Whether a sequence could ever run, were it alone.
    ///
    /// # Errors
    /// The limit that it breaks, with the numbers.
    pub fn admits(&self, prompt_tokens: usize, output_tokens: usize) -> Result<(), Refusal> {
        let wanted = prompt_tokens.saturating_add(output_tokens);
        if wanted > self.max_seq_len {
            let max_seq_len = self.max_seq_len;
            return Err(Refusal::TooLong { prompt_tokens, output_tokens, max_seq_len });
        }
        let wanted_pages = self.pages_for(wanted);
        if wanted_pages > self.pages {
            return Err(Refusal::TooFewPages { wanted_pages, pages: self.pages });
        }
        Ok(())
    }
}

/// Why a sequence can never run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum Refusal {
    #[error(
        "the prompt has {prompt_tokens} tokens and {output_tokens} more are asked for, but a \
         sequence has at most {max_seq_len} tokens here"
    )]
    TooLong { prompt_tokens: usize, output_tokens: usize, max_seq_len: usize },
    #[error("the sequence takes {wanted_pages} KV pages, but there are only {pages}")]
    TooFewPages { wanted_pages: usize, pages: usize },
}

/// One sequence's rows in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Whose rows they are.
    pub id: SeqId,
    /// Position of the first row.
    pub position: usize,
    /// At least one.
    pub rows: usize,
    /// Whether the rows are part of a prompt, or of one computed anew after a preemption.
    pub prefill: bool,
    /// Whether a token is sampled from the last row.
    pub samples: bool,
    /// Whether the last row's token is one that a step in flight samples: the device fills it in.
    pub unknown: bool,
    /// Recurrent state, if the model has one.
    pub state: Option<SlotState>,
}

/// Where a slot's recurrent state is. A slot at position 0 begins from zero, another from what its
/// place holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotState {
    /// Read before the first row and written after the last.
    pub place: StateId,
    /// The snapshot to copy to `place` before the first row.
    pub load: Option<StateId>,
    /// Where to copy `place` to after the last row.
    pub save: Option<StateId>,
}

/// What one step computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Those that decode first, then chunks of prompts; within both the oldest first.
    pub slots: Vec<Slot>,
    /// Sequences that lost their pages to older ones while this plan was made.
    pub preempted: Vec<SeqId>,
}

impl Plan {
    /// Tokens of the step.
    pub fn rows(&self) -> usize {
        self.slots.iter().map(|slot| slot.rows).sum()
    }
}
