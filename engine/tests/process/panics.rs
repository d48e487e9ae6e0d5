//! Test of a panic in the engine loop, seen from outside: waiting requests get an error, `/health`
//! reports the failure, and the process ends.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::launched::{Launched, prepare, tiny_model};

/// Command that runs `redline` with a model that panics (`examples/panicking.rs`), which is built
/// with the tests.
fn panicking(args: &[&str]) -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_redline")).with_file_name("examples/panicking");
    assert!(program.exists(), "build it: `cargo build --package engine --example panicking`");
    let mut command = Command::new(program);
    prepare(&mut command, args);
    command
}

#[tokio::test]
async fn a_panic_of_the_worker_ends_the_process_after_health_told_of_it() {
    let model = tiny_model();
    let server = Launched::spawn(panicking(&[
        "serve",
        model.path().to_str().unwrap(),
        "--port",
        "0",
        "--threads",
        "1",
    ]));
    let health = async || {
        let answer = reqwest::get(format!("{}/health", server.url)).await?;
        let status = answer.status().as_u16();
        Ok::<_, reqwest::Error>((status, answer.json::<Value>().await?))
    };
    assert_eq!(health().await.unwrap(), (200, json!({"status": "ok"})));
    let body = json!({"prompt": [5, 6], "max_tokens": 9, "ignore_eos": true});
    let answer = server.post("/v1/completions", &body).await;
    assert_eq!(answer["error"]["code"], "engine_failed", "{answer}");

    let (status, said) = health().await.unwrap();
    assert_eq!((status, &said["status"]), (503, &json!("failed")), "{said}");
    assert!(said["reason"].as_str().unwrap().contains("a step too many"), "{said}");
    // Until the process is gone, every answer of `/health` reports the failure.
    while let Ok((status, said)) = health().await {
        assert_eq!(status, 503, "{said}");
    }
    let (code, said) = server.wait();
    assert_eq!(code, Some(101), "{said}");
    let last = said.lines().last().unwrap();
    assert_eq!(last, "error: the engine broke an invariant: a step too many");
}
