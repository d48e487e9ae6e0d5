//! Tests with the request bodies of benchmark and evaluation clients, as they send them. None of
//! their fields may be refused, and every field that they read must be in the answer.

use serde_json::{Value, json};

use crate::harness::{Setup, start};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// Client name with version, and its completion request. The bodies are taken from the clients'
/// sources.
fn completions() -> Vec<(&'static str, Value)> {
    vec![
        (
            "vllm bench serve 0.33, openai",
            json!({
                "model": "fake", "prompt": "hello", "repetition_penalty": 1.0, "max_tokens": 4,
                "logprobs": null, "stream": true, "stream_options": {"include_usage": true},
                "ignore_eos": true, "temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0,
            }),
        ),
        (
            "sglang.bench_serving 0.5.23, sglang-oai, vllm and lmdeploy",
            json!({
                "model": "fake", "prompt": "hello", "best_of": 1, "max_tokens": 4, "stream": true,
                "temperature": 0.0, "ignore_eos": true,
            }),
        ),
        (
            "guidellm 0.8.1, text completions",
            json!({
                "model": "fake", "prompt": "hello", "stream": true, "max_tokens": 4, "stop": null,
                "stream_options": {"include_usage": true, "continuous_usage_stats": true},
                "ignore_eos": true,
            }),
        ),
        (
            "AIPerf 0.13, completions",
            json!({
                "prompt": "hello", "model": "fake", "stream": true, "max_tokens": 4,
                "stream_options": {"include_usage": true}, "ignore_eos": true, "min_tokens": 4,
            }),
        ),
        (
            "lm-eval 0.4.13, loglikelihood",
            json!({
                "model": "fake", "prompt": [[104, 101, 108], [108, 111]], "temperature": 0,
                "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": true,
            }),
        ),
        (
            "lm-eval 0.4.13, generate_until",
            json!({
                "prompt": [[104, 101, 108]], "model": "fake", "max_tokens": 4, "temperature": 0,
                "stop": ["\n\n", "Question:"], "seed": 1234,
            }),
        ),
    ]
}

/// Client name with version, and its chat request.
fn chats() -> Vec<(&'static str, Value)> {
    let user = json!([{"role": "user", "content": "hello"}]);
    let user_parts = json!([{"role": "user", "content": [{"type": "text", "text": "hello"}]}]);
    vec![
        (
            "vllm bench serve 0.33, openai-chat",
            json!({
                "model": "fake", "messages": user_parts, "max_completion_tokens": 4,
                "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true,
            }),
        ),
        (
            "sglang.bench_serving 0.5.23, sglang-oai-chat",
            json!({
                "model": "fake", "messages": user, "max_completion_tokens": 4, "stream": true,
                "temperature": 0.0, "ignore_eos": true,
            }),
        ),
        (
            "guidellm 0.8.1, chat completions",
            json!({
                "model": "fake", "messages": user_parts, "stream": true, "stop": null,
                "stream_options": {"include_usage": true, "continuous_usage_stats": true},
                "max_completion_tokens": 4, "ignore_eos": true,
            }),
        ),
        (
            "AIPerf 0.13, chat",
            json!({
                "messages": [{"role": "user", "name": null, "content": "hello"}], "model": "fake",
                "stream": true, "max_completion_tokens": 4,
                "stream_options": {"include_usage": true},
            }),
        ),
        (
            "lm-eval 0.4.13, chat",
            json!({
                "messages": [{"role": "user", "content": "hello", "type": "text"}],
                "model": "fake", "max_tokens": 4, "temperature": 0, "stop": ["<eos>"], "seed": 1234,
            }),
        ),
        (
            "openai 2, every optional field at its default",
            json!({
                "messages": user, "model": "fake", "max_tokens": 4, "n": 1, "stop": null,
                "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "logprobs": false,
                "metadata": {"a": "b"}, "modalities": ["text"], "parallel_tool_calls": true,
                "prediction": null, "prompt_cache_key": "x", "response_format": {"type": "text"},
                "safety_identifier": "x", "seed": null, "service_tier": "auto", "store": false,
                "temperature": 1, "tool_choice": "none", "tools": [], "top_logprobs": null,
                "top_p": 1, "user": "x", "verbosity": "medium", "web_search_options": null,
            }),
        ),
    ]
}

#[tokio::test]
async fn the_bodies_of_known_clients_are_taken_as_they_are() {
    let server = start(Setup::default()).await;
    let bodies = completions().into_iter().map(|(client, body)| (COMPLETIONS, client, body));
    for (route, client, body) in bodies.chain(chats().into_iter().map(|(c, b)| (CHAT, c, b))) {
        let answer = server.post(route, &body).await;
        let status = answer.status();
        let text = answer.text().await.unwrap();
        assert_eq!(status, 200, "{client}: {text}");
        if body["stream"] != true {
            continue;
        }
        let events = crate::harness::events(&text);
        let tokens = events.iter().filter(|event| event["choices"][0].is_object()).count();
        assert_eq!(tokens, 4, "{client}: a chunk per token\n{text}");
        // Usage is sent only if requested: one of these clients fails on an unexpected usage event.
        let asked = body["stream_options"]["include_usage"] == true;
        let usage = &events[events.len() - 2]["usage"];
        assert_eq!(usage["completion_tokens"] == 4, asked, "{client}: {text}");
    }
}

#[tokio::test]
async fn an_evaluation_finds_what_it_reads() {
    let server = start(Setup::default()).await;
    let (_, body) = completions().into_iter().find(|(name, _)| name.contains("loglik")).unwrap();
    let value = server.json(COMPLETIONS, &body).await;
    for (choice, prompt) in value["choices"].as_array().unwrap().iter().zip([3, 2]) {
        // The first token has no score, and the last was sampled, so neither is compared.
        let logprobs = &choice["logprobs"];
        let scored = &logprobs["token_logprobs"].as_array().unwrap()[1..prompt];
        assert!(scored.iter().all(|value| value.as_f64().unwrap() <= 0.0), "{choice}");
        let tops = &logprobs["top_logprobs"].as_array().unwrap()[1..prompt];
        for (value, top) in scored.iter().zip(tops) {
            let best = top.as_object().unwrap().values().filter_map(Value::as_f64);
            assert!(best.fold(f64::MIN, f64::max) >= value.as_f64().unwrap(), "{choice}");
        }
    }
}
