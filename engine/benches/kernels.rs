//! Benchmark of every operation of the CPU device, and of sampling on the host, at the sizes of
//! published models.

use std::thread;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine::bench::cases::{Case, Matmul, MoeOp, RowOp, SMOLLM2_135M, Shape, Step};
use engine::bench::list::{QWEN3_8B, QWEN3_30B_A3B, QWEN3_NEXT, add};
use engine::bench::setup::{Make, Setup, sample};
use engine_core::sample::Sampling;
use engine_core::{Gate, KvType, WeightType};
use engine_cpu::{Arithmetic, Cpu, Isa};

const QWEN3_0_6B: Shape = Shape {
    model: "qwen3-0.6b",
    hidden: 1024,
    intermediate: 3072,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
};
const MODELS: [Shape; 3] = [SMOLLM2_135M, QWEN3_0_6B, QWEN3_8B];

/// Numbers of rows of a step: one sequence that decodes, a batch that decodes, a prefill chunk.
const TOKENS: [usize; 3] = [1, 32, 512];
/// Numbers of rows for matrix multiplication in 8-bit integers and in bf16: 1, 32 and 512 as for
/// f32, and 8.
const NARROW_TOKENS: [usize; 4] = [1, 8, 32, 512];

/// Returns the benchmark cases of the CPU that depend on its instruction set.
fn of_isa(isa: Isa) -> Vec<Make<Cpu>> {
    let mut list = Vec::new();
    for model in MODELS {
        for t in TOKENS {
            for (op, n) in [
                (RowOp::RmsNorm, model.hidden),
                (RowOp::AddRmsNorm, model.hidden),
                (RowOp::SiluMul, model.intermediate),
                (RowOp::ClampedSwiglu, model.intermediate),
                (RowOp::SigmoidMul, model.heads * model.head_dim),
            ] {
                add(&mut list, move |setup| setup.rows(op, t, n));
            }
            add(&mut list, move |setup| setup.rope(&model, t));
        }
        let bf16 = isa.has_bf16().then_some(KvType::Bf16);
        for kv_type in [KvType::F16, KvType::F32].into_iter().chain(bf16) {
            for (sequences, rows, context) in
                [(1, 1, 1024), (32, 1, 256), (32, 1, 1024), (1, 512, 0)]
            {
                let step = Step { sequences, rows, context };
                let layer = (model.model, model.attention(), None);
                add(&mut list, move |setup| setup.attention(layer, kv_type, step));
            }
        }
    }
    add_matmuls(&mut list, "matmul", Arithmetic::F32, &TOKENS, &WeightType::ALL);
    // One format for each way in which weights are packed.
    let int8 =
        [WeightType::Q4_1, WeightType::Q5_0, WeightType::Q6K, WeightType::Q8_0, WeightType::Mxfp4];
    add_matmuls(&mut list, "matmul_int8", Arithmetic::Int8, &NARROW_TOKENS, &int8);
    if isa.has_bf16() {
        let bf16 = [WeightType::Bf16, WeightType::F8E4M3];
        add_matmuls(&mut list, "matmul_bf16", Arithmetic::Bf16, &NARROW_TOKENS, &bf16);
    }
    for (sequences, rows) in [(1, 1), (32, 1), (1, 512)] {
        add(&mut list, move |setup| setup.delta_net(QWEN3_NEXT, sequences, rows));
    }
    // One format with a scale for each column, and one with a scale for each block of a column. No
    // prefill chunk: it would take minutes in portable code.
    for weight_type in [WeightType::Q4_1, WeightType::Mxfp4] {
        for t in [1, 32] {
            add(&mut list, move |setup| {
                setup.moe(MoeOp::ExpertMatmul(weight_type), QWEN3_30B_A3B, t)
            });
        }
    }
    list
}

/// Adds multiplications with the up and down projections of the feed-forward layers of SmolLM2-135M
/// and Qwen3-0.6B to the benchmark cases.
fn add_matmuls(
    list: &mut Vec<Make<Cpu>>,
    op: &'static str,
    arithmetic: Arithmetic,
    tokens: &'static [usize],
    types: &[WeightType],
) {
    for Shape { hidden, intermediate, .. } in [SMOLLM2_135M, QWEN3_0_6B] {
        for weight_type in types.iter().copied() {
            for (k, n) in [(hidden, intermediate), (intermediate, hidden)] {
                // A row must consist of whole blocks of its format.
                for t in tokens.iter().copied().filter(|_| k.is_multiple_of(weight_type.block())) {
                    add(list, move |Setup { device, memory, .. }| {
                        let setup = Setup::new(device.with(arithmetic), memory);
                        setup.matmul(op, Matmul { t, k, n, weight_type }, false)
                    });
                }
            }
        }
    }
}

/// Returns the benchmark cases of the CPU whose code is the same for every instruction set, and
/// those of sampling on the host.
fn portable() -> Vec<Make<Cpu>> {
    let mut list = Vec::new();
    for t in TOKENS {
        let route = MoeOp::Route(Gate::SoftmaxTop { normalized: true });
        for op in [route, MoeOp::Dispatch, MoeOp::Combine] {
            add(&mut list, move |setup| setup.moe(op, QWEN3_30B_A3B, t));
        }
        for model in MODELS {
            let n = (model.heads + 2 * model.kv_heads) * model.head_dim;
            add(&mut list, move |setup| setup.rows(RowOp::AddBias, t, n));
        }
        for Shape { vocab, hidden, .. } in [SMOLLM2_135M, QWEN3_0_6B] {
            for weight_type in [WeightType::Bf16, WeightType::Q8_0] {
                add(&mut list, move |setup| setup.embed(t, vocab, hidden, weight_type));
            }
        }
    }
    for Shape { vocab, .. } in [SMOLLM2_135M, QWEN3_0_6B] {
        let warm = Sampling { temperature: 0.8, ..Sampling::greedy() };
        for (name, params) in [
            ("greedy", Sampling::greedy()),
            ("top_k50", Sampling { top_k: Some(50), ..warm.clone() }),
            ("top_p95", Sampling { top_p: 0.95, ..warm.clone() }),
        ] {
            add(&mut list, move |_| Ok(sample(name, params.clone(), vocab)));
        }
    }
    list
}

/// Measures a benchmark case, which criterion names `op/shape_dtype/isa`.
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
            measure(criterion, make(Setup::new(device, 0)).expect("the case fits"), name);
        }
    };
    for isa in Isa::detected() {
        each(of_isa(isa), isa, isa.name());
    }
    each(portable(), Isa::best(), "portable");
}

criterion_group!(benches, all);
criterion_main!(benches);
