//! Benchmark of adding a bias to every row, the same code for every instruction set.

mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::Device;
use engine_cpu::{Cpu, Isa};
use shapes::{Case, Lazy, MODELS, TOKENS, device, measure, numbers};

pub fn case(mut cpu: Cpu, t: usize, n: usize) -> Case {
    // A bias of zeros keeps the rows bounded however often the case runs.
    let bias = cpu.vector(&vec![0.0; n]).expect("a vector");
    let mut x = cpu.buffer(n).expect("a buffer");
    cpu.write(&mut x, &numbers(t * n)).expect("rows");
    Case {
        id: format!("add_bias/T{t}_N{n}_f32/portable"),
        flops: (t * n) as u64,
        bytes: 8 * (t * n) as u64,
        run: Box::new(move || cpu.add_bias(&mut x, &bias).expect("a sum")),
    }
}

pub fn cases() -> Vec<Lazy> {
    let mut cases: Vec<Lazy> = Vec::new();
    for shape in MODELS {
        for t in TOKENS {
            let n = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
            cases.push(Box::new(move || case(device(Isa::best()), t, n)));
        }
    }
    cases
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), 1, 960)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "add_bias", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
