//! `--fail-if`: a run beyond a threshold ends with exit code 1, as a CI job needs it.

use std::process::Output;

use suite::mock_server::script::{Answer, Steady, When};

use crate::harness::Exchange;
use crate::workspace::{Workspace, server, stderr, url};

fn run(workspace: &Workspace, exchange: &Exchange, conditions: &[&str]) -> Output {
    let mut command = workspace.run_flags(&url(exchange));
    for condition in conditions {
        command.arg("--fail-if").arg(condition);
    }
    command.output().expect("runs")
}

/// Lines of standard output about thresholds.
fn broken(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| line.strip_prefix("threshold      "));
    lines.map(str::to_owned).collect()
}

#[test]
fn each_broken_threshold_has_a_sentence_and_the_measurement_is_written() {
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    // The mock server's first token comes after 10 ms.
    let conditions = ["ttft_ms_p50>1", "output_tokens_per_s<1e9", "requests_failed>0"];
    let output = run(&workspace, &exchange, &conditions);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let lines = broken(&output);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(lines[0].starts_with("ttft_ms_p50 is ") && lines[0].ends_with(" above 1"), "{lines:?}");
    assert!(lines[1].starts_with("output_tokens_per_s is "), "{lines:?}");
    assert!(workspace.path("out.json").exists());

    let output = run(&workspace, &exchange, &["ttft_ms_p50>600000", "requests_failed>0"]);
    assert_eq!((output.status.code(), broken(&output)), (Some(0), Vec::new()));
    let output = run(&workspace, &exchange, &["ttft_ms_p99>600000"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("warning: "), "few requests say little about a p99");
}

#[test]
fn an_unknown_metric_is_wrong_use_and_nothing_is_sent() {
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    let output = run(&workspace, &exchange, &["ttft_p99>200"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    assert!(said.contains("no metric is called `ttft_p99`"), "{said}");
    assert!(said.contains("ttft_ms_p99") && said.contains("output_tokens_per_s"), "{said}");
    assert!(exchange.log().is_empty() && workspace.left_over().is_empty());
}

#[test]
fn an_invalid_figure_breaks_its_threshold() {
    // Answers that stop after three of five tokens make the run INVALID.
    let when = When { body_contains: Some("\"max_tokens\":5,".into()), ..When::default() };
    let steady = Steady { first_us: 10_000, tokens: Some(3), ..Steady::default() };
    let short = Answer { when, times: 0, ..Answer::steady(steady) };
    let output = run(&Workspace::new(), &server(vec![short]), &["ttft_ms_p50>600000"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(broken(&output), ["ttft_ms_p50 was not measured validly and may be above 600000"]);
}

#[test]
fn the_flags_of_other_tools_take_thresholds_too() {
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    let mut command = workspace.bench();
    command.args(["serving", "--base-url", &url(&exchange), "--tokenizer", "tiny.json"]);
    command.args(["--out", "own.json", "--backend", "sglang", "--dataset-path", "rows.json"]);
    command.args(["--num-prompts", "8", "--fail-if", "ttft_ms_p50>1"]);
    command.args(["--fail-if", "output_tokens_per_s<1e9"]).env_remove("OPENAI_API_KEY");
    let output = command.output().expect("runs");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(broken(&output).len(), 2, "{}", String::from_utf8_lossy(&output.stdout));
    assert!(workspace.path("own.json").exists());
}

#[test]
fn a_sweep_fails_where_one_point_is_beyond_a_threshold() {
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    let mut command = workspace.bench();
    command.args(["sweep", "--url", &url(&exchange), "--progress", "none", "--out", "sweep"]);
    command.args(["--engine", "redline.toml", "--scenario", "short.toml", "--dataset"]);
    command.args(["rows.json", "--tokenizer", "tiny.json", "--concurrency", "1,4"]);
    let mut code = |condition: &str| {
        let output = command.args(["--fail-if", condition]).output().expect("runs");
        (output.status.code(), broken(&output).len())
    };
    assert_eq!(code("requests_failed>0"), (Some(0), 0));
    // The second condition comes on top of the first.
    assert_eq!(code("ttft_ms_p50>1"), (Some(1), 2));
}

#[test]
fn a_search_fails_where_a_run_at_the_highest_rate_that_passed_is_beyond_a_threshold() {
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    let mut command = workspace.bench();
    command.args(["search", "--url", &url(&exchange), "--progress", "none", "--out", "search"]);
    command.args(["--engine", "redline.toml", "--scenario", "short.toml", "--dataset"]);
    command.args(["rows.json", "--tokenizer", "tiny.json", "--slo", "e2e_ms=60000"]);
    command.args(["--attainment", "0.7", "--from-requests-per-s", "200"]);
    command.args(["--to-requests-per-s", "400"]);
    let mut code = |condition: &str| {
        let output = command.args(["--fail-if", condition]).output().expect("runs");
        (output.status.code(), broken(&output).len())
    };
    assert_eq!(code("requests_failed>0"), (Some(0), 0));
    // Each of the three runs at 400 requests/s breaks the condition; those at 200 do not count.
    assert_eq!(code("ttft_ms_p50>1"), (Some(1), 3));
}
