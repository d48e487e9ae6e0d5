//! Tests of reasoning that is separated from the answer, and of structured answers.

use engine::tokenize::Reasoning;
use serde_json::{Value, json};

use crate::harness::{Running, Setup, start};

const CHAT: &str = "/v1/chat/completions";

fn body(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 120,
    });
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// Reasoning and content of a streamed answer, joined from its events.
async fn streamed(server: &Running) -> (String, String) {
    let events = server.events(CHAT, &body(json!({"stream": true}))).await;
    let (mut reasoning, mut content) = (String::new(), String::new());
    for event in &events {
        let delta = &event["choices"][0]["delta"];
        assert_eq!(delta["reasoning_content"], delta["reasoning"], "both names say the same");
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        content += delta["content"].as_str().unwrap_or_default();
    }
    (reasoning, content)
}

#[tokio::test]
async fn reasoning_comes_apart_from_the_answer() {
    let think = "<think>\nIs it < 5?\n</think>\n\nYes.";
    let harmony = "<|channel|>analysis<|message|>Is it < 5?<|end|><|start|>assistant<|channel|>\
                   final<|message|>Yes.";
    for (kind, script, reasoning, content) in [
        (Reasoning::Think, think, "Is it < 5?", "Yes."),
        (Reasoning::Think, "No thoughts.", "", "No thoughts."),
        (Reasoning::Think, "<think>without end", "without end", ""),
        (Reasoning::Harmony, harmony, "Is it < 5?", "Yes."),
    ] {
        let server = start(Setup { reasoning: kind, ..Setup::script(script.as_bytes()) }).await;
        let value = server.json(CHAT, &body(json!({}))).await;
        let message = &value["choices"][0]["message"];
        assert_eq!(message["content"], content, "{script}");
        assert_eq!(message["reasoning_content"], reasoning, "{script}");
        assert_eq!(message["reasoning"], reasoning, "{script}");
        assert_eq!(streamed(&server).await, (reasoning.to_owned(), content.to_owned()), "{script}");
    }
    let server = start(Setup::script(think.as_bytes())).await;
    let value = server.json(CHAT, &body(json!({}))).await;
    assert_eq!(value["choices"][0]["message"], json!({"role": "assistant", "content": think}));
}

#[tokio::test]
async fn special_tokens_are_shown_to_who_asks() {
    let mut setup = Setup::default();
    setup.behavior.script = Some(vec![97, 256, 98]);
    let server = start(setup).await;
    for (skip, text) in [(json!(null), "ab"), (json!(true), "ab"), (json!(false), "a<256>b")] {
        let body = json!({
            "prompt": ">", "max_tokens": 3, "temperature": 0, "skip_special_tokens": skip,
        });
        let value = server.json("/v1/completions", &body).await;
        assert_eq!(value["choices"][0]["text"], text);
    }
}

#[tokio::test]
async fn a_structured_answer_keeps_to_its_structure_whatever_the_model_wants() {
    // Without a structure the model would generate letters only.
    let server = start(Setup::default()).await;
    let schema = json!({
        "type": "object", "required": ["sure", "why"], "additionalProperties": false,
        "properties": {"sure": {"type": "boolean"}, "why": {"type": "string", "maxLength": 5}},
        "x-guidance": {"whitespace_flexible": false},
    });
    let is_json = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
        let keys: Vec<_> = value.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["sure", "why"], "{text}");
        assert!(
            value["sure"].is_boolean() && value["why"].as_str().unwrap().chars().count() <= 5,
            "{text}"
        );
    };
    let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
    for temperature in [0.0, 2.0] {
        let extra = json!({"response_format": format, "temperature": temperature, "n": 2});
        let value = server.json(CHAT, &body(extra)).await;
        for choice in value["choices"].as_array().unwrap() {
            is_json(choice["message"]["content"].as_str().unwrap());
            assert_eq!(choice["finish_reason"], "stop", "{choice}");
        }
        let ask = async |extra: Value| {
            let mut body = json!({"prompt": "x", "max_tokens": 99, "temperature": temperature});
            body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            let value = server.json("/v1/completions", &body).await;
            assert_eq!(value["choices"][0]["finish_reason"], "stop", "{value}");
            value["choices"][0]["text"].as_str().unwrap().to_owned()
        };
        is_json(&ask(json!({"guided_json": schema})).await);
        let text = ask(json!({"guided_regex": "[0-9]{2}(:[0-9]{2}){2}"})).await;
        assert_eq!(text.split(':').filter(|part| part.parse::<u8>().is_ok()).count(), 3, "{text}");
        let text = ask(json!({"structured_outputs": {"choice": ["red", "green"]}})).await;
        assert!(["red", "green"].contains(&text.as_str()), "{text}");
    }
}
