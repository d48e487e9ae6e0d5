//! Who waits, who runs, and which pages they hold.
//!
//! Age decides: the oldest waiting sequence is admitted first, and the youngest running one gives
//! its pages up first. The oldest sequence of all therefore always moves on, and none starves.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use super::flight::{Flights, Held};
use super::pages::{PageId, PageKey, PagePool};
use super::states::{StateId, StatePool};
use super::{BySequence, Limits, Needs, Plan, Refusal, SeqId, Sequence, Slot, step};

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens that were looked up in the prefix cache, at first admissions.
    pub query_tokens: u64,
    /// Those of them that were found.
    pub hit_tokens: u64,
    /// How often a running sequence gave its pages up.
    pub preemptions: u64,
}

/// All sequences that are not finished, and the pages of the KV cache.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    states: StatePool,
    flights: Flights,
    sequences: BySequence<Sequence>,
    pub(super) waiting: BTreeSet<SeqId>,
    pub(super) running: BTreeSet<SeqId>,
    totals: Totals,
}

impl Scheduler {
    /// An empty scheduler over `limits.pages` blank pages.
    pub fn new(limits: Limits) -> Self {
        assert!(limits.max_batch_size > 0 && limits.token_budget > 0, "nothing could ever run");
        assert!(limits.page_tokens > 0 && limits.chunk_tokens > 0, "pages and chunks hold tokens");
        if let Some(states) = limits.states {
            assert!(states.places > 0 && states.interval > 0, "no sequence could have a state");
            let whole = |tokens| states.interval.is_multiple_of(tokens);
            assert!(whole(limits.page_tokens) && whole(limits.chunk_tokens), "snapshots end both");
        }
        Self {
            pool: PagePool::new(limits.pages),
            states: StatePool::new(limits.states.map_or(0, |states| states.places)),
            flights: Flights::default(),
            limits,
            sequences: BySequence::default(),
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
    pub fn add(
        &mut self,
        id: SeqId,
        prompt: Vec<u32>,
        max_output: usize,
        needs: Needs,
    ) -> Result<(), Refusal> {
        self.limits.admits(prompt.len(), max_output)?;
        let former = self.sequences.insert(id, Sequence::new(id, prompt, max_output, needs));
        assert!(former.is_none(), "sequence {id} was added twice");
        self.waiting.insert(id);
        Ok(())
    }

    /// Chooses the next step and reserves its pages. Empty only while nothing is unfinished, or
    /// while all that is waits for steps in flight.
    pub fn plan(&mut self) -> Plan {
        let ahead = self.flights.len();
        assert!(ahead <= self.limits.run_ahead, "{ahead} steps are in flight already");
        let plan = step::plan(self);
        if !plan.slots.is_empty() {
            self.flights.launch(plan.slots.clone());
        } else {
            assert!(ahead > 0 || self.is_idle(), "sequences wait, and none can run");
        }
        plan
    }

    /// Notes that the device has computed `plan`, the oldest step in flight; its full pages can be
    /// found from now on.
    pub fn commit(&mut self, plan: &Plan) {
        let Some(flight) = self.flights.land() else { panic!("no step is in flight") };
        assert_eq!(flight.slots, plan.slots, "steps end in the order of their plans");
        let page_tokens = self.limits.page_tokens;
        for slot in &flight.slots {
            let save = slot.state.and_then(|state| state.save);
            let end = slot.position + slot.rows;
            if slot.position % page_tokens + slot.rows < page_tokens {
                debug_assert_eq!(save, None, "snapshots are taken where a page ends");
            } else if !flight.gone.contains(&slot.id) && self.limits.prefix_cache {
                self.register(slot.id, end, save);
            } else if let Some(state) = save {
                self.states.release(state);
            }
        }
        self.release(flight.held);
    }

    /// Makes the full pages below `end` findable, and the snapshot taken there.
    fn register(&mut self, id: SeqId, end: usize, save: Option<StateId>) {
        let sequence = self.sequences.get_mut(id).expect("a sequence in flight lives");
        let full = end / self.limits.page_tokens;
        extend_keys(sequence, full, self.limits.page_tokens);
        for index in sequence.registered..full {
            self.pool.register(sequence.pages[index], sequence.keys[index]);
        }
        sequence.registered = full;
        if let Some(state) = save {
            // An equal page of another sequence may be the one that is found.
            match self.pool.find(&sequence.keys[full - 1]) {
                Some(page) => self.states.keep(page, state),
                None => self.states.release(state),
            }
        }
    }

    /// Adds the token that a committed step sampled to a sequence that goes on.
    pub fn append(&mut self, id: SeqId, token: u32) {
        self.sequences.get_mut(id).expect("a sampled sequence lives").push(token);
    }

    /// Takes a finished or aborted sequence out; what it held is free once no step uses it.
    pub fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(id)?;
        self.waiting.remove(&id);
        self.running.remove(&id);
        let held = sequence.rewind();
        self.retire(id, held);
        Some(sequence)
    }

    /// Forgets all cached prefixes and returns how many pages that freed.
    pub fn reset_prefix_cache(&mut self) -> usize {
        self.states.forget_all();
        self.pool.forget()
    }

    /// A sequence that is not finished.
    pub fn sequence(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(id)
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

    /// Pages that were held at least once since the start.
    pub fn pages_touched(&self) -> usize {
        self.pool.touched()
    }

    /// Counts since the start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn get(&self, id: SeqId) -> &Sequence {
        self.sequences.get(id).expect("the sequence lives")
    }

    /// Plans the next rows of a running sequence.
    pub(super) fn slot(&mut self, id: SeqId, rows: usize) -> Slot {
        let save = self.snapshot_place(id, rows);
        self.sequences.get_mut(id).expect("a planned sequence lives").advance(rows, save)
    }

    /// A place for the snapshot after the next `rows` rows, where one is due and there is room.
    fn snapshot_place(&mut self, id: SeqId, rows: usize) -> Option<StateId> {
        let interval = self.limits.states?.interval;
        let end = self.get(id).planned + rows;
        if !self.limits.prefix_cache || !end.is_multiple_of(interval) {
            return None;
        }
        let sequence = self.sequences.get_mut(id).expect("a planned sequence lives");
        if end <= sequence.tokens().len() {
            let full = end / self.limits.page_tokens;
            extend_keys(sequence, full, self.limits.page_tokens);
            let known = self.pool.find(&sequence.keys[full - 1]);
            if known.is_some_and(|page| self.states.snapshot(page).is_some()) {
                return None;
            }
        }
        self.states.take()
    }

    /// Gives a waiting sequence pages for all its tokens, or changes nothing if there are too few,
    /// or no row of it would fit in `left`.
    ///
    /// Each running sequence needs another page before long; unless one is left for each, the
    /// newcomer would be the first to be preempted and its prefill would be lost.
    pub(super) fn admit(&mut self, id: SeqId, left: usize) -> bool {
        // A preempted sequence may still have a step in flight, and its token with it.
        if self.running.len() >= self.limits.max_batch_size || self.flights.has(id) {
            return false;
        }
        let found = self.find_prefix(id);
        let tokens = self.get(id).tokens().len();
        let cached = found.len() * self.limits.page_tokens;
        if self.limits.chunk_rows(cached, tokens, left) == 0 {
            return false;
        }
        let idle = found.iter().filter(|page| self.pool.is_idle(**page)).count();
        let fresh = self.limits.pages_for(tokens) - found.len();
        if self.pool.available() < idle + fresh + self.running.len() {
            return false;
        }
        let (state, load) = match self.limits.states {
            None => (None, None),
            Some(_) => match self.take_state(found.last().copied()) {
                Some((place, load)) => (Some(place), load),
                None => return false,
            },
        };
        for page in &found {
            self.pool.share(*page);
        }
        let fresh: Vec<_> = (0..fresh).map_while(|_| self.take_page()).collect();
        let sequence = self.sequences.get_mut(id).expect("an admitted sequence lives");
        sequence.registered = found.len();
        sequence.planned = cached;
        sequence.prefill_end = tokens;
        (sequence.state, sequence.load) = (state, load);
        sequence.pages = found;
        sequence.pages.extend(fresh);
        assert_eq!(sequence.pages.len(), self.limits.pages_for(tokens), "pages were counted");
        if sequence.cached_tokens.is_none() {
            sequence.cached_tokens = Some(cached);
            if self.limits.prefix_cache && !sequence.needs.all_rows {
                self.totals.query_tokens += tokens as u64;
            }
            self.totals.hit_tokens += cached as u64;
        }
        self.waiting.remove(&id);
        self.running.insert(id);
        true
    }

    /// A place for the state of a sequence that begins after the cached page `last`, and the
    /// snapshot to copy there; that snapshot itself if there is no other place.
    fn take_state(&mut self, last: Option<PageId>) -> Option<(StateId, Option<StateId>)> {
        let Some(page) = last else { return Some((self.states.take()?, None)) };
        let snapshot = self.states.snapshot(page).expect("a cached prefix ends at a snapshot");
        self.states.touch(page);
        self.states.share(snapshot);
        if let Some(place) = self.states.take() {
            return Some((place, Some(snapshot)));
        }
        self.states.release(snapshot);
        Some((self.states.take_over(page)?, None))
    }

    /// Makes room for the next token of a running sequence, at the cost of the youngest if need
    /// be. False if that was `id` itself, or if it has to wait for pages that a step still uses.
    pub(super) fn reserve(&mut self, id: SeqId, preempted: &mut Vec<SeqId>) -> bool {
        let page_tokens = self.limits.page_tokens;
        while self.get(id).needs_page(page_tokens) {
            if let Some(page) = self.take_page() {
                self.sequences.get_mut(id).expect("a running sequence lives").pages.push(page);
                continue;
            }
            if self.flights.have_pages() {
                return false;
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
        let held = self.sequences.get_mut(id).expect("a running sequence lives").rewind();
        self.retire(id, held);
        self.running.remove(&id);
        self.waiting.insert(id);
        self.totals.preemptions += 1;
    }

    /// The longest cached run of pages from the start, which for a model with recurrent state has
    /// to end at a snapshot. At least the last token is left out of it, since its row gives the
    /// logits.
    fn find_prefix(&mut self, id: SeqId) -> Vec<PageId> {
        if !self.limits.prefix_cache || self.get(id).needs.all_rows {
            return Vec::new();
        }
        let page_tokens = self.limits.page_tokens;
        let sequence = self.sequences.get_mut(id).expect("a waiting sequence lives");
        let full = (sequence.tokens().len() - 1) / page_tokens;
        extend_keys(sequence, full, page_tokens);
        let mut found: Vec<_> =
            sequence.keys[..full].iter().map_while(|key| self.pool.find(key)).collect();
        if self.limits.states.is_some() {
            let ends = |page: &PageId| self.states.snapshot(*page).is_some();
            found.truncate(found.iter().rposition(ends).map_or(0, |last| last + 1));
        }
        found
    }

    /// Takes a page for new content.
    fn take_page(&mut self) -> Option<PageId> {
        let page = self.pool.take()?;
        self.states.forget(page);
        Some(page)
    }

    /// Frees what a sequence held, once no step in flight uses it.
    fn retire(&mut self, id: SeqId, held: Held) {
        if let Some(held) = self.flights.retire(id, held) {
            self.release(held);
        }
    }

    /// The end of a prefix is less likely to be found again than its start, and is released
    /// first so that it is reused first.
    fn release(&mut self, held: Held) {
        for page in held.pages.iter().rev() {
            self.pool.release(*page);
        }
        for state in held.states {
            self.states.release(state);
        }
    }

    /// Panics unless every page and every state is accounted for.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let (mut pages, mut states) = (BTreeMap::new(), BTreeMap::new());
        for (id, sequence) in self.sequences.iter() {
            assert!(self.running.contains(&id) != self.waiting.contains(&id));
            let is_bare = sequence.pages.is_empty() && sequence.state.is_none();
            assert!(self.running.contains(&id) != is_bare);
            assert_eq!(sequence.load, None, "a snapshot is loaded by the step of the admission");
            sequence.pages.iter().for_each(|page| *pages.entry(*page).or_insert(0) += 1);
            sequence.state.iter().for_each(|state| *states.entry(*state).or_insert(0) += 1);
        }
        assert_eq!(self.running.len() + self.waiting.len(), self.sequences.len());
        for flight in self.flights.iter() {
            flight.held.pages.iter().for_each(|page| *pages.entry(*page).or_insert(0) += 1);
            let saves = flight.slots.iter().filter_map(|slot| slot.state?.save);
            for state in flight.held.states.iter().copied().chain(saves) {
                *states.entry(state).or_insert(0) += 1;
            }
        }
        self.pool.check(&pages);
        self.states.check(states, |page| self.pool.is_known(page));
    }
}

fn extend_keys(sequence: &mut Sequence, full: usize, page_tokens: usize) {
    for index in sequence.keys.len()..full {
        let tokens = &sequence.tokens()[index * page_tokens..][..page_tokens];
        let key = PageKey::chain(sequence.keys.last(), tokens);
        sequence.keys.push(key);
    }
}
