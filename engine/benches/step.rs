//! Benchmark of the host's share of a decoding step: the engine loop over a model that takes no
//! time, with the next step submitted before the previous one is complete.

use std::collections::VecDeque;
use std::sync::{Arc, mpsc};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::metrics::Metrics;
use engine::tokenize::Tokenizer;
use engine::worker::{Command, Output, Request, Worker};
use engine_core::clock::Clock;
use engine_core::{
    AttentionShape, DeviceError, KvType, LogitRows, ScheduledSequence, StepBatch, StepOutput,
    WeightType,
};
use engine_model::{MatrixShape, Model, ModelInfo};
use engine_schedule::{Limits, SeqId};
use engine_weights::{Checkpoint, ModelSource};
use tiny_gguf::tiny_llama_gguf;

#[path = "../weights/tests/tiny_gguf/mod.rs"]
mod tiny_gguf;
use tokio::sync::mpsc as async_mpsc;

/// Number of prompt tokens of each sequence in the benchmark.
const PROMPT: usize = 64;
/// Largest number of tokens that a sequence in the benchmark generates.
const OUTPUT: usize = 2048;
const PAGE_TOKENS: usize = 16;

/// Model whose steps take no time, so that only the host's work is measured.
#[derive(Debug)]
struct Timeless {
    info: ModelInfo,
    /// Number of tokens that each step in flight samples, the oldest step first.
    in_flight: VecDeque<usize>,
    sampled: Vec<Option<u32>>,
}

impl Timeless {
    fn new() -> Self {
        let attention = AttentionShape { heads: 1, kv_heads: 1, head_dim: 1, scale: 1.0 };
        let info = ModelInfo {
            architecture: "none".to_owned(),
            vocab_size: 267,
            max_seq_len: PROMPT + OUTPUT,
            parameters: 0,
            active_layer_parameters: 0,
            has_experts: false,
            compute_dtype: "f32",
            kv_type: KvType::F16,
            kv_bytes_per_token: 0,
            state_bytes: 0,
            largest_matrix: MatrixShape { n: 1, k: 1, weight_type: WeightType::F32 },
            attention,
            embedding_size: None,
        };
        Self { info, in_flight: VecDeque::new(), sampled: Vec::new() }
    }
}

impl Model for Timeless {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn allocate_kv(&mut self, _pages: usize, _page_tokens: usize) -> Result<(), DeviceError> {
        Ok(())
    }

    fn run_ahead(&self) -> usize {
        1
    }

    fn submit(&mut self, batch: &StepBatch) -> Result<(), DeviceError> {
        let draws = |sequence: &&ScheduledSequence| matches!(sequence.logits, LogitRows::Sample(_));
        self.in_flight.push_back(batch.sequences.iter().filter(draws).count());
        Ok(())
    }

    fn complete(&mut self) -> Result<StepOutput<'_>, DeviceError> {
        let draws = self.in_flight.pop_front().expect("a step is in flight");
        self.sampled.clear();
        // Tokens of text, one byte each.
        self.sampled.extend((0..draws as u32).map(|i| Some(64 + i % 64)));
        Ok(StepOutput { logits: &[], tokens: &self.sampled })
    }
}

/// Engine loop with a constant number of decoding sequences: a new sequence is submitted when one
/// ends.
#[derive(Debug)]
pub struct Server {
    worker: Worker,
    commands: mpsc::Receiver<Command>,
    submit: mpsc::Sender<Command>,
    outputs: async_mpsc::UnboundedSender<Vec<Output>>,
    taken: async_mpsc::UnboundedReceiver<Vec<Output>>,
    next: u64,
}

impl Server {
    fn new(sequences: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tiny.gguf");
        std::fs::write(&path, tiny_llama_gguf(1)).expect("room for a file");
        let source = ModelSource::find(&path.to_string_lossy(), None).expect("it is there");
        let checkpoint = Checkpoint::open(&source.files, None).expect("it is sound");
        let tokenizer = Tokenizer::load(&checkpoint.config).expect("it is sound");
        let limits = Limits {
            max_batch_size: sequences,
            token_budget: 8192,
            mixed_budget: 8192,
            max_seq_len: PROMPT + OUTPUT,
            // Twice what the sequences need, so that they are never preempted.
            pages: 2 * sequences * (PROMPT + OUTPUT) / PAGE_TOKENS,
            page_tokens: PAGE_TOKENS,
            chunk_tokens: 64,
            prefix_cache: true,
            states: None,
            run_ahead: 1,
            max_drafts: 0,
        };
        let text = Arc::new(tokenizer.expect("it has a tokenizer"));
        let (model, metrics) = (Box::new(Timeless::new()), Arc::new(Metrics::default()));
        let worker = Worker::new(model, text, limits, metrics, Clock::start());
        let (submit, commands) = mpsc::channel();
        let (outputs, taken) = async_mpsc::unbounded_channel();
        let mut server = Self { worker, commands, submit, outputs, taken, next: 0 };
        server.begin(sequences);
        server
    }

    fn begin(&mut self, sequences: usize) {
        let request = |n: u64| {
            let prompt = (0..PROMPT as u64).map(|i| ((i * 7 + n * 13) % 250) as u32).collect();
            // Different lengths spread the ends of sequences over the steps.
            let max_tokens = OUTPUT - (n * 37 % (OUTPUT as u64 / 2)) as usize;
            Request { ignore_eos: true, ..Request::greedy(prompt, max_tokens) }
        };
        let first = self.next;
        self.next += sequences as u64;
        let all = (first..self.next).map(|n| (SeqId(n), request(n))).collect();
        self.submit.send(Command::Submit(all)).expect("the worker is here");
    }

    /// Runs the engine loop once: submits a step and completes the previous one.
    pub fn turn(&mut self) {
        assert!(self.worker.turn(&self.commands, &self.outputs).expect("nothing fails"));
        let mut ended = 0;
        while let Ok(step) = self.taken.try_recv() {
            ended += step.iter().filter(|output| output.finish.is_some()).count();
        }
        if ended > 0 {
            self.begin(ended);
        }
    }
}

/// Creates an engine loop with `sequences` decoding sequences, after their prefill, which is not
/// measured.
pub fn decoding(sequences: usize) -> Server {
    let mut server = Server::new(sequences);
    for _ in 0..2 * sequences * PROMPT / 8192 + 4 {
        server.turn();
    }
    server
}

fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("step");
    for sequences in [1, 32, 256, 1024] {
        let mut server = decoding(sequences);
        let (elements, bytes) = (sequences as u64, 4 * sequences as u64);
        group.throughput(Throughput::ElementsAndBytes { elements, bytes });
        group.bench_function(format!("B{sequences}_drawn/portable"), |bencher| {
            bencher.iter(|| server.turn());
        });
    }
    group.finish();
}

criterion_group!(benches, all);
criterion_main!(benches);
