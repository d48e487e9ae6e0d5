//! State slots for recurrent state (gated DeltaNet): allocation, and the snapshots from which
//! prompts may start.
//!
//! A slot holds the state of one sequence after some number of tokens, over all layers. A running
//! sequence holds one slot, the prefix cache holds one per snapshot, and a step in flight holds
//! those that it also reads or writes. A slot without holders is blank. A snapshot belongs to the
//! KV page at whose end it was taken, and is dropped before that page's content changes.

use std::collections::BTreeMap;

use super::pages::PageId;

/// Index of a state slot on the device.
pub type StateSlot = u32;

/// Snapshot of recurrent state: the state slot that holds it, and when it was last used.
#[derive(Debug)]
struct Snapshot {
    state: StateSlot,
    /// Index of the snapshot's last use among all uses of snapshots, counted from 1; the snapshot
    /// with the lowest index is evicted first.
    used: u64,
}

/// Allocator of a device's state slots: reference counts, free list and snapshots in order of use.
#[derive(Debug)]
pub(super) struct StatePool {
    holders: Vec<u32>,
    /// Blank state slots (without holder), the lowest index last, so that memory is touched in
    /// order and only as it is needed.
    blank: Vec<StateSlot>,
    snapshots: BTreeMap<PageId, Snapshot>,
    by_use: BTreeMap<u64, PageId>,
    uses: u64,
}

impl StatePool {
    pub(super) fn new(slots: usize) -> Self {
        let count = u32::try_from(slots).expect("there are fewer than 2^32 state slots");
        Self {
            holders: vec![0; slots],
            blank: (0..count).rev().collect(),
            snapshots: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
        }
    }

    /// Takes a state slot and gives it its first holder. If no slot is blank, the least recently
    /// used snapshot whose slot nobody else holds is evicted. Returns `None` if there is no such
    /// snapshot either.
    pub(super) fn take(&mut self) -> Option<StateSlot> {
        if self.blank.is_empty() {
            // A snapshot that a step in flight still loads has a second holder and must stay.
            let free = |page: &&PageId| self.holders(self.snapshots[*page].state) == 1;
            let oldest = self.by_use.values().find(free).copied()?;
            self.forget(oldest);
        }
        let state = self.blank.pop().expect("a slot is blank or was freed just now");
        assert_eq!(self.holders(state), 0, "state {state} was free and in use");
        self.holders[state as usize] = 1;
        Some(state)
    }

    /// Adds a holder to a state slot that already has one.
    pub(super) fn share(&mut self, state: StateSlot) {
        assert!(self.holders(state) > 0, "state {state} is shared and held by nobody");
        self.holders[state as usize] += 1;
    }

    /// Removes a holder from a state slot. A slot without holders becomes blank.
    pub(super) fn release(&mut self, state: StateSlot) {
        let holders = &mut self.holders[state as usize];
        *holders = holders.checked_sub(1).expect("a state is released once per holder");
        if *holders == 0 {
            self.blank.push(state);
        }
    }

    /// Returns the state slot of the snapshot taken at the end of KV page `page`, or `None`.
    pub(super) fn snapshot(&self, page: PageId) -> Option<StateSlot> {
        self.snapshots.get(&page).map(|snapshot| snapshot.state)
    }

    /// Stores state slot `state` as the snapshot of KV page `page`. The caller's hold of the slot
    /// passes to the prefix cache, or is released if the page has a snapshot already.
    pub(super) fn keep(&mut self, page: PageId, state: StateSlot) {
        // Two sequences with equal prompts may take the same snapshot in one step.
        if self.snapshots.contains_key(&page) {
            return self.release(state);
        }
        self.uses += 1;
        self.by_use.insert(self.uses, page);
        self.snapshots.insert(page, Snapshot { state, used: self.uses });
    }

    /// Marks the snapshot of KV page `page` as the most recently used one.
    pub(super) fn touch(&mut self, page: PageId) {
        if let Some(snapshot) = self.snapshots.get_mut(&page) {
            self.uses += 1;
            self.by_use.remove(&snapshot.used);
            snapshot.used = self.uses;
            self.by_use.insert(self.uses, page);
        }
    }

    /// Removes the snapshot of KV page `page` and passes the prefix cache's hold of its state slot
    /// to the caller. Returns `None`, and changes nothing, if there is no snapshot or its slot has
    /// other holders.
    pub(super) fn take_over(&mut self, page: PageId) -> Option<StateSlot> {
        let state = self.snapshot(page).filter(|state| self.holders(*state) == 1)?;
        let snapshot = self.snapshots.remove(&page)?;
        self.by_use.remove(&snapshot.used);
        Some(state)
    }

    /// Drops the snapshot of KV page `page`, if there is one, because the page's content is about
    /// to change.
    pub(super) fn forget(&mut self, page: PageId) {
        if let Some(snapshot) = self.snapshots.remove(&page) {
            self.by_use.remove(&snapshot.used);
            self.release(snapshot.state);
        }
    }

    /// Drops all snapshots of recurrent state and releases their state slots.
    pub(super) fn forget_all(&mut self) {
        self.by_use.clear();
        for snapshot in std::mem::take(&mut self.snapshots).into_values() {
            self.release(snapshot.state);
        }
    }

    /// Returns the reference count of a state slot.
    fn holders(&self, state: StateSlot) -> u32 {
        self.holders[state as usize]
    }

    /// Panics unless the reference count of each slot equals the number of its holders in `holders`
    /// plus its snapshots, and the free list contains exactly the slots without holders. `is_known`
    /// returns true for pages that the prefix cache can find.
    #[cfg(test)]
    pub(super) fn check(
        &self,
        mut holders: BTreeMap<StateSlot, u32>,
        is_known: impl Fn(PageId) -> bool,
    ) {
        for (page, snapshot) in &self.snapshots {
            assert!(is_known(*page), "the snapshot of {page} cannot be found");
            assert_eq!(self.by_use.get(&snapshot.used), Some(page));
            *holders.entry(snapshot.state).or_insert(0) += 1;
        }
        assert_eq!(self.by_use.len(), self.snapshots.len(), "uses without a snapshot");
        let mut blank = vec![0; self.holders.len()];
        for state in &self.blank {
            blank[*state as usize] += 1;
        }
        for (index, held) in self.holders.iter().enumerate() {
            let expected = holders.get(&(index as StateSlot)).copied().unwrap_or(0);
            assert_eq!(*held, expected, "holders of state {index}");
            assert_eq!(blank[index], u32::from(expected == 0), "free list of state {index}");
        }
    }
}
