//! Tests of conformance on a real GPU, where there is one. `cargo xtask gpu-validation` runs them
//! on such a machine, with `REDLINE_REQUIRE_GPU=1`, by which a missing GPU is a failure; the small
//! ones also run under `compute-sanitizer`.

use super::*;
use engine_cuda::driver::Cubins;
use engine_cuda::driver::gpu::{Gpu, has_nccl};
use engine_cuda::gpus;

/// Largest permitted relative difference of logits between kernels for one GPU generation and
/// portable kernels, whose sums have another order.
const VARIANTS: f64 = 0.01;

/// Returns the driver of the machine's first GPU; none, after printing a note, if there is no GPU.
/// A GPU that cannot be used fails the test.
fn open(portable: bool) -> Option<Arc<dyn Driver>> {
    if gpus().is_empty() {
        fixtures::skip("a GPU", "run it by `cargo xtask gpu-validation`");
        return None;
    }
    let cubins = Cubins { portable, ..Cubins::of_environment(|name| std::env::var(name).ok()) };
    Some(Gpu::open(0, &cubins).unwrap_or_else(|error| panic!("{error}")))
}

/// Checks the test checkpoint `name` on the first GPU under the given conditions.
fn check(name: &str, conditions: &[Condition]) {
    let Some(gpu) = open(false) else { return };
    let reference = reference(name).unwrap_or_else(|| panic!("there is no checkpoint `{name}`"));
    let mut model = on(gpu, &reference.folder, KvType::Bf16);
    conforms(&mut model, &reference, conditions, TIMES);
}

#[test]
fn llama_conforms() {
    check("llama-tied", &CONDITIONS);
}

#[test]
fn qwen3_dense_conforms() {
    check("qwen3-dense", &CONDITIONS);
}

#[test]
fn qwen3_moe_conforms() {
    check("qwen3-moe", &CONDITIONS);
}

#[test]
fn gpt_oss_conforms() {
    check("gpt-oss-mxfp4", &CONDITIONS);
}

#[test]
fn qwen3_5_conforms() {
    check("qwen3_5-hybrid", &CONDITIONS);
}

#[test]
fn phi3_conforms() {
    check("phi3", &CONDITIONS);
}

/// Checks the test checkpoint `name` on `ranks` GPUs connected by NCCL, if the machine has that
/// many and NCCL is installed.
fn check_shared(name: &str, ranks: usize) {
    let reference = reference(name).unwrap_or_else(|| panic!("there is no checkpoint `{name}`"));
    let count = gpus().len();
    if count < ranks || !has_nccl() {
        let missing = if count == 0 { "a GPU" } else { "several GPUs with NCCL" };
        fixtures::skip(missing, &format!("run it on a machine with {ranks} GPUs and NCCL"));
        return;
    }
    let members = Gpu::open_group(ranks, &Cubins::of_environment(|name| std::env::var(name).ok()));
    let members = members.unwrap_or_else(|error| panic!("{error}"));
    let mut model = ranks::shared(&reference.folder, Cuda::group(members).unwrap(), KvType::Bf16);
    conforms(&mut model, &reference, &[Condition::Whole, Condition::Batched], TIMES_SHARED);
}

#[test]
fn one_rank_sums_by_nccl() {
    check_shared("llama-tied", 1);
}

#[test]
fn two_ranks_conform() {
    check_shared("llama-tied", 2);
}

#[test]
fn four_ranks_conform() {
    check_shared("qwen3-moe", 4);
}

/// config.json of a dense model whose head and tile sizes have kernels specific to Hopper.
const DENSE: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "hidden_size": 512, "intermediate_size": 1024, "head_dim": 128, "num_attention_heads": 8,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 1024,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": false,
    "torch_dtype": "bfloat16"}"#;

/// Returns the logits at every tenth position of a prompt of 700 tokens, for a model with random
/// weights and this config.json.
fn logits(config: &str, gpu: Arc<dyn Driver>) -> Vec<f32> {
    const ROWS: usize = 700;
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
    let checkpoint = Checkpoint::open(&source.files, Some(3)).unwrap();
    let (device, kv) = (Cuda::new(gpu), KvType::Bf16);
    let mut model = Decoder::load(device, &checkpoint, kv, RopeChoice::AsConverted).unwrap();
    let pages: Vec<u32> = (0..ROWS.div_ceil(PAGE_TOKENS) as u32).rev().collect();
    model.allocate_kv(pages.len(), PAGE_TOKENS).unwrap();
    let tokens: Vec<u32> = (0..ROWS as u32).map(|i| (i * 29 + 5) % 256).collect();
    let own = scheduled(ROWS, 0, pages, LogitRows::All);
    let all = model.step(&StepBatch::known(&tokens, vec![own])).unwrap();
    all.chunks_exact(all.len() / ROWS).step_by(10).flatten().copied().collect()
}

#[test]
fn kernels_of_one_generation_agree_with_those_for_all() {
    for config in [DENSE, FP8_MOE] {
        let (Some(own), Some(for_all)) = (open(false), open(true)) else { return };
        let difference = relative(&logits(config, own), &logits(config, for_all));
        assert!(difference < VARIANTS, "{difference}");
    }
}

/// Tests on a GPU with few enough operations for a tool that checks every memory access.
mod small {
    use super::*;

    #[test]
    fn llama_whole_and_batched() {
        check("llama-tied", &[Condition::Whole, Condition::Batched]);
    }

    #[test]
    fn gpt_oss_whole() {
        check("gpt-oss-mxfp4", &[Condition::Whole]);
    }

    #[test]
    fn qwen3_5_whole() {
        check("qwen3_5-hybrid", &[Condition::Whole]);
    }
}
