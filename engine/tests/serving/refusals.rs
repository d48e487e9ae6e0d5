//! Tests of refused requests: each gets a status, a stable error code and the name of the wrong
//! field.

use serde_json::{Value, json};

use crate::harness::{Setup, start};

#[tokio::test]
async fn bad_requests_are_refused_with_code_and_field() {
    let server = start(Setup::default()).await;
    let prompt = |extra: Value| {
        let mut body = json!({"prompt": "hello", "max_tokens": 2});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let cases = [
        (json!({}), 400, "missing_field", Some("prompt")),
        (json!({"prompt": 5}), 400, "invalid_value", Some("prompt")),
        (json!({"prompt": []}), 400, "invalid_value", Some("prompt")),
        (json!({"prompt": [[]]}), 400, "invalid_value", Some("prompt")),
        (json!({"prompt": ["a", 5]}), 400, "invalid_value", Some("prompt")),
        (json!({"prompt": [5, 258]}), 400, "invalid_value", Some("prompt")),
        (json!({"prompt": [-1]}), 400, "invalid_value", Some("prompt")),
        (json!({"prompt": [1.5]}), 400, "invalid_value", Some("prompt")),
        (json!({"prompt": vec![1; 256]}), 400, "context_length_exceeded", Some("prompt")),
        (prompt(json!({"max_tokens": 0})), 400, "invalid_value", Some("max_tokens")),
        (prompt(json!({"max_tokens": -3})), 400, "invalid_value", Some("max_tokens")),
        (prompt(json!({"max_tokens": 1.5})), 400, "invalid_value", Some("max_tokens")),
        (prompt(json!({"max_tokens": 251})), 400, "context_length_exceeded", Some("max_tokens")),
        (
            prompt(json!({"max_tokens": u64::MAX})),
            400,
            "context_length_exceeded",
            Some("max_tokens"),
        ),
        (prompt(json!({"min_tokens": 3})), 400, "invalid_value", Some("min_tokens")),
        (prompt(json!({"temperature": -1})), 400, "invalid_value", Some("temperature")),
        (prompt(json!({"temperature": "hot"})), 400, "invalid_value", Some("temperature")),
        (prompt(json!({"temperature": 1e300})), 400, "invalid_value", Some("temperature")),
        (prompt(json!({"top_p": 0})), 400, "invalid_value", Some("top_p")),
        (prompt(json!({"top_p": 1.1})), 400, "invalid_value", Some("top_p")),
        (prompt(json!({"top_k": -2})), 400, "invalid_value", Some("top_k")),
        (prompt(json!({"min_p": 2})), 400, "invalid_value", Some("min_p")),
        (
            prompt(json!({"repetition_penalty": 0})),
            400,
            "invalid_value",
            Some("repetition_penalty"),
        ),
        (prompt(json!({"presence_penalty": 3})), 400, "invalid_value", Some("presence_penalty")),
        (prompt(json!({"seed": 1.5})), 400, "invalid_value", Some("seed")),
        (prompt(json!({"logit_bias": {"999": 1}})), 400, "invalid_value", Some("logit_bias")),
        (prompt(json!({"logit_bias": {"1": 101}})), 400, "invalid_value", Some("logit_bias")),
        (prompt(json!({"n": 0})), 400, "invalid_value", Some("n")),
        (prompt(json!({"n": 129})), 400, "invalid_value", Some("n")),
        (prompt(json!({"n": 33, "guided_regex": "a"})), 400, "invalid_value", Some("n")),
        (prompt(json!({"best_of": 3})), 400, "unsupported_field", Some("best_of")),
        (prompt(json!({"logprobs": 21})), 400, "invalid_value", Some("logprobs")),
        (prompt(json!({"stop": ""})), 400, "invalid_value", Some("stop")),
        (prompt(json!({"stop": [1]})), 400, "invalid_value", Some("stop")),
        (prompt(json!({"stream": "yes"})), 400, "invalid_value", Some("stream")),
        (prompt(json!({"stream_options": 1})), 400, "invalid_value", Some("stream_options")),
        (prompt(json!({"suffix": "x"})), 400, "unsupported_field", Some("suffix")),
        (prompt(json!({"guided_grammar": "x"})), 400, "unsupported_field", Some("guided_grammar")),
        (prompt(json!({"model": "other"})), 404, "model_not_found", Some("model")),
    ];
    let count = cases.len();
    for (body, status, code, param) in cases {
        let response = server.post("/v1/completions", &body).await;
        let found = response.status().as_u16();
        let value: Value = response.json().await.unwrap();
        let error = &value["error"];
        assert_eq!((found, &error["code"]), (status, &json!(code)), "{body}: {value}");
        assert_eq!(error["param"], json!(param), "{body}: {value}");
        assert!(error["message"].as_str().unwrap().len() > 10, "{body}: {value}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let refused = server.metric("redline_requests_total{outcome=\"refused\"}").await;
    assert_eq!(refused, count as f64);
}

#[tokio::test]
async fn fields_without_effect_are_taken() {
    let server = start(Setup::default()).await;
    let body = json!({
        "prompt": "hello", "max_tokens": 1, "user": "me", "metadata": {"a": 1}, "best_of": 1,
        "presence_penalty": 0, "guided_json": null, "length_penalty": 1.0, "echo": false,
        "use_beam_search": false, "suffix": null, "logprobs": null, "top_k": -1, "priority": 3,
        "store": false, "service_tier": "auto", "made_up": [1], "stream_options": null,
        "response_format": {"type": "text"}, "repetition_penalty": 1.0, "min_p": 0, "n": 1,
    });
    server.json("/v1/completions", &body).await;
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "verbosity": "medium",
        "reasoning_effort": "low", "prediction": {"type": "content", "content": "x"},
    });
    server.json("/v1/chat/completions", &body).await;
}

#[tokio::test]
async fn routes_answer_without_their_prefix_too() {
    let server = start(Setup::default()).await;
    let chat = json!({"messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    assert_eq!(server.json("/chat/completions", &chat).await["object"], "chat.completion");
    let prompt = json!({"prompt": "x", "max_tokens": 1});
    assert_eq!(server.json("/completions", &prompt).await["object"], "text_completion");
    let models: Value = server.get("/models").await.json().await.unwrap();
    let id = models["data"][0]["id"].as_str().unwrap();
    let model: Value = server.get(&format!("/models/{id}")).await.json().await.unwrap();
    assert_eq!(model["id"], id);
    let none = server.post("/chat/completions", &json!({"messages": []})).await;
    let error: Value = none.json().await.unwrap();
    assert_eq!(error["error"]["message"], "`messages` has no message");
    assert_eq!(server.metric("redline_requests_total{outcome=\"refused\"}").await, 1.0);
}

#[tokio::test]
async fn bad_chats_are_refused() {
    let server = start(Setup::default()).await;
    let user = json!([{"role": "user", "content": "x"}]);
    for (body, code, param) in [
        (json!({}), "missing_field", "messages"),
        (json!({"messages": []}), "invalid_value", "messages"),
        (json!({"messages": ["x"]}), "invalid_value", "messages.0"),
        (json!({"messages": [{"content": "x"}]}), "invalid_value", "messages.0.role"),
        (json!({"messages": [{"role": "user"}]}), "invalid_value", "messages.0.content"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            "unsupported_field",
            "messages.0.content",
        ),
        (json!({"messages": [{"role": "wizard", "content": "x"}]}), "invalid_value", "messages"),
        (json!({"messages": user, "tools": [{}]}), "invalid_value", "tools.0"),
        (json!({"messages": user, "top_logprobs": 2}), "invalid_value", "top_logprobs"),
        (
            json!({"messages": user, "response_format": {"type": "xml"}}),
            "unsupported_field",
            "response_format",
        ),
        (json!({"messages": user, "guided_json": {"type": "x"}}), "invalid_value", "guided_json"),
        (json!({"messages": user, "guided_regex": "("}), "invalid_value", "guided_regex"),
        (json!({"messages": user, "echo": true}), "unsupported_field", "echo"),
        (
            json!({"messages": user, "reasoning_effort": "high"}),
            "unsupported_field",
            "reasoning_effort",
        ),
        (json!({"messages": user, "max_tokens": 0}), "invalid_value", "max_tokens"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}),
            "invalid_value",
            "messages.0.tool_calls",
        ),
    ] {
        let response = server.post("/v1/chat/completions", &body).await;
        assert_eq!(response.status(), 400, "{body}");
        let value: Value = response.json().await.unwrap();
        assert_eq!(value["error"]["code"], code, "{body}: {value}");
        assert_eq!(value["error"]["param"], param, "{body}: {value}");
    }
}

#[tokio::test]
async fn what_never_reaches_a_route_has_the_same_shape() {
    let server = start(Setup::default()).await;
    let code = async |response: reqwest::Response| {
        let status = response.status().as_u16();
        let value: Value = response.json().await.unwrap();
        (status, value["error"]["code"].as_str().unwrap().to_owned())
    };
    let url = server.url("/v1/completions");
    let send = async |body: Vec<u8>| {
        let request = server.client.post(&url).header("content-type", "application/json");
        request.body(body).send().await.unwrap()
    };
    assert_eq!(code(server.get("/nowhere").await).await, (404, "not_found".into()));
    assert_eq!(code(server.get("/tokenize").await).await, (405, "method_not_allowed".into()));
    assert_eq!(code(send(b"{".to_vec()).await).await, (400, "invalid_json".into()));
    assert_eq!(code(send(b"[1]".to_vec()).await).await, (400, "invalid_json".into()));
    assert_eq!(
        code(send(b"{\"prompt\": \"\xff\"}".to_vec()).await).await,
        (400, "invalid_json".into())
    );
    let body = br#"{"prompt": "x", "temperature": NaN}"#.to_vec();
    assert_eq!(code(send(body).await).await, (400, "invalid_json".into()));
    let large = vec![b' '; 17 * 1024 * 1024];
    assert_eq!(code(send(large).await).await, (413, "body_too_large".into()));
}

/// A client need not read what it asks for, so its log-probabilities may all wait in memory.
#[tokio::test]
async fn logprobs_of_too_many_tokens_are_refused() {
    let mut setup = Setup::default();
    (setup.limits.max_seq_len, setup.limits.pages) = (8192, 4096);
    let server = start(setup).await;
    for stream in [false, true] {
        let mut body = json!({
            "prompt": ">", "n": 128, "max_tokens": 2000, "logprobs": 20, "stream": stream,
        });
        let response = server.post("/v1/completions", &body).await;
        assert_eq!(response.status(), 400);
        let error = response.json::<Value>().await.unwrap();
        assert_eq!(error["error"]["param"], "logprobs", "{error}");
        body["max_tokens"] = 2.into();
        assert_eq!(server.post("/v1/completions", &body).await.status(), 200);
    }
}

#[tokio::test]
async fn what_cannot_fit_is_refused_with_the_numbers() {
    let mut setup = Setup::default();
    setup.limits.pages = 8;
    let server = start(setup).await;
    let body = json!({"prompt": vec![1; 30], "max_tokens": 9});
    let value: Value = server.post("/v1/completions", &body).await.json().await.unwrap();
    assert_eq!(value["error"]["code"], "kv_cache_exceeded");
    assert_eq!(value["error"]["message"], "the sequence takes 10 KV pages, but there are only 8");
}

#[tokio::test]
async fn without_the_key_only_health_answers() {
    let server = start(Setup { api_key: Some("sesame"), ..Setup::default() }).await;
    assert_eq!(server.get("/health").await.status(), 200);
    for path in ["/v1/models", "/metrics", "/server_info", "/nowhere"] {
        assert_eq!(server.get(path).await.status(), 401, "{path}");
    }
    let ask = async |shown: &str| {
        let request = server.client.get(server.url("/v1/models"));
        request.header("authorization", shown).send().await.unwrap().status()
    };
    assert_eq!(ask("Bearer sesam").await, 401);
    assert_eq!(ask("sesame").await, 401);
    // The scheme is a word in any case.
    for shown in ["Bearer sesame", "bearer sesame", "BEARER  sesame"] {
        assert_eq!(ask(shown).await, 200, "{shown}");
    }
}

#[tokio::test]
async fn what_is_far_too_long_is_refused_before_it_is_tokenized() {
    let server = start(Setup::default()).await;
    let long = "word ".repeat(1_000_000);
    let messages = json!([{"role": "user", "content": &long[..3_000_000]}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": long})),
        ("/v1/completions", json!({"prompt": ["short", long]})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": long}]})),
        ("/tokenize", json!({"prompt": long})),
        ("/tokenize", json!({"messages": messages})),
        // It may be few tokens.
        ("/tokenize", json!({"prompt": " ".repeat(70_000)})),
    ] {
        let response = server.post(path, &body).await;
        assert_eq!(response.status(), 400, "{path}");
        let value: Value = response.json().await.unwrap();
        assert_eq!(value["error"]["code"], "context_length_exceeded", "{path}: {value}");
    }
    assert!(server.tokenized_bytes() < 1000, "{} bytes", server.tokenized_bytes());
    // A text that may fit is tokenized and counted.
    let text = "x".repeat(1000);
    let counted = server.json("/tokenize", &json!({"prompt": text})).await;
    assert_eq!(counted["count"], 1001);
    let ids = vec![1; 257];
    let value: Value =
        server.post("/detokenize", &json!({"tokens": ids})).await.json().await.unwrap();
    assert_eq!(value["error"]["message"], "`tokens` has 257 token ids, more than the limit of 256");
}

#[tokio::test]
async fn a_token_that_the_model_does_not_have_never_reaches_it() {
    let server = start(Setup::default()).await;
    let long = format!("{}\u{7f}", "x".repeat(200));
    for body in [json!({"prompt": "\u{7f}"}), json!({"prompt": long})] {
        for path in ["/v1/completions", "/tokenize"] {
            let response = server.post(path, &body).await;
            assert_eq!(response.status(), 400, "{path}");
            let value: Value = response.json().await.unwrap();
            let said = value["error"]["message"].as_str().unwrap_or_default();
            assert!(said.starts_with("the tokenizer gives the token id 1000000"), "{value}");
        }
    }
}

#[tokio::test]
async fn a_panic_of_the_tokenizer_is_an_answer_whatever_the_length_of_the_text() {
    let server = start(Setup::default()).await;
    let long = format!("{}\u{7}", " ".repeat(10_000));
    for body in [json!({"prompt": "\u{7}"}), json!({"prompt": long})] {
        for path in ["/v1/completions", "/tokenize"] {
            let response = server.post(path, &body).await;
            assert_eq!(response.status(), 500, "{path}");
            let value: Value = response.json().await.unwrap();
            assert_eq!(value["error"]["message"], "the tokenizer failed", "{path}");
        }
    }
}

#[tokio::test]
async fn an_error_repeats_little_of_what_the_client_sent() {
    let server = start(Setup::default()).await;
    let long = "é".repeat(50_000);
    let with = |field: &str, value: Value| {
        let mut body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]});
        body[field] = value;
        body
    };
    for (path, body) in [
        ("/v1/completions", with("model", json!(long))),
        ("/v1/completions", with("logit_bias", json!({&long: 1}))),
        ("/v1/completions", with("logit_bias", json!({"1": long}))),
        ("/v1/completions", with("logit_bias", json!({"1": [long]}))),
        ("/v1/completions", with("structured_outputs", json!({&long: 1}))),
        ("/v1/completions", with("response_format", json!({"type": long}))),
        ("/v1/completions", with("guided_json", json!({&long: 1, "type": &long}))),
        ("/v1/completions", with("guided_json", json!({"$ref": format!("#/{long}")}))),
        ("/v1/completions", with("guided_regex", json!(format!("({}", &long[..4000])))),
        ("/v1/completions", with(&long, json!(vec![1; 200_000]))),
        ("/v1/completions", with("temperature", json!(long))),
        (&format!("/{}", "x".repeat(5000)), json!({})),
    ] {
        let response = server.post(path, &body).await;
        assert!(response.status().is_client_error(), "{path} {body:.100}");
        let value: Value = response.json().await.unwrap();
        let error = &value["error"];
        let message = error["message"].as_str().unwrap();
        let repeated = message.chars().filter(|c| *c == 'é' || *c == 'x').count();
        assert!(repeated <= 201 && message.chars().count() < 400, "{message}");
        assert!(error["param"].as_str().unwrap_or_default().chars().count() <= 201, "{error}");
    }
}

#[tokio::test]
async fn an_error_repeats_nothing_that_acts_on_a_terminal() {
    let server = start(Setup::default()).await;
    let hostile = "\u{1b}[2J\u{9b}\u{202e}\u{2028}\r\n".repeat(100);
    let with = |field: &str, value: Value| {
        let mut body = json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]});
        body[field] = value;
        body
    };
    let part = json!([{"role": "user", "content": [{"type": hostile}]}]);
    let tool = json!([{"type": "function", "function": {"name": hostile}}]);
    for (path, body) in [
        ("/v1/completions", with("model", json!(hostile))),
        ("/v1/completions", with(&hostile, json!(vec![1; 200_000]))),
        ("/v1/completions", with("temperature", json!("\u{9b}\u{202e}"))),
        ("/v1/completions", with("guided_json", json!({"type": "string", "format": hostile}))),
        ("/v1/completions", with("guided_json", json!({"$ref": format!("#/$defs/{hostile}")}))),
        ("/v1/completions", with("guided_json", json!({"x-guidance": {&hostile: 1}}))),
        (
            "/v1/completions",
            with("guided_regex", json!(format!("({}", "\u{1b}[2J\u{9b}\u{202e}".repeat(99)))),
        ),
        ("/v1/completions", with("response_format", json!({"type": hostile}))),
        ("/v1/chat/completions", with("messages", part)),
        ("/v1/chat/completions", with("tools", tool)),
        ("/v1/messages", with("tool_choice", json!({"type": hostile}))),
        ("/v1/responses", json!({"input": "x", "previous_response_id": hostile})),
    ] {
        let response = server.post(path, &body).await;
        assert!(response.status().is_client_error(), "{path} {body:.100}");
        let value: Value = response.json().await.unwrap();
        for text in [&value["error"]["message"], &value["error"]["param"]] {
            let text = text.as_str().unwrap_or_default();
            let acts = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}');
            assert!(!text.contains(acts) && text.chars().count() < 400, "{path}: {text:?}");
        }
    }
}

#[tokio::test]
async fn values_out_of_range_and_lists_that_each_choice_would_copy_are_refused() {
    let server = start(Setup::default()).await;
    for (field, value, want) in [
        ("temperature", json!(1e300), "`temperature` must be from 0 to 1e6, but is `1e+300`"),
        ("repetition_penalty", json!(1e-300), "`repetition_penalty` must be from 1e-6 to 1e6"),
        ("stop", json!("x".repeat(5000)), "`stop` must be a string of 1 to 4096 bytes"),
        ("stop_token_ids", json!(vec![1; 2000]), "`stop_token_ids` has 2000 token ids"),
    ] {
        let body = json!({"prompt": "x", field: value});
        let value: Value = server.post("/v1/completions", &body).await.json().await.unwrap();
        assert_eq!(value["error"]["param"], field);
        let message = value["error"]["message"].as_str().unwrap();
        assert!(message.starts_with(want), "{message} should say: {want}");
    }
}

#[tokio::test]
async fn an_output_that_cannot_be_continued_is_the_request_s_fault() {
    // The output is a run of one letter, until the grammar cannot be followed any more.
    let server = start(Setup::script(&[b'a'; 200])).await;
    let nested = "((a{1,99}){1,99}){1,99}";
    for (field, extra) in [
        (json!("guided_regex"), json!({"guided_regex": nested})),
        // The only token that the structure allows is banned.
        (json!("regex"), json!({"regex": "a", "stop_token_ids": [97], "min_tokens": 9})),
        (
            json!(null),
            json!({"logit_bias": {}, "stop_token_ids": (0..258).collect::<Vec<_>>(), "min_tokens": 9}),
        ),
    ] {
        let mut body = json!({"prompt": ">", "max_tokens": 200});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let response = server.post("/v1/completions", &body).await;
        assert_eq!(response.status(), 400, "{body}");
        let value: Value = response.json().await.unwrap();
        let error = &value["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("unsatisfiable"), &field), "{value}");
        let message = error["message"].as_str().unwrap();
        assert!(!message.contains("panic") && !message.contains('\n'), "{message}");
        body["stream"] = json!(true);
        let events = server.events("/v1/completions", &body).await;
        let error = &events.last().unwrap()["error"];
        assert_eq!(error["type"], "invalid_request_error", "{events:?}");
    }
    assert_eq!(server.metric("redline_requests_total{outcome=\"error\"}").await, 0.0);
    assert_eq!(server.metric("redline_requests_total{outcome=\"refused\"}").await, 6.0);
}
