//! Scheduler: continuous batching, KV page allocation, prefix cache and preemption.
//!
//! Bookkeeping only. It knows no device, no tensor, no text and no clock: the same calls give the
//! same steps, so a test can print a trace and compare it.
//!
//! A step goes through `Scheduler::plan` (what to run), the model, `Scheduler::commit` (it ran),
//! and `append` or `remove` for each sampled sequence. On a device with asynchronous steps, up to
//! `Limits::run_ahead` steps are in flight when the next is planned: the tokens that they sample
//! are not known yet, and the pages that they use are not given to other sequences.
//!
//! With speculative decoding, `Scheduler::propose` gives a sequence draft tokens before the plan,
//! and `Scheduler::settle` takes back the rows of those that turned out wrong.

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

/// Sizes by which a scheduler plans steps: batch, tokens, KV pages, state slots. They are fixed for
/// the life of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Limit on the number of sequences that run at once, which the server's `--max-batch-size`
    /// sets (`max_num_seqs` in vLLM's words).
    pub max_batch_size: usize,
    /// Token budget: limit on the number of tokens of a step, which the server's
    /// `--max-prefill-token-num` sets (`max_num_batched_tokens` in vLLM's words). A step has more
    /// only where decoding sequences, with one token each, leave less than one prefill chunk of the
    /// budget: it then has at most one chunk besides their tokens.
    pub token_budget: usize,
    /// Token budget of a step with decoding sequences, where it is below `token_budget`: a long
    /// prompt is computed in more steps, so that the others wait less between their tokens.
    pub mixed_budget: usize,
    /// Limit on the length of a sequence, prompt and output together, in tokens: the server's
    /// `--max-seq-len` or, without it, the length of the longest sequence that the model supports.
    pub max_seq_len: usize,
    /// Number of KV pages of the device ("blocks" in vLLM's words).
    pub pages: usize,
    /// Number of token positions whose keys and values one KV page holds.
    pub page_tokens: usize,
    /// Alignment of prefill chunks in tokens: a chunk ends at a multiple of it, counted from the
    /// start of the sequence, except the last chunk of a prompt.
    pub chunk_tokens: usize,
    /// True when full KV pages are kept for later prompts with the same beginning (prefix cache);
    /// the server's `--no-prefix-cache` makes it false.
    pub prefix_cache: bool,
    /// Number of state slots, and distance of snapshots, for recurrent state; `None` for a model
    /// without such state.
    pub states: Option<StateLimits>,
    /// Limit on the number of steps that are in flight while the next one is planned, as the
    /// model's device allows it; 0 on a CPU.
    pub run_ahead: usize,
    /// Limit on the number of draft tokens of a sequence in a step (`num_speculative_tokens` in
    /// vLLM's words); 0 turns speculative decoding off. It must be 0 with recurrent state, which
    /// cannot be taken back, and with steps in flight, since the next step depends on which drafts
    /// are right.
    pub max_drafts: usize,
}

/// Sizes for recurrent state: the number of state slots (one for each running sequence, the others
/// for snapshots), and the distance between snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Number of state slots for recurrent state on the device, at least 1.
    pub slots: usize,
    /// Distance between snapshots of recurrent state, in tokens: they are taken at its multiples,
    /// counted from the start of the sequence. It is a multiple of `page_tokens` and
    /// `chunk_tokens`.
    pub interval: usize,
}

impl Limits {
    /// Returns the token budget of a step with decoding sequences: `mixed_budget`, and at most
    /// `token_budget`.
    pub(crate) fn mixed(&self) -> usize {
        self.token_budget.min(self.mixed_budget)
    }

    /// Returns the number of KV pages that `tokens` positions need.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }

    /// Returns the number of output tokens for which `max_seq_len` and the KV pages leave room
    /// after a prompt of `prompt_tokens` tokens; 0 if the prompt itself does not fit.
    pub fn max_output(&self, prompt_tokens: usize) -> usize {
        self.max_seq_len.min(self.pages * self.page_tokens).saturating_sub(prompt_tokens)
    }

    /// Checks that a sequence with a prompt and output of these lengths could run if it were the
    /// only sequence.
    ///
    /// # Errors
    /// Fails if prompt and output together have more than `max_seq_len` tokens, or need more KV
    /// pages than there are in all.
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

/// Reason why a sequence can never run, even alone: it has too many tokens, or needs more KV pages
/// than there are.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what happened, and to what")]
pub enum Refusal {
    #[error(
        "this model's maximum context length is {max_seq_len} tokens, but the prompt has \
         {prompt_tokens} and {output_tokens} more are requested"
    )]
    TooLong { prompt_tokens: usize, output_tokens: usize, max_seq_len: usize },
    #[error("the sequence takes {wanted_pages} KV pages, but there are only {pages}")]
    TooFewPages { wanted_pages: usize, pages: usize },
}

/// One sequence of a planned step: what the model computes, and what only the scheduler and the
/// engine loop need to know.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedSequence {
    /// Id of the sequence whose rows the step computes.
    pub id: SeqId,
    /// True when the step computes a prefill chunk of the sequence: part of its prompt, or of all
    /// its tokens after a preemption. False when it decodes: one row, and those of its drafts.
    pub prefill: bool,
    /// True when the step samples a token from the sequence's last row.
    pub samples: bool,
    /// True when the input token of the sequence's last row is not known yet, because a step in
    /// flight samples it. The device fills it in.
    pub unknown: bool,
    /// Draft tokens of speculative decoding: the input tokens of the sequence's last rows in the
    /// step, after the one that is known to be right. Mostly empty.
    pub drafts: Vec<u32>,
    /// Rows, page table and state slots of the sequence in the step. The scheduler requests no
    /// logits in it: the engine loop decides which are needed.
    pub scheduled: ScheduledSequence,
}

/// Output of the scheduler for one step: the sequences that the step computes, and those that were
/// preempted for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SchedulerOutput {
    /// Number of the planned step, counted from 0 at the scheduler's start.
    pub step: u64,
    /// Sequences that the step computes: those that decode, then prefill chunks; within each of
    /// these two groups the oldest sequence is first.
    pub sequences: Vec<PlannedSequence>,
    /// Ids of the sequences that were preempted while the step was planned: they lost their KV
    /// pages to older sequences.
    pub preempted: Vec<SeqId>,
}

impl SchedulerOutput {
    /// Returns the number of tokens that the step computes, over all its sequences.
    pub fn rows(&self) -> usize {
        self.sequences.iter().map(|planned| planned.scheduled.rows).sum()
    }
}
