//! Conformance of each test checkpoint to its reference outputs, under the conditions that a server
//! can create (prefill chunks, batches, prefix hits, preemption), as one table whose cells must all
//! pass.

use std::fmt::Write as _;
use std::num::NonZeroUsize;

use super::*;

/// Largest permitted absolute difference of a logit from the reference output.
const TOLERANCE: f32 = 1e-3;
/// Numbers of tensor-parallel ranks to test.
const RANKS: [usize; 3] = [1, 2, 4];
/// Number of KV pages that the longest test prompt and its continuation fit in.
pub const PAGES: u32 = 10;
/// State slot that holds the prefix-cache snapshot at the end of the shared KV pages.
const SNAPSHOT: u32 = 7;

/// Test checkpoint with prompts, their greedy continuations and the reference logits.
#[derive(Debug)]
pub struct Reference {
    pub name: String,
    pub folder: PathBuf,
    pub cases: Vec<Case>,
}

#[derive(Debug, Clone)]
pub struct Case {
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
    /// Reference logits of the prompt's positions, `[prompt, vocab]`, possibly followed by those of
    /// the continuation's positions.
    pub logits: Vec<f32>,
    pub vocab: usize,
    /// True if the model must continue with the reference continuation's tokens, false if it
    /// continues with its own most likely tokens.
    pub is_given: bool,
}

/// Returns all test checkpoints that have reference outputs.
pub fn references() -> Vec<Reference> {
    fixtures::checkpoints().into_iter().map(Reference::read).collect()
}

impl Reference {
    fn read(folder: PathBuf) -> Self {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let expected = std::fs::read(folder.join("expected.json")).unwrap();
        let expected: Value = serde_json::from_slice(&expected).unwrap();
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let case = |(i, case): (usize, &Value)| {
            let stored = tensors.tensor(&format!("prompt{i}.logits")).unwrap();
            let numbers = stored.data().chunks_exact(4).map(bytemuck::pod_read_unaligned);
            let (prompt, logits) = (ids(&case["prompt"]), numbers.collect::<Vec<f32>>());
            let vocab = logits.len() / prompt.len();
            Case { prompt, greedy: ids(&case["greedy"]), logits, vocab, is_given: false }
        };
        let prompts = expected["prompts"].as_array().unwrap();
        let cases = prompts.iter().enumerate().map(case).collect();
        Self { name, folder, cases }
    }
}

/// Returns the load options for the arithmetic of the reference outputs, which come from models
/// that were converted to bf16 with their buffers and then computed in f32.
pub fn exact() -> LoadOptions {
    LoadOptions {
        kv: KvType::F32,
        arithmetic: Arithmetic::F32,
        rope: RopeChoice::AsConverted,
        ..LoadOptions::default()
    }
}

/// Way in which a server may run a prompt, under which a test checkpoint must conform.
#[derive(Debug, Clone, Copy)]
pub enum Condition {
    /// Runs the whole prompt in one step, then one token per step.
    Whole,
    Chunks(usize),
    /// Runs all prompts in one step, then one token of each per step.
    Batched,
    /// Runs the prompt after its full KV pages were computed for another prompt with the same
    /// beginning (prefix cache hit).
    PrefixHit,
    /// Drops the prompt's KV pages half way through the continuation, and recomputes everything
    /// into other pages (preemption).
    Preempted,
}

pub const CONDITIONS: [Condition; 7] = [
    Condition::Whole,
    Condition::Chunks(1),
    Condition::Chunks(3),
    Condition::Chunks(16),
    Condition::Batched,
    Condition::PrefixHit,
    Condition::Preempted,
];

impl Condition {
    pub fn name(self) -> String {
        match self {
            Self::Whole => "whole".to_owned(),
            Self::Chunks(rows) => format!("chunks of {rows}"),
            Self::Batched => "batched".to_owned(),
            Self::PrefixHit => "prefix hit".to_owned(),
            Self::Preempted => "preempted".to_owned(),
        }
    }

    pub fn run(self, model: &mut dyn Model, cases: &[Case]) -> Outcome {
        let mut outcome = Outcome::default();
        if matches!(self, Self::Batched) {
            let mut all: Vec<Running> =
                cases.iter().zip(0..).map(|(case, i)| Running::new(case, i * PAGES)).collect();
            generate(model, &mut all, usize::MAX, usize::MAX);
            all.iter().for_each(|running| outcome.add(running));
            return outcome;
        }
        for case in cases {
            let mut running = [Running::new(case, 0)];
            match self {
                Self::Whole | Self::Batched => {
                    generate(model, &mut running, usize::MAX, usize::MAX)
                }
                Self::Chunks(rows) => generate(model, &mut running, rows, usize::MAX),
                Self::PrefixHit => {
                    let known = (case.prompt.len() - 1) / PAGE_TOKENS * PAGE_TOKENS;
                    let mut donor = case.clone();
                    donor.prompt.truncate(known);
                    donor.prompt.push(5);
                    let mut donor = [Running::new(&donor, 0)];
                    donor[0].save = Some((known, SNAPSHOT));
                    generate(model, &mut donor, known.max(1), 0);
                    running[0].load = (known > 0).then_some(SNAPSHOT);
                    let shared = known / PAGE_TOKENS;
                    let own = (PAGES..).zip(&mut running[0].pages[shared..]);
                    own.for_each(|(new, page)| *page = new);
                    running[0].done = known;
                    running[0].unseen = known;
                    generate(model, &mut running, usize::MAX, usize::MAX);
                }
                Self::Preempted => {
                    let half = case.greedy.len() / 2;
                    generate(model, &mut running, 64, half);
                    outcome.add_logits(&running[0]);
                    generate(model, &mut [Running::new(&cases[0], 0)], 64, 0);
                    running[0].done = 0;
                    running[0].logits.clear();
                    running[0].pages = (PAGES..2 * PAGES).rev().collect();
                    generate(model, &mut running, 64, usize::MAX);
                }
            }
            outcome.add(&running[0]);
        }
        outcome
    }
}

/// Test prompt that is running through the model, with its generated tokens and logits.
#[derive(Debug)]
struct Running<'a> {
    case: &'a Case,
    tokens: Vec<u32>,
    /// Number of the sequence's positions whose keys and values are in its KV pages.
    done: usize,
    /// Number of positions at the start of the prompt whose logits are not computed, since their KV
    /// pages were reused.
    unseen: usize,
    pages: Vec<u32>,
    /// State slot of the running sequence's recurrent state.
    slot: u32,
    /// State slot of another sequence's snapshot from which the sequence starts; `None` if it
    /// starts from its own state.
    load: Option<u32>,
    /// Number of tokens after which the sequence's recurrent state is saved, and the state slot to
    /// which it is saved.
    save: Option<(usize, u32)>,
    logits: Vec<f32>,
}

impl<'a> Running<'a> {
    fn new(case: &'a Case, first_page: u32) -> Self {
        let pages = (first_page..first_page + PAGES).rev().collect();
        let tokens = case.prompt.clone();
        let (slot, logits) = (first_page, Vec::new());
        Self { case, tokens, done: 0, unseen: 0, pages, slot, load: None, save: None, logits }
    }

    /// Returns the next `count` rows of the running prompt as a scheduled sequence that needs all
    /// logits.
    fn sequence(&mut self, count: usize) -> ScheduledSequence {
        let end = self.done + count;
        let save = self.save.filter(|(position, _)| *position == end).map(|(_, slot)| slot);
        let state = StateSlots { slot: self.slot, load: self.load.take(), save };
        let whole = scheduled(count, self.done, self.pages.clone(), LogitRows::All);
        ScheduledSequence { state: Some(state), ..whole }
    }

    fn generated(&self) -> &[u32] {
        &self.tokens[self.case.prompt.len()..]
    }
}

/// Runs steps with at most `rows` rows per sequence, until every sequence has generated `wanted`
/// tokens, or as many as its reference continuation; with 0 wanted, until the prompts are computed.
fn generate(model: &mut dyn Model, all: &mut [Running<'_>], rows: usize, wanted: usize) {
    let vocab = model.info().vocab_size;
    loop {
        let mut batch = StepBatch::default();
        let mut who = Vec::new();
        for (i, running) in all.iter_mut().enumerate() {
            let count = rows.min(running.tokens.len() - running.done);
            let enough = running.generated().len() >= wanted.min(running.case.greedy.len());
            if count == 0 || (enough && running.done >= running.case.prompt.len()) {
                continue;
            }
            let tokens = &running.tokens[running.done..running.done + count];
            batch.tokens.extend(tokens.iter().copied().map(StepToken::Known));
            batch.push(running.sequence(count));
            who.push((i, count));
        }
        if who.is_empty() {
            return;
        }
        let mut logits = model.step(&batch).unwrap();
        for (i, count) in who {
            let (own, rest) = logits.split_at(count * vocab);
            logits = rest;
            let running = &mut all[i];
            running.logits.extend_from_slice(own);
            running.done += count;
            if running.done == running.tokens.len()
                && running.generated().len() < wanted.min(running.case.greedy.len())
            {
                let next = match running.generated().len() {
                    so_far if running.case.is_given => running.case.greedy[so_far],
                    _ => argmax(&own[(count - 1) * vocab..]),
                };
                running.tokens.push(next);
            }
        }
    }
}

/// Result of one test checkpoint under one condition: a cell of the table.
#[derive(Debug, Default)]
pub struct Outcome {
    pub worst: f32,
    /// Number of generated continuations that differ from the reference.
    pub wrong: usize,
    /// Relative difference of the logits from the reference, one for each position.
    relative: Vec<f64>,
}

impl Outcome {
    fn add(&mut self, running: &Running<'_>) {
        self.add_logits(running);
        self.wrong += usize::from(running.generated() != running.case.greedy);
    }

    fn add_logits(&mut self, running: &Running<'_>) {
        let vocab = running.case.vocab;
        let want = &running.case.logits[running.unseen * vocab..];
        let prompt = (running.case.prompt.len() - running.unseen) * vocab;
        assert!(running.logits.len() >= prompt, "every position has logits");
        let rows = running.logits.chunks_exact(vocab).zip(want.chunks_exact(vocab));
        self.relative.extend(rows.map(|(got, want)| relative(got, want)));
        for (got, want) in running.logits.iter().zip(want) {
            // A difference that is NaN counts as the largest possible.
            let difference = (got - want).abs();
            self.worst = if difference <= self.worst { self.worst } else { difference };
        }
    }

    /// Returns the relative difference of the logits from the reference at the median and at the
    /// 90th percentile of positions.
    pub fn relative(&mut self) -> [f64; 2] {
        self.relative.sort_by(f64::total_cmp);
        [5, 9].map(|tenths| self.relative[self.relative.len() * tenths / 10])
    }

    fn holds(&self) -> bool {
        self.worst <= TOLERANCE && self.wrong == 0
    }
}

/// Returns the root mean square of the differences between `got` and `want`, divided by the root
/// mean square of `want`.
pub fn relative(got: &[f32], want: &[f32]) -> f64 {
    let squares =
        |of: &mut dyn Iterator<Item = f32>| -> f64 { of.map(|x| f64::from(x).powi(2)).sum() };
    let differences = squares(&mut got.iter().zip(want).map(|(a, b)| a - b));
    (differences / squares(&mut want.iter().copied())).sqrt()
}

#[test]
fn every_checkpoint_conforms_under_every_condition() {
    let mut table = format!("{:22}", "");
    for condition in CONDITIONS {
        write!(table, "{:>16}", condition.name()).unwrap();
    }
    let mut failing = Vec::new();
    let references = references();
    for (reference, tp) in references.iter().flat_map(|one| RANKS.map(|tp| (one, tp))) {
        let name = if tp == 1 { reference.name.clone() } else { format!("  on {tp} ranks") };
        write!(table, "\n{name:22}").unwrap();
        let options = LoadOptions { tp: NonZeroUsize::new(tp), ..exact() };
        let mut loaded = load_path(&reference.folder, &options);
        let pages = PAGES as usize * reference.cases.len().max(2);
        loaded.model.allocate_kv(pages, PAGE_TOKENS).unwrap();
        loaded.model.allocate_states(pages).unwrap();
        for condition in CONDITIONS {
            let outcome = condition.run(loaded.model.as_mut(), &reference.cases);
            let Outcome { worst, wrong, .. } = outcome;
            let cell = if wrong == 0 { format!("{worst:.1e}") } else { format!("{wrong} WRONG") };
            write!(table, "{cell:>16}").unwrap();
            if !outcome.holds() {
                let (name, condition) = (&reference.name, condition.name());
                failing.push(format!("{name}, {tp} ranks, {condition}: {outcome:?}"));
            }
        }
    }
    eprintln!("largest difference of a logit, all greedy tokens being the reference's\n{table}");
    assert!(failing.is_empty(), "cells that do not hold:\n{}\n{table}", failing.join("\n"));
}
