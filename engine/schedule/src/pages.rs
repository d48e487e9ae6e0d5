//! KV cache allocation: pages and their reference counts, with the prefix cache. In vLLM's words,
//! paged KV cache block allocation: a page is a block, and the key of a page in the prefix cache is
//! its block hash.
//!
//! A page is *blank* (no content), *held* (by one or more sequences) or *idle* (held by none, but
//! its content is in the prefix cache). When no blank page is left, the longest idle page is
//! evicted.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest, Sha256};

/// Index of a KV page on the device ("block number" in vLLM's words).
pub type PageId = u32;

/// Prefix cache key of a full page: a hash over its tokens and those of all pages before it (block
/// hash in vLLM's words, for prefix caching).
///
/// SHA-256 over the previous page's key and the page's tokens, so that no user can construct a
/// prompt that collides with another user's. Stored as words, because comparing the first one
/// nearly always tells two keys apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageKey([u64; 4]);

impl PageKey {
    /// Computes the prefix cache key of a full page from its own tokens and the key of the page
    /// before it, which is `None` for the first page of a sequence.
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

/// Prefix cache: map from the key of a prefix to the KV page with its last tokens' keys and values.
type PrefixCache = BTreeMap<PageKey, PageId>;

/// State of one KV page: its reference count and, if the page is in the prefix cache, its key.
#[derive(Debug, Clone, Default)]
struct Page {
    holders: u32,
    key: Option<PageKey>,
    /// Index, counted from 1 over all calls, of the call of `release` that made the page idle: the
    /// idle page with the lowest index is evicted first. Meaningful only while the page is idle.
    idle_since: u64,
}

/// Allocator of a KV cache's pages, and the prefix cache over them.
#[derive(Debug)]
pub(super) struct PagePool {
    pages: Vec<Page>,
    /// Blank KV pages (without holder and not in the prefix cache), the lowest index last, so that
    /// memory is touched in order and only as it is needed.
    blank: Vec<PageId>,
    idle: BTreeMap<u64, PageId>,
    prefix_cache: PrefixCache,
    releases: u64,
    /// Smallest length that the list of blank pages has had so far, which is the number of pages
    /// that were never taken.
    untouched: usize,
}

impl PagePool {
    pub(super) fn new(pages: usize) -> Self {
        let count = u32::try_from(pages).expect("a KV cache has fewer than 2^32 pages");
        Self {
            pages: vec![Page::default(); pages],
            blank: (0..count).rev().collect(),
            idle: BTreeMap::new(),
            prefix_cache: PrefixCache::new(),
            releases: 0,
            untouched: pages,
        }
    }

    /// Returns the number of KV pages that can be taken now: the blank and the idle ones.
    pub(super) fn available(&self) -> usize {
        self.blank.len() + self.idle.len()
    }

    /// Returns the number of KV pages that have a holder: a sequence or a step in flight.
    pub(super) fn held(&self) -> usize {
        self.pages.len() - self.available()
    }

    /// Returns the number of KV pages that were taken at least once, the peak memory of the cache.
    /// A blank page that was used before is taken before an untouched one.
    pub(super) fn touched(&self) -> usize {
        self.pages.len() - self.untouched
    }

    /// Prefix cache lookup: returns the page that is cached under `key`, or `None`.
    pub(super) fn find(&self, key: &PageKey) -> Option<PageId> {
        self.prefix_cache.get(key).copied()
    }

    /// Returns true if no sequence and no step in flight holds the KV page.
    pub(super) fn is_idle(&self, id: PageId) -> bool {
        self.page(id).holders == 0
    }

    /// Takes a KV page and gives it its first holder. If no page is blank, the one that has been
    /// idle longest is evicted from the prefix cache. Returns `None` if all pages are held.
    pub(super) fn take(&mut self) -> Option<PageId> {
        // Blank pages go first, because taking an idle one loses cached content.
        let id = self.blank.pop().or_else(|| {
            let (_, id) = self.idle.pop_first()?;
            let key = self.page_mut(id).key.take().expect("an idle page has a key");
            self.prefix_cache.remove(&key);
            Some(id)
        })?;
        self.untouched = self.untouched.min(self.blank.len());
        let page = self.page_mut(id);
        assert!(page.holders == 0 && page.key.is_none(), "page {id} was free and in use");
        page.holders = 1;
        Some(id)
    }

    /// Adds a holder to a KV page that was found in the prefix cache.
    pub(super) fn share(&mut self, id: PageId) {
        let page = self.page_mut(id);
        page.holders += 1;
        let (first, since) = (page.holders == 1, page.idle_since);
        // The page was idle and must not be evicted any more.
        if first {
            self.idle.remove(&since).expect("a page without holders is idle");
        }
    }

    /// Removes a holder from a KV page. A page without holders becomes idle if it is in the prefix
    /// cache, else blank.
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

    /// Adds a full KV page to the prefix cache under `key`; does nothing if the page is in the
    /// cache already, or another page with equal content is.
    pub(super) fn register(&mut self, id: PageId, key: PageKey) {
        assert!(self.page(id).holders > 0, "page {id} is registered by nobody");
        // Sequences that run at once may fill equal pages; one of them is enough for the cache.
        if self.page(id).key.is_none() && !self.prefix_cache.contains_key(&key) {
            self.prefix_cache.insert(key, id);
            self.page_mut(id).key = Some(key);
        }
    }

    /// Empties the prefix cache, and returns the number of idle pages that became blank.
    pub(super) fn forget(&mut self) -> usize {
        for id in std::mem::take(&mut self.prefix_cache).into_values() {
            self.page_mut(id).key = None;
        }
        let freed = self.idle.len();
        // The longest idle page ends on top of the stack, so it is taken first.
        self.blank.extend(std::mem::take(&mut self.idle).into_values().rev());
        freed
    }

    /// Returns true if the KV page is in the prefix cache.
    #[cfg(test)]
    pub(super) fn is_known(&self, id: PageId) -> bool {
        self.page(id).key.is_some()
    }

    /// Panics unless each page's reference count equals its entry in `holders`, and each page
    /// without holders is in exactly one of the lists of blank and idle pages.
    #[cfg(test)]
    pub(super) fn check(&self, holders: &BTreeMap<PageId, u32>) {
        let mut seen = vec![0; self.pages.len()];
        for id in self.blank.iter().chain(self.idle.values()) {
            seen[*id as usize] += 1;
        }
        for (index, page) in self.pages.iter().enumerate() {
            let id = index as PageId;
            let expected = holders.get(&id).copied().unwrap_or(0);
            assert_eq!(page.holders, expected, "holders of page {index}");
            assert_eq!(seen[index], u32::from(expected == 0), "free lists of page {index}");
            let found = page.key.map(|key| self.prefix_cache.get(&key) == Some(&id));
            assert_ne!(found, Some(false), "page {index} has a key that finds another page");
        }
        let keyed = self.pages.iter().filter(|page| page.key.is_some()).count();
        assert_eq!(self.prefix_cache.len(), keyed, "keys without a page");
    }

    fn page(&self, id: PageId) -> &Page {
        &self.pages[id as usize]
    }

    fn page_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id as usize]
    }
}
