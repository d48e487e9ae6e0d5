//! Tests of the answers to well-formed requests.

use serde_json::{Value, json};

use crate::harness::{Setup, start};

#[tokio::test]
async fn a_completion_has_openais_shape() {
    let server = start(Setup::default()).await;
    let body = json!({"model": "fake", "prompt": "hello", "max_tokens": 4, "temperature": 0});
    let mut value = server.json("/v1/completions", &body).await;
    assert!(value["id"].as_str().unwrap().starts_with("cmpl-"));
    assert!(value["created"].as_u64().unwrap() > 1_600_000_000);
    value["id"] = "-".into();
    value["created"] = 0.into();
    expect_test::expect![[r#"
        {
          "choices": [
            {
              "finish_reason": "length",
              "index": 0,
              "logprobs": null,
              "stop_reason": null,
              "text": "vsrc"
            }
          ],
          "created": 0,
          "id": "-",
          "model": "fake",
          "object": "text_completion",
          "usage": {
            "completion_tokens": 4,
            "prompt_tokens": 6,
            "prompt_tokens_details": {
              "cached_tokens": 0
            },
            "total_tokens": 10
          }
        }"#]]
    .assert_eq(&format!("{value:#}"));
}

#[tokio::test]
async fn a_chat_completion_has_openais_shape() {
    let server = start(Setup::script(b"good!")).await;
    let body = json!({
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "temperature": 0, "logprobs": true, "top_logprobs": 1, "return_token_ids": true,
        "max_tokens": 1,
    });
    let mut value = server.json("/v1/chat/completions", &body).await;
    value["id"] = "-".into();
    value["created"] = 0.into();
    let logprobs = value["choices"][0]["logprobs"].take();
    let top = &logprobs["content"][0]["top_logprobs"][0];
    assert_eq!((&top["token"], &top["bytes"]), (&json!("g"), &json!([103])));
    assert_eq!(logprobs["content"][0]["logprob"], top["logprob"]);
    expect_test::expect![[r#"{"choices":[{"finish_reason":"length","index":0,"logprobs":null,"message":{"content":"g","role":"assistant"},"stop_reason":null,"token_ids":[103]}],"created":0,"id":"-","model":"fake","object":"chat.completion","prompt_token_ids":[60,117,115,101,114,58,104,105,62],"usage":{"completion_tokens":1,"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":0},"total_tokens":10}}"#]].assert_eq(&value.to_string());
}

#[tokio::test]
async fn a_stream_is_the_whole_answer_a_token_at_a_time() {
    for (path, prompt) in [
        ("/v1/completions", json!({"prompt": "hello"})),
        ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "hello"}]})),
    ] {
        let server = start(Setup::default()).await;
        let mut body = prompt.clone();
        body["max_tokens"] = 9.into();
        body["temperature"] = 0.into();
        let whole = server.json(path, &body).await;
        body["stream"] = true.into();
        body["return_token_ids"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
        let mut events = server.events(path, &body).await;
        assert_eq!(events.pop().unwrap(), "[DONE]");
        let usage = events.pop().unwrap();
        assert_eq!(usage["choices"], json!([]));
        assert_eq!(usage["usage"]["completion_tokens"], 9);
        assert_eq!(usage["usage"]["prompt_tokens"], whole["usage"]["prompt_tokens"]);
        assert_eq!(events.len(), 9, "a chunk per token");
        let mut text = String::new();
        for event in &events {
            assert_eq!(event["usage"], Value::Null);
            assert!(event.as_object().unwrap().contains_key("usage"));
            assert_eq!(event["choices"][0]["token_ids"].as_array().unwrap().len(), 1);
            let choice = &event["choices"][0];
            let piece = choice["text"].as_str().or(choice["delta"]["content"].as_str());
            text.push_str(piece.unwrap());
        }
        let choice = &whole["choices"][0];
        let expected = choice["text"].as_str().or(choice["message"]["content"].as_str());
        assert_eq!(text, expected.unwrap());
        let with_prompt = events.iter().filter(|event| {
            let ids = event.get("prompt_token_ids");
            ids.or_else(|| event["choices"][0].get("prompt_token_ids")).is_some()
        });
        assert_eq!(with_prompt.count(), 1, "prompt ids come once");
        assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    }
}

#[tokio::test]
async fn usage_comes_only_where_it_was_asked_for() {
    let server = start(Setup::default()).await;
    let mut body = json!({"prompt": "hello", "max_tokens": 3, "temperature": 0, "stream": true});
    let events = server.events("/v1/completions", &body).await;
    assert_eq!(events.len(), 4);
    assert!(events[0].get("usage").is_none());
    body["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = server.events("/v1/completions", &body).await;
    let counts: Vec<_> =
        events[..4].iter().map(|event| event["usage"]["completion_tokens"].as_u64()).collect();
    assert_eq!(counts, [Some(1), Some(2), Some(3), Some(3)]);
}

#[tokio::test]
async fn prompts_come_as_text_as_ids_and_as_lists_of_either() {
    let server = start(Setup::default()).await;
    let ids: Vec<u32> = [256].into_iter().chain("hello".bytes().map(u32::from)).collect();
    let ask = async |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 5, "temperature": 0, "n": 2});
        let value = server.json("/v1/completions", &body).await;
        let choices = value["choices"].as_array().unwrap().clone();
        let indexes: Vec<_> = choices.iter().map(|c| c["index"].as_u64().unwrap()).collect();
        assert!(indexes.iter().copied().eq(0..choices.len() as u64));
        choices.iter().map(|c| c["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let one = ask(json!("hello")).await;
    assert_eq!(one.len(), 2);
    assert_eq!(ask(json!(ids)).await, one);
    assert_eq!(ask(json!(["hello", "hello"])).await, [one.clone(), one.clone()].concat());
    let other = ask(json!("other")).await;
    assert_eq!(ask(json!([ids, "other"])).await, [one, other].concat());
}

/// Checks batch invariance: 64 streams at once, with more than `wide` of them in one step, give the
/// same texts as each alone.
async fn check_company(setup: Setup, wide: usize) {
    let server = start(setup).await;
    let body = |i: usize| {
        let prompt = format!("{} prompt {i}", "long ".repeat(i % 9));
        json!({"prompt": prompt, "max_tokens": 20 + i % 30, "temperature": 0, "stream": true})
    };
    let ask = async |i: usize| server.events("/v1/completions", &body(i)).await;
    let text = |events: Vec<Value>| -> String {
        let texts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
        texts.map(str::to_owned).collect()
    };
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..64 {
        let (client, url) = (server.client.clone(), server.url("/v1/completions"));
        tasks.spawn(async move {
            let response = client.post(url).json(&body(i)).send().await.unwrap();
            (i, crate::harness::events(&response.text().await.unwrap()))
        });
    }
    let together = tasks.join_all().await;
    assert!(server.widest_step() > wide, "{} at once", server.widest_step());
    for _ in 0..2 {
        // First with the cache as it is now, then with an empty one.
        for (i, events) in &together {
            assert_eq!(events.len(), 20 + i % 30 + 1);
            assert_eq!(text(events.clone()), text(ask(*i).await), "prompt {i}");
        }
        let reset = server.json("/reset_prefix_cache", &json!({})).await;
        assert_eq!(reset.as_object().unwrap().len(), 1);
    }
    server.wait_for("redline_kv_pages_used", 0.0).await;
}

#[tokio::test]
async fn sixty_four_streams_run_together_and_as_if_each_were_alone() {
    check_company(Setup::default(), 16).await;
    check_company(Setup::default().ahead(), 16).await;
}

#[tokio::test]
async fn recurrent_state_follows_its_sequence_through_crowds_and_caches() {
    check_company(Setup::recurrent(), 8).await;
    check_company(Setup::recurrent().ahead(), 8).await;
}

#[tokio::test]
async fn outputs_end_where_they_should() {
    check_ends(Setup::script(b"one two three")).await;
    check_ends(Setup::script(b"one two three").ahead()).await;
}

async fn check_ends(setup: Setup) {
    let server = start(setup).await;
    for (extra, text, reason, stop) in [
        (json!({}), "one two three", "stop", json!(null)),
        (json!({"max_tokens": 5}), "one t", "length", json!(null)),
        (json!({"stop": " t"}), "one", "stop", json!(" t")),
        (json!({"stop": ["zzz", "two"]}), "one ", "stop", json!("two")),
        (
            json!({"stop": "two", "include_stop_str_in_output": true}),
            "one two",
            "stop",
            json!("two"),
        ),
        (json!({"stop": " t", "min_tokens": 7}), "one two", "stop", json!(" t")),
        (json!({"stop_token_ids": [32]}), "one", "stop", json!(32)),
        (json!({"stop": "threex"}), "one two three", "stop", json!(null)),
        (json!({"ignore_eos": true, "max_tokens": 15}), "one two three", "length", json!(null)),
    ] {
        let mut body = json!({"prompt": ">", "max_tokens": 50, "temperature": 0});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let value = server.json("/v1/completions", &body).await;
        let choice = &value["choices"][0];
        assert_eq!(choice["text"], text, "{extra}");
        assert_eq!(choice["finish_reason"], reason, "{extra}");
        assert_eq!(choice["stop_reason"], stop, "{extra}");
        body["stream"] = true.into();
        let events = server.events("/v1/completions", &body).await;
        let pieces = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(pieces.collect::<String>(), text, "{extra}");
    }
}

#[tokio::test]
async fn a_character_is_never_cut() {
    let server = start(Setup::script("aé€😀b".as_bytes())).await;
    let body = json!({"prompt": ">", "max_tokens": 50, "temperature": 0, "stream": true});
    let events = server.events("/v1/completions", &body).await;
    let pieces: Vec<_> =
        events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(pieces, ["a", "", "é", "", "", "€", "", "", "", "😀", "b", ""]);
    let cut = json!({"prompt": ">", "max_tokens": 2, "temperature": 0});
    let value = server.json("/v1/completions", &cut).await;
    assert_eq!(value["choices"][0]["text"], "a\u{fffd}");
}

#[tokio::test]
async fn cached_tokens_are_told_and_the_cache_can_be_emptied() {
    let server = start(Setup::default()).await;
    let prompt: Vec<u32> = (0..21).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0});
    let ask = async || {
        let value = server.json("/v1/completions", &body).await;
        value["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(ask().await, 0);
    assert_eq!(ask().await, 20);
    assert_eq!(server.metric("redline_prefix_cache_query_tokens_total").await, 42.0);
    assert_eq!(server.metric("redline_prefix_cache_hit_tokens_total").await, 20.0);
    let freed = server.json("/reset_prefix_cache", &json!({})).await;
    assert_eq!(freed, json!({"freed_pages": 5}));
    assert_eq!(ask().await, 0);
}

#[tokio::test]
async fn cached_tokens_are_never_more_than_the_prompt_has() {
    let mut setup = Setup::default();
    setup.limits.max_batch_size = 2;
    let server = start(setup).await;
    let prompts: Vec<Vec<u32>> = vec![(0..21).collect(), (100..131).collect()];
    // The third choice of a prompt starts when the first has ended, and finds its pages in the
    // cache.
    let mut body = json!({"prompt": prompts, "n": 4, "max_tokens": 2, "temperature": 0});
    let details = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].clone();
    for expected in [0, 20 + 28] {
        let value = server.json("/v1/completions", &body).await;
        assert_eq!(value["usage"]["prompt_tokens"], 21 + 31);
        assert_eq!(details(&value["usage"]), expected);
    }
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let events = server.events("/v1/completions", &body).await;
    assert_eq!(details(&events[events.len() - 2]["usage"]), 20 + 28);
}

#[tokio::test]
async fn text_becomes_tokens_and_back() {
    let server = start(Setup::default()).await;
    let value = server.json("/tokenize", &json!({"prompt": "hé"})).await;
    assert_eq!(value, json!({"count": 4, "max_model_len": 256, "tokens": [256, 104, 195, 169]}));
    let plain = json!({"prompt": "hé", "add_special_tokens": false});
    assert_eq!(server.json("/tokenize", &plain).await["tokens"], json!([104, 195, 169]));
    let chat = json!({"messages": [{"role": "user", "content": "x"}]});
    assert_eq!(server.json("/tokenize", &chat).await["count"], 8);
    let open =
        json!({"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false});
    assert_eq!(server.json("/tokenize", &open).await["count"], 7);
    let moody = json!({
        "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"mood": "!!!"},
    });
    assert_eq!(server.json("/tokenize", &moody).await["count"], 11);
    let value = server.json("/detokenize", &json!({"tokens": [256, 104, 195, 169]})).await;
    assert_eq!(value, json!({"prompt": "hé"}));
    let info: Value = server.get("/tokenizer_info").await.json().await.unwrap();
    let wanted = json!({"bos_token": null, "eos_token": "</s>", "chat_template": "{{ x }}"});
    assert_eq!(info, wanted);
}

#[tokio::test]
async fn a_seed_gives_the_same_tokens_alone_and_in_company() {
    let server = start(Setup::default()).await;
    let body = |seed: u64| {
        json!({
            "prompt": "hello", "max_tokens": 30, "temperature": 5.0, "seed": seed,
            "return_token_ids": true, "ignore_eos": true,
        })
    };
    let ids = |value: Value| value["choices"][0]["token_ids"].clone();
    let alone = ids(server.json("/v1/completions", &body(7)).await);
    let mut tasks = tokio::task::JoinSet::new();
    for seed in [7, 1, 2, 3, 7] {
        let (client, url) = (server.client.clone(), server.url("/v1/completions"));
        tasks.spawn(async move {
            let response = client.post(url).json(&body(seed)).send().await.unwrap();
            (seed, response.json::<Value>().await.unwrap())
        });
    }
    for (seed, value) in tasks.join_all().await {
        assert_eq!(ids(value) == alone, seed == 7, "seed {seed}");
    }
}

#[tokio::test]
async fn completions_give_logprobs_in_four_lists() {
    let server = start(Setup::script(b"ab")).await;
    let body = json!({"prompt": ">", "max_tokens": 2, "temperature": 0, "logprobs": 2});
    let value = server.json("/v1/completions", &body).await;
    let logprobs = &value["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"], json!(["a", "b"]));
    assert_eq!(logprobs["text_offset"], json!([0, 1]));
    assert_eq!(logprobs["top_logprobs"][0].as_object().unwrap().len(), 2);
    // Softmax of one logit of 9 among 257 zeros.
    let expected = -(1.0 + 257.0 * (-9.0f64).exp()).ln();
    let found = logprobs["token_logprobs"][0].as_f64().unwrap();
    assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
}
