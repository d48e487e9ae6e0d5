//! What one step holds: a token for every running sequence, then chunks of prompts while the token
//! budget lasts.
//!
//! Running sequences never stand still for a prompt. Their tokens are never cut to the budget: they
//! are few, and each sequence that ends makes room. However many they are, the oldest prompt gets
//! one chunk, so that it moves on at every step and delays the others by no more than that.

use super::{Limits, Plan, Scheduler, SeqId};

pub(super) fn plan(scheduler: &mut Scheduler) -> Plan {
    let mut plan = Plan::default();
    let oldest_first: Vec<_> = scheduler.running.iter().copied().collect();
    plan.slots.reserve(oldest_first.len());
    let mut prompts = Vec::new();
    let mut is_short = false;
    for id in oldest_first {
        // Room for an older sequence may have cost this one its place.
        if plan.preempted.contains(&id) {
            continue;
        }
        let sequence = scheduler.get(id);
        if sequence.prefilling() {
            prompts.push(id);
        } else if sequence.decoding() {
            if scheduler.reserve(id, &mut plan.preempted) {
                plan.slots.push(scheduler.slot(id, 1));
            } else {
                is_short = true;
            }
        }
    }
    let Limits { token_budget, chunk_tokens, .. } = *scheduler.limits();
    let mut left = token_budget.saturating_sub(plan.slots.len()).max(chunk_tokens);
    for id in prompts {
        if !plan.preempted.contains(&id) {
            left = push_chunk(scheduler, &mut plan, id, left);
        }
    }
    // Whoever was preempted for an older sequence just now would only be in its way again.
    while plan.preempted.is_empty() && !is_short && left > 0 {
        let Some(id) = scheduler.waiting.first().copied() else { break };
        if !scheduler.admit(id, left) {
            break;
        }
        left = push_chunk(scheduler, &mut plan, id, left);
    }
    plan
}

/// Plans a chunk of a prompt and returns what is left for younger ones: nothing once the budget
/// has cut a prompt, or short prompts could take its place step after step.
fn push_chunk(scheduler: &mut Scheduler, plan: &mut Plan, id: SeqId, left: usize) -> usize {
    let sequence = scheduler.get(id);
    let (start, end) = (sequence.planned, sequence.prefill_end);
    let stop = scheduler.limits().chunk_stop(start, end);
    let rows = scheduler.limits().chunk_rows(start, end, left);
    if rows > 0 {
        let slot = scheduler.slot(id, rows);
        plan.slots.push(slot);
    }
    if start + rows == stop { left - rows } else { 0 }
}

impl Limits {
    /// Rows from `start` that fit in `left`: all up to where a chunk has to end, else up to a
    /// multiple of `chunk_tokens`, so that where a prompt is cut does not depend on what shares
    /// its steps.
    pub(super) fn chunk_rows(&self, start: usize, end: usize, left: usize) -> usize {
        let stop = self.chunk_stop(start, end);
        if stop - start <= left {
            return stop - start;
        }
        ((start + left) / self.chunk_tokens * self.chunk_tokens).saturating_sub(start)
    }

    /// The furthest end of a chunk from `start`: that of the prompt, or the next snapshot.
    fn chunk_stop(&self, start: usize, end: usize) -> usize {
        self.states.map_or(end, |states| end.min((start / states.interval + 1) * states.interval))
    }
}
