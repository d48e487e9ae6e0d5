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
    /// Sequences that have left since: their rows are of no use any more.
    pub(super) gone: BTreeSet<SeqId>,
    /// Released when the step has been computed.
    pub(super) held: Held,
}

impl Flight {
    fn has(&self, id: SeqId) -> bool {
        self.slots.iter().any(|slot| slot.id == id)
    }
}

/// Steps on their way, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Flights(VecDeque<Flight>);

impl Flights {
    /// Notes a step; it holds the snapshots that its slots load.
    pub(super) fn launch(&mut self, slots: Vec<Slot>) {
        let states = slots.iter().filter_map(|slot| slot.state?.load).collect();
        let held = Held { pages: Vec::new(), states };
        self.0.push_back(Flight { slots, gone: BTreeSet::new(), held });
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
        self.0.iter().any(|flight| flight.has(id))
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
            if flight.has(id) && flight.gone.insert(id) {
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
