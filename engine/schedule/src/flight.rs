//! Scheduler's list of steps in flight (planned, not yet completed), and the pages and state slots
//! that must not be reused before they complete.

use std::collections::{BTreeSet, VecDeque};

use super::pages::PageId;
use super::states::StateId;
use super::{SeqId, Slot};

/// KV pages and state slots held by a sequence or by a step in flight.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    pub(super) pages: Vec<PageId>,
    pub(super) states: Vec<StateId>,
}

/// A step in flight: submitted to the device, not completed yet.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) slots: Vec<Slot>,
    /// Sequences of the step that were removed or preempted since: their rows' results are
    /// discarded.
    pub(super) gone: BTreeSet<SeqId>,
    /// Pages and state slots to release when the step completes.
    pub(super) held: Held,
}

impl Flight {
    fn has(&self, id: SeqId) -> bool {
        self.slots.iter().any(|slot| slot.id == id)
    }
}

/// Steps in flight, the oldest first. They complete in this order.
#[derive(Debug, Default)]
pub(super) struct Flights(VecDeque<Flight>);

impl Flights {
    /// Adds a submitted step, which holds the snapshots that its sequences load.
    pub(super) fn launch(&mut self, slots: Vec<Slot>) {
        // A snapshot may be evicted from the prefix cache while the device still reads it.
        let states = slots.iter().filter_map(|slot| slot.state?.load).collect();
        let held = Held { pages: Vec::new(), states };
        self.0.push_back(Flight { slots, gone: BTreeSet::new(), held });
    }

    /// Removes the oldest step, which has completed, and returns it.
    pub(super) fn land(&mut self) -> Option<Flight> {
        self.0.pop_front()
    }

    /// Returns the number of steps in flight.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if a step in flight computes rows of `id`.
    pub(super) fn has(&self, id: SeqId) -> bool {
        self.0.iter().any(|flight| flight.has(id))
    }

    /// Returns true if the completion of some step in flight will release pages.
    pub(super) fn have_pages(&self) -> bool {
        self.0.iter().any(|flight| !flight.held.pages.is_empty())
    }

    /// Removes a sequence from all steps in flight. The pages and state slots in `held` pass to the
    /// last step that uses the sequence, or are returned if there is none and they can be released
    /// now.
    pub(super) fn retire(&mut self, id: SeqId, held: Held) -> Option<Held> {
        let mut last = None;
        for flight in &mut self.0 {
            if flight.has(id) && flight.gone.insert(id) {
                last = Some(flight);
            }
        }
        let Some(last) = last else { return Some(held) };
        // Steps complete in order, so nothing before the last one can need these pages later.
        last.held.pages.extend(held.pages);
        last.held.states.extend(held.states);
        None
    }

    /// Iterates over all steps in flight, for checks in tests.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.0.iter()
    }
}
