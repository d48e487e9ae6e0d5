//! Matrix products by packed weights of every stored type.

mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine::device::cpu::Isa;
use engine::device::{Device, HostMatrix, RowOrder};
use engine::weights::{WeightType, random_tensor};
use shapes::{Case, Lazy, MODELS, TOKENS, device, measure, numbers};

/// One product of `t` rows by `[n, k]`.
pub fn case(isa: Isa, weight_type: WeightType, t: usize, k: usize, n: usize) -> Case {
    let mut cpu = device(isa);
    let stored = random_tensor(1, "bench", weight_type, &[n, k]);
    let host = HostMatrix { weight_type, n, k, bytes: &stored.bytes, order: RowOrder::AsStored };
    let w = cpu.matrix(&[host]).expect("the weights fit into memory");
    let mut x = cpu.buffer(k).expect("a buffer");
    let mut out = cpu.buffer(n).expect("a buffer");
    cpu.write(&mut x, &numbers(t * k)).expect("rows of k");
    cpu.resize(&mut out, t).expect("rows of n");
    Case {
        id: format!("matmul/T{t}_K{k}_N{n}_{}/{}", weight_type.name(), isa.name()),
        flops: 2 * (t * n * k) as u64,
        bytes: (stored.bytes.len() + 4 * t * (n + k)) as u64,
        run: Box::new(move || cpu.matmul(&x, &w, &mut out).expect("a product")),
    }
}

/// Products up and down a feed-forward layer of the two smaller models.
pub fn cases() -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for isa in Isa::detected() {
        for shape in &MODELS[..2] {
            for t in TOKENS {
                for weight_type in WeightType::ALL {
                    let (k, n) = (shape.hidden, shape.intermediate);
                    for (k, n) in [(k, n), (n, k)] {
                        if k.is_multiple_of(weight_type.block()) {
                            cases.push(Box::new(move || case(isa, weight_type, t, k, n)));
                        }
                    }
                }
            }
        }
    }
    cases
}

/// The case that tests run.
pub fn smallest() -> Case {
    case(Isa::best(), WeightType::Q4_1, 1, 576, 1536)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "matmul", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
