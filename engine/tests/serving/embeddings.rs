//! Tests of `/v1/embeddings`. The fake model's row of a token is its id, its position and zeros.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use crate::fake::{BEGIN, Behavior, EMBEDDING_SIZE};
use crate::harness::{Running, Setup, start};

const PATH: &str = "/v1/embeddings";

async fn embedder() -> Running {
    let behavior = Behavior { embeds: true, ..Behavior::default() };
    start(Setup { behavior, ..Setup::default() }).await
}

/// Embedding of a prompt that ends with `token` at `position`.
fn expected(token: u32, position: usize) -> Vec<f64> {
    let (token, position) = (f64::from(token), position as f64);
    let length = token.hypot(position);
    vec![token / length, position / length, 0.0, 0.0]
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

fn assert_near(found: &Value, expected: &[f64]) {
    let found = numbers(found);
    assert_eq!(found.len(), expected.len());
    assert!(
        found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6),
        "{found:?} {expected:?}"
    );
}

#[tokio::test]
async fn inputs_of_every_kind_get_vectors_of_length_1_in_their_order() {
    let server = embedder().await;
    let b = u32::from(b'b');
    // A text gets the special token before it.
    let one = server.json(PATH, &json!({"model": "fake", "input": "ab"})).await;
    assert_near(&one["data"][0]["embedding"], &expected(b, 2));
    assert_eq!((&one["object"], &one["model"]), (&json!("list"), &json!("fake")));
    assert_eq!(one["data"][0]["object"], "embedding");
    assert_eq!(one["usage"], json!({"prompt_tokens": 3, "total_tokens": 3}));
    let ids = server.json(PATH, &json!({"input": [BEGIN, 97, 98]})).await;
    assert_eq!(ids["data"], one["data"]);
    // vLLM's benchmark client asks to cut a prompt to the model's context, which this one fits in.
    let whole = server.json(PATH, &json!({"input": "ab", "truncate_prompt_tokens": -1})).await;
    assert_eq!(whole["data"], one["data"]);
    let bare = server.json(PATH, &json!({"input": "ab", "add_special_tokens": false})).await;
    assert_near(&bare["data"][0]["embedding"], &expected(b, 1));
    // Texts of different lengths share steps, and come back in the order of the request.
    let texts: Vec<String> = (1..60).rev().map(|length| "b".repeat(length)).collect();
    let many = server.json("/embeddings", &json!({"input": texts})).await;
    for (index, embedding) in many["data"].as_array().unwrap().iter().enumerate() {
        assert_eq!(embedding["index"], index);
        assert_near(&embedding["embedding"], &expected(b, 59 - index));
    }
    assert!(server.widest_step() > 1, "inputs are batched");
    let mixed = server.json(PATH, &json!({"input": [[97, 98], "ab"]})).await;
    assert_near(&mixed["data"][0]["embedding"], &expected(b, 1));
    assert_near(&mixed["data"][1]["embedding"], &expected(b, 2));
    server.wait_for("redline_requests_running", 0.0).await;
}

#[tokio::test]
async fn a_vector_may_be_shorter_and_in_base64() {
    let server = embedder().await;
    let body = json!({"input": "ab", "dimensions": 1});
    let short = server.json(PATH, &body).await;
    assert_eq!(short["data"][0]["embedding"], json!([1.0]));
    let body = json!({"input": "ab", "encoding_format": "base64"});
    let encoded = server.json(PATH, &body).await;
    let bytes = BASE64_STANDARD.decode(encoded["data"][0]["embedding"].as_str().unwrap()).unwrap();
    let values = bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let values: Vec<Value> = values.map(|value| f64::from(value).into()).collect();
    assert_eq!(values.len(), EMBEDDING_SIZE);
    assert_near(&Value::Array(values), &expected(u32::from(b'b'), 2));
}

#[tokio::test]
async fn what_cannot_be_embedded_is_refused_with_its_field() {
    let server = embedder().await;
    let too_many = vec!["a"; 2049];
    for (body, code, field) in [
        (json!({}), "missing_field", "input"),
        (json!({"input": []}), "invalid_value", "input"),
        (json!({"input": {"text": "a"}}), "invalid_value", "input"),
        (json!({"input": [["a"]]}), "invalid_value", "input"),
        (json!({"input": [999]}), "invalid_value", "input"),
        (json!({"input": ["a", []]}), "invalid_value", "input"),
        (json!({"input": too_many}), "invalid_value", "input"),
        (json!({"input": "a".repeat(300)}), "context_length_exceeded", "input"),
        (json!({"input": "a".repeat(100_000)}), "context_length_exceeded", "input"),
        (json!({"input": "\u{7f}"}), "invalid_value", "input"),
        (json!({"input": "a", "dimensions": 0}), "invalid_value", "dimensions"),
        (json!({"input": "a", "dimensions": 5}), "invalid_value", "dimensions"),
        (json!({"input": "a", "encoding_format": "int8"}), "invalid_value", "encoding_format"),
        (
            json!({"input": "a", "truncate_prompt_tokens": 3}),
            "unsupported_field",
            "truncate_prompt_tokens",
        ),
        (json!({"input": "a", "model": "other"}), "model_not_found", "model"),
    ] {
        let answer: Value = server.post(PATH, &body).await.json().await.unwrap();
        let error = &answer["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!(code), &json!(field)), "{body}");
    }
    let counted = server.get("/metrics").await.text().await.unwrap();
    assert!(counted.contains("redline_requests_total{outcome=\"refused\"} 15"), "{counted}");
}

#[tokio::test]
async fn a_model_that_embeds_generates_nothing_and_one_that_generates_embeds_nothing() {
    let server = embedder().await;
    let message = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": message})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/messages", json!({"messages": message, "max_tokens": 3})),
    ] {
        let answer = server.post(path, &body).await;
        assert_eq!(answer.status(), 400, "{path}");
        let answer = answer.text().await.unwrap();
        assert!(answer.contains("embeds texts and generates none"), "{path}: {answer}");
    }
    let server = start(Setup::default()).await;
    let answer = server.post(PATH, &json!({"input": "a"})).await;
    assert_eq!(answer.status(), 400);
    let answer = answer.text().await.unwrap();
    assert!(answer.contains("the model `fake` generates text and does not embed"), "{answer}");
}
