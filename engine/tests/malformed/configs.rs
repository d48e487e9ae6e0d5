//! Every key of a `config.json` with invalid or extreme values: either the model loads, or one
//! error names the file at fault.

use std::fs;

use engine::load::{LoadOptions, load};
use engine_core::{LogitRows, ScheduledSequence, StateSlots, StepBatch};
use engine_model::Model;
use engine_weights::ModelSource;
use serde_json::{Value, json};

/// Small configuration of each architecture, with every meaningful key written out.
fn configs() -> Vec<Value> {
    let with = |architecture: &str, more: Value| {
        let mut config = json!({
            "architectures": [architecture], "hidden_size": 32, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "intermediate_size": 32, "vocab_size": 24, "max_position_embeddings": 64,
            "rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
            "hidden_act": "silu", "rope_scaling": null, "quantization_config": null,
        });
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        config
    };
    let window = json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"], "attention_bias": true});
    let llama3 = json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}});
    let experts = json!({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
        "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [0]});
    let oss = json!({"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8,
        "swiglu_limit": 7.0, "rope_scaling": {"rope_type": "yarn", "factor": 32.0,
        "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 16}});
    let hybrid = json!({"linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2, "partial_rotary_factor": 0.5});
    vec![
        with("LlamaForCausalLM", llama3),
        with("Qwen2ForCausalLM", window.clone()),
        with("Qwen3ForCausalLM", window),
        with("Qwen3MoeForCausalLM", experts),
        with("GptOssForCausalLM", oss),
        with("Qwen3_5ForConditionalGeneration", hybrid),
    ]
}

/// Values that no key should have. 2^44 is a size that exceeds any machine's memory.
fn odd_values() -> Vec<Value> {
    let numbers = [json!(-1), json!(0), json!(1), json!(3), json!(0.5), json!(1e-40), json!(1e300)];
    let sizes = [json!(1u64 << 44), json!(u64::MAX), json!(i64::MIN)];
    let others = [json!(null), json!(true), json!("x"), json!([]), json!([0, "x"]), json!({})];
    [&numbers[..], &sizes, &others].concat()
}

/// `config` with each of its keys, and each key one level down, replaced by `value`.
fn changed(config: &Value, value: &Value) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for (key, old) in config.as_object().unwrap() {
        let mut one = config.clone();
        one[key] = value.clone();
        all.push((key.clone(), one));
        for inner in old.as_object().into_iter().flatten().map(|(inner, _)| inner) {
            let mut one = config.clone();
            one[key][inner] = value.clone();
            all.push((format!("{key}.{inner}"), one));
        }
    }
    all
}

/// Computes a few tokens; any result or error is accepted, but no panic.
fn run(model: &mut dyn Model) {
    let allocated = model.allocate_kv(1, 16).and_then(|()| model.allocate_states(1));
    let state = Some(StateSlots { slot: 0, load: None, save: None });
    let (pages, logits) = ([0].into(), LogitRows::All);
    let sequences = vec![ScheduledSequence { row: 0, rows: 3, position: 0, pages, logits, state }];
    let _ = allocated
        .and_then(|()| model.step(&StepBatch::known(&[0; 3], sequences)).map(<[f32]>::len));
}

#[test]
fn odd_configurations_load_or_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let options =
        LoadOptions { random_seed: Some(1), threads: 1.try_into().ok(), ..LoadOptions::default() };
    let (mut loaded, mut refused) = (0, 0);
    for config in configs() {
        let plain = [("nothing".to_owned(), config.clone())];
        let odd = odd_values().into_iter().flat_map(|value| changed(&config, &value));
        for (key, config) in plain.into_iter().chain(odd) {
            fs::write(&path, config.to_string()).unwrap();
            let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
            match load(&source, &options) {
                Ok(mut one) => {
                    run(one.model.as_mut());
                    loaded += 1;
                }
                Err(error) => {
                    assert_ne!(key, "nothing", "{error}");
                    let folder = folder.path().to_str().unwrap();
                    assert!(error.to_string().contains(folder), "{key}: {error} names no file");
                    refused += 1;
                }
            }
        }
    }
    eprintln!("{loaded} load, {refused} are refused");
    assert!(loaded > 100 && refused > 100, "{loaded} load, {refused} are refused");
}
