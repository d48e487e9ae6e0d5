//! Benchmark of the rotary embedding of queries and keys, with the write of keys and values to the
//! KV cache.

pub(crate) mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::{
    AttentionLayer, AttentionShape, Device, KvShape, KvType, LogitRows, Rotation,
    ScheduledSequence, StepBatch,
};
use engine_cpu::{Cpu, Isa};
use shapes::{Case, Lazy, MODELS, SMOLLM2_135M, Shape, TOKENS, device, measure, numbers};

const PAGE_TOKENS: usize = 16;

/// Case of `t` rows of one sequence.
pub fn case(mut cpu: Cpu, shape: &Shape, t: usize) -> Case {
    let Shape { heads, kv_heads, head_dim, .. } = *shape;
    let attention = AttentionShape { heads, kv_heads, head_dim, scale: 1.0 };
    let layer = AttentionLayer::new(attention, 0);
    let (page_tokens, kv_type) = (PAGE_TOKENS, KvType::F16);
    let pages = t.div_ceil(page_tokens);
    let mut kv = cpu
        .kv(KvShape { layers: 1, kv_heads, head_dim, pages, page_tokens, kv_type })
        .expect("the pages fit into memory");
    let sequence = ScheduledSequence {
        row: 0,
        rows: t,
        position: 0,
        pages: (0..pages as u32).collect(),
        logits: LogitRows::None,
        state: None,
    };
    let batch = StepBatch::known(&vec![0; t], vec![sequence]);
    let rotation = Rotation { inverse_frequencies: vec![0.5; head_dim / 2], factor: 1.0 };
    let plan = cpu.prepare_step(&batch, &kv, &rotation).expect("pages of the cache");
    let mut qkv = cpu.buffer(attention.qkv_cols()).expect("a buffer");
    cpu.write(&mut qkv, &numbers(t * attention.qkv_cols())).expect("rows");
    let (turned, cached) = (t * (heads + kv_heads) * head_dim, 2 * t * kv_heads * head_dim);
    Case {
        id: format!("rope/T{t}_{}_f16/{}", shape.model, cpu.isa().name()),
        flops: 3 * turned as u64,
        bytes: (8 * turned + cached * kv_type.bytes()) as u64,
        run: Box::new(move || {
            cpu.rope_and_cache(&mut qkv, &layer, &plan, &mut kv).expect("a rotation");
        }),
    }
}

pub fn cases() -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for isa in Isa::detected() {
        for shape in MODELS {
            for t in TOKENS {
                cases.push(Box::new(move || case(device(isa), &shape, t)));
            }
        }
    }
    cases
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), &SMOLLM2_135M, 1)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "rope", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
