//! Tests of the engine loop over real checkpoints with little memory, many sequences, and prompts
//! that share prefixes.

mod ahead;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::*;
use crate::config::{DtypeChoice, KvDtypeChoice};
use crate::load::{self, LoadOptions};
use crate::tokenize::NoTokenizer;
use engine_model::RopeChoice;
use engine_schedule::StateLimits;
use engine_weights::ModelSource;

/// Largest allowed difference between a log-probability and that of the reference outputs.
const TOLERANCE: f32 = 1e-3;
/// Number of output tokens of each sequence in the tests: more than the reference outputs have, so
/// that sequences outgrow the pages that they were admitted with.
const WANTED: usize = 56;

/// Prompt of a checkpoint's reference outputs, with the reference's greedy continuation and the
/// logits from which the continuation's first token was sampled.
struct Case {
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    logits: Vec<f32>,
}

fn cases(folder: &Path) -> Vec<Case> {
    let json = std::fs::read(folder.join("expected.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let ids = |value: &Value| -> Vec<u32> {
        value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let case = |(i, case): (usize, &Value)| {
        let stored = tensors.tensor(&format!("prompt{i}.logits")).unwrap();
        let vocab = stored.shape()[1];
        let last = &stored.data()[stored.data().len() - 4 * vocab..];
        let logits = last.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        Case { prompt: ids(&case["prompt"]), greedy: ids(&case["greedy"]), logits }
    };
    json["prompts"].as_array().unwrap().iter().enumerate().map(case).collect()
}

fn request(prompt: Vec<u32>, max_tokens: usize) -> Request {
    Request { ignore_eos: true, logprobs: Some(0), ..Request::greedy(prompt, max_tokens) }
}

/// Creates the engine loop for the checkpoint in `folder`, in the precision of the reference
/// outputs.
fn worker(folder: &Path, limits: &Limits, metrics: &Arc<Metrics>) -> Worker {
    let source = ModelSource::find(folder.to_str().unwrap(), None).unwrap();
    let (kv, dtype, rope) = (KvDtypeChoice::F32, DtypeChoice::F32, RopeChoice::AsConverted);
    let options = LoadOptions { kv, dtype, rope, ..LoadOptions::default() };
    let mut model = load::load(&source, &options).unwrap().model;
    let mut limits = limits.clone();
    model.allocate_kv(limits.pages, limits.page_tokens).unwrap();
    match limits.states.filter(|_| model.info().state_bytes > 0) {
        Some(states) => model.allocate_states(states.slots).unwrap(),
        None => limits.states = None,
    }
    if limits.states.is_some() {
        limits.max_drafts = 0;
    }
    let text = Arc::new(NoTokenizer);
    let model = Box::new(ahead::Ahead::new(model));
    Worker::new(model, text, limits, Arc::clone(metrics), Clock::start())
}

/// Runs requests that are submitted at once, and returns their sampled tokens by sequence id.
fn run(worker: Worker, requests: Vec<Request>) -> BTreeMap<SeqId, Vec<TokenOutput>> {
    let (commands, inbox) = mpsc::channel();
    let (outbox, mut outputs) = async_mpsc::unbounded_channel();
    commands.send(Command::Submit((0..).map(SeqId).zip(requests).collect())).unwrap();
    drop(commands);
    worker.run(&inbox, &outbox).unwrap();
    drop(outbox);
    let mut all: BTreeMap<_, Vec<_>> = BTreeMap::new();
    while let Ok(step) = outputs.try_recv() {
        for output in step {
            assert!(!matches!(output.finish, Some(Finish::Failed(_))), "{output:?}");
            all.entry(output.id).or_default().extend(output.token);
        }
    }
    all
}

#[test]
fn drafts_change_no_output() {
    let limits = Limits {
        max_batch_size: 4,
        token_budget: 80,
        mixed_budget: 80,
        max_seq_len: 128,
        pages: 40,
        page_tokens: 16,
        chunk_tokens: 16,
        prefix_cache: true,
        states: Some(StateLimits { slots: 8, interval: 32 }),
        run_ahead: 0,
        max_drafts: 0,
    };
    let (mut drafts, mut accepted) = (0, 0);
    for folder in fixtures::checkpoints() {
        let sampled = |(index, case): (usize, Case)| {
            // A prompt that repeats itself has drafts, and a cold distribution repeats it.
            let whole = request(case.prompt.repeat(2), 60 - 7 * index);
            let temperature = if index % 2 == 0 { 0.0 } else { 0.3 };
            let sampling = Sampling { temperature, top_p: 0.9, ..Sampling::greedy() };
            Request { sampling, logprobs: None, ..whole }
        };
        let requests: Vec<Request> =
            cases(&folder).into_iter().take(4).enumerate().map(sampled).collect();
        let metrics = Arc::new(Metrics::default());
        let want = run(worker(&folder, &limits, &metrics), requests.clone());
        assert_eq!(metrics.draft_tokens.load(Relaxed), 0);
        let limits = Limits { max_drafts: DRAFTS_MAX, ..limits.clone() };
        let got = run(worker(&folder, &limits, &metrics), requests);
        assert_eq!(got, want, "{}", folder.display());
        drafts += metrics.draft_tokens.load(Relaxed);
        accepted += metrics.accepted_tokens.load(Relaxed);
    }
    assert!(0 < accepted && accepted < drafts, "{accepted} of {drafts} drafts");
}

#[test]
fn crowded_out_and_found_again_sequences_are_the_reference_s() {
    for run_ahead in [0, 1] {
        check_crowd(run_ahead);
    }
}

/// Runs the prompts of each checkpoint, more than fit into the KV cache at once, with `run_ahead`
/// steps in flight, and compares their outputs with the reference.
fn check_crowd(run_ahead: usize) {
    let limits = Limits {
        max_batch_size: 5,
        token_budget: 40,
        mixed_budget: 40,
        max_seq_len: 256,
        pages: 16,
        page_tokens: 16,
        chunk_tokens: 16,
        prefix_cache: true,
        states: Some(StateLimits { slots: 8, interval: 32 }),
        run_ahead,
        max_drafts: 0,
    };
    for folder in fixtures::checkpoints() {
        let cases = cases(&folder);
        let metrics = Arc::new(Metrics::default());
        // Each prompt three times, the third time with a part of its continuation.
        let rounds = [0, 0, 9];
        let begun = |case: &Case, n: usize| {
            let whole = request([&case.prompt, &case.greedy[..n]].concat(), WANTED - n);
            // Requests without log-probabilities are sampled on the device.
            Request { logprobs: (n == 0).then_some(0), ..whole }
        };
        let requests = cases.iter().flat_map(|case| rounds.map(|n| begun(case, n))).collect();
        let outputs = run(worker(&folder, &limits, &metrics), requests);
        for ((id, tokens), i) in outputs.iter().zip(0..) {
            let (case, from) = (&cases[i / rounds.len()], rounds[i % rounds.len()]);
            let what = format!("{}, sequence {id}", folder.display());
            let ids: Vec<u32> = tokens.iter().map(|output| output.token).collect();
            assert_eq!(ids.len(), WANTED - from, "{what}");
            assert!(ids.starts_with(&case.greedy[from..]), "{what}: {ids:?}");
            if from == 0 {
                let got = tokens[0].logprobs.as_ref().unwrap().chosen.logprob;
                let want = TokenLogprobs::of(&case.logits, ids[0], 0).chosen.logprob;
                assert!((got - want).abs() <= TOLERANCE, "{what}: {got}, not {want}");
            }
        }
        assert_eq!(outputs.len(), rounds.len() * cases.len());
        let (hits, preemptions) = (&metrics.prefix_cache_hit_tokens, &metrics.preemptions);
        assert!(hits.load(Relaxed) > 0, "{}: prompts are found again", folder.display());
        assert!(preemptions.load(Relaxed) > 0, "{}: sequences give way", folder.display());
    }
}
