//! The one list of benchmark cases: which operations are measured, at the sizes of which models.
//!
//! Criterion (`engine/benches/kernels.rs`) measures the cases of the CPU, and `redline bench
//! --kernels` those of a GPU.

use engine_core::sample::Sampling;
use engine_core::{DeltaNetShape, DeviceError, KvType, WeightType};
use engine_cpu::{Arithmetic, Cpu, Isa};
use engine_cuda::Cuda;

use super::cases::{Case, Matmul, MoeOp, MoeShape, RowOp, Shape, Step, attention_shape};
use super::setup::{Make, Setup, sample};

/// Layer sizes of SmolLM2-135M.
pub const SMOLLM2_135M: Shape = Shape {
    model: "smollm2-135m",
    hidden: 576,
    intermediate: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocab: 49_152,
};
const QWEN3_0_6B: Shape = Shape {
    model: "qwen3-0.6b",
    hidden: 1024,
    intermediate: 3072,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
};
const QWEN3_8B: Shape = Shape {
    model: "qwen3-8b",
    hidden: 4096,
    intermediate: 12_288,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
};
const MODELS: [Shape; 3] = [SMOLLM2_135M, QWEN3_0_6B, QWEN3_8B];

const QWEN3_30B_A3B: MoeShape =
    MoeShape { experts: 128, top_k: 8, hidden: 2048, intermediate: 768 };
const GPT_OSS_20B: MoeShape = MoeShape { experts: 32, top_k: 4, hidden: 2880, intermediate: 2880 };
/// Gated delta net of Qwen3-Next-80B-A3B and of Qwen3.5-9B.
const QWEN3_NEXT: DeltaNetShape =
    DeltaNetShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, taps: 4 };

/// Rows of a step: one sequence that decodes, a batch that decodes, a prefill chunk.
const TOKENS: [usize; 3] = [1, 32, 512];
/// Rows for 8-bit integer and bf16 arithmetic: those of every case, and a full tile.
const NARROW_TOKENS: [usize; 4] = [1, 8, 32, 512];
/// List of cases under construction.
struct List<D>(Vec<Make<D>>);

impl<D> List<D> {
    fn add(&mut self, make: impl Fn(Setup<D>) -> Result<Case, DeviceError> + 'static) {
        self.0.push(Box::new(make));
    }
}

/// Cases of the CPU that depend on its instruction set.
pub fn cpu(isa: Isa) -> Vec<Make<Cpu>> {
    let mut list = List(Vec::new());
    for model in MODELS {
        for t in TOKENS {
            for (op, n) in [
                (RowOp::RmsNorm, model.hidden),
                (RowOp::AddRmsNorm, model.hidden),
                (RowOp::SiluMul, model.intermediate),
                (RowOp::ClampedSwiglu, model.intermediate),
                (RowOp::SigmoidMul, model.heads * model.head_dim),
            ] {
                list.add(move |setup| setup.rows(op, t, n));
            }
            list.add(move |setup| setup.rope(&model, t));
        }
        for kv_type in [KvType::F16, KvType::F32] {
            for (sequences, rows, context) in
                [(1, 1, 1024), (32, 1, 256), (32, 1, 1024), (1, 512, 0)]
            {
                let step = Step { sequences, rows, context };
                let layer = (model.model, model.attention(), None);
                list.add(move |setup| setup.attention(layer, kv_type, step));
            }
        }
    }
    add_matmuls(&mut list, "matmul", Arithmetic::F32, &TOKENS, &WeightType::ALL);
    let int8 = [WeightType::Q4_1, WeightType::Q8_0];
    add_matmuls(&mut list, "matmul_int8", Arithmetic::Int8, &NARROW_TOKENS, &int8);
    if isa.has_bf16() {
        let bf16 = [WeightType::Bf16];
        add_matmuls(&mut list, "matmul_bf16", Arithmetic::Bf16, &NARROW_TOKENS, &bf16);
    }
    for (sequences, rows) in [(1, 1), (32, 1), (1, 512)] {
        list.add(move |setup| setup.delta_net(QWEN3_NEXT, sequences, rows));
    }
    // One format that is multiplied in 8-bit integers, and one in f32. No prefill chunk: it would
    // take minutes in portable code.
    for weight_type in [WeightType::Q4_1, WeightType::Mxfp4] {
        for t in [1, 32] {
            list.add(move |setup| setup.moe(MoeOp::ExpertMatmul(weight_type), QWEN3_30B_A3B, t));
        }
    }
    list.0
}

/// Adds up and down projections of the feed-forward layers of the two smaller models.
fn add_matmuls(
    list: &mut List<Cpu>,
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
                    list.add(move |Setup { device, memory }| {
                        let setup = Setup { device: device.with(arithmetic), memory };
                        setup.matmul(op, Matmul { t, k, n, weight_type }, false)
                    });
                }
            }
        }
    }
}

/// Cases of the CPU whose code is the same for every instruction set.
pub fn portable() -> Vec<Make<Cpu>> {
    let mut list = List(Vec::new());
    for t in TOKENS {
        for op in [MoeOp::Route, MoeOp::Dispatch, MoeOp::Combine] {
            list.add(move |setup| setup.moe(op, QWEN3_30B_A3B, t));
        }
        for model in MODELS {
            let n = (model.heads + 2 * model.kv_heads) * model.head_dim;
            list.add(move |setup| setup.rows(RowOp::AddBias, t, n));
        }
        for Shape { vocab, hidden, .. } in [SMOLLM2_135M, QWEN3_0_6B] {
            for weight_type in [WeightType::Bf16, WeightType::Q8_0] {
                list.add(move |setup| setup.embed(t, vocab, hidden, weight_type));
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
            list.add(move |_| Ok(sample(name, params.clone(), vocab)));
        }
    }
    list.0
}

/// Cases of a GPU, decoding before prefill.
pub fn gpu() -> Vec<Make<Cuda>> {
    let mut list = List(Vec::new());
    let gpt_oss = attention_shape(64, 8, 64);
    let decoding = [(1, 1, 8191), (16, 1, 8191), (64, 1, 1023), (64, 1, 4095), (256, 1, 1023)];
    let prompts = [(1, 2048, 0), (1, 8192, 0), (8, 1024, 0), (1, 2048, 6144)];
    for steps in [&decoding[..], &prompts] {
        for (layer, kv_type) in [
            (("qwen3-8b", QWEN3_8B.attention(), None), KvType::Bf16),
            (("qwen3-8b", QWEN3_8B.attention(), None), KvType::Fp8),
            (("gpt-oss-20b", gpt_oss, None), KvType::Bf16),
            (("gpt-oss-20b-w128", gpt_oss, Some(128)), KvType::Bf16),
            (("qwen3.5-9b", attention_shape(16, 4, 256), None), KvType::Bf16),
        ] {
            for (sequences, rows, context) in steps.iter().copied() {
                let step = Step { sequences, rows, context };
                list.add(move |setup| setup.attention(layer, kv_type, step));
            }
        }
    }
    let Shape { hidden, intermediate, heads, kv_heads, head_dim, .. } = QWEN3_8B;
    for t in [1, 16, 64, 256, 2048, 8192] {
        // Queries, keys and values; gate and up; down.
        let qkv = (heads + 2 * kv_heads) * head_dim;
        for (n, k) in [(qkv, hidden), (2 * intermediate, hidden), (hidden, intermediate)] {
            for weight_type in [WeightType::Bf16, WeightType::F8E4M3] {
                let matmul = Matmul { t, k, n, weight_type };
                list.add(move |setup| setup.matmul("matmul", matmul, false));
            }
        }
    }
    for t in [1, 16, 64, 256, 2048] {
        for (moe, weight_type) in [
            (GPT_OSS_20B, WeightType::Mxfp4),
            (QWEN3_30B_A3B, WeightType::Bf16),
            (QWEN3_30B_A3B, WeightType::F8E4M3),
        ] {
            list.add(move |setup| setup.moe(MoeOp::ExpertMatmul(weight_type), moe, t));
        }
    }
    for (sequences, rows) in [(1, 1), (64, 1), (256, 1), (1, 2048), (8, 1024)] {
        list.add(move |setup| setup.delta_net(QWEN3_NEXT, sequences, rows));
    }
    for t in [256, 8192] {
        list.add(move |setup| setup.rows(RowOp::AddRmsNorm, t, hidden));
        list.add(move |setup| setup.rows(RowOp::SiluMul, t, intermediate));
    }
    list.0
}
