//! Who waits, who runs, and which pages they hold.
//!
//! Age decides: the oldest waiting sequence is admitted first, and the youngest running one gives
//! its pages up first. The oldest sequence of all therefore always moves on, and none starves.

use std::collections::{BTreeMap, BTreeSet};

use super::pages::{PageId, PageKey, PagePool};
use super::{Limits, Plan, Policy, Refusal, SeqId, Sequence, mixed, prefill_first};

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens that were looked up in the prefix cache, at first admissions.
    pub query_tokens: u64,
    /// Those of them that were found.
    pub hit_tokens: u64,
    pub preemptions: u64,
}

/// All sequences that are not finished, and the pages of the KV cache.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    sequences: BTreeMap<SeqId, Sequence>,
    pub(super) waiting: BTreeSet<SeqId>,
    pub(super) running: BTreeSet<SeqId>,
    totals: Totals,
}

impl Scheduler {
    /// An empty scheduler over `limits.pages` blank pages.
    pub fn new(limits: Limits) -> Self {
        assert!(limits.max_batch_size > 0 && limits.token_budget > 0, "nothing could ever run");
        assert!(limits.page_tokens > 0 && limits.chunk_tokens > 0, "pages and chunks hold tokens");
        Self {
            pool: PagePool::new(limits.pages),
            limits,
            sequences: BTreeMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            totals: Totals::default(),
        }
    }

    /// What plans may not exceed.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Queues a sequence that will have at most `max_output` tokens after its prompt.
    ///
    /// # Errors
    /// It could not run even alone.
    pub fn add(&mut self, id: SeqId, prompt: Vec<u32>, max_output: usize) -> Result<(), Refusal> {
        self.limits.admits(prompt.len(), max_output)?;
        let former = self.sequences.insert(id, Sequence::new(id, prompt));
        assert!(former.is_none(), "sequence {id} was added twice");
        self.waiting.insert(id);
        Ok(())
    }

    /// As [`Self::add`], for a sequence of which every row has to be computed: nothing is looked
    /// up in the prefix cache.
    ///
    /// # Errors
    /// It could not run even alone.
    pub fn add_uncached(
        &mut self,
        id: SeqId,
        prompt: Vec<u32>,
        max_output: usize,
    ) -> Result<(), Refusal> {
        self.add(id, prompt, max_output)?;
        self.sequences.get_mut(&id).expect("it was added").reuses = false;
        Ok(())
    }

    /// Chooses the next step and reserves its pages. Never empty while a sequence is unfinished.
    pub fn plan(&mut self) -> Plan {
        let plan = match self.limits.policy {
            Policy::PrefillFirst => prefill_first::plan(self),
            Policy::Mixed => mixed::plan(self),
        };
        assert!(!plan.slots.is_empty() || self.is_idle(), "sequences wait, and none can run");
        plan
    }

    /// Notes that the device has computed `plan`; full pages can be found from now on.
    pub fn commit(&mut self, plan: &Plan) {
        for slot in &plan.slots {
            let sequence = self.sequences.get_mut(&slot.id).expect("a planned sequence lives");
            assert_eq!(sequence.computed, slot.position, "sequence {} was planned twice", slot.id);
            sequence.computed += slot.rows;
            if self.limits.prefix_cache {
                let full = sequence.computed / self.limits.page_tokens;
                extend_keys(sequence, full, self.limits.page_tokens);
                for index in sequence.registered..full {
                    self.pool.register(sequence.pages[index], sequence.keys[index]);
                }
                sequence.registered = full;
            }
        }
    }

    /// Adds a sampled token to a sequence that goes on.
    pub fn append(&mut self, id: SeqId, token: u32) {
        self.sequences.get_mut(&id).expect("a sampled sequence lives").push(token);
    }

    /// Takes a finished or aborted sequence out; its pages are free from now on.
    pub fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(&id)?;
        self.waiting.remove(&id);
        self.running.remove(&id);
        let pages = sequence.rewind();
        self.release(&pages);
        Some(sequence)
    }

    /// Forgets all cached prefixes and returns how many pages that freed.
    pub fn reset_prefix_cache(&mut self) -> usize {
        self.pool.forget()
    }

    /// A sequence that is not finished.
    pub fn sequence(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(&id)
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Sequences that hold pages.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Sequences that hold none.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Pages held by running sequences.
    pub fn pages_used(&self) -> usize {
        self.pool.held()
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn get(&self, id: SeqId) -> &Sequence {
        &self.sequences[&id]
    }

    /// Prompt tokens that would have to be computed were `id` admitted now.
    pub(super) fn uncached_tokens(&mut self, id: SeqId) -> usize {
        let found = self.find_prefix(id).len() * self.limits.page_tokens;
        self.sequences[&id].tokens().len() - found
    }

    /// Gives a waiting sequence pages for all its tokens, or changes nothing.
    ///
    /// Each running sequence needs another page before long; unless one is left for each, the
    /// newcomer would be the first to be preempted and its prefill would be lost.
    pub(super) fn admit(&mut self, id: SeqId) -> bool {
        if self.running.len() >= self.limits.max_batch_size {
            return false;
        }
        let found = self.find_prefix(id);
        let idle = found.iter().filter(|page| self.pool.is_idle(**page)).count();
        let tokens = self.sequences[&id].tokens().len();
        let fresh = self.limits.pages_for(tokens) - found.len();
        if self.pool.available() < idle + fresh + self.running.len() {
            return false;
        }
        for page in &found {
            self.pool.share(*page);
        }
        let cached = found.len() * self.limits.page_tokens;
        let sequence = self.sequences.get_mut(&id).expect("an admitted sequence lives");
        sequence.registered = found.len();
        sequence.computed = cached;
        sequence.pages = found;
        for _ in 0..fresh {
            sequence.pages.push(self.pool.take().expect("as many pages as were counted"));
        }
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(cached);
            if self.limits.prefix_cache && sequence.reuses {
                self.totals.query_tokens += tokens as u64;
            }
            self.totals.hit_tokens += cached as u64;
        }
        self.waiting.remove(&id);
        self.running.insert(id);
        true
    }

    /// Makes room for the next token of a running sequence, at the cost of the youngest if need
    /// be. False if that was `id` itself.
    pub(super) fn reserve(&mut self, id: SeqId, preempted: &mut Vec<SeqId>) -> bool {
        let wanted = self.limits.pages_for(self.get(id).tokens().len());
        while self.get(id).pages.len() < wanted {
            if let Some(page) = self.pool.take() {
                self.sequences.get_mut(&id).expect("a running sequence lives").pages.push(page);
                continue;
            }
            let youngest = *self.running.last().expect("`id` runs");
            self.preempt(youngest);
            preempted.push(youngest);
            if youngest == id {
                return false;
            }
        }
        true
    }

    fn preempt(&mut self, id: SeqId) {
        let pages = self.sequences.get_mut(&id).expect("a running sequence lives").rewind();
        self.release(&pages);
        self.running.remove(&id);
        self.waiting.insert(id);
        self.totals.preemptions += 1;
    }

    /// The longest cached run of pages from the start. At least the last token is left out of it,
    /// since its row gives the logits.
    fn find_prefix(&mut self, id: SeqId) -> Vec<PageId> {
        if !self.limits.prefix_cache || !self.get(id).reuses {
            return Vec::new();
        }
        let page_tokens = self.limits.page_tokens;
        let sequence = self.sequences.get_mut(&id).expect("a waiting sequence lives");
        let full = (sequence.tokens().len() - 1) / page_tokens;
        extend_keys(sequence, full, page_tokens);
        sequence.keys[..full].iter().map_while(|key| self.pool.find(key)).collect()
    }

    /// The end of a prefix is less likely to be found again than its start, and is released
    /// first so that it is reused first.
    fn release(&mut self, pages: &[PageId]) {
        for page in pages.iter().rev() {
            self.pool.release(*page);
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut holders = BTreeMap::new();
        for (id, sequence) in &self.sequences {
            assert!(self.running.contains(id) != self.waiting.contains(id));
            assert!(self.running.contains(id) || sequence.pages.is_empty());
            for page in &sequence.pages {
                *holders.entry(*page).or_insert(0) += 1;
            }
        }
        assert_eq!(self.running.len() + self.waiting.len(), self.sequences.len());
        self.pool.check(&holders);
    }
}

fn extend_keys(sequence: &mut Sequence, full: usize, page_tokens: usize) {
    for index in sequence.keys.len()..full {
        let tokens = &sequence.tokens()[index * page_tokens..][..page_tokens];
        let key = PageKey::chain(sequence.keys.last(), tokens);
        sequence.keys.push(key);
    }
}
