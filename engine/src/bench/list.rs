//! Benchmark cases that `redline bench --kernels` measures on a GPU, and sizes of published models.

use engine_core::{DeltaNetShape, DeviceError, Gate, KvType, WeightType};
use engine_cuda::Cuda;

use super::cases::{Case, Matmul, MoeOp, MoeShape, RowOp, Shape, Step, attention_shape};
use super::setup::{Make, OWN_MATMUL, SCORES, Setup, rotation};

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

/// Returns the cases that `redline bench --kernels --check` adds to those of [`gpu`]: operations and
/// sizes that are correct or wrong, but not worth measuring every time.
pub fn checks() -> Vec<Make<Cuda>> {
    let mut list = Vec::new();
    check_matmuls(&mut list);
    check_attention(&mut list);
    check_experts(&mut list);
    for (t, n) in [(1, 4096), (3, 2880), (1280, 8192)] {
        for op in RowOp::ALL {
            add(&mut list, move |setup| setup.rows(op, t, n));
        }
    }
    for t in [1, 1280] {
        add(&mut list, move |setup| setup.embed(t, 151_936, 4096, WeightType::Bf16));
    }
    for (sequences, rows) in [(3, 100), (1, 8192)] {
        add(&mut list, move |setup| setup.delta_net(QWEN3_NEXT, sequences, rows));
    }
    add(&mut list, |setup| setup.delta_net_snapshots(QWEN3_NEXT, &[[64, 1]]));
    add(&mut list, |setup| setup.delta_net_snapshots(QWEN3_NEXT, &[[2, 1000], [60, 1]]));
    for sequences in [1, 7, 64] {
        for is_greedy in [true, false] {
            add(&mut list, move |setup| setup.sample(sequences, 151_936, is_greedy));
        }
    }
    list
}

fn check_matmuls(list: &mut Vec<Make<Cuda>>) {
    let (bf16, e4m3) = (WeightType::Bf16, WeightType::F8E4M3);
    for t in [1, 8, 15, 16, 17, 33, 127, 128, 129, 1280] {
        // The last two have columns that are padded, and a contraction that is no multiple of a
        // tile.
        for (n, k, weight_type) in [
            (12_288, 4096, bf16),
            (12_288, 4096, e4m3),
            (4096, 12_288, bf16),
            (4096, 12_288, e4m3),
            (5120, 2880, bf16),
            (1155, 584, bf16),
            (1160, 592, e4m3),
        ] {
            let matmul = Matmul { t, k, n, weight_type };
            add(list, move |setup| setup.matmul(OWN_MATMUL, matmul, false));
        }
    }
    for (t, n, k) in [(1, 151_936, 4096), (64, 151_936, 4096), (256, 128, 2048), (2048, 32, 2880)] {
        let matmul = Matmul { t, k, n, weight_type: bf16 };
        add(list, move |setup| setup.matmul(SCORES, matmul, false));
    }
}

fn check_attention(list: &mut Vec<Make<Cuda>>) {
    let steps = [
        (1, 1, 0),
        (3, 1, 64),
        (1, 1, 32_767),
        (4, 1, 32_767),
        (1280, 1, 127),
        (3, 100, 77),
        (1, 1024, 31_744),
    ];
    for (sequences, rows, context) in steps {
        for (label, heads, kv_heads, head_dim, window, kv_type) in [
            ("gpt-oss-20b", 64, 8, 64, None, KvType::Bf16),
            ("gpt-oss-20b-w128", 64, 8, 64, Some(128), KvType::Bf16),
            ("gpt-oss-20b", 64, 8, 64, None, KvType::Fp8),
            ("qwen3-8b", 32, 8, 128, None, KvType::Bf16),
            ("qwen3-8b", 32, 8, 128, None, KvType::Fp8),
            ("qwen3-8b-w4096", 32, 8, 128, Some(4096), KvType::Fp8),
            ("qwen3.5-9b", 16, 4, 256, None, KvType::Bf16),
            ("qwen3.5-9b", 16, 4, 256, None, KvType::Fp8),
        ] {
            let (step, shape) =
                (Step { sequences, rows, context }, attention_shape(heads, kv_heads, head_dim));
            add(list, move |setup| setup.attention((label, shape, window), kv_type, step));
        }
    }
    // Steps of prompts and decoding.
    let decoding = Step { sequences: 60, rows: 1, context: 3000 };
    let prompts = Step { sequences: 2, rows: 1000, context: 1500 };
    for (label, shape, kv_type) in [
        ("gpt-oss-20b", attention_shape(64, 8, 64), KvType::Bf16),
        ("qwen3-8b", QWEN3_8B.attention(), KvType::Bf16),
        ("qwen3-8b", QWEN3_8B.attention(), KvType::Fp8),
        ("qwen3.5-9b", attention_shape(16, 4, 256), KvType::Bf16),
    ] {
        let layer = (label, shape, None);
        add(list, move |setup| setup.attention_of(layer, kv_type, &[prompts, decoding]));
    }
    check_rope(list);
}

fn check_rope(list: &mut Vec<Make<Cuda>>) {
    for (label, heads, kv_heads, head_dim, rotated, factor) in [
        // YaRN scales attention by this factor.
        ("gpt-oss-20b", 64, 8, 64, 64, 1.346_573_6),
        ("qwen3-8b", 32, 8, 128, 128, 1.0),
        ("qwen3.5-9b", 16, 4, 256, 64, 1.0),
    ] {
        let layer = (label, attention_shape(heads, kv_heads, head_dim), label == "qwen3-8b");
        for kv_type in [KvType::Bf16, KvType::Fp8] {
            for (sequences, rows, context) in [(1, 1, 32_767), (100, 1, 1000), (2, 1280, 5)] {
                let step = Step { sequences, rows, context };
                add(list, move |setup| {
                    let rotation = rotation(head_dim, rotated, factor);
                    setup.rope_of_step(layer, rotation, kv_type, step)
                });
            }
        }
    }
}

fn check_experts(list: &mut Vec<Make<Cuda>>) {
    let types = [WeightType::Bf16, WeightType::F8E4M3, WeightType::Mxfp4];
    let down =
        |moe: MoeShape| MoeShape { hidden: moe.intermediate, intermediate: moe.hidden / 2, ..moe };
    for t in [1, 16, 64, 511, 4096] {
        add(list, move |setup| setup.moe(MoeOp::SkewedExpertMatmul(types[2]), GPT_OSS_20B, t));
        add(list, move |setup| setup.moe(MoeOp::ExpertMatmul(types[2]), down(GPT_OSS_20B), t));
        for weight_type in types {
            let op = MoeOp::SkewedExpertMatmul(weight_type);
            add(list, move |setup| setup.moe(op, QWEN3_30B_A3B, t));
            let op = MoeOp::ExpertMatmul(weight_type);
            add(list, move |setup| setup.moe(op, down(QWEN3_30B_A3B), t));
        }
        for op in [MoeOp::Dispatch, MoeOp::Combine] {
            for moe in [GPT_OSS_20B, QWEN3_30B_A3B] {
                add(list, move |setup| setup.moe(op, moe, t));
            }
        }
        for (gate, moe) in [
            (Gate::TopSoftmax, GPT_OSS_20B),
            (Gate::SoftmaxTop { normalized: true }, QWEN3_30B_A3B),
            (Gate::SoftmaxTop { normalized: false }, QWEN3_30B_A3B),
        ] {
            add(list, move |setup| setup.moe(MoeOp::Route(gate), moe, t));
        }
    }
}
