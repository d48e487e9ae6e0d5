//! Tests of conformance on an emulated GPU of compute capability 9.0, whose kernels multiply by
//! warpgroups where others of the same name do not.

use safetensors::tensor::{Dtype, TensorView};

use super::*;
use engine_core::WeightType;
use engine_weights::random_tensor;

/// config.json of a dense model with heads of 128 elements, for which attention has warpgroup
/// kernels: with two query heads per KV head, chunks of more than eight rows use them.
const DENSE: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
    "hidden_size": 128, "intermediate_size": 192, "head_dim": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 256,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false,
    "torch_dtype": "bfloat16"}"#;
const VOCAB: usize = 256;

fn gpu() -> Option<Arc<Emulated>> {
    Emulated::with(MEMORY, Script { has_warpgroups: true, ..Script::default() })
}

/// Writes a checkpoint of [`DENSE`] with random weights to `folder`.
fn write(folder: &Path) {
    let mut shapes = vec![
        ("model.embed_tokens.weight".to_owned(), vec![VOCAB, 128]),
        ("model.norm.weight".to_owned(), vec![128]),
    ];
    for layer in 0..2 {
        for (name, shape) in [
            ("input_layernorm", &[128][..]),
            ("post_attention_layernorm", &[128]),
            ("self_attn.q_norm", &[128]),
            ("self_attn.k_norm", &[128]),
            ("self_attn.q_proj", &[512, 128]),
            ("self_attn.k_proj", &[256, 128]),
            ("self_attn.v_proj", &[256, 128]),
            ("self_attn.o_proj", &[128, 512]),
            ("mlp.gate_proj", &[192, 128]),
            ("mlp.up_proj", &[192, 128]),
            ("mlp.down_proj", &[128, 192]),
        ] {
            shapes.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        }
    }
    let tensors: Vec<_> = shapes
        .into_iter()
        .map(|(name, shape)| {
            let bytes = random_tensor(5, &name, WeightType::Bf16, &shape).bytes;
            (name, shape, bytes)
        })
        .collect();
    let views = tensors.iter().map(|(name, shape, bytes)| {
        (name, TensorView::new(Dtype::BF16, shape.clone(), bytes).unwrap())
    });
    std::fs::write(folder.join("config.json"), DENSE).unwrap();
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
}

#[test]
fn a_dense_model_with_heads_of_128_conforms() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let tokens = |count: usize, seed: usize| {
        (0..count).map(|i| ((i * 29 + seed) % VOCAB) as u32).collect::<Vec<_>>()
    };
    let case = |length: usize| Case {
        prompt: tokens(length, 5),
        greedy: tokens(TOKENS, length),
        logits: Vec::new(),
        vocab: VOCAB,
        is_given: true,
    };
    let cases = PROMPTS.map(case).to_vec();
    let name = "dense, heads of 128".to_owned();
    let reference = Reference { name, folder: folder.path().to_owned(), cases };
    let Some(gpu) = gpu() else { return };
    conforms_on(gpu, &reference, &CONDITIONS);
}

#[test]
fn gpt_oss_conforms() {
    let Some(reference) = reference("gpt-oss-mxfp4") else { return };
    let Some(gpu) = gpu() else { return };
    conforms_on(gpu, &reference, &CONDITIONS);
}
