//! Benchmark of embedding lookup with dequantization of the table's rows, the same code for every
//! instruction set.

#[expect(dead_code, reason = "this bench uses a part of the shared table")]
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::{
    Device, HostMatrix, KvShape, KvType, LogitRows, Rotation, RowOrder, ScheduledSequence,
    StepBatch, WeightType,
};
use engine_cpu::{Cpu, Isa};
use engine_weights::random_tensor;
use shapes::{Case, Lazy, MODELS, TOKENS, device, measure};

/// Distance between two token ids: a prime, so that rows are far from one another.
const STRIDE: usize = 7_919;
const PAGE_TOKENS: usize = 16;

pub fn case(mut cpu: Cpu, t: usize, vocab: usize, n: usize, weight_type: WeightType) -> Case {
    let stored = random_tensor(1, "bench", weight_type, &[vocab, n]);
    let order = RowOrder::AsStored;
    let host = HostMatrix { weight_type, n: vocab, k: n, bytes: &stored.bytes, order };
    let table = cpu.matrix(&[host]).expect("the table fits into memory");
    let ids: Vec<u32> = (0..t).map(|i| (i * STRIDE % vocab) as u32).collect();
    let plan = plan(&mut cpu, &ids);
    let mut out = cpu.buffer(n).expect("a buffer");
    cpu.resize(&mut out, t).expect("rows");
    Case {
        id: format!("embed/T{t}_V{vocab}_N{n}_{}/portable", weight_type.name()),
        // One multiplication per element, of a quantized value with its scale.
        flops: (t * n) as u64,
        bytes: (t * (weight_type.row_bytes(n) + 4 * n)) as u64,
        run: Box::new(move || cpu.embed(&table, 0, &plan, &mut out).expect("rows of the table")),
    }
}

/// Step of one sequence that begins with `ids`.
fn plan(cpu: &mut Cpu, ids: &[u32]) -> <Cpu as Device>::StepMetadata {
    let (page_tokens, kv_type) = (PAGE_TOKENS, KvType::F16);
    let pages = ids.len().div_ceil(page_tokens);
    let kv = KvShape { layers: 1, kv_heads: 1, head_dim: 16, pages, page_tokens, kv_type };
    let kv = cpu.kv(kv).expect("the pages fit into memory");
    let (pages, logits) = ((0..pages as u32).collect(), LogitRows::None);
    let sequence =
        ScheduledSequence { row: 0, rows: ids.len(), position: 0, pages, logits, state: None };
    let rotation = Rotation { inverse_frequencies: Vec::new(), factor: 1.0 };
    cpu.prepare_step(&StepBatch::known(ids, vec![sequence]), &kv, &rotation)
        .expect("pages of the cache")
}

pub fn cases() -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for shape in &MODELS[..2] {
        for weight_type in [WeightType::Bf16, WeightType::Q8_0] {
            for t in TOKENS {
                let (vocab, n) = (shape.vocab, shape.hidden);
                cases.push(Box::new(move || case(device(Isa::best()), t, vocab, n, weight_type)));
            }
        }
    }
    cases
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), 1, 64, 576, WeightType::Q8_0)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "embed", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
