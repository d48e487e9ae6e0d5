//! Tests of clients that are slow, silent, many, or end their side of a connection early: each is
//! bounded in time, and others are served meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use crate::fake::Behavior;
use crate::harness::{
    Running, Setup, connect, error_of, head, post, post_head, response, rest, start,
};

const COMPLETIONS: &str = "/v1/completions";
const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
const MODELS: &[u8] = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";

fn slow() -> Behavior {
    Behavior { step_time: Duration::from_millis(5), ..Behavior::default() }
}

/// Request whose answer takes a second with a slow model.
fn long(stream: bool) -> String {
    let body = json!({"prompt": "hello", "max_tokens": 200, "ignore_eos": true, "stream": stream});
    post(COMPLETIONS, "", &body)
}

/// Sends a byte every few milliseconds until the server closes the connection, and returns what the
/// server says.
fn dribble(stream: &mut TcpStream) -> String {
    let guard = stream.read_timeout().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let (mut said, mut buffer) = (String::new(), [0; 4096]);
    // Twenty seconds at most.
    for _ in 0..4000 {
        match stream.read(&mut buffer) {
            Ok(0) => return said,
            Ok(count) => said.push_str(str::from_utf8(&buffer[..count]).unwrap()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return said,
            // Nothing has come yet.
            Err(_) => {}
        }
        if stream.write_all(b"x").is_err() {
            stream.set_read_timeout(guard).unwrap();
            return said + &rest(stream);
        }
    }
    panic!("the connection stays open: {said}");
}

#[tokio::test]
async fn a_request_that_does_not_arrive_is_cut_off() {
    let mut setup = Setup::default();
    // Long enough for the last request to arrive on a busy machine.
    setup.connections.head = Duration::from_millis(500);
    // Without a key: nobody needs one to be slow.
    setup.api_key = Some("sesame");
    let server = start(setup).await;
    assert_eq!(server.exchange("").await, "", "a silent client");
    assert_eq!(server.exchange("GET /health HTTP/1.1\r\n").await, "", "a client that stops");
    let dribbled = server.talk(|stream| {
        stream.write_all(b"GET /health HTTP/1.1\r\nX: ").unwrap();
        dribble(stream)
    });
    assert_eq!(dribbled.await, "", "a client that goes on and on");
    let said = server.exchange(HEALTH).await;
    assert!(said.starts_with("HTTP/1.1 200 OK"), "a client that keeps its connection: {said}");
}

#[tokio::test]
async fn a_body_that_arrives_too_slowly_is_refused() {
    let mut setup = Setup::default();
    setup.connections.body = Duration::from_millis(100);
    let server = start(setup).await;
    for framing in ["Content-Length: 4000000", "Transfer-Encoding: chunked"] {
        let said = server.talk(move |stream| {
            let head = format!("{}{framing}\r\n\r\n", post_head(COMPLETIONS, ""));
            stream.write_all(head.as_bytes()).unwrap();
            if framing.contains("chunked") {
                stream.write_all(b"fffff\r\n").unwrap();
            }
            dribble(stream)
        });
        let said = said.await;
        assert_eq!(error_of(&said), (408, "body_too_slow".into()), "{said}");
        assert!(said.to_lowercase().contains("\r\nconnection: close\r\n"), "{said}");
    }
    assert_eq!(server.metric("redline_requests_total{outcome=\"refused\"}").await, 2.0);
}

#[tokio::test]
async fn a_body_in_pieces_is_taken() {
    let server = start(Setup::default()).await;
    let said = server.talk(|stream| {
        let request = post(COMPLETIONS, "", &json!({"prompt": "hello", "max_tokens": 2}));
        for piece in request.as_bytes().chunks(20) {
            stream.write_all(piece).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        response(stream)
    });
    assert!(said.await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn a_body_that_breaks_off_gets_an_error_like_any_other() {
    let server = start(Setup::default()).await;
    for (framing, body) in [
        ("Content-Length: 100", "{"),
        ("Transfer-Encoding: chunked", "5\r\n{"),
        ("Transfer-Encoding: chunked", "1\r\n{\r\n"),
        ("Transfer-Encoding: chunked", "zz\r\n{"),
        ("Transfer-Encoding: chunked", "ffffffffffffffffff\r\n{"),
    ] {
        let said = server.talk(move |stream| {
            let head = format!("{}{framing}\r\n\r\n{body}", post_head(COMPLETIONS, ""));
            stream.write_all(head.as_bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            rest(stream)
        });
        let said = said.await;
        assert_eq!(error_of(&said), (400, "broken_body".into()), "{framing} {body}: {said}");
    }
}

#[tokio::test]
async fn a_client_that_asks_first_need_not_send_a_body_that_is_too_long() {
    let server = start(Setup::default()).await;
    let expects = post_head(COMPLETIONS, "Expect: 100-continue\r\n");
    let said = server.exchange(format!("{expects}Content-Length: 20000000\r\n\r\n")).await;
    assert_eq!(error_of(&said), (413, "body_too_large".into()), "{said}");
    let said = server.talk(move |stream| {
        let body = r#"{"prompt": "hello", "max_tokens": 2}"#;
        let head = format!("{expects}Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).unwrap();
        assert_eq!(self::head(stream), "HTTP/1.1 100 Continue\r\n\r\n");
        stream.write_all(body.as_bytes()).unwrap();
        response(stream)
    });
    assert!(said.await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn a_body_that_no_route_takes_does_not_cost_the_answer() {
    let server = start(Setup::default()).await;
    for target in ["POST /health", "POST /health/live", "PUT /v1/models"] {
        for _ in 0..8 {
            let said = server.talk(move |stream| {
                let host = "Host: localhost\r\nContent-Type: application/json\r\n";
                let head = format!("{target} HTTP/1.1\r\n{host}Content-Length: 3000000\r\n\r\n");
                stream.write_all(head.as_bytes()).unwrap();
                stream.write_all(&vec![b'x'; 3_000_000]).unwrap();
                response(stream)
            });
            assert_eq!(error_of(&said.await), (405, "method_not_allowed".into()), "{target}");
        }
    }
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let server = start(Setup::default()).await;
    let head = format!("GET /health HTTP/1.1\r\nX: {}", "x".repeat(65_536));
    let said = server.exchange(&head[..65_536]).await;
    assert!(said.starts_with("HTTP/1.1 431 "), "{said}");
}

#[tokio::test]
async fn at_the_limit_the_connection_that_was_idle_for_longest_gives_way() {
    let mut setup = Setup::default();
    setup.connections.connections = 3;
    let server = start(setup).await;
    let address = server.address;
    let talk = move || {
        let ask = |stream: &mut TcpStream| {
            stream.write_all(HEALTH).unwrap();
            assert!(response(stream).starts_with("HTTP/1.1 200 OK"));
        };
        let [mut first, mut second, mut third] = [0; 3].map(|_| connect(address));
        for stream in [&mut first, &mut second, &mut third] {
            ask(stream);
        }
        // Now the second one has been idle for longest.
        ask(&mut first);
        let mut fourth = connect(address);
        ask(&mut fourth);
        assert_eq!(rest(&mut second), "");
        for stream in [&mut first, &mut third, &mut fourth] {
            ask(stream);
        }
    };
    tokio::task::spawn_blocking(talk).await.unwrap();
}

#[tokio::test]
async fn when_all_connections_have_requests_health_is_answered_and_others_are_refused() {
    let mut setup = Setup { behavior: slow(), ..Setup::default() };
    setup.connections.connections = 2;
    let server = start(setup).await;
    let address = server.address;
    let talk = move || {
        let [mut first, mut second] = [0; 2].map(|_| connect(address));
        for stream in [&mut first, &mut second] {
            stream.write_all(long(true).as_bytes()).unwrap();
            assert!(head(stream).starts_with("HTTP/1.1 200 OK"));
        }
        let mut third = connect(address);
        third.write_all(HEALTH).unwrap();
        assert!(response(&mut third).starts_with("HTTP/1.1 200 OK"));
        let mut fourth = connect(address);
        fourth.write_all(MODELS).unwrap();
        let said = rest(&mut fourth);
        assert_eq!(error_of(&said), (503, "too_many_connections".into()), "{said}");
        // A connection whose answer has ended makes room.
        let mut said = String::new();
        while !said.contains("[DONE]") {
            let mut buffer = [0; 4096];
            let count = first.read(&mut buffer).unwrap();
            said.push_str(str::from_utf8(&buffer[..count]).unwrap());
        }
        assert_eq!(said.matches("data: {").count(), 200);
        let mut fifth = connect(address);
        fifth.write_all(MODELS).unwrap();
        response(&mut fifth)
    };
    let said = tokio::task::spawn_blocking(talk).await.unwrap();
    assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
}

#[tokio::test]
async fn a_burst_of_health_checks_is_answered_while_all_connections_have_requests() {
    let mut setup = Setup { behavior: slow(), ..Setup::default() };
    setup.connections.connections = 2;
    // Long enough for the requests to arrive on a busy machine.
    setup.connections.first = Duration::from_secs(30);
    let server = start(setup).await;
    let address = server.address;
    let talk = move || {
        let mut busy = [0; 2].map(|_| connect(address));
        for stream in &mut busy {
            stream.write_all(long(true).as_bytes()).unwrap();
            assert!(head(stream).starts_with("HTTP/1.1 200 OK"));
        }
        let mut probes: Vec<TcpStream> = (0..40).map(|_| connect(address)).collect();
        for probe in &mut probes {
            probe.write_all(HEALTH).unwrap();
        }
        for probe in &mut probes {
            let said = response(probe);
            assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
        }
    };
    tokio::task::spawn_blocking(talk).await.unwrap();
}

#[tokio::test]
async fn a_new_client_takes_the_place_of_idle_ones_even_of_one_beyond_the_limit() {
    let mut setup = Setup { behavior: slow(), ..Setup::default() };
    setup.connections.connections = 1;
    let server = start(setup).await;
    let address = server.address;
    let talk = move || {
        let [mut first, mut beyond] = [0; 2].map(|_| connect(address));
        first.write_all(long(false).as_bytes()).unwrap();
        beyond.write_all(HEALTH).unwrap();
        assert!(response(&mut beyond).starts_with("HTTP/1.1 200 OK"));
        assert!(response(&mut first).starts_with("HTTP/1.1 200 OK"));
        // Both are idle now. A connection beyond the limit would get health checks answered alone.
        let mut new = connect(address);
        new.write_all(MODELS).unwrap();
        response(&mut new)
    };
    let said = tokio::task::spawn_blocking(talk).await.unwrap();
    assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
}

#[tokio::test]
async fn a_connection_with_an_answer_that_waits_for_its_client_gives_way_to_nobody() {
    let mut setup = Setup::default();
    setup.connections.connections = 2;
    setup.limits.pages = 4096;
    let server = start(setup).await;
    // More than the buffers of both sockets hold.
    let body = json!({
        "prompt": "hello", "max_tokens": 200, "n": 60, "logprobs": 20, "ignore_eos": true,
    });
    let request = post(COMPLETIONS, "Connection: close\r\n", &body);
    let mut first = connect(server.address);
    first.write_all(request.as_bytes()).unwrap();
    server.wait_for("redline_requests_total{outcome=\"length\"}", 60.0).await;
    let address = server.address;
    let talk = move || {
        // The second takes the place of the connection that asked for the metric.
        let mut second = connect(address);
        second.write_all(request.as_bytes()).unwrap();
        let mut third = connect(address);
        third.write_all(HEALTH).unwrap();
        assert!(response(&mut third).starts_with("HTTP/1.1 200 OK"));
        rest(&mut first)
    };
    let said = tokio::task::spawn_blocking(talk).await.unwrap();
    // The usage is at the end of the answer.
    assert!(said.contains("\"completion_tokens\":12000"), "cut after {} bytes", said.len());
}

#[tokio::test]
async fn a_client_that_has_finished_sending_gets_its_answer() {
    let server = start(Setup { behavior: slow(), ..Setup::default() }).await;
    for stream in [true, false] {
        let said = server.talk(move |socket| {
            socket.write_all(long(stream).as_bytes()).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
            rest(socket)
        });
        let said = said.await;
        assert!(said.contains("HTTP/1.1 200 OK\r\n"), "{said}");
        assert_eq!(said.contains("data: [DONE]"), stream, "{said}");
        assert_eq!(said.contains("\"completion_tokens\":200"), !stream, "{said}");
    }
    let said = server.talk(|socket| {
        socket.write_all(MODELS).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        rest(socket)
    });
    assert!(said.await.starts_with("HTTP/1.1 200 OK"));
}

#[tokio::test]
async fn a_client_that_has_finished_sending_gets_all_of_a_large_answer() {
    let mut setup = Setup::default();
    setup.limits.pages = 4096;
    let server = start(setup).await;
    // More than the buffers of both sockets hold.
    let body = json!({
        "prompt": "hello", "max_tokens": 200, "n": 60, "logprobs": 20, "ignore_eos": true,
    });
    let said = server.talk(move |socket| {
        socket.write_all(post(COMPLETIONS, "", &body).as_bytes()).unwrap();
        socket.shutdown(Shutdown::Write).unwrap();
        rest(socket)
    });
    let said = said.await;
    // The usage is at the end of the answer.
    assert!(said.contains("\"completion_tokens\":12000"), "cut after {} bytes", said.len());
}

/// Waits until `count` sequences were aborted.
async fn aborted(server: &Running, count: f64) {
    server.wait_for("redline_requests_total{outcome=\"abort\"}", count).await;
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_gives_up_its_place() {
    // The running request must outlast the test on a busy machine.
    let step_time = Duration::from_millis(100);
    let mut setup = Setup { behavior: Behavior { step_time, ..slow() }, ..Setup::default() };
    setup.limits.max_batch_size = 1;
    let server = start(setup).await;
    let mut running = connect(server.address);
    running.write_all(long(true).as_bytes()).unwrap();
    server.wait_for("redline_requests_running", 1.0).await;
    // The request is not streamed: nothing of its answer is written when the client leaves.
    let mut waiting = connect(server.address);
    waiting.write_all(long(false).as_bytes()).unwrap();
    server.wait_for("redline_requests_waiting", 1.0).await;
    drop(waiting);
    aborted(&server, 1.0).await;
    // Only the head of the answer is written when the client leaves.
    let leave = |stream: &mut TcpStream| {
        stream.write_all(long(true).as_bytes()).unwrap();
        head(stream)
    };
    assert!(server.talk(leave).await.starts_with("HTTP/1.1 200 OK"));
    aborted(&server, 2.0).await;
    assert_eq!(server.metric("redline_requests_running").await, 1.0);
}

#[tokio::test]
async fn a_client_that_stops_reading_is_given_up() {
    // The sequences must outlast the filling of the buffers on a busy machine.
    let step_time = Duration::from_millis(20);
    let mut setup = Setup { behavior: Behavior { step_time, ..slow() }, ..Setup::default() };
    setup.connections.unread = Duration::from_millis(100);
    setup.limits.pages = 4096;
    let server = start(setup).await;
    // More than the buffers of both sockets hold.
    let body = json!({
        "prompt": "hello", "max_tokens": 200, "n": 60, "logprobs": 20, "ignore_eos": true,
        "stream": true,
    });
    let mut unread = connect(server.address);
    setsockopt(&unread, sockopt::RcvBuf, &4096).unwrap();
    unread.write_all(post(COMPLETIONS, "", &body).as_bytes()).unwrap();
    aborted(&server, 60.0).await;
    server.wait_for("redline_kv_pages_used", 0.0).await;
    drop(unread);
    let value: Value = server.json(COMPLETIONS, &json!({"prompt": "hello", "max_tokens": 2})).await;
    assert_eq!(value["usage"]["completion_tokens"], 2, "{value}");
}
