//! Whole prompts first, then one token for every running sequence.
//!
//! Simple, and good for throughput while all requests arrive at once. Its weakness is that running
//! sequences stand still while prompts are computed.

use super::{Plan, Scheduler};

pub(super) fn plan(scheduler: &mut Scheduler) -> Plan {
    let prompts = plan_prompts(scheduler);
    if prompts.slots.is_empty() { plan_tokens(scheduler) } else { prompts }
}

/// As many waiting prompts as the budget holds, oldest first; one, however long, always fits.
fn plan_prompts(scheduler: &mut Scheduler) -> Plan {
    let mut plan = Plan::default();
    let mut rows = 0;
    while let Some(id) = scheduler.waiting.first().copied() {
        let more = scheduler.uncached_tokens(id);
        let over_budget = rows + more > scheduler.limits().token_budget;
        if (over_budget && !plan.slots.is_empty()) || !scheduler.admit(id) {
            break;
        }
        plan.slots.push(scheduler.get(id).slot(more));
        rows += more;
    }
    plan
}

fn plan_tokens(scheduler: &mut Scheduler) -> Plan {
    let mut plan = Plan::default();
    let oldest_first: Vec<_> = scheduler.running.iter().copied().collect();
    for id in oldest_first {
        // Room for an older sequence may have cost this one its place.
        if scheduler.running.contains(&id) && scheduler.reserve(id, &mut plan.preempted) {
            plan.slots.push(scheduler.get(id).slot(1));
        }
    }
    plan
}
