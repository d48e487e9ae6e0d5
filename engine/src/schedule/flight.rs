//! Steps that were planned and are not known to be computed, and what they keep from being reused.

use std::collections::{BTreeSet, VecDeque};

use super::pages::PageId;
use super::states::StateId;
use super::{SeqId, Slot};

/// Pages and states that somebody holds.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    pub(super) pages: Vec<PageId>,
    pub(super) states: Vec<StateId>,
}

/// One step on its way.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) slots: Vec<Slot>,
    /// Sequences that have not left since; the rows of others are of no use any more.
    pub(super) live: BTreeSet<SeqId>,
    /// Released when the step has been computed.
    pub(super) held: Held,
}

/// Steps on their way, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Flights(VecDeque<Flight>);

impl Flights {
    /// Notes a step; it holds the snapshots that its slots load.
    pub(super) fn launch(&mut self, slots: Vec<Slot>) {
        let live = slots.iter().map(|slot| slot.id).collect();
        let states = slots.iter().filter_map(|slot| slot.state?.load).collect();
        self.0.push_back(Flight { slots, live, held: Held { pages: Vec::new(), states } });
    }

    /// The oldest step is done.
    pub(super) fn land(&mut self) -> Option<Flight> {
        self.0.pop_front()
    }

    /// Number of steps on their way.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a step computes rows of `id`.
    pub(super) fn has(&self, id: SeqId) -> bool {
        self.0.iter().any(|flight| flight.slots.iter().any(|slot| slot.id == id))
    }

    /// Whether pages will be released by a step that ends.
    pub(super) fn have_pages(&self) -> bool {
        self.0.iter().any(|flight| !flight.held.pages.is_empty())
    }

    /// Takes a sequence out of all steps. What it held stays with the last step that uses it, or
    /// comes back if none does.
    pub(super) fn retire(&mut self, id: SeqId, held: Held) -> Option<Held> {
        let mut last = None;
        for flight in &mut self.0 {
            if flight.live.remove(&id) {
                last = Some(flight);
            }
        }
        let Some(last) = last else { return Some(held) };
        last.held.pages.extend(held.pages);
        last.held.states.extend(held.states);
        None
    }

    /// All steps, for checks.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = &Flight> {
        self.0.iter()
    }
}
