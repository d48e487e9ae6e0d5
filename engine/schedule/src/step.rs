//! Continuous batching with chunked prefill: which sequences run in a scheduler step
//! (`Scheduler.schedule` in vLLM's words). A step has one token for every decoding sequence, with
//! its drafts if there are any, then prefill chunks of prompts while the token budget lasts.
//!
//! Decoding sequences never wait for a prompt, and their tokens are never cut to the budget: they
//! are few, and each sequence that ends frees memory. The oldest prompt always gets one chunk, so
//! it advances at every step and delays the others by at most that chunk.

use super::{Limits, Scheduler, SchedulerOutput, SeqId};

/// Plans a step of continuous batching: one row per decoding sequence, then prefill chunks of
/// running and of newly admitted prompts, the oldest first.
pub(super) fn plan(scheduler: &mut Scheduler) -> SchedulerOutput {
    let mut plan = SchedulerOutput { step: scheduler.next_step(), ..SchedulerOutput::default() };
    let oldest_first: Vec<_> = scheduler.running.iter().copied().collect();
    plan.sequences.reserve(oldest_first.len());
    let mut prompts = Vec::new();
    let mut is_short = false;
    for id in oldest_first {
        // Allocating pages for an older sequence may have preempted this one in the same loop.
        if plan.preempted.contains(&id) {
            continue;
        }
        let sequence = scheduler.get(id);
        if sequence.prefilling() {
            prompts.push(id);
        } else if sequence.decoding() {
            if scheduler.reserve(id, &mut plan.preempted) {
                if !scheduler.get(id).drafts.is_empty() {
                    scheduler.reserve_drafts(id, plan.rows());
                }
                scheduler.schedule(id, 1, &mut plan);
            } else {
                // Admitting others now would take the pages that this sequence waits for.
                is_short = true;
            }
        }
    }
    let limits = scheduler.limits();
    let chunk_tokens = limits.chunk_tokens;
    let budget = if plan.sequences.is_empty() { limits.token_budget } else { limits.mixed() };
    // At least one chunk is left even if decoding sequences fill the budget, so the oldest prompt
    // always advances.
    let mut left = budget.saturating_sub(plan.rows()).max(chunk_tokens);
    for id in prompts {
        if !plan.preempted.contains(&id) {
            left = push_chunk(scheduler, &mut plan, id, left);
        }
    }
    // No sequence is admitted in a step that preempted: the preempted ones would be admitted first,
    // and would need the pages again that the older sequence just took.
    while plan.preempted.is_empty() && !is_short && left > 0 {
        let Some(id) = scheduler.waiting.first().copied() else { break };
        if !scheduler.admit(id, left) {
            break;
        }
        left = push_chunk(scheduler, &mut plan, id, left);
    }
    plan
}

/// Plans a prefill chunk of a prompt and returns the token budget left for younger prompts. Nothing
/// is left once the budget has cut a prompt: otherwise short prompts could overtake it step after
/// step.
fn push_chunk(
    scheduler: &mut Scheduler,
    plan: &mut SchedulerOutput,
    id: SeqId,
    left: usize,
) -> usize {
    let sequence = scheduler.get(id);
    let (start, end) = (sequence.planned, sequence.prefill_end);
    let limits = scheduler.limits();
    let stop = limits.chunk_stop(start, end);
    // A row whose logits are read takes four bytes for each token of the vocabulary: such a prompt
    // has one chunk in a step, however much of the budget is left.
    let is_limited = sequence.needs.all_rows;
    let most = if is_limited { left.min(limits.chunk_tokens) } else { left };
    let rows = limits.chunk_rows(start, end, most);
    if rows > 0 {
        scheduler.schedule(id, rows, plan);
    }
    if start + rows == stop || is_limited && rows == most { left - rows } else { 0 }
}

impl Limits {
    /// Returns the number of rows of a prefill chunk that begins at `start`, within a budget of
    /// `left` rows: all rows up to where a chunk must end or, if these exceed the budget, up to the
    /// last multiple of `chunk_tokens` within it, which may be none. Cutting at multiples keeps the
    /// cuts of a prompt independent of the sequences that share its steps, and so its results.
    pub(super) fn chunk_rows(&self, start: usize, end: usize, left: usize) -> usize {
        let stop = self.chunk_stop(start, end);
        if stop - start <= left {
            return stop - start;
        }
        ((start + left) / self.chunk_tokens * self.chunk_tokens).saturating_sub(start)
    }

    /// Returns the furthest end of a prefill chunk that begins at `start`: the end of the prompt or
    /// the next position at which a state snapshot is taken, whichever comes first.
    fn chunk_stop(&self, start: usize, end: usize) -> usize {
        self.states.map_or(end, |states| end.min((start / states.interval + 1) * states.interval))
    }
}
