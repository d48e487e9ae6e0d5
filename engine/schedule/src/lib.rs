//! Scheduler: continuous batching, KV page allocation, prefix cache and preemption.
//!
//! Bookkeeping only. It knows no device, no tensor, no text and no clock: the same calls give the
//! same steps, so a test can print a trace and compare it.
//!
//! A step goes through `Scheduler::plan` (what to run), the model, `Scheduler::commit` (it ran),
//! and `append` or `remove` for each sampled sequence. On a device with asynchronous steps, up to
//! `Limits::run_ahead` steps are in flight when the next is planned: the tokens that they sample
//! are not known yet, and the pages that they use are not given to other sequences.

#![warn(missing_docs)]

mod by_sequence;
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
pub use states::StateSlot;

use std::fmt;

use engine_core::ScheduledSequence;

/// Id of one sequence of one request. Ids grow with arrival; older sequences have priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeqId(pub u64);

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Limits that no planned step may exceed, fixed for the life of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest number of sequences that run at once.
    pub max_batch_size: usize,
    /// Most tokens of a step. A step exceeds it only where decoding sequences leave less than one
    /// prefill chunk of it, and by at most that chunk.
    pub token_budget: usize,
    /// Longest sequence, prompt and output together, in tokens.
    pub max_seq_len: usize,
    /// Number of KV pages of the device ("blocks" in vLLM's words).
    pub pages: usize,
    /// Number of tokens of a KV page.
    pub page_tokens: usize,
    /// Prefill chunks end on absolute multiples of this many tokens, except the last chunk of a
    /// prompt.
    pub chunk_tokens: usize,
    /// True when full KV pages are kept for later prompts with the same beginning (prefix cache).
    pub prefix_cache: bool,
    /// Limits of recurrent state, for models that have any.
    pub states: Option<StateLimits>,
    /// Most steps in flight while the next is planned.
    pub run_ahead: usize,
}

/// State slots for recurrent state: one for each running sequence, the others for snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Number of state slots, at least 1.
    pub slots: usize,
    /// Distance of snapshots in tokens: they are taken at its absolute multiples. It is a multiple
    /// of `page_tokens` and of `chunk_tokens`.
    pub interval: usize,
}

impl Limits {
    /// Returns the number of KV pages that `tokens` positions need.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// Returns the longest output that a prompt of `prompt_tokens` can have, 0 if the prompt itself
    /// does not fit.
    pub fn max_output(&self, prompt_tokens: usize) -> usize {
        self.max_seq_len.min(self.pages * self.page_tokens).saturating_sub(prompt_tokens)
    }

    /// Checks that a sequence of this length could run if it were the only one.
    ///
    /// # Errors
    /// Returns the limit that the sequence exceeds, with the numbers.
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

/// Reason why a sequence can never run under the scheduler's limits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum Refusal {
    #[error(
        "the prompt has {prompt_tokens} tokens and {output_tokens} more are requested, but a \
         sequence has at most {max_seq_len} tokens"
    )]
    TooLong { prompt_tokens: usize, output_tokens: usize, max_seq_len: usize },
    #[error("the sequence takes {wanted_pages} KV pages, but there are only {pages}")]
    TooFewPages { wanted_pages: usize, pages: usize },
}

/// One sequence in a planned step, with what only the scheduler and the engine loop need to know.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedSequence {
    /// Sequence that the rows belong to.
    pub id: SeqId,
    /// True when the rows are a prefill chunk, of a prompt or of a sequence recomputed after
    /// preemption.
    pub prefill: bool,
    /// True when a token is sampled from the last row.
    pub samples: bool,
    /// True when the last row's token is not known yet because a step in flight samples it. The
    /// device fills it in.
    pub unknown: bool,
    /// Rows, page table and state slots. The engine loop decides which logits are needed.
    pub scheduled: ScheduledSequence,
}

/// Output of the scheduler for one step: the sequences that the step computes, and those that were
/// preempted for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SchedulerOutput {
    /// Number of the step, counted from 0.
    pub step: u64,
    /// Planned sequences: those that decode first, then prefill chunks; within both, the oldest
    /// first.
    pub sequences: Vec<PlannedSequence>,
    /// Sequences that lost their pages to older ones while this step was planned.
    pub preempted: Vec<SeqId>,
}

impl SchedulerOutput {
    /// Returns the number of tokens of the step.
    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|planned| planned.scheduled.rows).sum()
    }
}
