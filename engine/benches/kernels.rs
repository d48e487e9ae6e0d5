//! Benchmark of every operation of the CPU device, and of sampling on the host: the cases of
//! `engine/src/bench/list.rs`.

use std::thread;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::bench::cases::Case;
use engine::bench::list;
use engine::bench::setup::{Make, Setup};
use engine_cpu::{Cpu, Isa};

/// Measures a case, named `op/shape_dtype/isa`.
fn measure(criterion: &mut Criterion, mut case: Case, isa: &str) {
    let mut group = criterion.benchmark_group(case.op);
    group.throughput(Throughput::ElementsAndBytes { elements: case.flops, bytes: case.bytes });
    group.bench_function(format!("{}_{}/{isa}", case.shape, case.dtype), |bencher| {
        bencher.iter(|| (case.run)().expect("the operation succeeds"));
    });
    group.finish();
}

fn all(criterion: &mut Criterion) {
    let threads = thread::available_parallelism().map_or(1, |n| n.get());
    let mut each = |cases: Vec<Make<Cpu>>, isa: Isa, name| {
        for make in cases {
            let device = Cpu::new(isa, threads);
            measure(criterion, make(Setup { device, memory: 0 }).expect("the case fits"), name);
        }
    };
    for isa in Isa::detected() {
        each(list::cpu(isa), isa, isa.name());
    }
    each(list::portable(), Isa::best(), "portable");
}

criterion_group!(benches, all);
criterion_main!(benches);
