//! Tests of the binary with speculative decoding: the output is the same, in fewer steps.

use serde_json::{Value, json};

use crate::launched::{Launched, end_of, tiny_model};

const NGRAM: [&str; 2] = ["--speculative-algorithm", "ngram"];

/// Returns the choices of two greedy and two sampled completions of prompts that repeat themselves,
/// asked one after another and together.
async fn choices(server: &Launched) -> Vec<Value> {
    let mut choices = Vec::new();
    for (temperature, n) in [(0.0, 1), (0.2, 1), (0.2, 3)] {
        for prompt in ["the rain in the sun and the rain in the sun ", "one two one two one two "] {
            let body = json!({
                "model": "tiny", "prompt": prompt, "max_tokens": 100, "temperature": temperature,
                "seed": 5, "n": n, "ignore_eos": true, "return_token_ids": true,
                "stop": ["no such text"],
            });
            let mut answer = server.post("/v1/completions", &body).await;
            assert_eq!(answer["usage"]["completion_tokens"], 100 * n, "{answer}");
            choices.push(answer["choices"].take());
        }
    }
    choices
}

#[tokio::test]
async fn drafts_change_the_speed_and_no_token() {
    let model = tiny_model();
    let path = model.path().to_str().unwrap();
    let names = ["draft", "accepted"].map(|kind| format!("redline_spec_decode_num_{kind}_tokens"));
    let plain = Launched::serve(path, &["--model-name", "tiny"]);
    let want = choices(&plain).await;
    assert_eq!(plain.metric(&names[0]).await, 0.0);
    let drafting = Launched::serve(path, &[&["--model-name", "tiny"], &NGRAM[..]].concat());
    assert_eq!(choices(&drafting).await, want);
    let [drafts, accepted] = [drafting.metric(&names[0]).await, drafting.metric(&names[1]).await];
    assert!(0.0 < accepted && accepted <= drafts, "{accepted} of {drafts}");
    // A right draft saves the step in which its token would have been sampled.
    let steps = "redline_step_tokens_count";
    assert!(drafting.metric(steps).await < plain.metric(steps).await);
}

#[test]
fn a_recurrent_state_cannot_be_taken_back() {
    let folders = fixtures::checkpoints();
    let folder = folders.iter().find(|path| path.ends_with("qwen3_5-hybrid")).unwrap();
    let args = ["serve", folder.to_str().unwrap(), "--port", "0", "--device", "cpu"];
    let (code, said) = end_of(&[&args[..], &NGRAM[..]].concat());
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("not supported for models with recurrent state"), "{said}");
}
