//! The pages of the KV cache: who holds them, which of them later prompts may find again.
//!
//! A page is *blank* (nothing in it), *held* (by one or more sequences) or *idle* (held by none,
//! but its content is known by key and may be found). Idle pages are reused oldest first once no
//! blank one is left.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

/// Index of a page in the device's KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// Names the content of a full page and of all pages before it.
///
/// SHA-256 over the previous page's key and the page's tokens: two prompts of different users
/// never meet by a collision that one of them made. Kept as words, of which the first nearly always
/// tells two keys apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageKey([u64; 4]);

impl PageKey {
    pub(super) fn chain(previous: Option<&Self>, tokens: &[u32]) -> Self {
        let mut hash = Sha256::new();
        for word in previous.map_or([0; 4], |key| key.0) {
            hash.update(word.to_le_bytes());
        }
        for token in tokens {
            hash.update(token.to_le_bytes());
        }
        let mut key = [0; 4];
        for (word, bytes) in key.iter_mut().zip(hash.finalize().chunks_exact(8)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        }
        Self(key)
    }
}

impl fmt::Debug for PageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", (self.0[0] as u32).swap_bytes())
    }
}

#[derive(Debug, Clone, Default)]
struct Page {
    holders: u32,
    key: Option<PageKey>,
    /// Position in the order of reuse; meaningful while idle.
    idle_since: u64,
}

/// All pages of one KV cache.
#[derive(Debug)]
pub(super) struct PagePool {
    pages: Vec<Page>,
    /// Lowest index last, so that memory is touched in order and only as it is needed.
    blank: Vec<PageId>,
    idle: BTreeMap<u64, PageId>,
    by_key: BTreeMap<PageKey, PageId>,
    releases: u64,
    /// Fewest blank pages that there ever were: what lies below them was never written.
    untouched: usize,
}

impl PagePool {
    pub(super) fn new(pages: usize) -> Self {
        let count = u32::try_from(pages).expect("a KV cache has fewer than 2^32 pages");
        Self {
            pages: vec![Page::default(); pages],
            blank: (0..count).rev().map(PageId).collect(),
            idle: BTreeMap::new(),
            by_key: BTreeMap::new(),
            releases: 0,
            untouched: pages,
        }
    }

    /// Pages that could be taken now.
    pub(super) fn available(&self) -> usize {
        self.blank.len() + self.idle.len()
    }

    /// Pages held by sequences.
    pub(super) fn held(&self) -> usize {
        self.pages.len() - self.available()
    }

    /// Pages that were taken at least once. Released ones are taken again before others.
    pub(super) fn touched(&self) -> usize {
        self.pages.len() - self.untouched
    }

    pub(super) fn find(&self, key: &PageKey) -> Option<PageId> {
        self.by_key.get(key).copied()
    }

    pub(super) fn is_idle(&self, id: PageId) -> bool {
        self.page(id).holders == 0
    }

    /// Takes a page for one holder; the content of the oldest idle one is forgotten if need be.
    pub(super) fn take(&mut self) -> Option<PageId> {
        let id = self.blank.pop().or_else(|| {
            let (_, id) = self.idle.pop_first()?;
            let key = self.page_mut(id).key.take().expect("an idle page has a key");
            self.by_key.remove(&key);
            Some(id)
        })?;
        self.untouched = self.untouched.min(self.blank.len());
        let page = self.page_mut(id);
        assert!(page.holders == 0 && page.key.is_none(), "page {id:?} was free and in use");
        page.holders = 1;
        Some(id)
    }

    /// Adds a holder to a page that was found by key.
    pub(super) fn share(&mut self, id: PageId) {
        let page = self.page_mut(id);
        page.holders += 1;
        let (first, since) = (page.holders == 1, page.idle_since);
        if first {
            self.idle.remove(&since).expect("a page without holders is idle");
        }
    }

    /// Drops a holder.
    pub(super) fn release(&mut self, id: PageId) {
        self.releases += 1;
        let since = self.releases;
        let page = self.page_mut(id);
        page.holders = page.holders.checked_sub(1).expect("a page is released once per holder");
        if page.holders > 0 {
            return;
        }
        page.idle_since = since;
        if page.key.is_some() {
            self.idle.insert(since, id);
        } else {
            self.blank.push(id);
        }
    }

    /// Makes a full page findable, unless an equal one already is.
    pub(super) fn register(&mut self, id: PageId, key: PageKey) {
        assert!(self.page(id).holders > 0, "page {id:?} is registered by nobody");
        if self.page(id).key.is_none() && !self.by_key.contains_key(&key) {
            self.by_key.insert(key, id);
            self.page_mut(id).key = Some(key);
        }
    }

    /// Forgets all keys, and returns how many idle pages became blank by it.
    pub(super) fn forget(&mut self) -> usize {
        for id in std::mem::take(&mut self.by_key).into_values() {
            self.page_mut(id).key = None;
        }
        let freed = self.idle.len();
        self.blank.extend(std::mem::take(&mut self.idle).into_values().rev());
        freed
    }

    /// Whether the content of a page can be found.
    #[cfg(test)]
    pub(super) fn is_known(&self, id: PageId) -> bool {
        self.page(id).key.is_some()
    }

    /// Panics unless each page is exactly one of blank, idle and held as often as `holders` says.
    #[cfg(test)]
    pub(super) fn check(&self, holders: &BTreeMap<PageId, u32>) {
        let mut seen = vec![0; self.pages.len()];
        for id in self.blank.iter().chain(self.idle.values()) {
            seen[id.0 as usize] += 1;
        }
        for (index, page) in self.pages.iter().enumerate() {
            let id = PageId(index as u32);
            let expected = holders.get(&id).copied().unwrap_or(0);
            assert_eq!(page.holders, expected, "holders of page {index}");
            assert_eq!(seen[index], u32::from(expected == 0), "free lists of page {index}");
            let found = page.key.map(|key| self.by_key.get(&key) == Some(&id));
            assert_ne!(found, Some(false), "page {index} has a key that finds another page");
        }
        let keyed = self.pages.iter().filter(|page| page.key.is_some()).count();
        assert_eq!(self.by_key.len(), keyed, "keys without a page");
    }

    fn page(&self, id: PageId) -> &Page {
        &self.pages[id.0 as usize]
    }

    fn page_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id.0 as usize]
    }
}
