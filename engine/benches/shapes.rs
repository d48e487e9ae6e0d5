//! Model shapes that all benchmarks measure, and the type of a benchmark case.

use std::fmt;

use criterion::{Criterion, Throughput};
use engine_cpu::{Cpu, Isa};

/// Layer sizes of a model.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub model: &'static str,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
}

pub const SMOLLM2_135M: Shape = Shape {
    model: "smollm2-135m",
    hidden: 576,
    intermediate: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocab: 49_152,
};

pub const QWEN3_0_6B: Shape = Shape {
    model: "qwen3-0.6b",
    hidden: 1024,
    intermediate: 3072,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
};

pub const QWEN3_8B: Shape = Shape {
    model: "qwen3-8b",
    hidden: 4096,
    intermediate: 12_288,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
};

pub const MODELS: [Shape; 3] = [SMOLLM2_135M, QWEN3_0_6B, QWEN3_8B];

// Widths must be whole blocks of every stored format, and heads whole vectors.
const _: () = {
    let mut i = 0;
    while i < MODELS.len() {
        let Shape { model, hidden, intermediate, heads, kv_heads, head_dim, vocab } = MODELS[i];
        assert!(!model.is_empty() && vocab > 0);
        assert!(hidden.is_multiple_of(32) && intermediate.is_multiple_of(32));
        assert!(heads.is_multiple_of(kv_heads) && head_dim.is_multiple_of(16));
        i += 1;
    }
};

/// Rows of a step: one sequence that decodes, a batch that decodes, a prefill chunk.
pub const TOKENS: [usize; 3] = [1, 32, 512];

/// One benchmark case: a call to measure, with its name and its work.
pub struct Case {
    /// Name of the case, `op/shape_type/isa`.
    pub id: String,
    /// Floating-point operations of one call.
    pub flops: u64,
    /// Smallest number of bytes that one call reads and writes.
    pub bytes: u64,
    /// Makes one call of the measured operation.
    pub run: Box<dyn FnMut()>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, flops, bytes, .. } = self;
        write!(f, "{id}: {flops} flops, {bytes} bytes")
    }
}

/// Function that creates a case when it is measured, so that only one case holds memory at a time.
pub type Lazy = Box<dyn Fn() -> Case>;

/// Device with this instruction set, on all processors.
pub fn device(isa: Isa) -> Cpu {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    Cpu::new(isa, threads)
}

/// Pseudo-random numbers from -1 to 1, the same on every run.
pub fn numbers(count: usize) -> Vec<f32> {
    let mut state = 12_345u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Measures `cases` one after another with criterion.
pub fn measure(criterion: &mut Criterion, op: &str, cases: Vec<Lazy>) {
    let mut group = criterion.benchmark_group(op);
    for case in cases {
        let mut case = case();
        let name = case.id.strip_prefix(op).unwrap_or(&case.id).trim_start_matches('/').to_owned();
        group.throughput(Throughput::ElementsAndBytes { elements: case.flops, bytes: case.bytes });
        group.bench_function(name, |bencher| bencher.iter(|| (case.run)()));
    }
    group.finish();
}
