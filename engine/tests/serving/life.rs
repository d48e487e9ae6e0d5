//! Tests of the server's life cycle: loading, clients that disconnect, draining, failure.

use std::time::Duration;

use engine::EnvironmentError;
use serde_json::{Value, json};

use crate::fake::Behavior;
use crate::harness::{Setup, events, start};

fn slow() -> Setup {
    let behavior = Behavior { step_time: Duration::from_millis(5), ..Behavior::default() };
    Setup { behavior, ..Setup::default() }
}

#[tokio::test]
async fn the_socket_answers_while_the_model_loads() {
    let server = start(Setup { ready: false, ..Setup::default() }).await;
    let health = server.get("/health").await;
    assert_eq!(health.status(), 503);
    assert_eq!(health.json::<Value>().await.unwrap()["status"], "loading");
    // A process that loads is alive, and must not be restarted.
    assert_eq!(server.get("/health/live").await.status(), 200);
    assert_eq!(server.get("/health/ready").await.status(), 503);
    let early = server.post("/v1/completions", &json!({"prompt": "x"})).await;
    assert_eq!(early.status(), 503);
    assert_eq!(early.json::<Value>().await.unwrap()["error"]["code"], "loading");
    assert_eq!(server.get("/v1/models").await.status(), 503);
    server.load.send(()).unwrap();
    while server.get("/health").await.status() == 503 {}
    let health = server.get("/health").await;
    assert_eq!(health.json::<Value>().await.unwrap(), json!({"status": "ok"}));
    assert_eq!(server.get("/health/ready").await.status(), 200);
    let models: Value = server.get("/v1/models").await.json().await.unwrap();
    assert_eq!(models["data"][0]["id"], "fake");
    assert_eq!(models["data"][0]["max_model_len"], 256);
    assert_eq!(models["data"][0]["type"], "model");
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_pages() {
    for stream in [true, false] {
        let server = start(slow()).await;
        let body = json!({"prompt": "hello", "max_tokens": 200, "stream": stream});
        let (client, url) = (server.client.clone(), server.url("/v1/completions"));
        let request = tokio::spawn(async move {
            let response = client.post(url).json(&body).send().await.unwrap();
            response.bytes().await.unwrap()
        });
        server.wait_for("redline_requests_running", 1.0).await;
        request.abort();
        server.wait_for("redline_requests_total{outcome=\"abort\"}", 1.0).await;
        server.wait_for("redline_kv_pages_used", 0.0).await;
        assert_eq!(server.metric("redline_requests_running").await, 0.0);
    }
}

#[tokio::test]
async fn draining_finishes_what_runs_and_refuses_what_comes() {
    let server = start(slow()).await;
    let body = json!({"prompt": "hello", "max_tokens": 40, "temperature": 0, "stream": true});
    let (client, url) = (server.client.clone(), server.url("/v1/completions"));
    let running = tokio::spawn(async move {
        let response = client.post(url).json(&body).send().await.unwrap();
        response.text().await.unwrap()
    });
    server.wait_for("redline_requests_running", 1.0).await;
    server.stop();
    // The signal is handled at some time between two of these requests.
    let refused = loop {
        let response =
            server.post("/v1/completions", &json!({"prompt": "x", "max_tokens": 1})).await;
        if response.status() == 503 {
            break response.json::<Value>().await.unwrap();
        }
    };
    assert_eq!(refused["error"]["code"], "draining");
    let text = running.await.unwrap();
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    assert_eq!(text.matches("data: {").count(), 40);
    assert!(server.end.await.unwrap().is_ok());
}

#[tokio::test]
async fn what_does_not_end_within_the_grace_is_cut_off_with_an_error() {
    // The whole answer would take two minutes.
    let behavior = Behavior { step_time: Duration::from_millis(500), ..Behavior::default() };
    let grace = Duration::from_millis(100);
    let server = start(Setup { behavior, grace, ..Setup::default() }).await;
    let ask = |stream: bool| {
        let body =
            json!({"prompt": "hello", "max_tokens": 240, "stream": stream, "ignore_eos": true});
        let request = server.client.post(server.url("/v1/completions")).json(&body);
        tokio::spawn(async move {
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        })
    };
    let (streamed, whole) = (ask(true), ask(false));
    server.wait_for("redline_requests_running", 2.0).await;
    server.stop();
    let (status, text) = streamed.await.unwrap();
    let last = events(&text).pop().expect("an event");
    assert_eq!((status, &last["error"]["code"]), (200, &json!("draining")), "{text}");
    let (status, text) = whole.await.unwrap();
    assert_eq!(status, 503, "{text}");
    assert!(text.contains("\"draining\""), "{text}");
    assert!(server.end.await.unwrap().is_ok());
}

#[tokio::test]
async fn a_second_stop_ends_what_runs_at_once() {
    let grace = Duration::from_secs(3600);
    let behavior = Behavior { step_time: Duration::from_millis(500), ..Behavior::default() };
    let server = start(Setup { behavior, grace, ..Setup::default() }).await;
    let body = json!({"prompt": "hello", "max_tokens": 240, "ignore_eos": true});
    let request = server.client.post(server.url("/v1/completions")).json(&body);
    tokio::spawn(request.send());
    server.wait_for("redline_requests_running", 1.0).await;
    server.stop();
    server.stop();
    let error = server.end.await.unwrap().unwrap_err();
    assert!(error.is::<EnvironmentError>(), "{error}");
    assert_eq!(error.to_string(), "interrupted while draining, with 1 sequences open");
}

#[tokio::test]
async fn a_panic_of_the_worker_is_seen_by_all() {
    let behavior = Behavior { panic_at: Some(3), ..Behavior::default() };
    let server = start(Setup { behavior, ..Setup::default() }).await;
    let body = json!({"prompt": "hello", "max_tokens": 9, "stream": true, "ignore_eos": true});
    let events = server.events("/v1/completions", &body).await;
    let error = events.last().unwrap();
    assert_eq!(error["error"]["code"], "engine_failed", "{events:?}");
    let health = server.get("/health").await;
    assert_eq!(health.status(), 503);
    let health: Value = health.json().await.unwrap();
    assert_eq!(health["status"], "failed");
    assert!(health["reason"].as_str().unwrap().contains("as the test wants"), "{health}");
    let end = server.end.await.unwrap();
    let message = end.unwrap_err().to_string();
    assert!(message.contains("as the test wants"), "{message}");
}

#[tokio::test]
async fn a_slow_reader_holds_up_nobody() {
    let server = start(Setup::default()).await;
    let body = json!({"prompt": "hello", "max_tokens": 200, "stream": true});
    // The response is never read.
    let unread = server.post("/v1/completions", &body).await;
    let body = json!({"prompt": "world", "max_tokens": 200, "temperature": 0});
    server.json("/v1/completions", &body).await;
    drop(unread);
}

#[tokio::test]
async fn a_slow_template_holds_up_nobody() {
    let server = start(Setup::default()).await;
    let body = json!({"messages": [{"role": "sleeper", "content": "x"}], "max_tokens": 3});
    let (client, url) = (server.client.clone(), server.url("/v1/chat/completions"));
    let asleep = tokio::spawn(async move { client.post(url).json(&body).send().await.unwrap() });
    // Other requests are answered while the template runs; it ends only after them.
    for _ in 0..3 {
        server.json("/v1/completions", &json!({"prompt": "hello", "max_tokens": 3})).await;
    }
    assert!(!asleep.is_finished());
    let wake = std::sync::Arc::clone(&server.wake);
    tokio::task::spawn_blocking(move || wake.wait()).await.unwrap();
    assert_eq!(asleep.await.unwrap().status(), 200);
}

#[tokio::test]
async fn metrics_have_the_names_of_the_contract() {
    let server = start(Setup::default()).await;
    server.json("/v1/completions", &json!({"prompt": "hello", "max_tokens": 3})).await;
    let page = server.get("/metrics").await.text().await.unwrap();
    for name in [
        "requests_running",
        "requests_waiting",
        "kv_pages_used",
        "kv_pages_touched",
        "kv_pages",
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_query_tokens_total",
        "prefix_cache_hit_tokens_total",
        "preemptions_total",
        "requests_total{outcome=\"length\"}",
        "queue_seconds_count",
        "ttft_seconds_bucket{le=\"+Inf\"}",
        "tpot_seconds_sum",
        "step_seconds_count",
        "step_tokens_count",
    ] {
        assert!(page.contains(&format!("\nredline_{name} ")), "{name}");
    }
    assert_eq!(server.metric("redline_prompt_tokens_total").await, 6.0);
    assert_eq!(server.metric("redline_generation_tokens_total").await, 3.0);
    assert_eq!(server.metric("redline_step_tokens_sum").await, 8.0);
}
