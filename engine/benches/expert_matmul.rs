//! Benchmark of the grouped matrix multiplication of MoE experts, gate and up projection with
//! biases.

mod experts;
#[expect(dead_code, reason = "this bench uses a part of the shared table")]
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::{Device, HostMatrix, RowOrder, WeightType};
use engine_cpu::{Cpu, Isa, Matrix};
use engine_weights::random_tensor;
use experts::{GATE, LAYER, Layer, SMALL};
use shapes::{Case, Lazy, device, measure, numbers};

/// Rows of a step. No prefill chunk: it would take minutes in portable code.
const TOKENS: [usize; 2] = [1, 32];
/// Weight formats: one that is multiplied in 8-bit integers, and one in f32.
const TYPES: [WeightType; 2] = [WeightType::Q4_1, WeightType::Mxfp4];

/// Gate and up weights of one expert.
fn matrix(cpu: &mut Cpu, seed: u64, layer: Layer, weight_type: WeightType) -> Matrix {
    let (n, k) = (2 * layer.intermediate, layer.hidden);
    let stored = random_tensor(seed, "bench", weight_type, &[n, k]);
    let host = HostMatrix { weight_type, n, k, bytes: &stored.bytes, order: RowOrder::AsStored };
    cpu.matrix(&[host]).expect("the weights fit into memory")
}

pub fn case(mut cpu: Cpu, layer: Layer, t: usize, weight_type: WeightType) -> Case {
    let Layer { experts, chosen, hidden, intermediate } = layer;
    let n = 2 * intermediate;
    let matrices: Vec<Matrix> =
        (0..experts as u64).map(|seed| matrix(&mut cpu, seed, layer, weight_type)).collect();
    let biases = vec![numbers(n); experts];
    let logits = layer.logits(&mut cpu, t);
    let routes = cpu.route(&logits, chosen, GATE, 0..experts).expect("routes");
    let rows = cpu.routed_rows(&routes);
    let mut x = cpu.buffer(hidden).expect("a buffer");
    let mut out = cpu.buffer(n).expect("a buffer");
    cpu.write(&mut x, &numbers(rows * hidden)).expect("rows");
    cpu.resize(&mut out, rows).expect("rows");
    let has_rows = |expert: &usize| {
        let own = cpu.route(&logits, chosen, GATE, *expert..expert + 1).expect("routes");
        cpu.routed_rows(&own) > 0
    };
    let read = (0..experts).filter(has_rows).count() * n * weight_type.row_bytes(hidden);
    let isa = cpu.isa().name();
    Case {
        id: format!("expert_matmul/T{t}_C{chosen}_K{hidden}_N{n}_{}/{isa}", weight_type.name()),
        flops: (2 * rows * n * hidden) as u64,
        bytes: (read + 4 * rows * (n + hidden)) as u64,
        run: Box::new(move || {
            cpu.expert_matmul(&x, &matrices, &biases, &routes, &mut out).expect("products");
        }),
    }
}

pub fn cases() -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for isa in Isa::detected() {
        for weight_type in TYPES {
            for t in TOKENS {
                cases.push(Box::new(move || case(device(isa), LAYER, t, weight_type)));
            }
        }
    }
    cases
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), SMALL, 1, WeightType::Q4_1)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "expert_matmul", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
