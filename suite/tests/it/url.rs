//! `redline-bench run --url URL` without any file: the client finds out the route and the fields that
//! the server accepts, makes its own prompts, and counts with the server's usage.

use std::fs;
use std::process::Output;

use schema::measurement::Measurement;
use schema::run::{CacheState, PromptForm, Status, TokenSource, ValidityVerdict};
use schema::scenario::Scenario;
use serde_json::{Map, Value};
use suite::mock_server::script::{Answer, Framing, Scripted, Steady, When};

use crate::harness::{Exchange, refusing_address};
use crate::workspace::{Workspace, server, stderr, url};

/// Answer with an error status to the requests that meet `when`, any number of them.
fn refusal(when: When, status: u16, message: &str) -> Answer {
    let body = format!(r#"{{"error":{{"message":"{message}"}}}}"#);
    let events = Answer::events(vec![Scripted::text(0, &body)]);
    Answer { when, times: 0, status, framing: Framing::Length, ..events }
}

fn on(path: &str) -> When {
    When { path: Some(path.to_owned()), ..When::default() }
}

fn run(workspace: &Workspace, url: &str, extra: &[&str]) -> Output {
    let mut command = workspace.bench();
    command.args(["run", "--url", url, "--progress", "none"]).args(extra);
    command.output().expect("runs")
}

/// Runs with a result file, and returns the folder and the measurement.
fn measured(exchange: &Exchange) -> (Workspace, Measurement) {
    let workspace = Workspace::new();
    let output = run(&workspace, &url(exchange), &["--out", "out.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fs::read(workspace.path("out.json")).expect("a measurement");
    (workspace, serde_json::from_slice(&text).expect("a measurement"))
}

#[test]
fn an_address_is_enough() {
    let workspace = Workspace::new();
    let exchange = server(Vec::new());
    let output = run(&workspace, &format!("{}/v1?key=s3cret", url(&exchange)), &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let left = workspace.left_over();
    let ending = |end: &str| left.iter().filter(|name| name.ends_with(end)).count();
    assert_eq!(
        [left.len(), ending(".json"), ending(".samples.jsonl"), ending(".toml")],
        [3, 1, 1, 1]
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    let result = left.iter().find(|name| name.ends_with(".json")).expect("the measurement");
    assert!(result.starts_with("measurement-2") && printed.contains(result), "{printed}");
    let address = url(&exchange);
    let first = format!("measured       {address}, model `emitter`\n");
    assert!(printed.starts_with(&first), "{printed}");
    let text = fs::read_to_string(workspace.path(result)).expect("a measurement");
    assert!(!text.contains("s3cret"), "a query may be a key");
    let found: Measurement = serde_json::from_str(&text).expect("a measurement");
    assert_eq!((found.url, found.model_name), (Some(address), Some("emitter".to_owned())));
}

#[test]
fn prompts_of_words_are_counted_by_the_server() {
    let (_, found) = measured(&server(Vec::new()));
    // DEGRADED where other programs keep this machine busy: then metrics have a wide error bound.
    let verdict = found.validity.verdict;
    assert!(found.status == Status::Ok && verdict != ValidityVerdict::Invalid, "{verdict:?}");
    let counts = found.counts.expect("counts");
    assert_eq!((counts.requests_ok, counts.output_tokens_requested), (Some(40), Some(40 * 64)));
    // The mock server counts words.
    assert_eq!(counts.input_tokens, Some(40 * 128));
    assert_eq!(counts.input_token_source, Some(TokenSource::Usage));
    assert_eq!(counts.output_tokens_retokenized, None);
    assert_eq!(found.scenario.prompt_form, Some(PromptForm::Text));
    let cache = found.cache.expect("cache");
    assert_eq!((cache.state, cache.expected_hit_tokens), (CacheState::Unknown, None));
}

#[test]
fn the_scenario_is_saved_and_draws_the_same_prompts_again() {
    let exchange = server(Vec::new());
    let (workspace, found) = measured(&exchange);
    let scenario = format!("{}.toml", found.scenario.id);
    let text = fs::read_to_string(workspace.path(&scenario)).expect("the scenario");
    assert!(Scenario::parse(&text).is_ok_and(|scenario| scenario.workload.seed > 1_700_000_000));
    let output =
        run(&workspace, &url(&exchange), &["--scenario", &scenario, "--out", "again.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let again = fs::read(workspace.path("again.json")).expect("a measurement");
    let again: Measurement = serde_json::from_slice(&again).expect("a measurement");
    let hashes = [&found, &again].map(|one| one.scenario.manifest_sha256.clone());
    assert!(hashes[0].is_some() && hashes[0] == hashes[1], "{hashes:?}");
}

#[test]
fn prompts_of_words_are_counted_by_a_tokenizer_that_is_given() {
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    let words = include_str!("../../src/workload/sampler/words.txt").split_whitespace();
    // The mock server's answers consist of the word `t`.
    let known = ["[UNK]", "t"].into_iter().chain(words).enumerate();
    let vocabulary: Map<String, Value> =
        known.map(|(id, word)| (word.to_owned(), Value::from(id))).collect();
    let mut tokenizer = schema::emitted::tokenizer(0);
    tokenizer["model"]["vocab"] = vocabulary.into();
    workspace.write("words.json", &tokenizer.to_string());
    let flags = ["--tokenizer", "words.json", "--out", "out.json"];
    let output = run(&workspace, &url(&exchange), &flags);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fs::read(workspace.path("out.json")).expect("a measurement");
    let found: Measurement = serde_json::from_slice(&text).expect("a measurement");
    let counts = found.counts.expect("counts");
    assert_eq!((counts.input_tokens, counts.input_token_source), (Some(40 * 128), None));
    let rate = found.metrics.and_then(|metrics| metrics.input_tokens_per_s);
    assert!(rate.is_some_and(|rate| rate > 0.0), "{rate:?}");
}

/// Server that reports for each prompt that so many of its tokens were cached.
fn warm(cached_tokens: u64) -> Exchange {
    let steady = Steady { first_us: 10_000, gap_us: 100, cached_tokens, ..Steady::default() };
    server(vec![Answer { times: 0, ..Answer::steady(steady) }])
}

#[test]
fn prompts_that_an_earlier_run_left_in_the_cache_degrade_the_figures() {
    for (cached, line, is_warm) in [
        (120, "prefix cache   4,800 of 5,120 prompt tokens were cached (94 %)\n", true),
        (6, "prefix cache   240 of 5,120 prompt tokens were cached (5 %)\n", false),
    ] {
        let (workspace, exchange) = (Workspace::new(), warm(cached));
        let output = run(&workspace, &url(&exchange), &["--out", "out.json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(printed.contains(line), "{printed}");
        let text = fs::read(workspace.path("out.json")).expect("a measurement");
        let found: Measurement = serde_json::from_slice(&text).expect("a measurement");
        let validity = &found.validity;
        let is_named = validity.reasons.iter().any(|reason| reason.starts_with("cache-warm: "));
        assert_eq!(is_named, is_warm, "{validity:?}");
        if is_warm {
            let verdict = validity.metrics.get("ttft_us_p50");
            assert_eq!(verdict, Some(&ValidityVerdict::Degraded), "{validity:?}");
        }
    }
}

#[test]
fn a_cache_that_is_only_claimed_to_be_cold_degrades_the_figures() {
    let (workspace, exchange) = (Workspace::new(), warm(7));
    // Without an engine file nothing empties the cache, and its page size is not known.
    let inputs = ["--scenario", "short.toml", "--dataset", "rows.json", "--tokenizer", "tiny.json"];
    let output = run(&workspace, &url(&exchange), &[&inputs[..], &["--out", "out.json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fs::read(workspace.path("out.json")).expect("a measurement");
    let found: Measurement = serde_json::from_slice(&text).expect("a measurement");
    let is_named = found.validity.reasons.iter().any(|reason| reason.starts_with("cache-warm: "));
    assert!(is_named, "{:?}", found.validity);
}

#[test]
fn the_route_and_the_fields_that_the_server_accepts_are_found_out() {
    let no_completions = refusal(on("/v1/completions"), 404, "Not Found");
    let strict = When { body_contains: Some("ignore_eos".to_owned()), ..When::default() };
    let strict = refusal(strict, 400, "Unrecognized request argument supplied: ignore_eos");
    let (_, found) = measured(&server(vec![no_completions, strict]));
    assert_eq!((found.status, found.scenario.ignore_eos), (Status::Ok, Some(false)));
}

#[test]
fn a_server_that_cannot_be_asked_is_told_with_its_reason() {
    let cases = [
        (vec![refusal(When::default(), 404, "Not Found")], "neither `/v1/completions` nor"),
        (
            vec![refusal(When::default(), 404, "The model `x` does not exist")],
            "The model `x` does not exist",
        ),
        (vec![refusal(When::default(), 401, "Incorrect API key")], "Incorrect API key"),
    ];
    for (first, said) in cases {
        let workspace = Workspace::new();
        let exchange = server(first);
        let output = run(&workspace, &url(&exchange), &["--model", "x"]);
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(stderr(&output).contains(said), "{said}: {}", stderr(&output));
        assert_eq!(workspace.left_over(), [""; 0]);
    }
    let output = run(&Workspace::new(), &format!("http://{}", refusing_address()), &[]);
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("no server answers"), "{}", stderr(&output));
}

#[test]
fn a_scenario_of_tokens_asks_for_a_tokenizer() {
    let workspace = Workspace::new();
    let flags = ["--scenario", "short.toml", "--dataset", "rows.json"];
    let exchange = server(Vec::new());
    let output = run(&workspace, &url(&exchange), &flags);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("`sharegpt@lmdeploy`") && said.contains("--tokenizer FILE"), "{said}");
}

#[test]
fn a_sweep_asks_for_a_scenario() {
    // Its points would send the same prompts, which the server's prefix cache then holds.
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    let mut command = workspace.bench();
    command.args(["sweep", "--url", &url(&exchange), "--concurrency", "1", "--out", "s"]);
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("give `--scenario FILE`"), "{}", stderr(&output));
}

#[test]
fn prompts_of_words_are_sent_as_text_to_an_engine_that_takes_ids() {
    let workspace = Workspace::new();
    let exchange = server(Vec::new());
    let output =
        run(&workspace, &url(&exchange), &["--engine", "redline.toml", "--out", "out.json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = fs::read_to_string(workspace.path("out.json")).expect("a measurement");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(found["scenario"]["prompt_form"], "text");
    assert_eq!(found["counts"]["input_tokens"], 40 * 128);
}
