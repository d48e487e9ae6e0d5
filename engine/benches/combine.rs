//! Benchmark of MoE combine, the weighted sum of expert results, the same code for every
//! instruction set.

mod experts;
mod shapes;

use criterion::{Criterion, criterion_group, criterion_main};
use engine_core::Device;
use engine_cpu::{Cpu, Isa};
use experts::{GATE, LAYER, Layer, SMALL};
use shapes::{Case, Lazy, TOKENS, device, measure, numbers};

pub fn case(mut cpu: Cpu, layer: Layer, t: usize) -> Case {
    let Layer { experts, chosen, hidden, .. } = layer;
    let logits = layer.logits(&mut cpu, t);
    let routes = cpu.route(&logits, chosen, GATE, 0..experts).expect("routes");
    let mut x = cpu.buffer(hidden).expect("a buffer");
    let mut out = cpu.buffer(hidden).expect("a buffer");
    cpu.write(&mut x, &numbers(t * chosen * hidden)).expect("rows");
    cpu.resize(&mut out, t).expect("rows");
    Case {
        id: format!("combine/T{t}_N{hidden}_C{chosen}_f32/portable"),
        flops: (2 * t * chosen * hidden) as u64,
        bytes: (4 * t * (1 + chosen) * hidden) as u64,
        run: Box::new(move || cpu.combine(&x, &routes, &mut out).expect("sums")),
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
    measure(criterion, "combine", cases());
}

criterion_group!(benches, all);
criterion_main!(benches);
