//! Benchmark of the clamped SwiGLU activation of gpt-oss experts.

mod rows;
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::Device;
use engine_cpu::{Cpu, Isa};
use shapes::{Case, Lazy, device, measure, numbers};

pub fn case(mut cpu: Cpu, t: usize, n: usize) -> Case {
    let mut gate_up = cpu.buffer(2 * n).expect("a buffer");
    let mut out = cpu.buffer(n).expect("a buffer");
    cpu.write(&mut gate_up, &numbers(2 * t * n)).expect("rows");
    cpu.resize(&mut out, t).expect("rows");
    Case {
        id: format!("clamped_swiglu/T{t}_N{n}_f32/{}", cpu.isa().name()),
        // About 25 operations per element, most of them for the exponential.
        flops: 25 * (t * n) as u64,
        bytes: 12 * (t * n) as u64,
        run: Box::new(move || {
            cpu.clamped_swiglu(&gate_up, 1.702, 7.0, &mut out).expect("an activation");
        }),
    }
}

pub fn cases() -> Vec<Lazy> {
    rows::cases(|shape| shape.intermediate, case)
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), 1, 1536)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "clamped_swiglu", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
