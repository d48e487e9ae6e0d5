//! Tests of `echo`: prompts that are returned with their log-probabilities.

use serde_json::{Value, json};

use crate::harness::{Running, Setup, start};

const PATH: &str = "/v1/completions";

/// Log-probability of the likeliest token, and of any other, in a softmax of one logit of 9 among
/// 257 zeros.
const LIKELY: f64 = -0.031_222;
const UNLIKELY: f64 = LIKELY - 9.0;

fn check(value: &Value, expected: &[Option<f64>]) {
    let found = value["token_logprobs"].as_array().unwrap_or_else(|| panic!("{value}"));
    assert_eq!(found.len(), expected.len(), "{value}");
    for (found, expected) in found.iter().zip(expected) {
        match expected {
            None => assert_eq!(found, &Value::Null),
            Some(expected) => {
                let found = found.as_f64().unwrap();
                assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
            }
        }
    }
}

#[tokio::test]
async fn a_prompt_comes_back_with_its_logprobs() {
    let mut setup = Setup::script(b"abc");
    // The prompt is prefilled in several chunks, and its beginning is in the cache the second time.
    setup.limits.token_budget = 16;
    let server = start(setup).await;
    // After `>` the script begins, so `a` is likely and `x` is not.
    let prompt = ["x".repeat(40).as_str(), ">axc"].concat();
    let body = json!({
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": true,
        "add_special_tokens": false,
    });
    let mut expected = vec![Some(UNLIKELY); 44];
    expected[0] = None;
    expected[41] = Some(LIKELY);
    expected[43] = Some(LIKELY);
    for _ in 0..2 {
        let value = server.json(PATH, &body).await;
        let choice = &value["choices"][0];
        assert_eq!(choice["text"], prompt);
        expected.resize(44, None);
        expected.push(Some(LIKELY));
        check(&choice["logprobs"], &expected);
        let offsets = choice["logprobs"]["text_offset"].as_array().unwrap();
        assert_eq!(offsets.last(), Some(&44.into()));
        assert_eq!(value["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
}

#[tokio::test]
async fn a_prompt_alone_needs_no_output() {
    let server = start(Setup::script(b"ab")).await;
    let body = json!({"prompt": [62, 97], "max_tokens": 0, "echo": true, "logprobs": 0});
    let value = server.json(PATH, &body).await;
    assert_eq!(value["choices"][0]["text"], ">a");
    assert_eq!(value["choices"][0]["finish_reason"], "length");
    assert_eq!(value["usage"]["completion_tokens"], 0);
    check(&value["choices"][0]["logprobs"], &[None, Some(LIKELY)]);
    server.wait_for("redline_kv_pages_used", 0.0).await;
}

async fn streamed(server: &Running, body: &Value) -> (String, Vec<Value>) {
    let mut body = body.clone();
    body["stream"] = true.into();
    let events = server.events(PATH, &body).await;
    let choices = events.iter().map(|event| &event["choices"][0]);
    let text = choices.clone().filter_map(|choice| choice["text"].as_str()).collect();
    let values = choices.filter_map(|choice| choice["logprobs"]["token_logprobs"].as_array());
    (text, values.flatten().cloned().collect())
}

#[tokio::test]
async fn a_stream_echoes_what_a_whole_answer_does() {
    let server = start(Setup::script("aé!".as_bytes())).await;
    for (n, logprobs) in [(1, json!(2)), (2, json!(null))] {
        let body = json!({
            "prompt": "é>", "max_tokens": 3, "temperature": 0, "logprobs": logprobs, "echo": true,
        });
        let mut whole_body = body.clone();
        whole_body["n"] = n.into();
        let whole = server.json(PATH, &whole_body).await;
        let choice = &whole["choices"][n - 1];
        let (text, values) = streamed(&server, &body).await;
        assert_eq!(choice["text"], text);
        assert_eq!(text, "é>aé");
        let expected = choice["logprobs"]["token_logprobs"].as_array().cloned();
        assert_eq!(expected.unwrap_or_default(), values);
    }
}

/// The prompt is computed with its log-probabilities once, and each of its choices shows them.
#[tokio::test]
async fn every_choice_has_the_logprobs_of_its_own_prompt() {
    let server = start(Setup::script(b"ab")).await;
    let mut body = json!({
        "prompt": [">x", "xx>"], "n": 3, "max_tokens": 1, "temperature": 0, "logprobs": 1,
        "echo": true, "add_special_tokens": false,
    });
    let whole = server.json(PATH, &body).await;
    let expected = |index: usize| match index / 3 {
        0 => vec![None, Some(UNLIKELY), Some(LIKELY)],
        _ => vec![None, Some(UNLIKELY), Some(UNLIKELY), Some(LIKELY)],
    };
    let choices = whole["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        check(&choice["logprobs"], &expected(index));
    }
    body["stream"] = true.into();
    let mut values = vec![Vec::new(); 6];
    for event in server.events(PATH, &body).await {
        let choice = &event["choices"][0];
        let found = choice["logprobs"]["token_logprobs"].as_array().cloned();
        // The last event, `[DONE]`, has no choice.
        if let Some(index) = choice["index"].as_u64() {
            values[index as usize].extend(found.unwrap_or_default());
        }
    }
    for (index, found) in values.into_iter().enumerate() {
        check(&json!({"token_logprobs": found}), &expected(index));
    }
}

#[tokio::test]
async fn tokens_can_stand_by_their_ids() {
    let server = start(Setup::script(b"ab")).await;
    let mut body = json!({
        "prompt": ">", "max_tokens": 1, "temperature": 0, "logprobs": 1,
        "return_tokens_as_token_ids": true,
    });
    let value = server.json(PATH, &body).await;
    let logprobs = &value["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["token_id:97"]));
    assert!(logprobs["top_logprobs"][0]["token_id:97"].is_number(), "{logprobs}");
    body["messages"] = json!([{"role": "user", "content": "x"}]);
    body["logprobs"] = true.into();
    let value = server.json("/v1/chat/completions", &body).await;
    assert_eq!(value["choices"][0]["logprobs"]["content"][0]["token"], "token_id:97");
}
