//! The mock server for load tests and the raw-socket client: logs and counts are exact and agree
//! with what the client measures.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use schema::emitted::Emitted;
use schema::engine::ApiFormat;
use schema::scenario::{Arrival, Connections};
use serde_json::Value;
use suite::client::drive::{Driven, Orders, Unobserved, drive};
use suite::client::payload::Payload;
use suite::mock_server::paced::{Pace, PacedMockServer};

use crate::harness::{ready_url, stop_never};
use crate::workspace::Workspace;

/// Payloads of requests whose prompts begin with their number, counted from 1.
fn numbered(count: usize, tokens: u64) -> Vec<Payload> {
    let payload = |number: usize| {
        let body = format!(
            r#"{{"prompt":[{number},2],"max_tokens":{tokens},"stream":true,"return_token_ids":true,"stream_options":{{"include_usage":true}}}}"#
        );
        let head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
        let text = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        Payload { bytes: text.into_bytes(), send_us: 0, after: None, output_tokens: tokens }
    };
    (1..=count).map(payload).collect()
}

/// Sends `payloads` to a new paced mock server and returns the client's samples and the server's
/// log.
fn exchange(payloads: &[Payload], pace: Pace) -> (Driven, Vec<Emitted>) {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let emitter = PacedMockServer::bind(any, pace).expect("a free port");
    let (address, stop) = (emitter.address, AtomicBool::new(false));
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| emitter.serve(&stop).expect("it serves"));
        let orders = Orders {
            address,
            tls: None,
            payloads,
            dialect: ApiFormat::Completions,
            arrival: &Arrival::AllAtOnce,
            connections: Connections::Warm,
            no_progress_ns: 60_000_000_000,
            stop: &stop_never(),
            kernel_timestamps: true,
        };
        let driven = drive(&orders, &mut Unobserved).expect("the system gives what is asked");
        stop.store(true, Ordering::Relaxed);
        (driven, serving.join().expect("no panic"))
    })
}

#[test]
fn every_token_of_every_stream_is_counted_by_both_sides_and_none_came_before_it_was_written() {
    for (claim, pace) in [
        ("paced", Pace { first_us: 5_000, gap_us: 1_000 }),
        ("saturated", Pace { first_us: 0, gap_us: 0 }),
    ] {
        let (driven, log) = exchange(&numbered(40, 50), pace);
        assert_eq!(log.len(), 40, "{claim}");
        for (index, sample) in driven.samples.iter().enumerate() {
            assert_eq!(sample.failure, None, "{claim}");
            assert_eq!(sample.chunks.len(), 50, "{claim}");
            let tag = Some(index as u64 + 1);
            let answer = log.iter().find(|answer| answer.tag == tag).expect("it was logged");
            assert!(answer.is_whole() && answer.accepted_ns <= answer.received_ns, "{claim}");
            let first_ns = answer.first_ns.expect("it is whole");
            assert!(first_ns >= answer.received_ns + pace.first_us * 1000, "{claim}: too early");
            for (chunk, written_ns) in sample.chunks.iter().zip(answer.written_ns()) {
                // Converting the kernel's clock to the client's costs a few microseconds.
                assert!(chunk.at_ns + 1_000_000 > written_ns, "{claim}: it came before");
            }
        }
    }
}

#[test]
fn a_client_that_goes_away_leaves_the_others_alone() {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let emitter =
        PacedMockServer::bind(any, Pace { first_us: 0, gap_us: 500 }).expect("a free port");
    let (address, stop) = (emitter.address, AtomicBool::new(false));
    let log = std::thread::scope(|scope| {
        let serving = scope.spawn(|| emitter.serve(&stop).expect("it serves"));
        let mut left = std::net::TcpStream::connect(address).expect("it listens");
        std::io::Write::write_all(&mut left, &numbered(1, 1_000_000)[0].bytes).expect("written");
        std::io::Read::read(&mut left, &mut [0; 64]).expect("the answer began");
        drop(left);
        let payloads = numbered(3, 20);
        let orders = Orders {
            address,
            tls: None,
            payloads: &payloads,
            dialect: ApiFormat::Completions,
            arrival: &Arrival::AllAtOnce,
            connections: Connections::Warm,
            no_progress_ns: 60_000_000_000,
            stop: &stop_never(),
            kernel_timestamps: false,
        };
        let driven = drive(&orders, &mut Unobserved).expect("the system gives what is asked");
        assert!(driven.samples.iter().all(|sample| sample.is_ok()));
        stop.store(true, Ordering::Relaxed);
        serving.join().expect("no panic")
    });
    assert_eq!(log.iter().filter(|answer| answer.is_whole()).count(), 3);
    assert_eq!(log.len(), 4, "the one that was left is told as far as it got");
}

/// Starts `redline-emitter --pace` and returns it with its address.
fn started(pace: &str, log: &Path) -> (Child, String) {
    let mut emitter = Command::new(env!("CARGO_BIN_EXE_redline-emitter"));
    emitter.args(["--pace", pace, "--log"]).arg(log);
    let mut child =
        emitter.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let url = ready_url(&mut child);
    (child, url.strip_prefix("http://").expect("an address").to_owned())
}

#[test]
fn the_floor_counts_what_the_emitter_wrote() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("log.jsonl");
    let (mut emitter, address) = started("2000:500", &log);
    let mut floor = Command::new(env!("CARGO_BIN_EXE_redline-floor"));
    floor.args(["--address", &address, "--streams", "30", "--tokens", "40"]);
    let output = floor.output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(said["events"], 1_200);
    assert!(said["ttft_us"]["mean"].as_u64().expect("a mean") >= 2_000, "{said}");
    let mut paced = Command::new(env!("CARGO_BIN_EXE_redline-floor"));
    paced.args(["--address", &address, "--streams", "4", "--tokens", "1"]);
    let output = paced.args(["--requests-per-s", "500", "--requests", "50"]).output();
    let said: Value = serde_json::from_slice(&output.expect("it runs").stdout).expect("JSON");
    assert!(said["lag_us"]["max"].is_u64(), "{said}");
    // When its standard input closes, the mock server writes its log and ends.
    drop(emitter.stdin.take());
    assert!(emitter.wait().expect("it ends").success());
    let text = fs::read_to_string(log).expect("a log");
    let answers: Vec<Emitted> =
        text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    let asked = answers.iter().filter(|answer| answer.max_tokens == 40);
    assert_eq!(asked.clone().count(), 30);
    assert!(asked.into_iter().all(Emitted::is_whole));
}

#[test]
fn a_floor_without_a_server_says_so() {
    let mut floor = Command::new(env!("CARGO_BIN_EXE_redline-floor"));
    let address = crate::harness::refusing_address().to_string();
    floor.args(["--address", &address, "--streams", "1", "--tokens", "1"]);
    let output = floor.output().expect("it runs");
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains(&format!("cannot connect to `{address}`")), "{said}");
}

#[test]
fn outputs_are_not_checked_where_that_was_turned_off() {
    let (workspace, exchange) = (Workspace::new(), crate::workspace::server(vec![]));
    let (code, measurement) = workspace.run(&exchange, &["--no-output-check"]);
    assert_eq!(code, Some(0));
    assert_eq!(measurement.correctness, None);
    let received = |line: &suite::mock_server::server::Line| {
        line.event == suite::mock_server::server::Logged::Received
    };
    let asked = exchange.log().iter().filter(|line| received(line)).count();
    assert_eq!(asked as u64, crate::workspace::REQUESTS + 2, "the measured and two to warm up");
}
