//! Property test: JSON of any shape in any field gives an answer or a refusal, never a failure of
//! the server.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::harness::{Setup, start};

const FIELDS: [&str; 40] = [
    "add_generation_prompt",
    "add_special_tokens",
    "best_of",
    "chat_template_kwargs",
    "echo",
    "frequency_penalty",
    "guided_choice",
    "guided_json",
    "guided_regex",
    "ignore_eos",
    "include_stop_str_in_output",
    "json_schema",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "messages",
    "min_p",
    "min_tokens",
    "model",
    "n",
    "presence_penalty",
    "prompt",
    "reasoning_effort",
    "regex",
    "repetition_penalty",
    "response_format",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "seed",
    "skip_special_tokens",
    "stop",
    "stop_token_ids",
    "stream_options",
    "structured_outputs",
    "temperature",
    "tokens",
    "top_k",
    "top_logprobs",
    "top_p",
];

/// Words with a meaning in some field, so that random values pass the first checks.
const WORDS: [&str; 14] = [
    "role",
    "content",
    "user",
    "type",
    "text",
    "json_schema",
    "schema",
    "object",
    "properties",
    "json",
    "regex",
    "(",
    "include_usage",
    "tool_calls",
];

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-3i64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(&WORDS[..]).prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let key =
            prop_oneof![prop::sample::select(&WORDS[..]).prop_map(str::to_owned), "[a-z0-9]{0,4}"];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..5)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// Valid body in which a few fields are replaced by random values.
fn body() -> impl Strategy<Value = Value> {
    let field = (prop::sample::select(&FIELDS[..]), value());
    prop::collection::vec(field, 1..4).prop_map(|fields| {
        let mut body: Map<String, Value> = Map::new();
        body.insert("prompt".into(), "x".into());
        body.insert("max_tokens".into(), 2.into());
        body.insert("messages".into(), json!([{"role": "user", "content": "x"}]));
        body.extend(fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
        Value::Object(body)
    })
}

#[tokio::test]
async fn no_shape_of_json_makes_the_server_fail() {
    let server = start(Setup::default()).await;
    let config = Config { failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(
            proptest::test_runner::RngAlgorithm::ChaCha,
        ),
    );
    let mut seen = [0; 2];
    for case in 0..1500 {
        let body = body().new_tree(&mut runner).unwrap().current();
        let path =
            ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"][case % 4];
        let answer = server.post(path, &body).await;
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        assert!(matches!(status, 200 | 400 | 404), "{status} for {path} {body}: {text}");
        seen[usize::from(status == 200)] += 1;
        if status != 200 {
            let error: Value = serde_json::from_str(&text).unwrap();
            assert!(error["error"]["code"].is_string(), "{text}");
        }
    }
    assert!(seen.iter().all(|count| *count > 50), "both ends are reached: {seen:?}");
    assert_eq!(server.get("/health").await.status(), 200);
    server.wait_for("redline_kv_pages_used", 0.0).await;
}
