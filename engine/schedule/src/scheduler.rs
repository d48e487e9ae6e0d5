//! Preemption, admission and KV page allocation of sequences: the scheduler's state.
//!
//! The oldest waiting sequence is admitted first, and the youngest running one is preempted first.
//! The oldest sequence therefore always progresses, and none starves. This is preemption by
//! recompute: a preempted sequence gives its pages back, and its keys and values are computed again
//! after its next admission.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::{BTreeSet, VecDeque};

use super::pages::{PageId, PageKey, PagePool};
use super::sequence::Held;
use super::states::{StatePool, StateSlot};
use super::{BySequence, Limits, Needs, Refusal, SchedulerOutput, SeqId, Sequence, step};

/// Counters of the scheduler since its start: prefix cache and preemptions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of prompt tokens that were looked up in the prefix cache when their sequence was
    /// first admitted.
    pub query_tokens: u64,
    /// Number of prompt tokens that were found in the prefix cache when their sequence was first
    /// admitted.
    pub hit_tokens: u64,
    /// Number of preemptions of running sequences: a preempted sequence loses its KV pages and
    /// waits again.
    pub preemptions: u64,
}

/// Scheduler of one model: all unfinished sequences, and the allocators of KV pages and state
/// slots.
#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    states: StatePool,
    /// Pages and state slots to release when a step in flight completes: one entry for each such
    /// step, the oldest step first.
    held: VecDeque<Held>,
    /// Number of completed steps, which is also the index, counted from 0, of the oldest step in
    /// flight.
    completed: u64,
    sequences: BySequence<Sequence>,
    pub(super) waiting: BTreeSet<SeqId>,
    pub(super) running: BTreeSet<SeqId>,
    totals: Totals,
}

impl Scheduler {
    /// Creates a scheduler without sequences, over `limits.pages` blank pages.
    ///
    /// # Panics
    /// Panics if a size in `limits` other than `max_seq_len`, `pages` and `run_ahead` is 0, if
    /// there are 2^32 or more pages or state slots, if the snapshot interval is not a multiple of
    /// the page and chunk sizes, or if there may be drafts together with recurrent state or steps
    /// in flight.
    pub fn new(limits: Limits) -> Self {
        assert!(limits.max_batch_size > 0 && limits.token_budget > 0, "nothing could ever run");
        assert!(limits.page_tokens > 0 && limits.chunk_tokens > 0, "pages and chunks hold tokens");
        if let Some(states) = limits.states {
            assert!(states.slots > 0 && states.interval > 0, "no sequence could have a state");
            let whole = |tokens| states.interval.is_multiple_of(tokens);
            assert!(whole(limits.page_tokens) && whole(limits.chunk_tokens), "snapshots end both");
        }
        let has_drafts = limits.max_drafts > 0;
        assert!(!has_drafts || limits.run_ahead == 0 && limits.states.is_none(), "drafts fail");
        Self {
            pool: PagePool::new(limits.pages),
            states: StatePool::new(limits.states.map_or(0, |states| states.slots)),
            held: VecDeque::new(),
            completed: 0,
            limits,
            sequences: BySequence::default(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            totals: Totals::default(),
        }
    }

    /// Returns the sizes by which steps are planned, which were given to [`Scheduler::new`].
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Adds a waiting sequence that will have at most `max_output` tokens after its prompt.
    ///
    /// # Errors
    /// Fails if the sequence could not run even alone: prompt and output together have more tokens
    /// than `max_seq_len`, or need more KV pages than there are in all.
    ///
    /// # Panics
    /// Panics if the prompt is empty, or if an unfinished sequence has this id.
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

    /// Proposes draft tokens for the next decode step of a running sequence (speculative decoding):
    /// they may follow its last token. The plan has as many of them as `max_drafts`, the sequence's
    /// length, the token budget and free pages allow, and none for a sequence that cannot have any.
    /// After the step, [`Scheduler::settle`] must be called.
    pub fn propose(&mut self, id: SeqId, drafts: Vec<u32>) {
        if let Some(sequence) = self.sequences.get_mut(id) {
            sequence.propose(drafts, self.limits.max_drafts);
        }
    }

    /// Ends a step with drafts for a sequence, after the tokens that are right were appended: the
    /// rows of wrong drafts are taken back, and pages that are full enter the prefix cache. Does
    /// nothing for a sequence that has ended.
    pub fn settle(&mut self, id: SeqId) {
        let Some(sequence) = self.sequences.get_mut(id) else { return };
        sequence.settle();
        let end = sequence.planned;
        if self.limits.prefix_cache {
            self.register(id, end, None);
        }
    }

    /// Plans the next step and allocates its pages. The plan is empty only if there are no
    /// sequences, or if all of them wait for steps in flight.
    ///
    /// # Panics
    /// Panics if more than `run_ahead` steps are in flight.
    pub fn plan(&mut self) -> SchedulerOutput {
        let ahead = self.held.len();
        assert!(ahead <= self.limits.run_ahead, "{ahead} steps are in flight already");
        let plan = step::plan(self);
        if plan.sequences.is_empty() {
            assert!(ahead > 0 || self.is_idle(), "sequences wait, and no step is possible");
        } else {
            // A snapshot may be evicted from the prefix cache while the device still reads it.
            let loads = plan.sequences.iter().filter_map(|planned| planned.scheduled.state?.load);
            self.held.push_back(Held { pages: Vec::new(), states: loads.collect() });
        }
        plan
    }

    /// Marks `plan`, the oldest step in flight, as completed by the device. With a prefix cache,
    /// the pages that the step filled for sequences that are still running enter it.
    ///
    /// # Panics
    /// Panics if `plan` is not that of the oldest step in flight.
    pub fn commit(&mut self, plan: &SchedulerOutput) {
        let Some(held) = self.held.pop_front() else { panic!("no step is in flight") };
        assert_eq!(plan.step, self.completed, "steps end in the order of their plans");
        self.completed += 1;
        let page_tokens = self.limits.page_tokens;
        for planned in &plan.sequences {
            let (id, scheduled) = (planned.id, &planned.scheduled);
            let save = scheduled.state.and_then(|state| state.save);
            if !planned.drafts.is_empty() {
                // Which rows are right is not known yet: `settle` does it.
                continue;
            }
            if scheduled.position % page_tokens + scheduled.rows < page_tokens {
                debug_assert_eq!(save, None, "snapshots are taken where a page ends");
            // A sequence that was removed or preempted since does not run: one that is in flight is
            // not admitted again.
            } else if self.limits.prefix_cache && self.running.contains(&id) {
                self.register(id, scheduled.end(), save);
            } else if let Some(state) = save {
                self.states.release(state);
            }
        }
        self.release(held);
    }

    /// Enters a sequence's full pages below position `end`, and the snapshot `save` taken there, in
    /// the prefix cache.
    fn register(&mut self, id: SeqId, end: usize, save: Option<StateSlot>) {
        let sequence = self.sequences.get_mut(id).expect("a sequence in flight lives");
        let full = end / self.limits.page_tokens;
        extend_keys(sequence, full, self.limits.page_tokens);
        for index in sequence.registered..full {
            self.pool.register(sequence.pages[index], sequence.keys[index]);
        }
        sequence.registered = full;
        if let Some(state) = save {
            // The prefix cache may hold an equal page of another sequence; the snapshot belongs to
            // that one.
            match self.pool.find(&sequence.keys[full - 1]) {
                Some(page) => self.states.keep(page, state),
                None => self.states.release(state),
            }
        }
    }

    /// Appends to an unfinished sequence the token that a completed step sampled for it.
    ///
    /// # Panics
    /// Panics if there is no such sequence, or all tokens that steps sample for it are appended
    /// already.
    pub fn append(&mut self, id: SeqId, token: u32) {
        self.sequences.get_mut(id).expect("a sampled sequence lives").push(token);
    }

    /// Removes a finished or aborted sequence and returns it, or `None` if its id is unknown. Its
    /// pages and state slots are released once no step in flight uses them.
    pub fn remove(&mut self, id: SeqId) -> Option<Sequence> {
        let mut sequence = self.sequences.remove(id)?;
        self.waiting.remove(&id);
        self.running.remove(&id);
        let held = sequence.rewind();
        self.release_after(sequence.last_step, held);
        Some(sequence)
    }

    /// Empties the prefix cache and returns the number of KV pages that became blank: those that
    /// were cached and held by no sequence or step in flight.
    pub fn reset_prefix_cache(&mut self) -> usize {
        self.states.forget_all();
        self.pool.forget()
    }

    /// Returns the unfinished sequence with this id, or `None` if there is none.
    pub fn sequence(&self, id: SeqId) -> Option<&Sequence> {
        self.sequences.get(id)
    }

    /// Returns true if there are no unfinished sequences.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Returns the number of running sequences, which are those that hold KV pages.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Returns the ids of the running sequences, the oldest first.
    pub fn running_ids(&self) -> impl Iterator<Item = SeqId> {
        self.running.iter().copied()
    }

    /// Returns the number of waiting sequences, which are those that hold no KV pages.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of KV pages held by running sequences and by steps in flight.
    pub fn pages_used(&self) -> usize {
        self.pool.held()
    }

    /// Returns the number of KV pages that were held at least once since the scheduler's start.
    pub fn pages_touched(&self) -> usize {
        self.pool.touched()
    }

    /// Returns the scheduler's counters of prefix cache hits and preemptions since its start.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Returns the unfinished sequence with this id, and panics if there is none.
    pub(super) fn get(&self, id: SeqId) -> &Sequence {
        self.sequences.get(id).expect("the sequence lives")
    }

    /// Returns the index, counted from 0, of the step that is planned next.
    pub(super) fn next_step(&self) -> u64 {
        self.completed + self.held.len() as u64
    }

    /// Allocates pages for the drafts of a running sequence, whose next row has its page, and drops
    /// those drafts for which there is no page, or no room in a step of `rows` rows so far. A page
    /// and a row are left for each running sequence, and a prefill chunk, so that drafts preempt
    /// and delay nobody.
    pub(super) fn reserve_drafts(&mut self, id: SeqId, rows: usize) {
        let page_tokens = self.limits.page_tokens;
        let others = rows + self.running.len() + self.limits.chunk_tokens;
        let room = self.limits.mixed().saturating_sub(others);
        let wanted = self.get(id).drafts.len().min(room);
        let end = self.get(id).planned + 1 + wanted;
        while self.get(id).pages.len() * page_tokens < end
            && self.pool.available() > self.running.len()
        {
            let Some(page) = self.take_page() else { break };
            self.lengthen(id, page);
        }
        let sequence = self.sequences.get_mut(id).expect("a running sequence lives");
        let covered = sequence.pages.len() * page_tokens - (sequence.planned + 1);
        sequence.drafts.truncate(wanted.min(covered));
    }

    /// Adds a page to a running sequence's page table. Steps in flight may share the table, so a
    /// longer one replaces it.
    fn lengthen(&mut self, id: SeqId, page: PageId) {
        let sequence = self.sequences.get_mut(id).expect("a running sequence lives");
        sequence.pages = sequence.pages.iter().copied().chain([page]).collect();
    }

    /// Adds the next `rows` rows of a running sequence, and those of its drafts, to `plan`, with a
    /// slot for a snapshot if one is due.
    pub(super) fn schedule(&mut self, id: SeqId, rows: usize, plan: &mut SchedulerOutput) {
        let save = self.snapshot_slot(id, rows);
        let sequence = self.sequences.get_mut(id).expect("a planned sequence lives");
        plan.sequences.push(sequence.advance(rows, save, plan.step));
    }

    /// Takes a state slot for the snapshot of a sequence after its next `rows` rows. Returns `None`
    /// if no snapshot is due at that position, the prefix cache has it already, or no slot is
    /// available.
    fn snapshot_slot(&mut self, id: SeqId, rows: usize) -> Option<StateSlot> {
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

    /// Admission: allocates pages for all tokens of a waiting sequence and makes it run. Returns
    /// false, and changes nothing, if enough sequences run already, a step in flight computes the
    /// sequence, there are too few pages or state slots, or the token budget `left` has no room for
    /// its first rows.
    ///
    /// Each running sequence will soon need another page. One is left for each of them, since
    /// otherwise the newcomer would be the first to be preempted and its prefill would be wasted.
    pub(super) fn admit(&mut self, id: SeqId, left: usize) -> bool {
        // A preempted sequence may still be in a step in flight, which also samples its next token.
        let is_in_flight = self.get(id).last_step.is_some_and(|step| step >= self.completed);
        if self.running.len() >= self.limits.max_batch_size || is_in_flight {
            return false;
        }
        let found = self.find_prefix(id);
        let tokens = self.get(id).tokens().len();
        let cached = found.len() * self.limits.page_tokens;
        if self.limits.chunk_rows(cached, tokens, left) == 0 {
            return false;
        }
        // Idle pages of the prefix count as available, but not once this sequence holds them.
        let idle = found.iter().filter(|page| self.pool.is_idle(**page)).count();
        let fresh = self.limits.pages_for(tokens) - found.len();
        if self.pool.available() < idle + fresh + self.running.len() {
            return false;
        }
        let (state, load) = match self.limits.states {
            None => (None, None),
            Some(_) => match self.take_state(found.last().copied()) {
                Some((slot, load)) => (Some(slot), load),
                None => return false,
            },
        };
        for page in &found {
            self.pool.share(*page);
        }
        let mut pages = found;
        let registered = pages.len();
        pages.extend((0..fresh).map_while(|_| self.take_page()));
        assert_eq!(pages.len(), self.limits.pages_for(tokens), "pages were counted");
        let sequence = self.sequences.get_mut(id).expect("an admitted sequence lives");
        sequence.registered = registered;
        sequence.planned = cached;
        sequence.prefill_end = tokens;
        (sequence.state, sequence.load) = (state, load);
        sequence.pages = pages.into();
        // Counted at the first admission only: after a preemption a sequence finds its own pages,
        // which would inflate the hit rate.
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

    /// Takes a state slot for a sequence that begins after the cached page `last` (`None`: at its
    /// first token), and returns it with the snapshot to copy into it. If no slot is available,
    /// takes over the snapshot's own slot, so that nothing is copied; returns `None` if that is in
    /// use too, or if there is no snapshot.
    fn take_state(&mut self, last: Option<PageId>) -> Option<(StateSlot, Option<StateSlot>)> {
        let Some(page) = last else { return Some((self.states.take()?, None)) };
        let snapshot = self.states.snapshot(page).expect("a cached prefix ends at a snapshot");
        // Using a snapshot makes it the last one to be evicted.
        self.states.touch(page);
        // The extra hold keeps `take` below from evicting the very snapshot that is to be loaded.
        self.states.share(snapshot);
        if let Some(slot) = self.states.take() {
            return Some((slot, Some(snapshot)));
        }
        self.states.release(snapshot);
        Some((self.states.take_over(page)?, None))
    }

    /// Allocates the page for the next token of a running sequence, preempting the youngest
    /// sequences if necessary. Returns false if `id` was itself preempted, or if it must wait for
    /// pages that a step in flight still uses.
    pub(super) fn reserve(&mut self, id: SeqId, preempted: &mut Vec<SeqId>) -> bool {
        let page_tokens = self.limits.page_tokens;
        while self.get(id).needs_page(page_tokens) {
            if let Some(page) = self.take_page() {
                self.lengthen(id, page);
                continue;
            }
            // Preempting another sequence now would be premature: pages become free when a step
            // completes.
            if self.held.iter().any(|held| !held.pages.is_empty()) {
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

    /// Preemption: takes all pages and state from a running sequence and puts it back among the
    /// waiting. Its tokens are kept, and its keys and values are recomputed after its next
    /// admission, as far as the prefix cache does not have them.
    fn preempt(&mut self, id: SeqId) {
        let sequence = self.sequences.get_mut(id).expect("a running sequence lives");
        let (last_step, held) = (sequence.last_step, sequence.rewind());
        self.release_after(last_step, held);
        self.running.remove(&id);
        self.waiting.insert(id);
        self.totals.preemptions += 1;
    }

    /// Prefix cache lookup: returns the longest run of cached pages from the sequence's start. For
    /// a model with recurrent state it must end at a snapshot. The last token is never taken from
    /// the cache, because its row must be computed to give logits. Empty if the prefix cache is off
    /// or the sequence needs all rows.
    fn find_prefix(&mut self, id: SeqId) -> Vec<PageId> {
        if !self.limits.prefix_cache || self.get(id).needs.all_rows {
            return Vec::new();
        }
        let page_tokens = self.limits.page_tokens;
        let sequence = self.sequences.get_mut(id).expect("a waiting sequence lives");
        // One token short of the length: the last token's row must be computed for its logits.
        let full = (sequence.tokens().len() - 1) / page_tokens;
        extend_keys(sequence, full, page_tokens);
        let mut found: Vec<_> =
            sequence.keys[..full].iter().map_while(|key| self.pool.find(key)).collect();
        if self.limits.states.is_some() {
            let ends = |page: &PageId| self.states.snapshot(*page).is_some();
            // Without a snapshot at its end, a cached prefix is useless to a model with recurrent
            // state.
            found.truncate(found.iter().rposition(ends).map_or(0, |last| last + 1));
        }
        found
    }

    /// Takes a KV page for new content, and drops the snapshot of recurrent state that belonged to
    /// its old content. Returns `None` if no page is available.
    fn take_page(&mut self) -> Option<PageId> {
        let page = self.pool.take()?;
        // A snapshot describes the content that the page loses now.
        self.states.forget(page);
        Some(page)
    }

    /// Releases `held`, the pages and state slots of a sequence, as soon as the step with number
    /// `last_step` has completed: the last that uses the sequence, `None` if none does. Steps
    /// complete in order, so no earlier step needs them later.
    fn release_after(&mut self, last_step: Option<u64>, held: Held) {
        let index = last_step.and_then(|step| step.checked_sub(self.completed));
        match index.and_then(|index| self.held.get_mut(index as usize)) {
            Some(step) => {
                step.pages.extend(held.pages);
                step.states.extend(held.states);
            }
            None => self.release(held),
        }
    }

    /// Releases pages and state slots. Pages are released from the last to the first: the end of a
    /// prefix is less likely to be requested again than its start, so it should be evicted first.
    fn release(&mut self, held: Held) {
        for page in held.pages.iter().rev() {
            self.pool.release(*page);
        }
        for state in held.states {
            self.states.release(state);
        }
    }

    /// Test helper: panics unless the reference count of each page and of each state slot equals
    /// the number of its holders among the sequences and the steps in flight. `in_flight` are the
    /// plans of the steps in flight.
    #[cfg(test)]
    pub(super) fn check<'a>(&self, in_flight: impl Iterator<Item = &'a SchedulerOutput>) {
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
        for held in &self.held {
            held.pages.iter().for_each(|page| *pages.entry(*page).or_insert(0) += 1);
            held.states.iter().for_each(|state| *states.entry(*state).or_insert(0) += 1);
        }
        for planned in in_flight.flat_map(|plan| &plan.sequences) {
            let save = planned.scheduled.state.and_then(|state| state.save);
            save.iter().for_each(|state| *states.entry(*state).or_insert(0) += 1);
        }
        self.pool.check(&pages);
        self.states.check(states, |page| self.pool.is_known(page));
    }
}

/// Computes the prefix cache keys of a sequence's first `full` pages, as far as they are missing.
fn extend_keys(sequence: &mut Sequence, full: usize, page_tokens: usize) {
    for index in sequence.keys.len()..full {
        let tokens = &sequence.tokens()[index * page_tokens..][..page_tokens];
        let key = PageKey::chain(sequence.keys.last(), tokens);
        sequence.keys.push(key);
    }
}
