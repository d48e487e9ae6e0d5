//! Benchmark of the gated delta net: a decoding batch, and a prefill chunk of one sequence.

#[expect(dead_code, reason = "this bench uses a part of the shared table")]
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::{
    DeltaNetLayer, DeltaNetShape, Device, KvShape, KvType, LogitRows, Rotation, ScheduledSequence,
    StateShape, StateSlots, StepBatch,
};
use engine_cpu::{Cpu, Isa};
use shapes::{Case, Lazy, device, measure, numbers};

/// Linear-attention layer of Qwen3-Next-80B-A3B.
const QWEN3_NEXT: DeltaNetShape =
    DeltaNetShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, taps: 4 };
const PAGE_TOKENS: usize = 16;

fn layer(shape: DeltaNetShape) -> DeltaNetLayer<Vec<f32>> {
    DeltaNetLayer {
        shape,
        index: 0,
        conv: numbers(shape.taps * shape.conv_cols()),
        rate: vec![-1.0; shape.value_heads],
        bias: vec![0.5; shape.value_heads],
        norm: vec![1.0; shape.value_dim],
        epsilon: 1e-6,
    }
}

/// Step of `rows` rows for each of `sequences` sequences that already have a page of tokens.
fn batch(sequences: usize, rows: usize) -> StepBatch {
    let sequence = |i: usize| ScheduledSequence {
        row: 0,
        rows,
        position: PAGE_TOKENS,
        pages: (0..(PAGE_TOKENS + rows).div_ceil(PAGE_TOKENS) as u32).collect(),
        logits: LogitRows::None,
        state: Some(StateSlots { slot: i as u32, load: None, save: None }),
    };
    StepBatch::known(&vec![0; sequences * rows], (0..sequences).map(sequence).collect())
}

pub fn case(mut cpu: Cpu, net: DeltaNetShape, sequences: usize, rows: usize) -> Case {
    let (t, layer) = (sequences * rows, layer(net));
    let (pages, page_tokens) = ((PAGE_TOKENS + rows).div_ceil(PAGE_TOKENS), PAGE_TOKENS);
    let (kv_heads, head_dim, kv_type) = (1, 16, KvType::F16);
    let kv = cpu.kv(KvShape { layers: 1, kv_heads, head_dim, pages, page_tokens, kv_type });
    let kv = kv.expect("the pages fit into memory");
    let rotation = Rotation { inverse_frequencies: Vec::new(), factor: 1.0 };
    let plan =
        cpu.prepare_step(&batch(sequences, rows), &kv, &rotation).expect("pages of the cache");
    let slots = StateShape { layers: 1, slots: sequences, net };
    let mut state = cpu.state(slots).expect("the states fit into memory");
    let mut projected = cpu.buffer(net.cols()).expect("a buffer");
    let mut out = cpu.buffer(net.value_heads * net.value_dim).expect("a buffer");
    cpu.write(&mut projected, &numbers(t * net.cols())).expect("rows");
    cpu.resize(&mut out, t).expect("rows");
    // Per element of the state: decay, product with the key, update, product with the query.
    let matrices = net.value_heads * net.key_dim * net.value_dim;
    let (heads, dim, isa) = (net.value_heads, net.value_dim, cpu.isa().name());
    Case {
        id: format!("delta_net/B{sequences}_T{t}_H{heads}_D{dim}_f32/{isa}"),
        flops: (t * (7 * matrices + 2 * net.taps * net.conv_cols())) as u64,
        bytes: (4 * t * (net.cols() + net.value_heads * net.value_dim)
            + 8 * sequences * net.state_elements()) as u64,
        run: Box::new(move || {
            cpu.delta_net(&projected, &layer, &plan, &mut state, &mut out).expect("a recurrence");
        }),
    }
}

pub fn cases() -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for isa in Isa::detected() {
        for (sequences, rows) in [(1, 1), (32, 1), (1, 512)] {
            cases.push(Box::new(move || case(device(isa), QWEN3_NEXT, sequences, rows)));
        }
    }
    cases
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    let net = DeltaNetShape { key_heads: 1, value_heads: 2, ..QWEN3_NEXT };
    case(device(Isa::best()), net, 1, 1)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "delta_net", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
