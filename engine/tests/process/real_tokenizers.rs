//! Tests with the tokenizers and chat formats of published models, in a server with made-up
//! weights.

use std::path::Path;

use crate::tiny_gguf::Writer;
use engine::tokenize::{Text, Tokenizer};
use engine_weights::ConfigSource;
use engine_weights::gguf::{self, Value as Meta};
use serde_json::{Value, json};

use fixtures::cached;

use crate::launched::Launched;
use crate::published::{GPT_OSS, QWEN3, gpt_oss, qwen3};

async fn ids(server: &Launched, text: &str) -> Value {
    server.post("/tokenize", &json!({"prompt": text})).await["tokens"].clone()
}

async fn rendered(server: &Launched, body: &Value) -> String {
    let tokens = server.post("/tokenize", body).await["tokens"].clone();
    let mut text = String::new();
    // The tokens are returned one by one, since a decoded text leaves out special tokens.
    let body = json!({
        "prompt": tokens, "max_tokens": 0, "echo": true, "logprobs": 0,
    });
    let answer = server.post("/v1/completions", &body).await;
    let pieces = answer["choices"][0]["logprobs"]["tokens"].as_array();
    for piece in pieces.unwrap_or_else(|| panic!("{answer}")) {
        text += piece.as_str().unwrap();
    }
    text
}

#[tokio::test]
async fn extra_qwen3_reads_and_writes_as_it_was_taught() {
    let Some((server, _folder)) = qwen3() else { return };
    // Expected ids are those of Hugging Face's tokenizers for the same file.
    for (text, tokens) in [
        ("Hello world", json!([9707, 1879])),
        ("<|im_start|>user\n", json!([151_644, 872, 198])),
        ("机器学习 2024", json!([102_182, 100_134, 220, 17, 15, 17, 19])),
    ] {
        assert_eq!(ids(&server, text).await, tokens, "{text}");
    }
    let chat = json!({"messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<think>\neasy\n</think>\n\n4"},
        {"role": "user", "content": "And 3+3?"},
    ]});
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n2+2?<|im_end|>\n\
                    <|im_start|>assistant\n4<|im_end|>\n<|im_start|>user\nAnd 3+3?<|im_end|>\n\
                    <|im_start|>assistant\n";
    assert_eq!(rendered(&server, &chat).await, expected);
    let mut silent = chat.clone();
    silent["chat_template_kwargs"] = json!({"enable_thinking": false});
    let expected = format!("{expected}<think>\n\n</think>\n\n");
    assert_eq!(rendered(&server, &silent).await, expected);
}

#[tokio::test]
async fn extra_gpt_oss_speaks_harmony_without_a_template() {
    let Some((server, _folder)) = gpt_oss() else { return };
    assert_eq!(ids(&server, "<|start|>assistant").await, json!([200_006, 173_781]));
    let chat = json!({
        "messages": [
            {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "2+2?"},
        ],
        "chat_template_kwargs": {"reasoning_effort": "low"},
    });
    let text = rendered(&server, &chat).await;
    let (head, tail) = text.split_once("\nCurrent date: ").unwrap();
    assert_eq!(
        head,
        "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\n\
         Knowledge cutoff: 2024-06"
    );
    assert_eq!(
        tail.split_once('\n').unwrap().1,
        "\nReasoning: low\n\n# Valid channels: analysis, commentary, final. Channel must be \
         included for every message.<|end|><|start|>developer<|message|># Instructions\n\n\
         Be brief.<|end|><|start|>user<|message|>2+2?<|end|><|start|>assistant"
    );
    // Made-up weights generate any text, and it must still be a valid chat answer.
    let body = json!({
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "reasoning_effort": "high",
    });
    let answer = server.post("/v1/chat/completions", &body).await;
    assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
    assert!(answer["choices"][0]["message"]["reasoning_content"].is_string(), "{answer}");
    let refused =
        json!({"messages": [{"role": "user", "content": "x"}], "reasoning_effort": "huge"});
    let answer = server.post("/v1/chat/completions", &refused).await;
    assert_eq!(answer["error"]["code"], "invalid_value", "{answer}");
}

#[tokio::test]
async fn extra_structured_answers_hold_over_a_real_vocabulary() {
    let Some((server, _folder)) = qwen3() else { return };
    let schema = json!({
        "type": "object", "required": ["city", "zip"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string", "maxLength": 12}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"},
        },
    });
    let format = json!({"type": "json_schema", "json_schema": {"name": "place", "schema": schema}});
    for seed in 0..4 {
        let body = json!({
            "messages": [{"role": "user", "content": "Where?"}], "max_tokens": 200, "seed": seed,
            "response_format": format, "chat_template_kwargs": {"enable_thinking": false},
        });
        let answer = server.post("/v1/chat/completions", &body).await;
        let choice = &answer["choices"][0];
        if choice["finish_reason"] == "length" {
            continue;
        }
        let text = choice["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"));
        let value: Value = serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"));
        let zip = value["zip"].as_str().unwrap();
        assert!(zip.len() == 5 && zip.bytes().all(|byte| byte.is_ascii_digit()), "{text}");
        assert!(value["city"].as_str().unwrap().chars().count() <= 12, "{text}");
    }
}

#[tokio::test]
async fn extra_tool_calls_hold_over_real_vocabularies() {
    let parameters = json!({
        "type": "object", "required": ["city", "unit"], "additionalProperties": false,
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
    });
    let tool = json!({"type": "function", "function": {
        "name": "get_weather", "description": "Gets the weather.", "parameters": parameters,
    }});
    for (server, shown) in [
        (qwen3(), "<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"get_weather\""),
        (gpt_oss(), "// Gets the weather.\ntype get_weather = (_: {\ncity: string,\n"),
    ] {
        let Some((server, _folder)) = server else { return };
        let chat = json!({"messages": [{"role": "user", "content": "Rain?"}], "tools": [tool]});
        let text = rendered(&server, &chat).await;
        assert!(text.contains(shown), "{text}");
        let mut ended = 0;
        let schema = json!({
            "type": "object", "required": ["sure"], "properties": {"sure": {"type": "boolean"}},
            "additionalProperties": false,
        });
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        for (seed, must_call) in (0..4).flat_map(|seed| [(seed, true), (seed, false)]) {
            let mut body = chat.clone();
            match must_call {
                true => body["tool_choice"] = "required".into(),
                // An answer without a call follows the schema.
                false => body["response_format"] = format.clone(),
            }
            body["chat_template_kwargs"] = json!({"enable_thinking": false});
            (body["max_tokens"], body["seed"]) = (200.into(), seed.into());
            body["parallel_tool_calls"] = false.into();
            let answer = server.post("/v1/chat/completions", &body).await;
            let choice = &answer["choices"][0];
            // A model of random weights may reason for as long as it likes.
            if choice["finish_reason"] == "length" {
                continue;
            }
            ended += 1;
            if !must_call && choice["finish_reason"] == "stop" {
                let content = choice["message"]["content"].as_str().unwrap();
                let value: Value = serde_json::from_str(content).unwrap();
                assert!(value["sure"].is_boolean(), "{answer}");
                continue;
            }
            assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
            let function = &choice["message"]["tool_calls"][0]["function"];
            assert_eq!(function["name"], "get_weather");
            let arguments = function["arguments"].as_str().unwrap();
            let value: Value = serde_json::from_str(arguments).unwrap();
            assert!(["celsius", "fahrenheit"].contains(&value["unit"].as_str().unwrap()));
            assert!(value["city"].as_str().unwrap().chars().count() <= 12, "{arguments}");
        }
        println!("{ended} of 8 answers ended");
    }
}

/// GGUF file with the content of a tokenizer.json, for the pre-tokenizer called `pre`.
fn as_gguf(tokenizer: &Value, pre: &str) -> Vec<u8> {
    const NORMAL: i64 = 1;
    const CONTROL: i64 = 3;
    let mut tokens: Vec<(u64, &str, i64)> = Vec::new();
    for (token, id) in tokenizer["model"]["vocab"].as_object().unwrap() {
        tokens.push((id.as_u64().unwrap(), token, NORMAL));
    }
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        tokens.push((added["id"].as_u64().unwrap(), added["content"].as_str().unwrap(), CONTROL));
    }
    tokens.sort_unstable();
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter().map(|merge| {
        let [left, right] = merge.as_array().unwrap().as_slice() else { panic!("{merge}") };
        format!("{} {}", left.as_str().unwrap(), right.as_str().unwrap())
    });
    let mut file = Writer::default();
    file.value("tokenizer.ggml.model", Meta::Text("gpt2".into()))
        .value("tokenizer.ggml.pre", Meta::Text(pre.into()))
        .value("tokenizer.ggml.merges", Meta::Texts(merges.collect()))
        .value("tokenizer.ggml.token_type", Meta::Integers(tokens.iter().map(|t| t.2).collect()))
        .value(
            "tokenizer.ggml.tokens",
            Meta::Texts(tokens.iter().map(|t| t.1.to_owned()).collect()),
        );
    file.bytes()
}

#[test]
fn extra_gguf_forms_of_published_tokenizers_give_the_same_ids() {
    for (file, pre) in [(QWEN3, "qwen2"), (GPT_OSS, "gpt-4o")] {
        let Some(path) = cached(file) else { return };
        let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let config = path.with_file_name("config.json");
        let published = ConfigSource::Json { path: config, json: json!({}) };
        let published = Tokenizer::load(&published).unwrap().unwrap();
        let bytes = as_gguf(&json, pre);
        let header = gguf::parse(Path::new("made.gguf"), &bytes).unwrap();
        let rebuilt = Tokenizer::load(&ConfigSource::Gguf(header.metadata)).unwrap().unwrap();
        for text in [
            "Hello world, it's 12345.67 o'CLOCK!\n\n  \tWe'LL see…",
            "HTTPServer camelCase snake_case ÉCOLE Straße ǅ naïve",
            "机器学习 2024 ひらがな カタカナ 한국어 हिन्दी العربية",
            "fn main() {\n    println!(\"{}/{}\", a, b);\r\n}//\n",
            "👩‍👩‍👧 🏳️‍🌈 \u{200b}x\u{301}",
            "<|im_start|>user<|start|>assistant<|channel|>final",
        ] {
            let ids = rebuilt.encode(text, false).unwrap();
            assert_eq!(ids, published.encode(text, false).unwrap(), "{pre}: {text}");
            let mut detokenizer = rebuilt.detokenizer(true);
            let decoded: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
            assert_eq!(decoded, text, "{pre}");
        }
    }
}
