//! `redline-bench first-answer` against servers that become ready only after a while.

use std::process::{Command, Output};

use schema::probe::FirstAnswer;
use suite::clock::monotonic_ns;
use suite::mock_server::script::{Answer, Framing, Scripted};

use crate::harness::{Exchange, refusing_address};

fn requested(authority: &str, timeout_s: &str) -> Output {
    let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/engines/redline.toml");
    Command::new(env!("CARGO_BIN_EXE_redline-bench"))
        .args(["first-answer", "--url", &format!("http://{authority}"), "--engine", engine])
        .args(["--timeout-s", timeout_s])
        .output()
        .expect("runs")
}

fn answer(status: u16, times: u64, body: &str) -> Answer {
    let events = vec![Scripted::text(0, body)];
    Answer { status, times, framing: Framing::Length, ..Answer::events(events) }
}

#[test]
fn a_server_that_loads_is_asked_again_until_it_answers() {
    let loading = answer(503, 2, "{\"error\":\"loading\"}");
    let exchange = Exchange::of(vec![loading, answer(200, 1, "{\"choices\":[]}")]);
    let before = monotonic_ns();
    let output = requested(&exchange.address.to_string(), "60");
    let after = monotonic_ns();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let found: FirstAnswer = serde_json::from_slice(&output.stdout).expect("one document");
    assert!((before..=after).contains(&found.first_byte_ns));
}

#[test]
fn what_waiting_does_not_mend_is_said_at_once() {
    let exchange = Exchange::of(vec![answer(400, 0, "no such route")]);
    let output = requested(&exchange.address.to_string(), "60");
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.trim(), "error: `/v1/completions` answered 400: no such route");
}

#[test]
fn a_server_that_never_listens_is_given_up() {
    let address = refusing_address();
    let output = requested(&address.to_string(), "0");
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&format!("no answer from `{address}` within 0 s: ")), "{said}");
}
