//! One token for every running sequence, then chunks of prompts while the token budget lasts.
//!
//! Running sequences never stand still for a prompt, and a step never takes longer than its
//! budget. The tokens of running sequences are never cut to the budget: they are few, and each
//! sequence that ends makes room.

use super::{Plan, Scheduler, SeqId};

pub(super) fn plan(scheduler: &mut Scheduler) -> Plan {
    let mut plan = Plan::default();
    let oldest_first: Vec<_> = scheduler.running.iter().copied().collect();
    for &id in &oldest_first {
        // Room for an older sequence may have cost this one its place.
        if scheduler.running.contains(&id)
            && !scheduler.get(id).prefilling()
            && scheduler.reserve(id, &mut plan.preempted)
        {
            plan.slots.push(scheduler.get(id).slot(1));
        }
    }
    // A budget below one chunk would never let a long prompt begin.
    let budget = scheduler.limits().token_budget.max(scheduler.limits().chunk_tokens);
    let mut left = budget.saturating_sub(plan.slots.len());
    for &id in &oldest_first {
        if scheduler.running.contains(&id) && scheduler.get(id).prefilling() {
            left = push_chunk(scheduler, &mut plan, id, left);
        }
    }
    // Whoever was preempted for an older sequence just now would only be in its way again.
    while plan.preempted.is_empty() && left > 0 {
        let Some(id) = scheduler.waiting.first().copied() else { break };
        let end = scheduler.get(id).tokens().len();
        let start = end - scheduler.uncached_tokens(id);
        if chunk_rows(start, end, left, scheduler.limits().chunk_tokens) == 0
            || !scheduler.admit(id)
        {
            break;
        }
        left = push_chunk(scheduler, &mut plan, id, left);
    }
    plan
}

/// Plans a chunk of a prompt and returns what is left for younger ones: nothing once a prompt is
/// cut, or short prompts could take its place step after step.
fn push_chunk(scheduler: &Scheduler, plan: &mut Plan, id: SeqId, left: usize) -> usize {
    let sequence = scheduler.get(id);
    let (start, end) = (sequence.computed, sequence.prefill_end);
    let rows = chunk_rows(start, end, left, scheduler.limits().chunk_tokens);
    if rows > 0 {
        plan.slots.push(sequence.slot(rows));
    }
    if start + rows == end { left - rows } else { 0 }
}

/// Rows from `start` that fit in `left`: all up to `end`, else up to a multiple of `chunk_tokens`,
/// so that where a prompt is cut does not depend on what shares its steps.
fn chunk_rows(start: usize, end: usize, left: usize, chunk_tokens: usize) -> usize {
    if end - start <= left {
        return end - start;
    }
    ((start + left) / chunk_tokens * chunk_tokens).saturating_sub(start)
}
