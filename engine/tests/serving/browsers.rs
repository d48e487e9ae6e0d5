//! Tests of requests that web pages cause in a browser on the machine or network of a server without
//! API key: the server must neither compute for them nor tell them anything.

use std::time::Duration;

use serde_json::{Value, json};

use crate::fake::Behavior;
use crate::harness::{Running, Setup, error_of, post, start};

const COMPLETIONS: &str = "/v1/completions";

fn body() -> Value {
    json!({"prompt": "hello", "max_tokens": 2})
}

/// Status of the answer to a GET with additional headers.
async fn status_of_get(server: &Running, path: &str, headers: &[(&str, &str)]) -> u16 {
    let mut request = server.client.get(server.url(path));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send().await.unwrap().status().as_u16()
}

/// Asserts that the server has computed nothing.
async fn assert_idle(server: &Running) {
    assert_eq!(server.metric("redline_prompt_tokens_total").await, 0.0);
    assert_eq!(server.metric("redline_requests_running").await, 0.0);
}

#[tokio::test]
async fn a_domain_that_points_to_this_machine_is_refused() {
    let server = start(Setup::default()).await;
    let port = server.address.port();
    for host in ["evil.example".into(), format!("evil.example:{port}"), format!("10.0.0.1:{port}")]
    {
        for path in ["/v1/models", "/server_info", "/metrics", "/nowhere"] {
            let status = status_of_get(&server, path, &[("host", &host)]).await;
            assert_eq!(status, 403, "{host} {path}");
        }
        let request = post(COMPLETIONS, "Connection: close\r\n", &body());
        let said = server.exchange(request.replace("localhost", &host)).await;
        assert_eq!(error_of(&said), (403, "forbidden".into()), "{said}");
        // Load balancers check health under any name.
        assert_eq!(status_of_get(&server, "/health", &[("host", &host)]).await, 200);
    }
    let proxied = "GET http://evil.example/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    assert_eq!(error_of(&server.exchange(proxied).await), (403, "forbidden".into()));
    assert_idle(&server).await;
    for host in ["localhost".into(), format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        assert_eq!(status_of_get(&server, "/v1/models", &[("host", &host)]).await, 200, "{host}");
    }
}

#[tokio::test]
async fn pages_of_other_sites_are_refused() {
    let server = start(Setup::default()).await;
    for origin in ["https://evil.example", "http://evil.example:23333", "null", "http://10.0.0.1"] {
        for path in [COMPLETIONS, "/v1/chat/completions", "/tokenize", "/reset_prefix_cache"] {
            let request = server.client.post(server.url(path)).header("origin", origin);
            let answer = request.json(&body()).send().await.unwrap();
            assert_eq!(answer.status(), 403, "{origin} {path}");
            let value: Value = answer.json().await.unwrap();
            assert_eq!(value["error"]["code"], "forbidden", "{value}");
        }
        assert_eq!(status_of_get(&server, "/v1/models", &[("origin", origin)]).await, 403);
    }
    assert_idle(&server).await;
    for origin in [format!("http://{}", server.address), "http://localhost:3000".into()] {
        let status = status_of_get(&server, "/v1/models", &[("origin", &origin)]).await;
        assert_eq!(status, 200, "{origin}");
    }
}

#[tokio::test]
async fn only_json_is_taken() {
    let server = start(Setup::default()).await;
    let send = async |kind: Option<&str>| {
        let mut request = server.client.post(server.url(COMPLETIONS)).body(body().to_string());
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        request.send().await.unwrap()
    };
    for kind in [
        None,
        Some("text/plain"),
        Some("text/plain; application/json"),
        Some("application/x-www-form-urlencoded"),
        Some("multipart/form-data; boundary=x"),
        Some(""),
    ] {
        let answer = send(kind).await;
        assert_eq!(answer.status(), 415, "{kind:?}");
        let error = answer.json::<Value>().await.unwrap()["error"].clone();
        assert_eq!(error["code"], "unsupported_media_type", "{kind:?}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("`Content-Type: application/json`"), "{message}");
    }
    assert_idle(&server).await;
    assert_eq!(server.metric("redline_requests_total{outcome=\"refused\"}").await, 6.0);
    for kind in ["application/json", "Application/JSON; charset=utf-8"] {
        assert_eq!(send(Some(kind)).await.status(), 200, "{kind}");
    }
    for (encoding, status) in [("gzip", 415), ("identity, br", 415), ("Identity", 200)] {
        let request = server.client.post(server.url(COMPLETIONS)).json(&body());
        let answer = request.header("content-encoding", encoding).send().await.unwrap();
        assert_eq!(answer.status(), status, "{encoding}");
    }
    // An empty body needs no type.
    let reset = server.client.post(server.url("/reset_prefix_cache")).send().await.unwrap();
    assert_eq!(reset.status(), 200);
}

#[tokio::test]
async fn with_a_key_hosts_and_pages_are_not_restricted() {
    let server = start(Setup { api_key: Some("sesame"), ..Setup::default() }).await;
    let key = ("authorization", "Bearer sesame");
    for header in [("host", "llm.example"), ("origin", "https://chat.example")] {
        assert_eq!(status_of_get(&server, "/v1/models", &[key, header]).await, 200, "{header:?}");
        assert_eq!(status_of_get(&server, "/v1/models", &[header]).await, 401, "{header:?}");
    }
}

#[tokio::test]
async fn a_key_has_as_many_open_requests_as_it_may() {
    let behavior = Behavior { step_time: Duration::from_millis(5), ..Behavior::default() };
    let setup = Setup { api_key: Some("sesame"), key_limit: Some(2), behavior, ..Setup::default() };
    let server = start(setup).await;
    let send = |key: &str, tokens: u32| {
        let body = json!({
            "prompt": "x", "max_tokens": tokens, "ignore_eos": true, "stream": true,
        });
        server.client.post(server.url(COMPLETIONS)).bearer_auth(key).json(&body).send()
    };
    // The head of a streamed answer comes at once, and its body keeps the place.
    let (first, second) = (send("sesame", 250).await.unwrap(), send("sesame", 250).await.unwrap());
    assert_eq!([first.status().as_u16(), second.status().as_u16()], [200, 200]);
    let third = send("sesame", 1).await.unwrap();
    assert_eq!(third.status(), 429);
    assert_eq!(third.headers()["retry-after"], "1");
    let error: Value = third.json().await.unwrap();
    assert_eq!(error["error"]["code"], "rate_limit_exceeded", "{error}");
    // Other keys, and routes that generate nothing, have no part in the limit.
    assert_eq!(send("another", 1).await.unwrap().status(), 200);
    let key = ("authorization", "Bearer sesame");
    assert_eq!(status_of_get(&server, "/v1/models", &[key]).await, 200);
    // An answer that ended, or whose client has left, gives its place back.
    drop(first);
    while send("sesame", 1).await.unwrap().status() == 429 {}
    second.bytes().await.unwrap();
    assert_eq!(send("sesame", 1).await.unwrap().status(), 200);
}

#[tokio::test]
async fn pages_of_an_allowed_origin_may_use_the_server() {
    let (chat, any) = ("https://chat.example", "https://any.example");
    let open = |origin: &str, api_key| Setup {
        api_key,
        origins: vec![origin.to_owned()],
        ..Setup::default()
    };
    for (setup, origin, named) in
        [(open(chat, None), chat, chat), (open("*", Some("sesame")), any, "*")]
    {
        let server = start(setup).await;
        let url = server.url(COMPLETIONS);
        let header = |answer: &reqwest::Response, name: &str| {
            let value = answer.headers().get(name);
            value.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
        };
        // The browser asks first, without the key.
        let asking = server.client.request(reqwest::Method::OPTIONS, &url).header("origin", origin);
        let asking = asking.header("access-control-request-method", "POST");
        let asking = asking.header("access-control-request-headers", "authorization,content-type");
        let answer = asking.send().await.unwrap();
        assert_eq!(answer.status(), 200, "{origin}");
        assert_eq!(header(&answer, "access-control-allow-origin"), named);
        assert_eq!(header(&answer, "access-control-allow-methods"), "GET,POST");
        assert_eq!(header(&answer, "access-control-allow-headers"), "authorization,content-type");
        let request = server.client.post(&url).header("origin", origin).json(&body());
        let answer = request.bearer_auth("sesame").send().await.unwrap();
        assert_eq!(answer.status(), 200, "{origin}");
        assert_eq!(header(&answer, "access-control-allow-origin"), named);
    }
    let server = start(open(chat, None)).await;
    let request = server.client.post(server.url(COMPLETIONS)).header("origin", any);
    let answer = request.json(&body()).send().await.unwrap();
    assert_eq!(answer.status(), 403);
    assert_eq!(answer.headers().get("access-control-allow-origin"), None);
}
