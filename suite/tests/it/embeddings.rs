//! `redline-bench serving --backend openai-embeddings`: what is sent, the report of vLLM's tool, and the
//! measurement without figures of output tokens; and when an answer is an embedding.

use std::fs;
use std::process::Output;

use expect_test::expect;
use schema::engine::ApiFormat;
use schema::measurement::Measurement;
use schema::run::ValidityVerdict;
use serde_json::{Value, json};
use suite::client::delta::Usage;
use suite::client::sample::{FailureKind, Moment, Sample};
use suite::client::stream::{Standing, Stream};
use suite::mock_server::script::{Answer, Script, Scripted, When};
use suite::mock_server::server::Logged;

use crate::harness::Exchange;
use crate::workspace::{Workspace, assert_refused, server, stderr, url};

const MS: u64 = 1_000_000;
/// Flags that draw eight conversations.
const ROWS: [&str; 6] =
    ["--dataset-name", "sharegpt", "--dataset-path", "rows.json", "--num-prompts", "8"];

fn document(embedding: &Value) -> Value {
    let item = json!({"object": "embedding", "index": 0, "embedding": embedding});
    let usage = json!({"prompt_tokens": 11, "total_tokens": 11});
    json!({"object": "list", "data": [item], "model": "m", "usage": usage})
}

fn embedding() -> Value {
    document(&json!([0.6, -0.8]))
}

/// Mock server that knows no other answers than `requests` and its fixed routes.
fn only(requests: Vec<Answer>) -> Exchange {
    Exchange::playing(Script { requests, ..Script::steady() })
}

/// Answer to all requests whose body contains `text`.
fn to(text: &str, answer: Answer) -> Answer {
    let path = Some("/v1/embeddings".to_owned());
    let when = When { path, body_contains: Some(text.to_owned()), ..When::default() };
    Answer { when, times: 0, ..answer }
}

/// Runs `redline-bench serving` for embeddings, with `flags` after those that all these tests share.
fn serving(workspace: &Workspace, exchange: &Exchange, flags: &[&str]) -> Output {
    let mut command = workspace.bench();
    command.args(["serving", "--base-url", &url(exchange), "--tokenizer", "tiny.json"]);
    command.args(["--model", "m", "--out", "own.json", "--backend", "openai-embeddings"]);
    command.args(flags).env_remove("OPENAI_API_KEY").output().expect("runs")
}

fn own(workspace: &Workspace) -> Measurement {
    let text = fs::read(workspace.path("own.json")).expect("a measurement");
    serde_json::from_slice(&text).expect("JSON")
}

/// Labels and values of the console block in the standard output of `output`.
fn block(output: &Output) -> Vec<(String, String)> {
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, begun) = printed.split_once(" Serving Benchmark Result ").expect("a block");
    let (block, _) = begun.split_once(&"=".repeat(50)).expect("its end");
    let row = |line: &str| {
        let (label, value) = line.split_once(':')?;
        Some((label.to_owned(), value.trim().to_owned()))
    };
    block.lines().filter_map(row).collect()
}

fn value(block: &[(String, String)], label: &str) -> f64 {
    let found = block.iter().find(|(found, _)| found == label).expect("the label");
    found.1.parse().expect("a number")
}

/// Server whose answers come in two parts, the last one 20 ms after the request, to bodies as vLLM's
/// tool writes them.
fn slow() -> Exchange {
    let text = embedding().to_string();
    let (first, last) = text.split_at(30);
    let events = vec![Scripted::text(0, first), Scripted::text(20_000, last)];
    let answer = Answer { events, ..Answer::document(&Value::Null) };
    only(vec![to(r#"","model":"m","truncate_prompt_tokens":-1}"#, answer)])
}

#[test]
fn the_report_is_that_of_vllms_tool_for_pooling() {
    let (exchange, workspace) = (slow(), Workspace::new());
    let files = ["--save-result", "--save-detailed", "--result-filename", "v.json"];
    let flags = [&ROWS[..], &files, &["--endpoint", "/v1/embeddings"]].concat();
    let flags = [&flags[..], &["--metric-percentiles", "50,99", "--max-concurrency", "4"]].concat();
    let output = serving(&workspace, &exchange, &flags);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let received = exchange.log().iter().filter(|line| line.event == Logged::Received).count();
    assert_eq!(received, 8, "no outputs are checked");
    let block = block(&output);
    let labels: Vec<&str> = block.iter().map(|(label, _)| label.as_str()).collect();
    expect![[r#"
        Successful requests
        Failed requests
        Maximum request concurrency
        Benchmark duration (s)
        Total input tokens
        Request throughput (req/s)
        Input throughput (inputs/s)
        Total token throughput (tok/s)
        Mean E2EL (ms)
        Median E2EL (ms)
        P50 E2EL (ms)
        P99 E2EL (ms)
    "#]]
    .assert_eq(&(labels.join("\n") + "\n"));
    assert_eq!(value(&block, "Successful requests"), 8.0);
    assert_eq!(value(&block, "Total input tokens"), 88.0, "the server's count");
    assert!(value(&block, "Median E2EL (ms)") >= 20.0, "the whole response: {block:?}");
    let text = fs::read_to_string(workspace.path("v.json")).expect("written");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    let keys: Vec<&str> =
        found.as_object().expect("an object").keys().map(String::as_str).collect();
    expect![[r#"
        date endpoint_type backend label model_id tokenizer_id num_prompts request_rate burstiness max_concurrency duration completed total_input_tokens total_input_sequences request_throughput input_sequence_throughput total_token_throughput input_lens errors latencies queue_times mean_e2el_ms median_e2el_ms std_e2el_ms p50_e2el_ms p99_e2el_ms
    "#]]
    .assert_eq(&(keys.join(" ") + "\n"));
    assert_eq!((&found["backend"], &found["completed"]), (&json!("openai-embeddings"), &json!(8)));
    let counts = (&found["total_input_tokens"], &found["total_input_sequences"]);
    assert_eq!(counts, (&json!(88), &json!(8)));
    assert_eq!(found["input_lens"], json!([11, 11, 11, 11, 11, 11, 11, 11]));
    let number = |key: &str| found[key].as_f64().expect("a number");
    let tokens = number("total_token_throughput") * number("duration");
    assert!((tokens - 88.0).abs() < 1e-6, "{tokens}");
    let latencies = found["latencies"].as_array().expect("a list");
    assert!(latencies.iter().all(|latency| latency.as_f64() >= Some(0.02)), "{latencies:?}");
    let audited = workspace.bench().args(["audit", "v.json"]).output().expect("runs");
    let said = String::from_utf8_lossy(&audited.stdout);
    assert_eq!(audited.status.code(), Some(0), "{said}");
    assert!(said.contains("v.json:1: result 1, unknown, 8 requests; tool vllm"), "{said}");
}

#[test]
fn what_an_embedding_does_not_have_is_absent() {
    let (exchange, workspace) = (slow(), Workspace::new());
    let output = serving(&workspace, &exchange, &ROWS);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stderr(&output);
    assert!(!said.contains("temperature") && !said.contains(" out\n"), "{said}");
    let found = own(&workspace);
    assert_ne!(found.validity.verdict, ValidityVerdict::Invalid, "{:?}", found.validity);
    assert_eq!(found.scenario.route.as_deref(), Some("/v1/embeddings"));
    assert_eq!((found.scenario.output_tokens, found.correctness), (None, None));
    let metrics = found.metrics.expect("metrics");
    assert!(metrics.e2e_us.expect("measured").p50 >= Some(20_000));
    assert!(metrics.requests_per_s.is_some() && metrics.input_tokens_per_s.is_some());
    assert_eq!(metrics.total_tokens_per_s, metrics.input_tokens_per_s);
    assert_eq!((metrics.output_tokens_per_s, metrics.stalls, metrics.slices), (None, None, None));
    assert_eq!((metrics.ttft_us, metrics.tpot_us, metrics.itl_token_us), (None, None, None));
    let counts = found.counts.expect("counts");
    assert_eq!((counts.requests_ok, counts.requests_failed), (Some(8), Some(0)));
    assert_eq!((counts.output_tokens_requested, counts.output_tokens_reported), (None, None));
    assert_eq!((counts.output_chunks, counts.finish_reasons), (None, None));
    let names: Vec<String> = found.validity.metrics.into_keys().collect();
    let of_tokens = |name: &String| name.starts_with("ttft_") || name.starts_with("output_");
    assert!(!names.iter().any(of_tokens) && names.iter().any(|name| name == "e2e_us_p50"));
    let bounds = found.client.expect("known").error_pct.expect("answered");
    assert!(bounds.keys().all(|name| !of_tokens(name)), "{bounds:?}");
    for format in ["vllm", "sglang"] {
        let mut command = workspace.bench();
        let output = command.args(["export", "own.json", "--format", format]).output();
        let output = output.expect("runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert_eq!(printed.contains("Mean E2EL (ms)"), format == "vllm", "{printed}");
        assert!(!printed.contains("TTFT"), "{printed}");
    }
}

#[test]
fn ids_and_further_fields_are_sent_where_flags_ask_for_them() {
    let answer = Answer::document(&document(&json!("mpkZP83MTL8=")));
    let exchange = only(vec![to(r#"{"encoding_format":"base64","input":["#, answer)]);
    let workspace = Workspace::new();
    let body = r#"{"encoding_format": "base64"}"#;
    let flags = ["--random-input-len", "11", "--num-prompts", "4", "--tokenize-prompt"];
    let output = serving(&workspace, &exchange, &[&flags[..], &["--extra-body", body]].concat());
    let counts = own(&workspace).counts.expect("counts");
    assert_eq!((counts.requests_ok, counts.requests_failed), (Some(4), Some(0)));
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains(" --random-input-len 11 --random-range-ratio 0.0\n"), "{printed}");
}

#[test]
fn an_answer_without_an_embedding_is_a_failed_request() {
    let empty = json!({"object": "list", "data": [], "usage": {"prompt_tokens": 11}});
    let error = json!({"error": {"message": "no pages", "code": 400}});
    let cases = [
        (200, empty, "bad-event"),
        (200, document(&json!([])), "bad-event"),
        (200, document(&json!([0.6, null])), "bad-event"),
        (200, json!({"choices": [{"index": 0, "text": "t"}]}), "bad-event"),
        (200, error.clone(), "error-event"),
        (400, error, "http-400"),
    ];
    for (status, body, kind) in cases {
        let when = When { index: Some(1), ..When::default() };
        let wrong = Answer { when, status, ..Answer::document(&body) };
        let exchange = only(vec![wrong, to("", Answer::document(&embedding()))]);
        let workspace = Workspace::new();
        let output = serving(&workspace, &exchange, &ROWS);
        assert_eq!(output.status.code(), Some(1), "{body}: {}", stderr(&output));
        let block = block(&output);
        let rows = ["Successful requests", "Failed requests", "Total input tokens"];
        assert_eq!(rows.map(|row| value(&block, row)), [7.0, 1.0, 77.0], "{body}");
        let printed = String::from_utf8_lossy(&output.stdout);
        let failure = format!("\nfailure        1 of 8 requests: {kind}: ");
        assert!(printed.contains(&failure), "{printed}");
        assert!(printed.contains("\nverdict        INVALID\n"), "{body}: {printed}");
        let counts = own(&workspace).counts.expect("counts");
        assert_eq!(counts.failures, Some([(kind.to_owned(), 1)].into()), "{body}");
    }
}

#[test]
fn flags_that_do_not_apply_to_embeddings_are_refused_by_name() {
    let exchange = server(Vec::new());
    let apart = "do not belong together\nhint: embeddings need `--backend openai-embeddings`";
    let cases: [(&[&str], &str); 11] = [
        (&["--output-len", "1"], "`--output-len` does not apply to embeddings"),
        (&["--random-output-len", "128"], "`--random-output-len` does not apply"),
        (&["--sharegpt-output-len", "1"], "`--sharegpt-output-len` does not apply"),
        (&["--ignore-eos"], "`--ignore-eos` does not apply"),
        (&["--temperature", "0"], "`--temperature` does not apply"),
        (&["--goodput", "e2el:500"], "`--goodput` does not apply"),
        (&["--percentile-metrics", "e2el,ttft"], "`--percentile-metrics` names a latency"),
        (&["--tool", "sglang"], "`--backend openai-embeddings` is supported only as in vLLM's"),
        (&["--endpoint", "/v1/completions"], apart),
        (&["--backend", "openai", "--endpoint", "/v1/embeddings"], apart),
        (&["--disable-stream"], "`--disable-stream` is not supported"),
    ];
    assert_refused(&cases, |workspace, flags| serving(workspace, &exchange, flags));
    let few = ["--percentile-metrics", "e2el", "--random-input-len", "9", "--num-prompts", "4"];
    let output = serving(&Workspace::new(), &exchange, &few);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

/// State of an answer of which nothing has arrived.
fn begun() -> Stream {
    let sample = Sample { sent_ns: Some(0), ..Sample::default() };
    Stream::new(sample, ApiFormat::Embeddings, 0)
}

#[test]
fn an_embedding_arrives_with_the_last_byte_of_its_document() {
    let document = embedding().to_string();
    let counted = format!("Content-Length: {}\r\n\r\n{document}", document.len());
    let counted = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n{counted}");
    let bytes = counted.as_bytes();
    let usage = Usage { prompt_tokens: 11, completion_tokens: 0, cached_tokens: None };
    for cut in 1..bytes.len() {
        let mut stream = begun();
        let (standing, _) = stream.take(&bytes[..cut], Moment::at(MS));
        assert_eq!(standing, Standing::Open, "cut at {cut}");
        let (standing, brought) = stream.take(&bytes[cut..], Moment::at(2 * MS));
        assert_eq!(standing, Standing::Ended { reusable: true }, "cut at {cut}");
        assert_eq!((brought.chunks, brought.tokens, brought.first), (1, 0, true), "cut at {cut}");
        let Sample { failure, usage: found, chunks, .. } = stream.sample;
        assert_eq!((failure, found), (None, Some(usage)), "cut at {cut}");
        assert_eq!(chunks.iter().map(|chunk| chunk.at_ns).collect::<Vec<_>>(), [2 * MS]);
        let mut cut_off = begun();
        cut_off.take(&bytes[..cut], Moment::at(MS));
        cut_off.close(2 * MS, None);
        let failure = cut_off.sample.failure.expect("cut off");
        assert_eq!(failure.kind, FailureKind::Closed, "cut at {cut}: {}", failure.message);
    }
    let mut until_close = begun();
    until_close.take(format!("HTTP/1.1 200 OK\r\n\r\n{document}").as_bytes(), Moment::at(MS));
    until_close.close(2 * MS, None);
    assert_eq!((until_close.sample.failure, until_close.sample.chunks.len()), (None, 1));
}

#[test]
fn a_document_without_end_fails_by_its_length() {
    let mut stream = begun();
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n{\"data\":[{\"embedding\":[";
    stream.take(head.as_bytes(), Moment::at(0));
    let numbers = "0.5,".repeat(1 << 14);
    let mut bytes = 0;
    while stream.sample.failure.is_none() {
        stream.take(numbers.as_bytes(), Moment::at(1));
        bytes += numbers.len();
        assert!(bytes < 8 << 20, "{bytes} bytes were read");
    }
    let failure = stream.sample.failure.expect("ended");
    assert_eq!(failure.kind, FailureKind::TooLong, "{}", failure.message);
}
