//! Benchmark cases that `redline bench --kernels` measures on a GPU, and sizes of published models.

use engine_core::{DeltaNetShape, DeviceError, KvType, WeightType};
use engine_cuda::Cuda;

use super::cases::{Case, Matmul, MoeOp, MoeShape, RowOp, Shape, Step, attention_shape};
use super::setup::{Make, Setup};

/// Name and dimensions of Qwen3-8B.
pub const QWEN3_8B: Shape = Shape {
    model: "qwen3-8b",
    hidden: 4096,
    intermediate: 12_288,
    heads: 32,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
};

/// Dimensions of the mixture-of-experts layers of Qwen3-30B-A3B.
pub const QWEN3_30B_A3B: MoeShape =
    MoeShape { experts: 128, top_k: 8, hidden: 2048, intermediate: 768 };
const GPT_OSS_20B: MoeShape = MoeShape { experts: 32, top_k: 4, hidden: 2880, intermediate: 2880 };
/// Dimensions of the gated-delta-net layers of Qwen3-Next-80B-A3B and of Qwen3.5-9B.
pub const QWEN3_NEXT: DeltaNetShape =
    DeltaNetShape { key_heads: 16, value_heads: 32, key_dim: 128, value_dim: 128, taps: 4 };

/// Adds a benchmark case to a list, as the function that creates it.
pub fn add<D>(
    list: &mut Vec<Make<D>>,
    make: impl Fn(Setup<D>) -> Result<Case, DeviceError> + 'static,
) {
    list.push(Box::new(make));
}

/// Returns the benchmark cases of `redline bench --kernels` in the order in which they are
/// measured; of the cases of attention, those of decoding come before those of prefill.
pub fn gpu() -> Vec<Make<Cuda>> {
    let mut list = Vec::new();
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
                add(&mut list, move |setup| setup.attention(layer, kv_type, step));
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
                add(&mut list, move |setup| setup.matmul("matmul", matmul, false));
            }
        }
    }
    for t in [1, 16, 64, 256, 2048] {
        for (moe, weight_type) in [
            (GPT_OSS_20B, WeightType::Mxfp4),
            (QWEN3_30B_A3B, WeightType::Bf16),
            (QWEN3_30B_A3B, WeightType::F8E4M3),
        ] {
            add(&mut list, move |setup| setup.moe(MoeOp::ExpertMatmul(weight_type), moe, t));
        }
    }
    for (sequences, rows) in [(1, 1), (64, 1), (256, 1), (1, 2048), (8, 1024)] {
        add(&mut list, move |setup| setup.delta_net(QWEN3_NEXT, sequences, rows));
    }
    for t in [256, 8192] {
        add(&mut list, move |setup| setup.rows(RowOp::AddRmsNorm, t, hidden));
        add(&mut list, move |setup| setup.rows(RowOp::SiluMul, t, intermediate));
    }
    list
}
