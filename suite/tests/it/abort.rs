//! `redline-bench abort`: what a server sees of clients that leave, and what is said of one that
//! refuses them.

use std::process::Output;

use suite::mock_server::script::{Answer, Framing, Scripted, Steady};
use suite::mock_server::server::Logged;

use crate::harness::{Exchange, wait_until};
use crate::workspace::{PLAN, Workspace, server, stderr, url};

/// Runs `redline-bench abort` with 40 requests of the short scenario.
fn abort(exchange: &Exchange, clients: &str, seed: &str) -> Output {
    let workspace = Workspace::new();
    let plan = workspace.bench().args(PLAN).output().expect("runs");
    assert_eq!(plan.status.code(), Some(0), "{}", stderr(&plan));
    let mut command = workspace.bench();
    command.args(["abort", "--url", &url(exchange), "--engine", "redline.toml"]);
    command.args(["--plan", "plan.json", "--tokenizer", "tiny.json", "--requests", "40"]);
    command.args(["--clients", clients, "--seed", seed]).output().expect("runs")
}

/// Mock server whose answers last for longer than any client stays.
fn endless() -> Exchange {
    let steady = Steady { tokens: Some(1000), gap_us: 5_000, ..Steady::default() };
    server(vec![Answer { times: 0, ..Answer::steady(steady) }])
}

/// Number of requests to which `event` happened, as the mock server logged it.
fn count(exchange: &Exchange, event: Logged) -> usize {
    exchange.log().iter().filter(|line| line.event == event).count()
}

#[test]
fn each_request_is_aborted_at_a_moment_that_the_seed_decides() {
    for clients in ["1", "8"] {
        let exchange = endless();
        let output = abort(&exchange, clients, "1");
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "{\"requests\":40,\"moments\":{\"body\":10,\"head\":9,\"tokens\":10,\"waiting\":11},\
             \"answered\":0}\n"
        );
        // Of ten requests the server never got the whole body; of the others it sees the client leave.
        wait_until(|| count(&exchange, Logged::Gone) == 30);
        assert_eq!(count(&exchange, Logged::Received), 30);
    }
}

#[test]
fn another_seed_decides_otherwise() {
    let output = abort(&endless(), "8", "2");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("{\"body\":12,\"head\":5,\"tokens\":11,\"waiting\":12}"), "{said}");
}

#[test]
fn an_answer_that_ends_first_is_not_counted_as_aborted() {
    let document = Answer { times: 0, ..Answer::document(&serde_json::json!({"choices": []})) };
    let output = abort(&server(vec![document]), "4", "1");
    let found: schema::probe::Aborted =
        serde_json::from_slice(&output.stdout).expect("one document");
    // A client that leaves after the head may find the whole answer with it.
    assert!((10..=19).contains(&found.answered), "{found:?}");
    assert_eq!(found.requests + found.answered, 40);
}

#[test]
fn a_refusal_ends_the_program_and_is_shown() {
    let events = vec![Scripted::text(0, "{\"error\":\"no such model\"}")];
    let refusal =
        Answer { status: 404, times: 0, framing: Framing::Length, ..Answer::events(events) };
    let output = abort(&server(vec![refusal]), "4", "1");
    assert_eq!((output.status.code(), output.stdout.len()), (Some(4), 0));
    let said = stderr(&output);
    assert!(said.starts_with("error: request ") && said.contains("failed: the server"), "{said}");
    assert!(said.contains("answered 404: {\"error\":\"no such model\"}"), "{said}");
}
