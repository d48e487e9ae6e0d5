//! Chooses what each step computes: sequences, pages of the KV cache and the prefix cache.
//!
//! Bookkeeping only. It knows no device, no tensor, no text and no clock: the same calls give the
//! same plans, so that a trace can be drawn and compared in a test.
//!
//! A step goes `Scheduler::plan` (what to run), then the model, then `Scheduler::commit` (it ran),
//! then `append` or `remove` for each sampled sequence.

mod mixed;
mod pages;
mod prefill_first;
mod scheduler;
mod sequence;
#[cfg(test)]
mod tests;

pub use pages::{PageId, PageKey};
pub use scheduler::{Scheduler, Totals};
pub use sequence::Sequence;

use std::fmt;

/// One sequence of one request. Ids grow with arrival, and age decides who goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeqId(pub u64);

impl fmt::Display for SeqId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// How prompts and running sequences share the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// A step is either whole prompts or one token for every running sequence.
    PrefillFirst,
    /// A step is one token for every running sequence, then chunks of prompts while the token
    /// budget lasts.
    Mixed,
}

/// The policy of this release: the one line in which v0.9.1 and v0.9.2 differ.
pub const DEFAULT_POLICY: Policy = Policy::Mixed;

/// What a plan may not exceed; fixed for the life of a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub policy: Policy,
    /// Sequences that run at once.
    pub max_batch_size: usize,
    /// Prompt tokens of a step; under `Mixed` the tokens of running sequences count as well.
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
    pub id: SeqId,
    /// Position of the first row.
    pub position: usize,
    pub rows: usize,
    /// Whether the rows are part of a prompt, or of one computed anew after a preemption.
    pub prefill: bool,
    /// Whether a token is sampled from the last row.
    pub samples: bool,
}

/// What one step computes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
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
