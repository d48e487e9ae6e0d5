//! Benchmark of selecting the top-k experts of each row (MoE), the same code for every instruction
//! set.

mod experts;
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::Device;
use engine_cpu::{Cpu, Isa};
use experts::{GATE, LAYER, Layer, SMALL};
use shapes::{Case, Lazy, TOKENS, device, measure};

pub fn case(mut cpu: Cpu, layer: Layer, t: usize) -> Case {
    let Layer { experts, chosen, .. } = layer;
    let logits = layer.logits(&mut cpu, t);
    Case {
        id: format!("route/T{t}_E{experts}_C{chosen}_f32/portable"),
        // Sorting only compares; an exponential and a division are computed for each top-k expert.
        flops: (2 * t * chosen) as u64,
        bytes: (4 * t * (experts + 2 * chosen)) as u64,
        run: Box::new(move || {
            cpu.route(&logits, chosen, GATE, 0..experts).expect("routes");
        }),
    }
}

pub fn cases() -> Vec<Lazy> {
    let case = |t| -> Lazy { Box::new(move || case(device(Isa::best()), LAYER, t)) };
    TOKENS.into_iter().map(case).collect()
}

/// Smallest case, run by tests.
pub fn smallest() -> Case {
    case(device(Isa::best()), SMALL, 1)
}

fn all(criterion: &mut Criterion) {
    measure(criterion, "route", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
