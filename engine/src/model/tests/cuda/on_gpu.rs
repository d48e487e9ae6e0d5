//! The same on a GPU. `cargo xtask gpu-proof` runs these where there is one; the small ones under
//! `compute-sanitizer` too.

use super::*;
use crate::device::cuda::driver::Cubins;
use crate::device::cuda::driver::gpu::Gpu;

/// What kernels for one generation may differ from those for all, beside the logits: their sums have
/// another order.
const VARIANTS: f64 = 0.01;

fn open(portable: bool) -> Arc<dyn Driver> {
    let cubins = Cubins { portable, ..Cubins::of_environment() };
    Gpu::open(0, &cubins).unwrap_or_else(|error| panic!("{error}")) as _
}

/// A checkpoint under `conditions`.
fn check(name: &str, conditions: &[Condition]) {
    let reference = reference(name).expect("REDLINE_FIXTURES names a folder with `conformance`");
    let model = on(open(false), &reference.folder, KvType::Bf16);
    conforms(model, &reference, conditions);
}

#[test]
#[ignore = "needs a GPU"]
fn llama_conforms() {
    check("llama-tied", &CONDITIONS);
}

#[test]
#[ignore = "needs a GPU"]
fn qwen3_dense_conforms() {
    check("qwen3-dense", &CONDITIONS);
}

#[test]
#[ignore = "needs a GPU"]
fn qwen3_moe_conforms() {
    check("qwen3-moe", &CONDITIONS);
}

#[test]
#[ignore = "needs a GPU"]
fn gpt_oss_conforms() {
    check("gpt-oss-mxfp4", &CONDITIONS);
}

#[test]
#[ignore = "needs a GPU"]
fn qwen3_5_conforms() {
    check("qwen3_5-hybrid", &CONDITIONS);
}

/// Of a dense model whose heads and tiles are those that Hopper has kernels of its own for.
const DENSE: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "hidden_size": 512, "intermediate_size": 1024, "head_dim": 128, "num_attention_heads": 8,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1024,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
    "torch_dtype": "bfloat16"}"#;

/// Logits of every tenth position of a prompt of 700 tokens, by random weights of that shape.
fn logits(config: &str, portable: bool) -> Vec<f32> {
    const ROWS: usize = 700;
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
    let checkpoint = Checkpoint::open(&source.files, Some(3)).unwrap();
    let spec = describe(&checkpoint).unwrap();
    let (device, kv) = (Cuda::new(open(portable)), KvType::Bf16);
    let mut model = Decoder::load(device, &checkpoint, &spec, kv, RopePrecision::Bf16).unwrap();
    let pages: Vec<u32> = (0..ROWS.div_ceil(PAGE_TOKENS) as u32).rev().collect();
    model.allocate_kv(pages.len(), PAGE_TOKENS).unwrap();
    let tokens: Vec<u32> = (0..ROWS as u32).map(|i| (i * 29 + 5) % 256).collect();
    let own = segment(ROWS, 0, pages, LogitRows::All);
    let all = model.step(&StepBatch::known(&tokens, vec![own])).unwrap();
    all.chunks_exact(all.len() / ROWS).step_by(10).flatten().copied().collect()
}

#[test]
#[ignore = "needs a GPU"]
fn kernels_of_one_generation_agree_with_those_for_all() {
    for config in [DENSE, FP8_MOE] {
        let difference = relative(&logits(config, false), &logits(config, true));
        assert!(difference < VARIANTS, "{difference}");
    }
}

/// What takes few enough operations for a tool that looks at each.
mod small {
    use super::*;

    #[test]
    #[ignore = "needs a GPU"]
    fn llama_whole_and_batched() {
        super::check("llama-tied", &[Condition::Whole, Condition::Batched]);
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn gpt_oss_whole() {
        super::check("gpt-oss-mxfp4", &[Condition::Whole]);
    }

    #[test]
    #[ignore = "needs a GPU"]
    fn qwen3_5_whole() {
        super::check("qwen3_5-hybrid", &[Condition::Whole]);
    }
}
