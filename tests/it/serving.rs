//! `redline serve` as a user meets it: answers, damaged models, taken ports, shutdown.

use std::net::TcpListener;
use std::path::Path;

use fixtures::{MODEL, cached, fixture};
use nix::sys::signal::Signal;
use tests::program::{built, command, run};
use tests::server::{Server, client};

fn serve(model: &Path, more: &[&str]) -> std::process::Command {
    let model = model.to_str().expect("UTF-8");
    let words: Vec<&str> = ["serve", model].into_iter().chain(more.iter().copied()).collect();
    command(&built("redline"), Path::new("."), &words)
}

#[test]
fn greedy_tokens_over_http_are_the_references() {
    let Some(model) = cached(MODEL) else { return };
    let golden = std::fs::read_to_string(fixture("golden/smollm2-llama-cpp.json"))
        .expect("the reference outputs are readable");
    let golden: serde_json::Value = serde_json::from_str(&golden).expect("JSON");
    let server = Server::start(&mut serve(&model, &["--port", "0", "--model-name", "m"]));
    let client = client();
    for case in golden["cases"].as_array().expect("cases") {
        let greedy = case["greedy"].as_array().expect("ids");
        let margins = case["margin"].as_array().expect("margins");
        // The output must equal the reference's up to the first position whose two likeliest tokens
        // are so close that rounding decides.
        let sure = |margin: &serde_json::Value| margin.as_f64().is_some_and(|m| m >= 0.35);
        let sure_tokens = margins.iter().take_while(|margin| sure(margin)).count();
        let body = serde_json::json!({
            "model": "m", "prompt": case["prompt"], "max_tokens": greedy.len(), "temperature": 0,
            "ignore_eos": true, "return_token_ids": true,
        });
        let answer: serde_json::Value = client
            .post(format!("{}/v1/completions", server.url))
            .json(&body)
            .send()
            .and_then(|response| response.json())
            .expect("an answer");
        let ids = answer["choices"][0]["token_ids"].as_array().expect("token ids");
        assert_eq!(ids.len(), greedy.len());
        assert_eq!(ids[..sure_tokens], greedy[..sure_tokens], "{}", case["prompt"]);
    }
}

#[test]
fn a_model_file_cut_short_is_refused() {
    let Some(model) = cached(MODEL) else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let whole = std::fs::read(&model).expect("the model is readable");
    for (bytes, says) in [
        (0, "the file is empty".to_owned()),
        (3, "4 bytes are needed at byte 0, 3 are left".to_owned()),
        (23, "8 bytes are needed at byte 16, 7 are left".to_owned()),
        (4096, "272 tensors at byte 24, where 4072 bytes are left".to_owned()),
        (whole.len() / 2, format!("the file has {}", whole.len() / 2)),
        (
            whole.len() - 1,
            format!("ends at byte {}, the file has {}", whole.len(), whole.len() - 1),
        ),
    ] {
        let cut = folder.path().join("cut.gguf");
        std::fs::write(&cut, &whole[..bytes]).expect("writable");
        let ended = run(&mut serve(&cut, &["--port", "0"])).expect_code(2);
        let ended = ended.expect_said("cut.gguf` is damaged: ").expect_said(&says);
        assert_eq!(ended.stderr.lines().count(), 1, "one clear message:\n{}", ended.stderr);
    }
}

#[test]
fn a_missing_model_and_a_taken_port_are_the_environment() {
    run(&mut serve(Path::new("no-such.gguf"), &["--port", "0"]))
        .expect_code(4)
        .expect_said("no-such.gguf");
    let Some(model) = cached(MODEL) else { return };
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let ended = run(&mut serve(&model, &["--port", &port])).expect_code(4);
    let ended = ended.expect_said(&format!("127.0.0.1:{port}"));
    assert_eq!(ended.stderr.lines().count(), 1, "one clear message:\n{}", ended.stderr);
}

#[test]
fn sigterm_drains_and_ends_well() {
    let Some(model) = cached(MODEL) else { return };
    let server = Server::start(&mut serve(&model, &["--port", "0", "--model-name", "m"]));
    let url = format!("{}/v1/completions", server.url);
    let body = serde_json::json!({
        "model": "m", "prompt": [504, 3575, 282, 4649, 314], "max_tokens": 64, "ignore_eos": true,
        "stream": true,
    });
    let running = client().post(url).json(&body).send().expect("a stream");
    server.signal(Signal::SIGTERM);
    let text = running.text().expect("the stream goes on to its end");
    assert!(text.contains("\"finish_reason\":\"length\""), "{text}");
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
    assert_eq!(server.wait(), Some(0));
}
