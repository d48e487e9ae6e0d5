//! Map from sequence id to a value, with constant-time lookup.

use std::collections::VecDeque;

use super::SeqId;

/// Map from sequence id to a value, stored as a sliding window over ids. Ids grow with arrival and
/// sequences end roughly in that order, so the ids in use lie close together.
#[derive(Debug)]
pub struct BySequence<T> {
    /// Sequence id of the first entry of `window`; without meaning while the window is empty.
    first: u64,
    /// Values of the sequences with ids `first`, `first + 1` and so on, `None` for an id without a
    /// value. The first and the last entry are never `None`; a `None` between them takes the memory
    /// of one pointer.
    window: VecDeque<Option<Box<T>>>,
    len: usize,
}

impl<T> Default for BySequence<T> {
    fn default() -> Self {
        Self { first: 0, window: VecDeque::new(), len: 0 }
    }
}

impl<T> BySequence<T> {
    /// Returns the number of sequences that have a value in the map.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if no sequence has a value in the map.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the map's value of sequence `id`, or `None` if there is none.
    pub fn get(&self, id: SeqId) -> Option<&T> {
        self.window.get(self.index(id)?)?.as_deref()
    }

    /// Returns the map's value of sequence `id` for modification, or `None` if there is none.
    pub fn get_mut(&mut self, id: SeqId) -> Option<&mut T> {
        let index = self.index(id)?;
        self.window.get_mut(index)?.as_deref_mut()
    }

    /// Returns the ids of the map with their values for modification, the lowest id first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SeqId, &mut T)> {
        let entries = self.window.iter_mut().zip(self.first..);
        entries.filter_map(|(entry, id)| Some((SeqId(id), entry.as_deref_mut()?)))
    }

    /// Stores `value` in the map for sequence `id` and returns the value that it replaces, if any.
    pub fn insert(&mut self, id: SeqId, value: T) -> Option<T> {
        if self.window.is_empty() {
            self.first = id.0;
        }
        // An id may be inserted after younger ones, so the window grows at its front too.
        while id.0 < self.first {
            self.window.push_front(None);
            self.first -= 1;
        }
        let index = (id.0 - self.first) as usize;
        if self.window.len() <= index {
            self.window.resize_with(index + 1, || None);
        }
        let former = self.window[index].replace(Box::new(value));
        self.len += usize::from(former.is_none());
        former.map(|value| *value)
    }

    /// Removes the value of sequence `id` from the map and returns it, or `None` if there is none.
    pub fn remove(&mut self, id: SeqId) -> Option<T> {
        let index = self.index(id)?;
        let value = self.window.get_mut(index)?.take()?;
        self.len -= 1;
        while self.window.front().is_some_and(Option::is_none) {
            self.window.pop_front();
            self.first += 1;
        }
        while self.window.back().is_some_and(Option::is_none) {
            self.window.pop_back();
        }
        Some(*value)
    }

    /// Iterates over the map's sequence ids and their values, the oldest sequence (lowest id)
    /// first.
    pub fn iter(&self) -> impl Iterator<Item = (SeqId, &T)> {
        let slots = (self.first..).map(SeqId).zip(&self.window);
        slots.filter_map(|(id, value)| Some((id, value.as_deref()?)))
    }

    /// Returns the index at which `window` has the value of sequence `id`, which may lie beyond the
    /// window's end; `None` if the id lies before its begin.
    fn index(&self, id: SeqId) -> Option<usize> {
        usize::try_from(id.0.checked_sub(self.first)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_window_is_as_short_as_the_ids_of_the_living_are_near() {
        let mut all = BySequence::default();
        for id in 1000..1010 {
            assert_eq!(all.insert(SeqId(id), id), None);
        }
        for id in (1000..1005).chain(1007..1010) {
            assert_eq!(all.remove(SeqId(id)), Some(id));
        }
        assert_eq!((all.window.len(), all.len()), (2, 2));
        assert_eq!(all.insert(SeqId(1003), 3), None);
        assert_eq!(
            all.iter().collect::<Vec<_>>(),
            [(SeqId(1003), &3), (SeqId(1005), &1005), (SeqId(1006), &1006)]
        );
    }

    proptest! {
        #[test]
        fn it_keeps_what_a_map_keeps(
            events in prop::collection::vec((0..40u64, any::<bool>()), 1..200),
        ) {
            let (mut all, mut map) = (BySequence::default(), BTreeMap::new());
            for (n, (id, is_new)) in events.into_iter().enumerate() {
                let id = SeqId(id);
                if is_new {
                    prop_assert_eq!(all.insert(id, n), map.insert(id, n));
                } else {
                    prop_assert_eq!(all.remove(id), map.remove(&id));
                }
                prop_assert_eq!(all.get(id), map.get(&id));
                prop_assert_eq!(all.get_mut(id).copied(), map.get(&id).copied());
                prop_assert_eq!((all.len(), all.is_empty()), (map.len(), map.is_empty()));
                prop_assert!(all.iter().eq(map.iter().map(|(id, n)| (*id, n))));
            }
        }
    }
}
