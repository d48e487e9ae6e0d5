//! Benchmark of attention over KV pages: decoding at several context lengths, and a prefill chunk.

#[expect(dead_code, reason = "this bench uses a part of the shared table")]
pub(crate) mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::{
    AttentionLayer, AttentionShape, Device, KvShape, KvType, LogitRows, Rotation,
    ScheduledSequence, StepBatch,
};
use engine_cpu::{Cpu, Isa};
use shapes::{Case, Lazy, MODELS, SMOLLM2_135M, Shape, device, measure, numbers};

const PAGE_TOKENS: usize = 16;

/// Work of one step: sequences, new rows of each, and positions that each has already.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    pub sequences: usize,
    pub rows: usize,
    pub context: usize,
}

impl Work {
    fn pages_each(&self) -> usize {
        (self.context + self.rows).div_ceil(PAGE_TOKENS)
    }

    /// Step of `rows` rows from `position` on for each sequence.
    fn step(&self, position: usize, rows: usize) -> StepBatch {
        let each = self.pages_each();
        let sequence = |i: usize| ScheduledSequence {
            row: 0,
            rows,
            position,
            pages: (i * each..(i + 1) * each).map(|page| page as u32).collect(),
            logits: LogitRows::None,
            state: None,
        };
        let sequences = (0..self.sequences).map(sequence).collect();
        StepBatch::known(&vec![0; self.sequences * rows], sequences)
    }
}

pub fn case(mut cpu: Cpu, shape: &Shape, kv_type: KvType, work: Work) -> Case {
    let Shape { model, heads, kv_heads, head_dim, .. } = *shape;
    let Work { sequences, rows, context } = work;
    let scale = 1.0 / (head_dim as f32).sqrt();
    let attention = AttentionShape { heads, kv_heads, head_dim, scale };
    let layer = AttentionLayer::new(attention, 0);
    let rotation = Rotation { inverse_frequencies: Vec::new(), factor: 1.0 };
    let (pages, page_tokens) = (sequences * work.pages_each(), PAGE_TOKENS);
    let cache = KvShape { layers: 1, kv_heads, head_dim, pages, page_tokens, kv_type };
    let mut kv = cpu.kv(cache).expect("the pages fit into memory");
    let mut qkv = cpu.buffer(attention.qkv_cols()).expect("a buffer");
    let mut out = cpu.buffer(heads * head_dim).expect("a buffer");
    // Every position is written once, so that the KV pages are in memory and hold plausible
    // numbers.
    for (position, rows) in [(0, context), (context, rows)].into_iter().filter(|(_, n)| *n > 0) {
        let batch = work.step(position, rows);
        let plan = cpu.prepare_step(&batch, &kv, &rotation).expect("pages of the cache");
        let values = numbers(batch.tokens.len() * attention.qkv_cols());
        cpu.write(&mut qkv, &values).expect("rows");
        cpu.rope_and_cache(&mut qkv, &layer, &plan, &mut kv).expect("keys and values");
    }
    let plan =
        cpu.prepare_step(&work.step(context, rows), &kv, &rotation).expect("pages of the cache");
    let t = sequences * rows;
    cpu.resize(&mut out, t).expect("rows");
    let seen = t * (context + rows.div_ceil(2));
    let kv_bytes = sequences * (context + rows) * 2 * kv_heads * head_dim * kv_type.bytes();
    let (kind, isa) = (kv_type.name(), cpu.isa().name());
    Case {
        id: format!("attention/B{sequences}_T{t}_C{context}_{model}_{kind}/{isa}"),
        flops: 4 * (seen * heads * head_dim) as u64,
        bytes: (kv_bytes + 8 * t * heads * head_dim) as u64,
        run: Box::new(move || {
            cpu.attention(&qkv, &layer, &plan, &kv, &mut out).expect("attention");
        }),
    }
}

pub fn cases() -> Vec<Lazy> {
    let work = [(1, 1, 1024), (32, 1, 256), (32, 1, 1024), (1, 512, 0)];
    let mut cases: Vec<Lazy> = Vec::new();
    for isa in Isa::detected() {
        for shape in MODELS {
            for kv_type in [KvType::F16, KvType::F32] {
                for (sequences, rows, context) in work {
                    let work = Work { sequences, rows, context };
                    cases.push(Box::new(move || case(device(isa), &shape, kv_type, work)));
                }
            }
        }
    }
    cases
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    let work = Work { sequences: 1, rows: 1, context: 32 };
    case(device(Isa::best()), &SMOLLM2_135M, KvType::F16, work)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "attention", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
