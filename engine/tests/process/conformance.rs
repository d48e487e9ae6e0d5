//! Compares the server's answers over HTTP with the outputs of reference implementations.

use std::path::Path;

use safetensors::SafeTensors;
use serde_json::{Value, json};

use fixtures::fixture;

use crate::launched::{Launched, command};

/// Flags of the reference path: f32 throughout, with rotary frequencies as the references have
/// them.
const REFERENCE: [&str; 6] = ["--dtype", "f32", "--kv-dtype", "f32", "--max-batch-size", "8"];
/// Largest accepted difference of a log-probability.
const TOLERANCE: f64 = 1e-3;

/// Natural log-probabilities of a row of logits.
fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - largest) - sum.ln()).collect()
}

/// Compares the log-probabilities of a prompt's tokens with the reference's logits `[T, V]`.
fn check_prompt(answer: &Value, prompt: &[u64], logits: &[f32], what: &str) {
    let logprobs = &answer["choices"][0]["logprobs"];
    let vocab = logits.len() / prompt.len();
    for (at, token) in prompt.iter().enumerate() {
        assert_eq!(logprobs["tokens"][at], format!("token_id:{token}"), "{what}");
        if at == 0 {
            assert_eq!(logprobs["token_logprobs"][0], Value::Null, "{what}");
            continue;
        }
        let expected = log_softmax(&logits[(at - 1) * vocab..][..vocab]);
        let close = |found: &Value, expected: f64, whose: &str| {
            let found = found.as_f64().unwrap_or_else(|| panic!("{what}, {at}: {logprobs}"));
            let difference = (found - expected).abs();
            assert!(difference < TOLERANCE, "{what}, position {at}, {whose}: {difference}");
        };
        close(&logprobs["token_logprobs"][at], expected[*token as usize], "chosen");
        for (name, found) in logprobs["top_logprobs"][at].as_object().unwrap() {
            let id: usize = name.strip_prefix("token_id:").unwrap().parse().unwrap();
            close(found, expected[id], name);
        }
    }
}

async fn check(server: &Launched, folder: &Path, name: &str) {
    let read = |file: &str| std::fs::read(folder.join(file)).unwrap();
    let expected: Value = serde_json::from_slice(&read("expected.json")).unwrap();
    let tensors = read("expected.safetensors");
    let tensors = SafeTensors::deserialize(&tensors).unwrap();
    for (i, case) in expected["prompts"].as_array().unwrap().iter().enumerate() {
        let what = format!("{name}, prompt {i}");
        let body = json!({
            "prompt": case["prompt"], "max_tokens": case["greedy"].as_array().unwrap().len(),
            "temperature": 0, "ignore_eos": true, "return_token_ids": true, "logprobs": 0,
        });
        let answer = server.post("/v1/completions", &body).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["token_ids"], case["greedy"], "{what}: {answer}");
        let found = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        for (found, expected) in found.iter().zip(case["greedy_logprobs"].as_array().unwrap()) {
            let difference = (found.as_f64().unwrap() - expected.as_f64().unwrap()).abs();
            assert!(difference < TOLERANCE, "{what}: {difference}");
        }
        // The prompt is in the cache by now, and its log-probabilities must be returned all the
        // same.
        let body = json!({
            "prompt": case["prompt"], "max_tokens": 1, "temperature": 0, "echo": true,
            "logprobs": 5, "return_tokens_as_token_ids": true,
        });
        let answer = server.post("/v1/completions", &body).await;
        let prompt: Vec<u64> =
            case["prompt"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        let logits = tensors.tensor(&format!("prompt{i}.logits")).unwrap();
        let logits: Vec<f32> = logits
            .data()
            .chunks_exact(4)
            .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
            .collect();
        check_prompt(&answer, &prompt, &logits, &what);
    }
}

#[tokio::test]
async fn every_conformance_checkpoint_answers_as_the_reference_did() {
    let folder = fixture("conformance");
    let mut folders: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.sort();
    folders.retain(|folder| folder.join("expected.json").is_file());
    let mut checked = Vec::new();
    for folder in &folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let mut args = vec!["serve", folder.to_str().unwrap(), "--port", "0", "--device", "cpu"];
        args.extend(REFERENCE);
        check(&Launched::spawn(command(&args)), folder, &name).await;
        checked.push(name);
    }
    eprintln!("conform over HTTP: {}", checked.join(", "));
    assert!(checked.iter().any(|name| name == "llama-tied"), "{checked:?}");
}
