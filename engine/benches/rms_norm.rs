//! Benchmark of RMS norm.

mod rows;
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::Device;
use engine_cpu::{Cpu, Isa};
use shapes::{Case, Lazy, device, measure, numbers};

pub fn case(mut cpu: Cpu, t: usize, n: usize) -> Case {
    let weight = cpu.vector(&numbers(n)).expect("a vector");
    let mut x = cpu.buffer(n).expect("a buffer");
    let mut out = cpu.buffer(n).expect("a buffer");
    cpu.write(&mut x, &numbers(t * n)).expect("rows");
    cpu.resize(&mut out, t).expect("rows");
    Case {
        id: format!("rms_norm/T{t}_N{n}_f32/{}", cpu.isa().name()),
        flops: 4 * (t * n) as u64,
        bytes: 8 * (t * n) as u64,
        run: Box::new(move || cpu.rms_norm(&x, &weight, 1e-5, &mut out).expect("a norm")),
    }
}

pub fn cases() -> Vec<Lazy> {
    rows::cases(|shape| shape.hidden, case)
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), 1, 576)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "rms_norm", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
