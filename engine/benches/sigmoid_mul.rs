//! Benchmark of the sigmoid gate of an attention layer's output.

mod rows;
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::Device;
use engine_cpu::{Cpu, Isa};
use shapes::{Case, Lazy, device, measure, numbers};

pub fn case(mut cpu: Cpu, t: usize, n: usize) -> Case {
    let mut x = cpu.buffer(n).expect("a buffer");
    let mut gate = cpu.buffer(n).expect("a buffer");
    cpu.write(&mut x, &numbers(t * n)).expect("rows");
    // Gates near 1 keep the rows from vanishing however often the case runs.
    cpu.write(&mut gate, &vec![20.0; t * n]).expect("rows");
    Case {
        id: format!("sigmoid_mul/T{t}_N{n}_f32/{}", cpu.isa().name()),
        // About 20 operations per element, most of them for the exponential.
        flops: 20 * (t * n) as u64,
        bytes: 12 * (t * n) as u64,
        run: Box::new(move || cpu.sigmoid_mul(&mut x, &gate).expect("a gate")),
    }
}

pub fn cases() -> Vec<Lazy> {
    rows::cases(|shape| shape.heads * shape.head_dim, case)
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), 1, 576)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "sigmoid_mul", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
