//! Tests with real checkpoints, loaded by the binary and queried over HTTP.

use serde_json::{Value, json};

use fixtures::{MODEL, cached, fixture};

use crate::launched::{Launched, post};

/// Smallest margin between the two largest logits at which the reference's own rounding cannot
/// change the greedy token.
const SAFE_MARGIN: f64 = 0.35;

fn ids(answer: &Value) -> Vec<u64> {
    let ids = answer["choices"][0]["token_ids"].as_array();
    ids.unwrap_or_else(|| panic!("{answer}")).iter().map(|id| id.as_u64().unwrap()).collect()
}

fn greedy(prompt: &Value, max_tokens: usize) -> Value {
    json!({
        "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true,
    })
}

#[tokio::test]
async fn server_info_says_what_is_served() {
    let model = fixture("conformance/llama-tied");
    let flags = ["--max-batch-size", "4", "--max-seq-len", "64", "--cache-max-entry-count", "32"];
    let server = Launched::serve(model.to_str().unwrap(), &flags);
    let info = server.get("/server_info").await;
    assert_eq!(info["engine"], "redline");
    assert_eq!(info["config"]["max-batch-size"], json!({"value": 4, "source": "flag"}));
    assert_eq!(info["config"]["model-name"], json!({"value": "llama-tied", "source": "model"}));
    assert_eq!(info["kv"]["pages"], 32);
    assert_eq!(info["kv"]["page_tokens"], 16);
    assert_eq!(info["model"]["weights"], "real");
    for digest in [&info["config_sha256"], &info["model"]["weights_sha256"]] {
        assert_eq!(digest.as_str().unwrap().len(), 64, "{info}");
    }
    assert!(info["startup_us"].as_u64().unwrap() >= info["weights_load_us"].as_u64().unwrap());
    let models = server.get("/v1/models").await;
    assert_eq!(models["data"][0]["max_model_len"], 64);
}

#[tokio::test]
async fn random_weights_are_the_same_at_each_launch() {
    let model = fixture("conformance/llama-tied");
    let ask = async |flags: &[&str]| {
        let server = Launched::serve(model.to_str().unwrap(), flags);
        let weights = server.get("/server_info").await["model"]["weights"].clone();
        (weights, ids(&server.post("/v1/completions", &greedy(&json!([1, 2, 3]), 12)).await))
    };
    let random = ask(&["--load-format", "random"]).await;
    assert_eq!(random.0, "random");
    assert_eq!(random, ask(&["--load-format", "random"]).await);
    assert_ne!(random.1, ask(&[]).await.1);
}

#[tokio::test]
async fn golden_prompts_continue_as_the_reference_did() {
    let Some(model) = cached(MODEL) else { return };
    let golden = fixture("golden/smollm2-llama-cpp.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let server = Launched::serve(model.to_str().unwrap(), &["--max-batch-size", "8"]);
    let mut compared = 0;
    for case in golden["cases"].as_array().unwrap() {
        if let Some(text) = case["text"].as_str() {
            let tokens = server.post("/tokenize", &json!({"prompt": text})).await;
            assert_eq!(tokens["tokens"], case["prompt"], "{text}");
        }
        let answer = server.post("/v1/completions", &greedy(&case["prompt"], 8)).await;
        let reference =
            case["greedy"].as_array().unwrap().iter().zip(case["margin"].as_array().unwrap());
        for (found, (wanted, margin)) in ids(&answer).into_iter().zip(reference) {
            if margin.as_f64().is_none_or(|margin| margin < SAFE_MARGIN) {
                break;
            }
            assert_eq!(found, wanted.as_u64().unwrap(), "{case}");
            compared += 1;
        }
    }
    assert!(compared > 40, "only {compared} tokens had a margin");
}

#[tokio::test]
async fn an_answer_is_the_same_alone_in_company_and_from_the_cache() {
    let Some(model) = cached(MODEL) else { return };
    let server = Launched::serve(model.to_str().unwrap(), &["--max-batch-size", "16"]);
    let body = |i: usize| {
        let text = "It was a dark and stormy night, and the rain fell in torrents. ".repeat(1 + i);
        greedy(&json!(format!("{text}Guest {i} said:")), 24)
    };
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..6 {
        let (url, body) = (format!("{}/v1/completions", server.url), body(i));
        tasks.spawn(async move { (i, post(&url, &body).await) });
    }
    for (i, together) in tasks.join_all().await {
        let cached = server.post("/v1/completions", &body(i)).await;
        assert!(cached["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() >= Some(16));
        server.post("/reset_prefix_cache", &json!({})).await;
        let alone = server.post("/v1/completions", &body(i)).await;
        assert_eq!(alone["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        assert_eq!(ids(&together), ids(&alone), "prompt {i} in company");
        assert_eq!(ids(&cached), ids(&alone), "prompt {i} from the cache");
    }
}

#[tokio::test]
async fn a_chat_is_answered_in_words() {
    let Some(model) = cached(MODEL) else { return };
    let server = Launched::serve(model.to_str().unwrap(), &["--model-name", "smol"]);
    let body = json!({
        "model": "smol", "temperature": 0, "max_completion_tokens": 60,
        "messages": [{"role": "user", "content": "What is the capital of France? One word."}],
    });
    let answer = server.post("/v1/chat/completions", &body).await;
    let choice = &answer["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().contains("Paris"), "{answer}");
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
}
