//! Tests of tensor parallelism as a process: memory of all ranks, and numbers of heads that do not
//! divide evenly.

use serde_json::{Value, json};

use fixtures::{MODEL, cached};

use crate::launched::Launched;

/// Configuration with the keys of `changes`, small except for its weights.
fn config(architecture: &str, changes: &Value) -> Value {
    let mut config = json!({
        "architectures": [architecture], "hidden_size": 512, "num_hidden_layers": 8,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "intermediate_size": 2048, "vocab_size": 4096, "max_position_embeddings": 64,
        "rope_theta": 10_000.0,
    });
    config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    config
}

/// Memory in bytes of a server with random weights on `tp` ranks.
fn memory_bytes(config: &Value, tp: &str) -> u64 {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let flags = ["--load-format", "random", "--max-batch-size", "1", "--threads", "2", "--tp", tp];
    Launched::serve(folder.path().to_str().unwrap(), &flags).memory_bytes("VmRSS:")
}

#[test]
fn no_rank_holds_the_whole_model() {
    let fp8 = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    for (architecture, changes) in [
        ("LlamaForCausalLM", json!({})),
        ("Qwen3ForCausalLM", json!({"quantization_config": fp8})),
        (
            "Qwen3MoeForCausalLM",
            json!({"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}),
        ),
        ("GptOssForCausalLM", json!({"num_local_experts": 8, "num_experts_per_tok": 2})),
        (
            "Qwen3_5ForConditionalGeneration",
            json!({"linear_num_key_heads": 4, "linear_num_value_heads": 8,
                "linear_key_head_dim": 64, "linear_value_head_dim": 64,
                "linear_conv_kernel_dim": 4, "full_attention_interval": 4}),
        ),
    ] {
        let config = config(architecture, &changes);
        let (one, four) = (memory_bytes(&config, "1"), memory_bytes(&config, "4"));
        eprintln!("{architecture}: {} MiB on one rank, {} MiB on four", one >> 20, four >> 20);
        // If even one of the four ranks held the whole model, the memory would be almost twice as
        // much.
        assert!(2 * four < 3 * one, "{architecture}: {one} bytes on one rank, {four} on four");
    }
}

/// Log-probabilities of a prompt's tokens, without the first.
async fn logprobs(server: &Launched) -> Vec<f64> {
    let prompt = "The capital of France is Paris, and that of Italy is Rome.";
    let body = json!({"prompt": prompt, "max_tokens": 0, "echo": true, "logprobs": 0});
    let answer = server.post("/v1/completions", &body).await;
    let all = answer["choices"][0]["logprobs"]["token_logprobs"].as_array();
    let all = all.unwrap_or_else(|| panic!("{answer}"));
    all[1..].iter().map(|value| value.as_f64().unwrap()).collect()
}

#[tokio::test]
async fn nine_heads_on_two_to_eight_ranks_say_what_they_say_on_one() {
    let Some(model) = cached(MODEL) else { return };
    // f32, because in 8-bit formats each rank has its own scales for its part of a row, which
    // changes rounding.
    let serve = |tp: &str| {
        let flags = ["--tp", tp, "--dtype", "f32", "--kv-dtype", "f32"];
        Launched::serve(model.to_str().unwrap(), &flags)
    };
    let want = logprobs(&serve("1")).await;
    assert!(want.len() > 10);
    for tp in ["2", "8"] {
        let found = logprobs(&serve(tp)).await;
        assert_eq!(found.len(), want.len());
        let worst = found.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        eprintln!("{tp} ranks: {worst:.1e}");
        assert!(worst < 1e-3, "{tp} ranks: log-probabilities differ by {worst}");
    }
}
