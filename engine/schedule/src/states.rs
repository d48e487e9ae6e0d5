//! Recurrent state: who holds which place for it, and the snapshots that prompts may start from.
//!
//! A place holds the state of one sequence after some number of tokens, over all layers. A running
//! sequence holds one place, the prefix cache holds one per snapshot, and a step in flight holds
//! those that it reads or writes beside. A place without holders is blank. A snapshot belongs to
//! the page of the KV cache that ends where it was taken, and never outlives its content.

use std::collections::BTreeMap;

use super::pages::PageId;

/// Index of a place for one sequence's recurrent state on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateId(pub u32);

#[derive(Debug)]
struct Snapshot {
    state: StateId,
    /// Place in the order of use.
    used: u64,
}

/// All places of one device.
#[derive(Debug)]
pub(super) struct StatePool {
    holders: Vec<u32>,
    /// Lowest index last, so that memory is touched in order and only as it is needed.
    blank: Vec<StateId>,
    snapshots: BTreeMap<PageId, Snapshot>,
    by_use: BTreeMap<u64, PageId>,
    uses: u64,
}

impl StatePool {
    pub(super) fn new(places: usize) -> Self {
        let count = u32::try_from(places).expect("there are fewer than 2^32 states");
        Self {
            holders: vec![0; places],
            blank: (0..count).rev().map(StateId).collect(),
            snapshots: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Takes a place for one holder, at the cost of the snapshot that was used longest ago if need
    /// be. None while all places are held by others than the cache.
    pub(super) fn take(&mut self) -> Option<StateId> {
        if self.blank.is_empty() {
            let free = |page: &&PageId| self.holders(self.snapshots[*page].state) == 1;
            let oldest = self.by_use.values().find(free).copied()?;
            self.forget(oldest);
        }
        let state = self.blank.pop().expect("a place is blank or was freed just now");
        assert_eq!(self.holders(state), 0, "state {state:?} was free and in use");
        self.holders[state.0 as usize] = 1;
        Some(state)
    }

    /// Adds a holder to a place that has one.
    pub(super) fn share(&mut self, state: StateId) {
        assert!(self.holders(state) > 0, "state {state:?} is shared and held by nobody");
        self.holders[state.0 as usize] += 1;
    }

    /// Drops a holder.
    pub(super) fn release(&mut self, state: StateId) {
        let holders = &mut self.holders[state.0 as usize];
        *holders = holders.checked_sub(1).expect("a state is released once per holder");
        if *holders == 0 {
            self.blank.push(state);
        }
    }

    /// The snapshot taken where `page` ends.
    pub(super) fn snapshot(&self, page: PageId) -> Option<StateId> {
        self.snapshots.get(&page).map(|snapshot| snapshot.state)
    }

    /// Keeps `state` as the snapshot of `page`; the caller's hold becomes the cache's, or ends
    /// where there is such a snapshot already.
    pub(super) fn keep(&mut self, page: PageId, state: StateId) {
        if self.snapshots.contains_key(&page) {
            return self.release(state);
        }
        self.uses += 1;
        self.by_use.insert(self.uses, page);
        self.snapshots.insert(page, Snapshot { state, used: self.uses });
    }

    /// Notes that the snapshot of `page` was of use.
    pub(super) fn touch(&mut self, page: PageId) {
        if let Some(snapshot) = self.snapshots.get_mut(&page) {
            self.uses += 1;
            self.by_use.remove(&snapshot.used);
            snapshot.used = self.uses;
            self.by_use.insert(self.uses, page);
        }
    }

    /// Gives the cache's hold of the snapshot of `page` to the caller, unless others hold it too.
    pub(super) fn take_over(&mut self, page: PageId) -> Option<StateId> {
        let state = self.snapshot(page).filter(|state| self.holders(*state) == 1)?;
        let snapshot = self.snapshots.remove(&page)?;
        self.by_use.remove(&snapshot.used);
        Some(state)
    }

    /// Drops the snapshot of `page`, if there is one: its content is about to change.
    pub(super) fn forget(&mut self, page: PageId) {
        if let Some(snapshot) = self.snapshots.remove(&page) {
            self.by_use.remove(&snapshot.used);
            self.release(snapshot.state);
        }
    }

    /// Drops all snapshots.
    pub(super) fn forget_all(&mut self) {
        self.by_use.clear();
        for snapshot in std::mem::take(&mut self.snapshots).into_values() {
            self.release(snapshot.state);
        }
    }

    fn holders(&self, state: StateId) -> u32 {
        self.holders[state.0 as usize]
    }

    /// Panics unless each place is held as often as `holders` and the snapshots say, and blank
    /// exactly once where that is never; `is_known` tells pages that can be found.
    #[cfg(test)]
    pub(super) fn check(
        &self,
        mut holders: BTreeMap<StateId, u32>,
        is_known: impl Fn(PageId) -> bool,
    ) {
        for (page, snapshot) in &self.snapshots {
            assert!(is_known(*page), "the snapshot of {page:?} cannot be found");
            assert_eq!(self.by_use.get(&snapshot.used), Some(page));
            *holders.entry(snapshot.state).or_insert(0) += 1;
        }
        assert_eq!(self.by_use.len(), self.snapshots.len(), "uses without a snapshot");
        let mut blank = vec![0; self.holders.len()];
        for state in &self.blank {
            blank[state.0 as usize] += 1;
        }
        for (index, held) in self.holders.iter().enumerate() {
            let expected = holders.get(&StateId(index as u32)).copied().unwrap_or(0);
            assert_eq!(*held, expected, "holders of state {index}");
            assert_eq!(blank[index], u32::from(expected == 0), "free list of state {index}");
        }
    }
}
