//! Simulated device for tests of the scheduler: a test fails if a row is computed without the keys,
//! values or state of the tokens before it.

mod traces;
mod walk;

use std::collections::{BTreeMap, VecDeque};

use super::*;
use engine_core::StateSlots;

/// Content of the simulated device: tokens in place of keys and values, and each slot's tokens so
/// far in place of recurrent state.
#[derive(Default)]
struct Contents {
    pages: BTreeMap<(PageId, usize), u32>,
    states: BTreeMap<StateSlot, Vec<u32>>,
}

/// Unfinished sequence of the simulation: all its tokens, and where it will stop.
struct Living {
    /// Prompt and output tokens of the sequence, including those that steps in flight sample.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Number of output tokens after which the sequence stops by itself.
    stop: usize,
    needs: Needs,
}

/// Simulation of a scheduler and its device with sequences whose ends are known, run step by step
/// and drawn as text.
struct Simulation {
    scheduler: Scheduler,
    living: BTreeMap<SeqId, Living>,
    contents: Contents,
    /// Steps in flight, the oldest first: their plans, and the tokens that they sample for each
    /// sequence.
    flying: VecDeque<(SchedulerOutput, Vec<Vec<u32>>)>,
    rows: BTreeMap<SeqId, String>,
    steps: usize,
}

impl Simulation {
    fn new(limits: Limits) -> Self {
        Self {
            scheduler: Scheduler::new(limits),
            living: BTreeMap::new(),
            contents: Contents::default(),
            flying: VecDeque::new(),
            rows: BTreeMap::new(),
            steps: 0,
        }
    }

    /// Adds a sequence with at most `output` output tokens to the simulation. It stops by itself
    /// after `stop` of them.
    fn arrive(&mut self, prompt: Vec<u32>, output: usize, stop: usize) -> Result<SeqId, Refusal> {
        self.arrive_needing(prompt, output, stop, Needs::default())
    }

    fn arrive_needing(
        &mut self,
        prompt: Vec<u32>,
        output: usize,
        stop: usize,
        needs: Needs,
    ) -> Result<SeqId, Refusal> {
        let id = SeqId(self.rows.len() as u64);
        self.scheduler.add(id, prompt.clone(), output, needs)?;
        let prompt_tokens = prompt.len();
        let living = Living { tokens: prompt, prompt_tokens, stop: stop.min(output), needs };
        self.living.insert(id, living);
        self.rows.insert(id, " ".repeat(self.steps));
        Ok(id)
    }

    /// Panics if a KV page or state slot is leaked or released too early.
    fn check(&self) {
        self.scheduler.check(self.flying.iter().map(|(plan, _)| plan));
    }

    fn leave(&mut self, id: SeqId) {
        self.living.remove(&id);
        self.scheduler.remove(id);
    }

    /// Plans and begins a step of the simulation, and completes the oldest step in flight if more
    /// than `run_ahead` are in flight or the plan is empty.
    fn step(&mut self) -> SchedulerOutput {
        let plan = self.scheduler.plan();
        self.mark(&plan);
        if !plan.sequences.is_empty() {
            self.check_pages(&plan);
            let sampled = plan.sequences.iter().map(|slot| self.run(slot)).collect();
            self.flying.push_back((plan.clone(), sampled));
        }
        if self.flying.len() > self.scheduler.limits().run_ahead || plan.sequences.is_empty() {
            self.complete();
        }
        self.steps += 1;
        plan
    }

    /// Completes the simulation's oldest step in flight.
    fn complete(&mut self) {
        let Some((plan, sampled)) = self.flying.pop_front() else { return };
        self.scheduler.commit(&plan);
        for (slot, tokens) in plan.sequences.iter().zip(sampled) {
            for (index, token) in tokens.iter().enumerate() {
                let Some(sequence) = self.scheduler.sequence(slot.id) else { break };
                if sequence.output().len() + 1 == self.living[&slot.id].stop {
                    self.leave(slot.id);
                } else {
                    self.scheduler.append(slot.id, *token);
                }
                if slot.drafts.get(index) != Some(token) {
                    break;
                }
            }
            if !slot.drafts.is_empty() {
                self.scheduler.settle(slot.id);
            }
        }
    }

    /// Proposes `count` drafts for each sequence: the first `right` are right, the others wrong.
    fn propose(&mut self, count: usize, right: usize) {
        for (id, living) in &self.living {
            let mut tokens = living.tokens.clone();
            for index in 0..count {
                let token = next(&tokens);
                tokens.push(if index < right { token } else { token + 1 });
            }
            self.scheduler.propose(*id, tokens.split_off(living.tokens.len()));
        }
    }

    /// Computes a scheduled sequence as the device would, checks that its rows see all tokens
    /// before them and nothing else, and returns the sampled tokens: one for a decoding sequence,
    /// and one for each draft.
    fn run(&mut self, slot: &PlannedSequence) -> Vec<u32> {
        let sequence = self.scheduler.sequence(slot.id).expect("a planned sequence lives");
        let page_tokens = self.scheduler.limits().page_tokens;
        let living = self.living.get_mut(&slot.id).unwrap();
        let end = slot.scheduled.end() - slot.drafts.len();
        assert_eq!(slot.unknown, end > sequence.tokens().len(), "{slot:?}");
        assert_eq!(slot.samples, end == living.tokens.len(), "{slot:?}");
        let is_needed = end <= living.prompt_tokens + living.needs.known_tokens;
        assert!(!(slot.unknown && is_needed), "{slot:?}");
        let place =
            |position: usize| (sequence.pages()[position / page_tokens], position % page_tokens);
        let inputs = [&living.tokens[..end], &slot.drafts].concat();
        for (position, input) in inputs.iter().enumerate().skip(slot.scheduled.position) {
            self.contents.pages.insert(place(position), *input);
        }
        for (position, input) in inputs.iter().enumerate() {
            let held = self.contents.pages.get(&place(position));
            assert_eq!(held, Some(input), "{slot:?} at {position}");
        }
        if let Some(state) = slot.scheduled.state {
            self.contents.run_state(slot, state, &living.tokens);
        }
        if !slot.samples {
            return Vec::new();
        }
        let sampled: Vec<u32> = (end..=inputs.len()).map(|end| next(&inputs[..end])).collect();
        // Drafts are right up to the first that was not sampled.
        let right = sampled.iter().zip(&slot.drafts).take_while(|(token, draft)| token == draft);
        living.tokens.extend(&sampled[..=right.count()]);
        sampled
    }

    /// Panics if the step writes a page that a step in flight uses for another sequence.
    fn check_pages(&self, plan: &SchedulerOutput) {
        let page_tokens = self.scheduler.limits().page_tokens;
        let mut owners = BTreeMap::new();
        let in_flight = self.flying.iter().map(|(plan, _)| plan).chain([plan]);
        for slot in in_flight.flat_map(|plan| &plan.sequences) {
            let Some(sequence) = self.scheduler.sequence(slot.id) else { continue };
            let written =
                slot.scheduled.position / page_tokens..slot.scheduled.end().div_ceil(page_tokens);
            for page in sequence.pages().get(written).unwrap_or_default() {
                assert_eq!(*owners.entry(*page).or_insert(slot.id), slot.id, "{page:?}");
            }
        }
    }

    fn mark(&mut self, plan: &SchedulerOutput) {
        for id in self.living.keys() {
            let slot = plan.sequences.iter().find(|slot| slot.id == *id);
            let mark = match slot {
                None => '.',
                Some(slot) if slot.scheduled.state.is_some_and(|state| state.load.is_some()) => 'L',
                Some(slot) if slot.scheduled.state.is_some_and(|state| state.save.is_some()) => 'S',
                Some(slot) if slot.prefill => 'P',
                Some(slot) if slot.unknown => 'd',
                Some(_) => 'D',
            };
            self.rows.get_mut(id).unwrap().push(mark);
        }
    }

    /// Returns the trace of the simulation as text, one line per sequence and one column per step:
    /// `P` is a prefill chunk, `S` one that ends in a snapshot, `L` one that begins from a
    /// snapshot, `D` a decoding step, `d` a decoding step whose input token a step in flight was
    /// still to sample, `.` a step without the sequence.
    fn drawing(&self) -> String {
        self.rows.iter().map(|(id, row)| format!("{id:<2} {row}\n")).collect()
    }
}

impl Contents {
    fn run_state(&mut self, slot: &PlannedSequence, state: StateSlots, tokens: &[u32]) {
        if let Some(load) = state.load {
            let snapshot = self.states[&load].clone();
            self.states.insert(state.slot, snapshot);
        }
        let content = self.states.entry(state.slot).or_default();
        if slot.scheduled.position == 0 {
            content.clear();
        }
        assert_eq!(content, &tokens[..slot.scheduled.position], "the state of {slot:?}");
        content.extend(&tokens[slot.scheduled.position..slot.scheduled.end()]);
        if let Some(save) = state.save {
            let content = content.clone();
            self.states.insert(save, content);
        }
    }
}

/// Returns the token that the simulated device samples after `tokens`.
fn next(tokens: &[u32]) -> u32 {
    tokens.iter().fold(7u32, |hash, token| (hash ^ token).wrapping_mul(16_777_619) % 1_000_003)
}

fn limits() -> Limits {
    Limits {
        max_batch_size: 3,
        token_budget: 16,
        mixed_budget: 16,
        max_seq_len: 64,
        pages: 32,
        page_tokens: 4,
        chunk_tokens: 8,
        prefix_cache: true,
        states: None,
        run_ahead: 0,
        max_drafts: 0,
    }
}

/// Returns a prompt that shares no page with the prompts of other seeds.
fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| seed * 1000 + index).collect()
}
