//! Tests of running ahead: steps that are submitted before the previous one has completed. Every
//! sequence must have the outputs that it has without running ahead.

use std::cell::RefCell;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use super::*;
use crate::guide::Structure;
use crate::tiny_gguf::tiny_llama_gguf;
use crate::tokenize::Tokenizer;
use engine_core::{StepOutput, StepToken};
use engine_model::ModelInfo;
use engine_weights::Checkpoint;

/// Vocabulary size of the generated Llama model that the tests run.
const VOCAB: u32 = 267;
const PAGES: usize = 24;

/// Wrapper around a model that accepts a step while another is in flight, as a GPU does.
#[derive(Debug)]
pub(super) struct Ahead {
    model: Box<dyn Model>,
    in_flight: VecDeque<(Vec<f32>, Vec<Option<u32>>)>,
    completed: (Vec<f32>, Vec<Option<u32>>),
    seen: Arc<Seen>,
    /// Number of steps that still complete before one fails to; `None` if none fails.
    fails_at: Option<usize>,
}

/// Record of the calls that a model in a test has received.
#[derive(Debug, Default)]
struct Seen {
    /// Calls of the model as text, in order: `(` for each submitted step, `)` for each completed
    /// one.
    calls: Mutex<String>,
    /// Number of rows, over all submitted steps, whose input token was sampled by the step before.
    sampled: AtomicUsize,
}

impl Ahead {
    pub(super) fn new(model: Box<dyn Model>) -> Self {
        let (in_flight, completed) = (VecDeque::new(), (Vec::new(), Vec::new()));
        Self { model, in_flight, completed, seen: Arc::default(), fails_at: None }
    }
}

impl Model for Ahead {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn allocate_kv(&mut self, _pages: usize, _page_tokens: usize) -> Result<(), DeviceError> {
        unreachable!("pages are allocated before")
    }

    fn run_ahead(&self) -> usize {
        1
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError> {
        let is_sampled = |token: &&StepToken| matches!(token, StepToken::Sampled(_));
        self.seen.sampled.fetch_add(batch.tokens.iter().filter(is_sampled).count(), Relaxed);
        self.seen.calls.lock().unwrap().push('(');
        self.model.submit(batch)?;
        let StepOutput { logits, tokens } = self.model.complete()?;
        self.in_flight.push_back((logits.to_vec(), tokens.to_vec()));
        Ok(())
    }

    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        self.seen.calls.lock().unwrap().push(')');
        if let Some(left) = &mut self.fails_at {
            let message = "as the test wants".to_owned();
            *left = left.checked_sub(1).ok_or(DeviceError { operation: "complete", message })?;
        }
        self.completed = self.in_flight.pop_front().expect("a step is in flight");
        let (logits, tokens) = &self.completed;
        Ok(StepOutput { logits, tokens })
    }
}

/// Loads the generated Llama model on `ranks` ranks, with KV pages allocated, and its tokenizer.
fn tiny(ranks: usize) -> (Box<dyn Model>, Arc<dyn Text>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    std::fs::write(&path, tiny_llama_gguf(5)).unwrap();
    let source = ModelSource::find(path.to_str().unwrap(), None).unwrap();
    let one = NonZeroUsize::new(1);
    let options =
        LoadOptions { tp: NonZeroUsize::new(ranks), threads: one, ..LoadOptions::default() };
    let mut model = load::load(&source, &options).unwrap().model;
    model.allocate_kv(PAGES, 16).unwrap();
    let checkpoint = Checkpoint::open(&source.files, None).unwrap();
    let tokenizer = Tokenizer::load(&checkpoint.config).unwrap().unwrap();
    (model, Arc::new(tokenizer))
}

fn small(run_ahead: usize) -> Limits {
    Limits {
        max_batch_size: 5,
        token_budget: 40,
        mixed_budget: 40,
        max_seq_len: 256,
        pages: PAGES,
        page_tokens: 16,
        chunk_tokens: 16,
        prefix_cache: true,
        states: None,
        run_ahead,
        max_drafts: 0,
    }
}

/// All outputs of one sequence, joined.
#[derive(Debug, Default, PartialEq)]
struct Total {
    tokens: Vec<TokenOutput>,
    prompt: Option<Vec<TokenLogprobs>>,
    text: String,
    finish: Option<Finish>,
}

impl Total {
    fn add(&mut self, output: Output) {
        assert_eq!(self.finish, None, "nothing comes after the end");
        self.tokens.extend(output.token);
        self.prompt = self.prompt.take().or(output.prompt);
        self.text.push_str(&output.text);
        self.finish = output.finish;
    }

    fn begins_as(&self, other: &Self) -> bool {
        other.tokens.starts_with(&self.tokens) && other.text.starts_with(&self.text)
    }
}

/// One event of a random trace of the engine loop: a command to the worker, or a step.
#[derive(Debug, Clone)]
enum Event {
    Submit(Box<Request>),
    Abort(u64),
    Reset,
    Step,
}

/// Runs the events of a trace on an engine loop; returns the model, and the joined outputs of each
/// sequence by id.
fn play(
    model: Box<dyn Model>,
    text: &Arc<dyn Text>,
    limits: Limits,
    events: &[Event],
    metrics: &Arc<Metrics>,
) -> (Box<dyn Model>, BTreeMap<SeqId, Total>) {
    let mut worker =
        Worker::new(model, Arc::clone(text), limits, Arc::clone(metrics), Clock::start());
    let mut totals: BTreeMap<SeqId, Total> = BTreeMap::new();
    let mut events = events.iter();
    loop {
        let mut outputs = Vec::new();
        match events.next() {
            Some(Event::Submit(request)) => {
                let id = SeqId(totals.len() as u64);
                totals.insert(id, Total::default());
                let request = Request::clone(request);
                worker.requests.obey(Command::Submit(vec![(id, request)]), &mut outputs);
            }
            Some(Event::Abort(id)) => {
                worker.requests.obey(Command::Abort(vec![SeqId(*id)]), &mut outputs);
            }
            Some(Event::Reset) => {
                let (reply, _freed) = oneshot::channel();
                worker.requests.obey(Command::ResetPrefixCache(reply), &mut outputs);
            }
            Some(Event::Step) => worker.step(&mut outputs).unwrap(),
            None if worker.is_idle() => break,
            None => worker.step(&mut outputs).unwrap(),
        }
        for output in outputs {
            totals.get_mut(&output.id).unwrap().add(output);
        }
    }
    worker.requests.publish_counts();
    assert_eq!(worker.requests.scheduler.pages_used(), 0);
    (worker.model, totals)
}

fn sampling() -> impl Strategy<Value = Sampling> {
    let temperature = prop_oneof![Just(0.0f32), Just(0.9), Just(2.0)];
    let penalty = prop_oneof![5 => Just(1.0f32), 1 => Just(1.3)];
    let top_k = prop::option::weighted(0.3, 1..40usize);
    let top_p = prop_oneof![2 => Just(1.0f32), 1 => Just(0.7)];
    let bias = prop::collection::btree_map(0..VOCAB, -4.0..4.0f32, 0..2);
    let bias = prop_oneof![5 => Just(BTreeMap::new()), 1 => bias];
    (temperature, penalty, top_k, top_p, bias, any::<u64>()).prop_map(
        |(temperature, repetition_penalty, top_k, top_p, logit_bias, seed)| Sampling {
            temperature,
            repetition_penalty,
            top_k,
            top_p,
            logit_bias,
            seed,
            ..Sampling::greedy()
        },
    )
}

fn random_request(guide: Option<Guide>) -> impl Strategy<Value = Request> {
    let prompt = (0..3u32, 1..70u32)
        .prop_map(|(family, length)| (0..length).map(|i| (family * 41 + i * 7) % VOCAB).collect());
    let stops = prop::collection::vec("[a-e ]{1,2}", 0..3);
    let stop_tokens = prop::collection::vec(0..VOCAB, 0..12);
    let lengths = (prop_oneof![1 => 0..2usize, 9 => 2..50usize], 0..6usize);
    let logprobs = prop::option::weighted(0.1, 0..3usize);
    let shown = (logprobs, prop::bool::weighted(0.1), any::<bool>());
    let guide = prop_oneof![7 => Just(None), 1 => Just(guide)];
    (prompt, sampling(), lengths, any::<bool>(), stops, stop_tokens, shown, guide).prop_map(
        |(
            prompt,
            sampling,
            (max_tokens, min_tokens),
            ignore_eos,
            stop,
            stop_tokens,
            shown,
            guide,
        )| {
            let (logprobs, prompt_logprobs, include_stop) = shown;
            Request {
                sampling,
                min_tokens: min_tokens.min(max_tokens),
                ignore_eos,
                stop,
                include_stop,
                stop_tokens,
                logprobs,
                prompt_logprobs,
                guide: guide.map(Box::new),
                ..request(prompt, max_tokens)
            }
        },
    )
}

fn event(guide: Option<Guide>) -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => random_request(guide).prop_map(|request| Event::Submit(Box::new(request))),
        1 => (0..20u64).prop_map(Event::Abort),
        1 => Just(Event::Reset),
        12 => Just(Event::Step),
    ]
}

/// Numbers of prefix-cache hits, preemptions, unfinished sequences and tokens sampled ahead in the
/// random traces, to prove that the traces covered enough.
#[derive(Debug, Default)]
struct Tried {
    hits: u64,
    preemptions: u64,
    unfinished: usize,
    sampled: usize,
}

/// Runs random traces over a model on `ranks` ranks, each with and without running ahead, and
/// checks that both give the same outputs.
fn check_traces(ranks: usize, cases: u32) -> Tried {
    let (model, text) = tiny(ranks);
    let guide = text.guide(&Structure::Regex("[a-z]{3,12}".into()), None, &|| true).unwrap();
    let traces = (
        (1..6usize, 17..60usize, 9..PAGES, any::<bool>()),
        prop::collection::vec(event(Some(guide)), 1..120),
    );
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let model = Ahead::new(model);
    let seen = Arc::clone(&model.seen);
    let state = RefCell::new((Some(Box::new(model) as Box<dyn Model>), Tried::default()));
    TestRunner::new_with_rng(config, rng)
        .run(&traces, |((max_batch_size, token_budget, pages, prefix_cache), events)| {
            let (model, tried) = &mut *state.borrow_mut();
            let mut played = |run_ahead| {
                let limits = Limits {
                    max_batch_size,
                    token_budget,
                    pages,
                    prefix_cache,
                    ..small(run_ahead)
                };
                let metrics = Arc::new(Metrics::default());
                let own = model.take().expect("a model that has not failed");
                let (own, totals) = play(own, &text, limits, &events, &metrics);
                *model = Some(own);
                tried.hits += metrics.prefix_cache_hit_tokens.load(Relaxed);
                tried.preemptions += metrics.preemptions.load(Relaxed);
                totals
            };
            let (want, got) = (played(0), played(1));
            for (id, want) in &want {
                let got = &got[id];
                if want.finish.is_some() && got.finish.is_some() {
                    prop_assert_eq!(got, want, "sequence {}", id);
                } else {
                    // An abort may reach a sequence one step earlier or later.
                    prop_assert!(got.begins_as(want) || want.begins_as(got), "sequence {}", id);
                    tried.unfinished += 1;
                }
            }
            Ok(())
        })
        .unwrap();
    Tried { sampled: seen.sampled.load(Relaxed), ..state.into_inner().1 }
}

#[test]
fn every_sequence_has_the_outputs_that_it_has_without_running_ahead() {
    for (ranks, cases) in [(1, 150), (2, 20)] {
        let tried = check_traces(ranks, cases);
        let counts = [tried.hits, tried.preemptions, tried.unfinished as u64, tried.sampled as u64];
        assert!(counts.iter().all(|count| *count > 5), "too little was tried: {tried:?}");
    }
}

/// Returns the order in which the steps of one request are submitted, `(`, and completed, `)`, with
/// one step ahead.
fn calls(change: impl FnOnce(&mut Request)) -> String {
    let (model, text) = tiny(1);
    let model = Ahead::new(model);
    let seen = Arc::clone(&model.seen);
    let mut request = Request { logprobs: None, ..request(vec![1, 2, 3], 4) };
    change(&mut request);
    let events = [Event::Submit(Box::new(request))];
    play(Box::new(model), &text, small(1), &events, &Arc::default());
    let calls = seen.calls.lock().unwrap();
    calls.clone()
}

#[test]
fn a_step_begins_before_the_last_has_landed_unless_it_needs_to_know_a_token() {
    assert_eq!(calls(|_| {}), "(()()())", "tokens sampled on the device");
    assert_eq!(calls(|request| request.logprobs = Some(0)), "()()()()", "tokens chosen here");
    let banned = |request: &mut Request| (request.min_tokens, request.ignore_eos) = (2, false);
    assert_eq!(calls(banned), "()()(())", "tokens chosen here, then sampled ones");
    let stops = |request: &mut Request| request.stop_tokens = (0..VOCAB).collect();
    assert_eq!(calls(stops), "(())", "one row of a sequence that has ended");
    assert_eq!(calls(|request| request.max_tokens = 0), "()");
}

#[test]
fn a_step_that_does_not_land_ends_the_worker_after_what_came_before() {
    let (model, text) = tiny(1);
    let model = Ahead { fails_at: Some(3), ..Ahead::new(model) };
    let worker = Worker::new(Box::new(model), text, small(1), Arc::default(), Clock::start());
    let (commands, inbox) = mpsc::channel();
    let (outbox, mut outputs) = async_mpsc::unbounded_channel();
    let request = Request { logprobs: None, ..request(vec![1, 2, 3], 20) };
    commands.send(Command::Submit(vec![(SeqId(0), request)])).unwrap();
    let error = worker.run(&inbox, &outbox).unwrap_err();
    assert!(error.to_string().contains("as the test wants"), "{error}");
    drop(outbox);
    let steps = std::iter::from_fn(|| outputs.try_recv().ok());
    assert_eq!(steps.flatten().filter_map(|output| output.token).count(), 3);
}
