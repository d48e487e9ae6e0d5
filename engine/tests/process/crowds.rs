//! Tests with thousands of clients at the same time.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;

use crate::launched::{Launched, limited, tiny_model};

const CLIENTS: usize = 2000;
/// Number of connections that the largest published workloads open at once.
const MANY: usize = 10_000;
/// Largest accepted memory of these connections, in addition to model and KV cache.
const MANY_BYTES_MAX: u64 = 2 << 30;
/// Timeout of a connection attempt, shorter than the second after which the kernel retries a
/// refused one.
const PATIENCE: Duration = Duration::from_millis(700);

/// True if this machine allows one process that many connections, and a listen queue for them.
fn possible(clients: usize) -> bool {
    let files = clients as u64 + 200;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let queue = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap_or_default();
    if hard < files || queue.trim().parse().unwrap_or(0) < CLIENTS {
        fixtures::skip("so many open files", "raise the limits of files and of the listen queue");
        return false;
    }
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(files), hard).unwrap();
    true
}

#[test]
fn two_thousand_connections_at_once_are_all_taken_at_once() {
    if !possible(CLIENTS) {
        return;
    }
    let model = tiny_model();
    // Shells start programs with a limit of open files below the number of clients.
    let serve = ["serve", model.path().to_str().unwrap(), "--port", "0"];
    let server = Launched::spawn(limited("ulimit -Sn 256", &serve));
    let address = server.address();

    // A server that is stopped for a moment must not refuse connections.
    server.signal(Signal::SIGSTOP);
    let connect = |_| TcpStream::connect_timeout(&address, PATIENCE);
    let clients: Result<Vec<_>, _> = (0..CLIENTS).map(connect).collect();
    server.signal(Signal::SIGCONT);

    for (i, mut client) in clients.expect("all connect").into_iter().enumerate().rev() {
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        client.write_all(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut start = [0; 15];
        client.read_exact(&mut start).unwrap_or_else(|error| panic!("client {i}: {error}"));
        assert_eq!(&start, b"HTTP/1.1 200 OK");
    }
}

#[test]
fn silent_clients_do_not_starve_a_health_check() {
    let model = tiny_model();
    let serve = ["serve", model.path().to_str().unwrap(), "--port", "0", "--threads", "1"];
    let server = Launched::spawn(limited("ulimit -n 64", &serve));
    let connect = || TcpStream::connect(server.address()).unwrap();
    let silent = |start: &[u8]| {
        let mut client = connect();
        client.write_all(start).unwrap();
        client
    };
    for start in [&b""[..], b"GET /health HTT"] {
        let _clients: Vec<_> = (0..200).map(|_| silent(start)).collect();
        let mut client = silent(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut answer = [0; 15];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
    }
}

/// Processor time that a process has used, in hundredths of a second.
fn cpu_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test]
async fn extra_ten_thousand_requests_at_once_are_all_answered() {
    if !possible(MANY) {
        return;
    }
    let model = tiny_model();
    let flags = ["--max-batch-size", "256", "--max-seq-len", "64", "--model-name", "tiny"];
    let server = Launched::serve(model.path().to_str().unwrap(), &flags);
    let before = server.memory_bytes("VmRSS:");
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    let mut clients = tokio::task::JoinSet::new();
    for i in 0..MANY {
        let (client, url) = (client.clone(), format!("{}/v1/completions", server.url));
        clients.spawn(async move {
            let body =
                json!({"prompt": [3 + i % 200], "max_tokens": 4, "ignore_eos": true, "stream": true});
            let answer = client.post(url).json(&body).send().await.unwrap();
            assert_eq!(answer.status(), 200, "client {i}");
            let text = answer.text().await.unwrap();
            assert!(text.ends_with("data: [DONE]\n\n"), "client {i}: {text}");
            assert_eq!(text.matches("\"finish_reason\"").count(), 4, "client {i}: {text}");
        });
    }
    clients.join_all().await;
    let grown = server.memory_bytes("VmHWM:").saturating_sub(before);
    eprintln!("{MANY} requests took {} MiB", grown >> 20);
    assert!(grown < MANY_BYTES_MAX, "{grown} bytes");
    assert_eq!(server.metric("redline_queue_seconds_count").await, MANY as f64);
    assert!(server.metric("redline_queue_seconds_sum").await > 0.0);
    assert_eq!(server.metric("redline_generation_tokens_total").await, 4.0 * MANY as f64);
    assert_eq!(server.metric("redline_kv_pages_used").await, 0.0);

    // An idle server must use no processor time.
    let busy = cpu_ticks(server.id());
    tokio::time::sleep(Duration::from_secs(4)).await;
    let busy = cpu_ticks(server.id()) - busy;
    assert!(busy < 4, "{busy} hundredths of a second in four idle seconds");
}
