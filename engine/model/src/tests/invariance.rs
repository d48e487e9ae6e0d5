//! Tests of batch invariance: a sequence's results have the same bits in prefill chunks of any size
//! and whatever shares its steps, for every architecture and for shapes that no published
//! checkpoint has.

use serde_json::json;

use super::conformance::references;
use super::*;

/// Number of tokens of the sequence whose batch invariance is tested.
const LEN: u32 = 75;
/// Number of other sequences that share the batch with the tested sequence.
const OTHERS: u32 = 64;
const OTHER_PAGES: u32 = 2;

/// Runs the tokens of one sequence in prefill chunks of `chunk` tokens and returns the logits of
/// all positions.
fn chunked(model: &mut dyn Model, tokens: &[u32], chunk: usize, pages: &[u32]) -> Vec<f32> {
    let mut logits = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let sequences = vec![scheduled(part.len(), i * chunk, pages.to_vec(), LogitRows::All)];
        let batch = StepBatch::known(part, sequences);
        logits.extend_from_slice(model.step(&batch).unwrap());
    }
    logits
}

/// Checks that the model gives a sequence the same logits, bit by bit, alone, in prefill chunks,
/// and in a batch with 64 other sequences.
fn check(model: &mut dyn Model, what: &str) {
    let vocab = model.info().vocab_size;
    let text =
        |len: u32, step: u32| (0..len).map(|i| (7 + i * step) % vocab as u32).collect::<Vec<_>>();
    let first = OTHERS * OTHER_PAGES;
    let pages: Vec<u32> = (first..first + LEN.div_ceil(PAGE_TOKENS as u32)).collect();
    model.allocate_kv(first as usize + pages.len(), PAGE_TOKENS).unwrap();
    model.allocate_states(first as usize + pages.len()).unwrap();
    let tokens = text(LEN, 13);
    let alone = chunked(model, &tokens, tokens.len(), &pages);
    assert!(alone.iter().all(|x| x.is_finite()), "{what}: logits are numbers");
    assert!(alone.iter().any(|x| *x != alone[0]), "{what}: logits differ");
    for chunk in [1, 5, 16, 64] {
        assert!(chunked(model, &tokens, chunk, &pages) == alone, "{what}: chunks of {chunk}");
    }
    // The sequence runs in two chunks, each among others of other lengths and phases.
    let mut together = Vec::new();
    for part in [0..33, 33..LEN as usize] {
        let mut batch = StepBatch::default();
        for other in 0..OTHERS {
            if other == OTHERS / 2 {
                batch.tokens.extend(tokens[part.clone()].iter().copied().map(StepToken::Known));
                let own = scheduled(part.len(), part.start, pages.clone(), LogitRows::All);
                batch.push(own);
            }
            let len = 1 + other % 20;
            batch.tokens.extend(text(len, 5 + other).into_iter().map(StepToken::Known));
            let own = (other * OTHER_PAGES..(other + 1) * OTHER_PAGES).collect();
            batch.push(scheduled(len as usize, 0, own, LogitRows::None));
        }
        together.extend_from_slice(model.step(&batch).unwrap());
    }
    assert!(together == alone, "{what}: among {OTHERS} others");
}

#[test]
fn logits_have_the_same_bits_whatever_shares_the_step() {
    for reference in references() {
        for kv in [KvType::F32, KvType::F16] {
            for isa in Isa::detected() {
                let options = LoadOptions { kv, isa: Some(isa), ..LoadOptions::default() };
                let mut loaded = load_path(&reference.folder, &options);
                let what = format!("{} {kv:?} {}", reference.name, isa.name());
                check(loaded.model.as_mut(), &what);
            }
        }
        for arithmetic in [Arithmetic::Int8, Arithmetic::Bf16] {
            let options = LoadOptions { arithmetic, ..LoadOptions::default() };
            let mut loaded = load_path(&reference.folder, &options);
            check(loaded.model.as_mut(), &format!("{} {arithmetic:?}", reference.name));
        }
    }
    if let Some(path) = fixtures::cached(fixtures::MODEL) {
        for kv in [KvType::F32, KvType::F16] {
            let mut loaded = load_path(&path, &LoadOptions { kv, ..LoadOptions::default() });
            check(loaded.model.as_mut(), &format!("SmolLM2 {kv:?}"));
        }
    }
}

/// Returns the config.json of a small model of `architecture`, with the keys in `changes` set.
fn config(architecture: &str, changes: &Value) -> Value {
    let mut config = json!({
        "architectures": [architecture], "hidden_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "intermediate_size": 96, "vocab_size": 101, "max_position_embeddings": 256,
        "rope_theta": 10_000.0,
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// Loads a model with random weights in the shapes of the config.json `config`.
fn load_random(config: &Value) -> Result<Loaded, LoadError> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let source = ModelSource::find(folder.path().to_str().unwrap(), None).unwrap();
    load(&source, &LoadOptions { random_seed: Some(1), ..LoadOptions::default() })
}

/// Returns the error message with which the loader refuses a small model of `architecture` whose
/// config.json has the keys in `changes`.
pub fn refusal(architecture: &str, changes: &Value) -> String {
    load_random(&config(architecture, changes)).unwrap_err().to_string()
}

/// Returns the names and config.json contents of valid models that mix attention and gated
/// DeltaNet.
fn hybrid_shapes() -> Vec<(&'static str, Value)> {
    let hybrid = |more: Value| {
        let mut hybrid = json!({
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
            "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
        });
        hybrid.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        hybrid
    };
    let qwen3_5 = "Qwen3_5ForConditionalGeneration";
    let kinds = ["full_attention", "linear_attention", "full_attention"];
    vec![
        (qwen3_5, hybrid(json!({ "full_attention_interval": 2, "linear_conv_kernel_dim": 2 }))),
        (
            qwen3_5,
            hybrid(json!({ "layer_types": kinds, "linear_num_key_heads": 3,
                "linear_num_value_heads": 3, "linear_value_head_dim": 20,
                "linear_key_head_dim": 24, "attention_bias": true,
                "rope_parameters": { "rope_theta": 1e6, "partial_rotary_factor": 0.5 } })),
        ),
    ]
}

/// Returns the names and config.json contents of valid models in shapes that no published model
/// has.
fn shapes() -> Vec<(&'static str, Value)> {
    let moe = |more: Value| {
        let mut moe = json!({
            "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40,
            "norm_topk_prob": true,
        });
        moe.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        moe
    };
    let oss = |more: Value| {
        let mut oss = json!({ "num_local_experts": 5, "num_experts_per_tok": 3 });
        oss.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        oss
    };
    vec![
        ("LlamaForCausalLM", json!({ "attention_bias": true, "mlp_bias": true })),
        (
            "LlamaForCausalLM",
            json!({ "num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 24 }),
        ),
        (
            "LlamaForCausalLM",
            json!({ "head_dim": 256, "rope_scaling": { "rope_type": "llama3", "factor": 8.0,
                "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64 } }),
        ),
        ("Qwen2ForCausalLM", json!({ "hidden_size": 72, "tie_word_embeddings": true })),
        (
            "Qwen2ForCausalLM",
            json!({ "use_sliding_window": true, "sliding_window": 10, "max_window_layers": 1,
                "rope_scaling": { "type": "yarn", "factor": 4.0,
                    "original_max_position_embeddings": 64 } }),
        ),
        ("Qwen3ForCausalLM", json!({ "head_dim": 128, "num_attention_heads": 6 })),
        (
            "Qwen3ForCausalLM",
            json!({ "attention_bias": true, "use_sliding_window": true, "sliding_window": 33,
                "layer_types": ["full_attention", "sliding_attention", "full_attention"],
                "rope_parameters": { "rope_theta": 1e6, "partial_rotary_factor": 0.5 } }),
        ),
        ("Qwen3MoeForCausalLM", moe(json!({ "decoder_sparse_step": 2 }))),
        ("Qwen3MoeForCausalLM", moe(json!({ "norm_topk_prob": false, "mlp_only_layers": [1] }))),
        (
            "Qwen3MoeForCausalLM",
            moe(json!({ "head_dim": 64, "num_attention_heads": 5, "num_key_value_heads": 5,
                "num_experts_per_tok": 5, "use_sliding_window": true, "sliding_window": 1 })),
        ),
        (
            "Gemma3ForCausalLM",
            json!({ "sliding_window": 9, "sliding_window_pattern": 3, "attention_bias": true,
                "query_pre_attn_scalar": 20, "head_dim": 48 }),
        ),
        (
            "Phi3ForCausalLM",
            json!({ "sliding_window": 20, "partial_rotary_factor": 0.5, "num_key_value_heads": 1,
                "tie_word_embeddings": true }),
        ),
        ("GptOssForCausalLM", oss(json!({}))),
        ("GptOssForCausalLM", oss(json!({ "sliding_window": 5, "num_experts_per_tok": 1 }))),
        (
            "GptOssForCausalLM",
            oss(json!({ "head_dim": 64, "num_attention_heads": 8, "num_key_value_heads": 1,
                "sliding_window": 70, "attention_bias": false, "layer_types":
                ["full_attention", "full_attention", "sliding_attention"],
                "rope_scaling": { "rope_type": "yarn", "factor": 32.0, "truncate": false,
                    "original_max_position_embeddings": 64 } })),
        ),
    ]
}

#[test]
fn shapes_that_nobody_published_are_invariant_too() {
    for (architecture, changes) in [shapes(), hybrid_shapes()].concat() {
        let what = format!("{architecture} {changes}");
        let mut loaded = load_random(&config(architecture, &changes))
            .unwrap_or_else(|err| panic!("{what}: {err}"));
        check(loaded.model.as_mut(), &what);
    }
}

/// Returns the logits of 40 tokens of a model with random weights in the shapes of `config`.
fn first_logits(config: &Value) -> Vec<f32> {
    let mut loaded = load_random(config).unwrap();
    loaded.model.allocate_kv(3, PAGE_TOKENS).unwrap();
    loaded.model.allocate_states(3).unwrap();
    let tokens: Vec<u32> = (0..40).collect();
    chunked(loaded.model.as_mut(), &tokens, 40, &[0, 1, 2])
}

#[test]
fn older_and_newer_settings_of_gemma_are_the_same_model() {
    let base = |rope_keys: Value| {
        let mut changes = json!({ "sliding_window": 16 });
        changes.as_object_mut().unwrap().extend(rope_keys.as_object().unwrap().clone());
        let mut config = config("Gemma3ForCausalLM", &changes);
        config
            .as_object_mut()
            .unwrap()
            .retain(|key, _| changes.get(key).is_some() || key != "rope_theta");
        config
    };
    let older = base(json!({ "rope_theta": 5e5, "rope_local_base_freq": 2e3,
        "rope_scaling": { "rope_type": "linear", "factor": 4.0 }, "sliding_window_pattern": 2 }));
    let newer = base(json!({
        "rope_parameters": {
            "full_attention": { "rope_type": "linear", "factor": 4.0, "rope_theta": 5e5 },
            "sliding_attention": { "rope_type": "default", "rope_theta": 2e3 },
        },
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    }));
    let logits = first_logits(&older);
    assert!(logits == first_logits(&newer));
    // Without these keys the bases are those of the published models.
    let defaults = json!({ "rope_theta": 1e6, "rope_local_base_freq": 1e4 });
    assert!(first_logits(&base(json!({}))) == first_logits(&base(defaults)));
    assert!(logits != first_logits(&base(json!({ "sliding_window_pattern": 2 }))));
}

#[test]
fn settings_change_what_a_model_computes() {
    let mut compared = 0;
    for (architecture, changes) in [shapes(), hybrid_shapes()].concat() {
        let plain = config(architecture, &changes);
        for (key, value) in [
            ("sliding_window", json!(3)),
            ("norm_topk_prob", json!(false)),
            ("decoder_sparse_step", json!(3)),
            ("swiglu_limit", json!(0.001)),
            ("rms_norm_eps", json!(0.5)),
        ] {
            let is_read = plain.get(key).is_some_and(|old| !old.is_null())
                || key == "rms_norm_eps"
                || (key == "swiglu_limit" && architecture == "GptOssForCausalLM");
            let mut changed = plain.clone();
            changed[key] = value;
            if !is_read || changed == plain {
                continue;
            }
            let differs = first_logits(&plain) != first_logits(&changed);
            assert!(differs, "{architecture} {changes}: {key} changes nothing");
            compared += 1;
        }
    }
    assert!(compared > 20, "{compared} settings were changed");
}

#[test]
fn settings_that_do_not_fit_name_their_key() {
    let moe = json!({ "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32 });
    let oss = json!({ "num_local_experts": 4, "num_experts_per_tok": 2 });
    let yarn = |more: Value| {
        let mut yarn = json!({ "rope_type": "yarn", "factor": 4.0,
            "original_max_position_embeddings": 64 });
        yarn.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        yarn
    };
    let cases = [
        ("LlamaForCausalLM", json!({}), "hidden_act", json!("gelu"), "`gelu` is not supported"),
        ("LlamaForCausalLM", json!({}), "attention_bias", json!(3), "3 is neither true nor false"),
        ("LlamaForCausalLM", json!({}), "num_local_experts", json!(8), "are not supported"),
        (
            "LlamaForCausalLM",
            json!({}),
            "partial_rotary_factor",
            json!(1.5),
            "is not an even number of dimensions",
        ),
        ("Qwen3MoeForCausalLM", moe.clone(), "num_experts", Value::Null, "the key is missing"),
        ("Qwen3MoeForCausalLM", moe.clone(), "num_experts_per_tok", json!(5), "5 of 4 experts"),
        ("Qwen3MoeForCausalLM", moe, "mlp_only_layers", json!([-1]), "not a list of layers"),
        ("GptOssForCausalLM", oss.clone(), "num_experts_per_tok", json!(9), "9 of 4 experts"),
        ("GptOssForCausalLM", oss.clone(), "sliding_window", json!(0), "0 is out of range"),
        ("GptOssForCausalLM", oss.clone(), "layer_types", json!(["full_attention"]), "3 layers"),
        ("GptOssForCausalLM", oss.clone(), "intermediate_size", json!(40), "whole blocks of 32"),
        (
            "GptOssForCausalLM",
            oss.clone(),
            "rope_scaling",
            yarn(json!({ "truncate": "no" })),
            "\"no\" is neither true nor false",
        ),
        ("GptOssForCausalLM", oss, "rope_scaling", yarn(json!({ "mscale": 1 })), "not supported"),
    ];
    for (architecture, changes, key, value, want) in cases {
        let mut changes = changes;
        changes[key] = value;
        let message = refusal(architecture, &changes);
        assert!(message.contains(want), "{architecture} {key}: {message} should say: {want}");
    }
}
