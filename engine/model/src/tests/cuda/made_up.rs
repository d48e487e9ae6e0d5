//! Tests of random weights that the device generates by itself.

use super::ranks::devices;
use super::*;
use crate::Parallel;
use crate::on_ranks;

/// config.json of a small MoE model with an LM head apart from the embedding.
const CONFIG: &str = r#"{"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
    "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 32, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "num_experts": 4,
    "num_experts_per_tok": 2, "norm_topk_prob": true, "decoder_sparse_step": 1,
    "mlp_only_layers": [0], "vocab_size": 260, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": false,
    "hidden_act": "silu", "attention_bias": false, "torch_dtype": "bfloat16"}"#;

/// config.json of a small model of gpt-oss, whose experts are in MXFP4.
const MXFP4: &str = r#"{"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
    "hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2, "num_local_experts": 8,
    "num_experts_per_tok": 2, "vocab_size": 260, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "tie_word_embeddings": false,
    "hidden_act": "silu", "attention_bias": true, "sliding_window": 16, "swiglu_limit": 7.0,
    "layer_types": ["sliding_attention", "full_attention"], "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4"}}"#;

/// Compares the model of the configuration `config`, with random weights that one emulated GPU and
/// two make, with that on a CPU; loading it takes `launches` launches, one for each run of rows.
fn check(config: &str, launches: [u64; 2]) {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
    let checkpoint = Checkpoint::open(&source.files, Some(3)).unwrap();
    let tokens: Vec<u32> = (0..20).map(|i| (i * 29 + 5) % 260).collect();
    let logits = |model: &mut dyn Model| {
        model.allocate_kv(2, PAGE_TOKENS).unwrap();
        let own = scheduled(tokens.len(), 0, vec![1, 0], LogitRows::All);
        model.step(&StepBatch::known(&tokens, vec![own])).unwrap().to_vec()
    };
    let options = LoadOptions { random_seed: Some(3), ..exact() };
    let mut cpu = load(&source, &options).unwrap().model;
    let want = logits(cpu.as_mut());
    for (ranks, launches) in [1, 2].into_iter().zip(launches) {
        let Some((devices, gpus)) = devices(ranks, true) else { return };
        let load =
            |device| Decoder::load(device, &checkpoint, KvType::Bf16, RopeChoice::AsConverted);
        let mut model = Parallel::new(on_ranks(devices, load).unwrap());
        let made: Vec<u64> = gpus.iter().map(|gpu| gpu.launches()).collect();
        assert_eq!(made, vec![launches; ranks], "each matrix was made by its launches");
        assert_eq!(model.info().parameters, cpu.info().parameters);
        let difference = relative(&logits(&mut model), &want);
        assert!(difference < BOUND, "{ranks} ranks: {difference}");
    }
}

#[test]
fn random_weights_are_made_on_the_device_and_are_those_of_the_cpu() {
    check(CONFIG, [26, 20]);
}

#[test]
fn random_mxfp4_experts_are_made_on_the_device_and_are_those_of_the_cpu() {
    check(MXFP4, [60, 36]);
}
