//! `redline-bench` as a user runs it, against the mock server: files, exit codes, messages.

use std::fs;
use std::process::{Child, Command, Output, Stdio};

use expect_test::{Expect, expect};
use judge::quantile::Bins;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use schema::measurement::Measurement;
use schema::run::{CacheState, FailureClass, Phase, Status};
use serde_json::{Value, json};
use suite::mock_server::script::{Action, Answer, Framing, Script, Scripted, Steady, When};
use suite::mock_server::server::Logged;

use crate::harness::{Exchange, ready_url, refusing_address, wait_until};
use crate::kept::lines;
use crate::workspace::{PLAN, REQUESTS, Workspace, scenario, script, server, stderr, url};

/// Condition that matches measured request `n`, which follows two warm-up requests.
fn measured(n: u64) -> When {
    When { index: Some(2 + n), ..When::default() }
}

#[test]
fn a_whole_run_is_written_counted_and_explained() {
    let workspace = Workspace::new();
    let (code, found) = workspace.run(&server(Vec::new()), &[]);
    assert_eq!((code, found.status, found.failure.as_ref()), (Some(0), Status::Ok, None));
    let counts = found.counts.as_ref().expect("counts");
    assert_eq!(counts.requests_ok, Some(REQUESTS));
    assert_eq!((counts.input_tokens, counts.output_tokens_requested), (Some(32), Some(20)));
    assert_eq!(
        (counts.output_tokens_reported, counts.output_tokens_retokenized),
        (Some(20), Some(20))
    );
    assert_eq!(counts.output_chunks, Some(20));
    let cache = found.cache.as_ref().expect("cache");
    assert_eq!((cache.state, cache.emptied), (CacheState::Cold, Some(true)));
    assert_eq!(
        (cache.query_tokens, cache.hit_tokens, cache.expected_hit_tokens),
        (Some(0), Some(0), Some(0))
    );
    let correctness = found.correctness.as_ref().expect("correctness");
    assert_eq!(correctness.prompts, Some(4));
    let histograms = found.histograms.as_ref().expect("histograms");
    let samples = |name: &str| {
        let named = histograms.named();
        let found = named.iter().find(|(other, _)| *other == name).expect("a name");
        found.1.map(|histogram| Bins::decode(histogram).expect("readable").samples)
    };
    assert_eq!(
        [samples("ttft_us"), samples("itl_token_us"), samples("queue_us")],
        [Some(4), Some(16), None]
    );
    let (time, metrics) =
        (found.time.as_ref().expect("time"), found.metrics.as_ref().expect("metrics"));
    let wall_us = time.wall_us.expect("a wall");
    let rate = metrics.output_tokens_per_s.expect("a rate");
    assert!((rate - 20.0 * 1e6 / wall_us as f64).abs() < 1e-6, "the rate follows from the record");
    let p50 =
        |summary: &Option<schema::run::Summary>| summary.as_ref().and_then(|s| s.p50).expect("p50");
    assert!(p50(&metrics.ttft_us) >= 10_000 && p50(&metrics.e2e_us) >= 18_000);
    let mut left = workspace.left_over();
    left.sort();
    assert_eq!(left, ["out.json", "out.samples.jsonl"]);
}

#[test]
fn the_order_is_warm_up_then_the_plan_then_the_fixed_prompts() {
    let exchange = server(Vec::new());
    Workspace::new().run(&exchange, &[]);
    let log = exchange.log();
    let received = log.iter().filter(|line| line.event == Logged::Received);
    // The last one asks for the log-probabilities of a text.
    assert_eq!(received.count() as u64, 2 + REQUESTS + 4 + 1);
    let written = |request: u64| {
        let of = log.iter().filter(|line| line.request == request);
        of.filter(|line| matches!(line.event, Logged::Written(_))).count()
    };
    // The scripted answer has five tokens, trailing usage and [DONE]; the fixed prompts request 32
    // tokens.
    assert_eq!([written(0), written(2), written(6), written(9)], [7, 7, 34, 34]);
}

#[test]
fn failed_requests_make_a_partial_run() {
    let failing = Answer {
        when: measured(1),
        status: 500,
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, r#"{"error":{"message":"no pages"}}"#)])
    };
    let (code, found) = Workspace::new().run(&server(vec![failing]), &[]);
    assert_eq!((code, found.status), (Some(1), Status::Partial));
    let failure = found.failure.clone().expect("a failure");
    assert_eq!((failure.class, failure.phase), (FailureClass::BadOutput, Phase::Measure));
    assert_eq!(failure.message, "1 of 4 requests: http-500: no pages");
    let counts = found.counts.as_ref().expect("counts");
    assert_eq!(counts.failures, Some([("http-500".to_owned(), 1)].into()));
    assert_eq!((counts.requests_ok, counts.input_tokens), (Some(3), Some(24)));
    assert!(found.validity.reasons[0].contains("1 of 4 requests failed"));
}

#[test]
fn a_server_that_answers_nothing_makes_a_failed_run() {
    let close = |n| Answer {
        when: measured(n),
        framing: Framing::Raw,
        ..Answer::events(vec![Scripted::action(0, Action::Close)])
    };
    let workspace = Workspace::new();
    let (code, found) = workspace.run(&server((0..REQUESTS).map(close).collect()), &[]);
    assert_eq!((code, found.status), (Some(1), Status::Failed));
    assert_eq!(found.failure.as_ref().map(|failure| failure.class), Some(FailureClass::Crash));
    assert_eq!((found.metrics.as_ref(), found.histograms.as_ref()), (None, None));
}

#[test]
fn a_failed_warm_up_ends_the_run_before_the_clock() {
    let busy = Answer {
        status: 503,
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, "loading")])
    };
    let (code, found) = Workspace::new().run(&server(vec![busy]), &[]);
    assert_eq!((code, found.status), (Some(1), Status::Failed));
    let failure = found.failure.clone().expect("a failure");
    assert_eq!((failure.class, failure.phase), (FailureClass::Infrastructure, Phase::Warmup));
    assert_eq!(found.counts, None);
}

#[test]
fn silence_is_a_hang_and_what_was_measured_is_kept() {
    let stall =
        Answer { when: measured(3), ..Answer::events(vec![Scripted::action(0, Action::Stall)]) };
    let (code, found) = Workspace::new().run(&server(vec![stall]), &["--timeout-s", "1"]);
    assert_eq!((code, found.status), (Some(1), Status::Partial));
    assert_eq!(found.failure.as_ref().map(|failure| failure.class), Some(FailureClass::Hang));
    assert_eq!(found.counts.as_ref().and_then(|counts| counts.requests_ok), Some(3));
}

#[test]
fn outputs_are_compared_with_a_reference_one_token_at_a_time() {
    let workspace = Workspace::new();
    // Each teacher-forced request asks for one token, and the mock server's first token is always
    // 100.
    let greedy = [vec![100; 24], vec![7; 8]].concat();
    let reference =
        json!({"reference": "another program", "cases": [{"prompt": [2, 3], "greedy": greedy}]});
    workspace.write("reference.json", &reference.to_string());
    let (code, found) = workspace.run(&server(Vec::new()), &["--reference", "reference.json"]);
    let correctness = found.correctness.clone().expect("correctness");
    assert_eq!((code, correctness.agreement), (Some(0), Some(0.75)));
    assert_eq!(correctness.reference.as_deref(), Some("another program"));
}

#[test]
fn outputs_are_kept_and_the_perplexity_of_a_text_is_measured() {
    let half = 0.5_f64.ln();
    let logprobs = json!({"choices": [{"logprobs": {"token_logprobs": [null, half, half, -7.0]}}]});
    let echo = Answer {
        when: When { body_contains: Some("\"echo\":true".to_owned()), ..When::default() },
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, logprobs.to_string())])
    };
    let (code, found) = Workspace::new().run(&server(vec![echo]), &[]);
    let correctness = found.correctness.expect("correctness");
    assert_eq!(code, Some(0));
    assert!(correctness.perplexity.is_some_and(|found| (found - 2.0).abs() < 1e-9));
    assert_eq!(correctness.outputs.len(), 4);
    for kept in &correctness.outputs {
        // The mock server's tokens count up from 100.
        assert_eq!(kept.output, (100..132).collect::<Vec<u32>>());
        assert!(!kept.prompt.is_empty());
    }
    let (_, without) = Workspace::new().run(&server(Vec::new()), &[]);
    assert_eq!(without.correctness.expect("correctness").perplexity, None);
}

#[test]
fn an_engine_that_takes_text_gets_text() {
    let workspace = Workspace::new();
    let file = fs::read_to_string(workspace.path("redline.toml")).expect("readable");
    let file = file.replace("token_ids = true", "token_ids = false");
    workspace.write("redline.toml", &file);
    let exchange = server(vec![Answer {
        when: When { body_contains: Some("\"prompt\":\"w".to_owned()), ..When::default() },
        times: 0,
        ..Answer::steady(Steady::default())
    }]);
    let (code, found) = workspace.run(&exchange, &[]);
    assert_eq!((code, found.status), (Some(0), Status::Ok));
    assert_eq!(found.scenario.prompt_form, Some(schema::run::PromptForm::Text));
    let correctness = found.correctness.as_ref().expect("correctness");
    assert_eq!(
        correctness.tokens_sha256.as_deref().map(str::len),
        Some(64),
        "the emitter gives ids"
    );
}

#[test]
fn no_server_is_the_environments_fault_and_leaves_no_file() {
    let workspace = Workspace::new();
    let url = format!("http://{}", refusing_address());
    let output = workspace.run_flags(&url).output().expect("runs");
    assert_eq!(output.status.code(), Some(4));
    assert!(stderr(&output).contains("no server answers"), "{}", stderr(&output));
    assert_eq!(workspace.left_over(), [""; 0]);
}

#[test]
fn an_interrupted_run_leaves_no_file() {
    let stall = |n| Answer {
        when: measured(n),
        ..Answer::events(vec![Scripted::action(0, Action::Stall)])
    };
    // The program that sends SIGTERM reports the interruption itself, so this one prints nothing.
    for (signal, said) in [(Signal::SIGINT, "error: interrupted"), (Signal::SIGTERM, "")] {
        let workspace = Workspace::new();
        let exchange = server((0..REQUESTS).map(stall).collect());
        let child =
            workspace.run_flags(&url(&exchange)).stderr(Stdio::piped()).spawn().expect("runs");
        let under_way = || exchange.log().iter().any(|line| line.request == 2);
        wait_until(under_way);
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        kill(pid, signal).expect("still running");
        let output = finished(child);
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        assert_eq!(stderr(&output).trim(), said, "{signal}");
        assert_eq!(workspace.left_over(), [""; 0]);
    }
}

#[test]
fn an_interrupted_run_keeps_what_was_measured() {
    let stall = |n| Answer {
        when: measured(n),
        ..Answer::events(vec![Scripted::action(0, Action::Stall)])
    };
    for (signal, said) in [(Signal::SIGINT, true), (Signal::SIGTERM, false)] {
        let workspace = Workspace::new();
        let exchange = server(vec![stall(2), stall(3)]);
        let child =
            workspace.run_flags(&url(&exchange)).stderr(Stdio::piped()).spawn().expect("runs");
        wait_until(|| lines(&workspace).len() > 2);
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        kill(pid, signal).expect("still running");
        let output = finished(child);
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("interrupted"), said, "{}", stderr(&output));
        assert_eq!(stderr(&output).contains("`out.json`"), said, "{}", stderr(&output));
        let text = fs::read(workspace.path("out.json")).expect("kept");
        let found: Measurement = serde_json::from_slice(&text).expect("a measurement");
        assert_eq!(found.status, Status::Partial);
        let failure = found.failure.expect("a failure");
        assert_eq!(failure.class, FailureClass::Infrastructure, "{}", failure.message);
        let counts = found.counts.expect("counts");
        assert_eq!((counts.requests_ok, counts.requests_planned), (Some(2), Some(4)));
        assert_eq!(counts.failures, Some([("interrupted".to_owned(), 2)].into()));
        assert!(found.metrics.is_some_and(|metrics| metrics.ttft_us.is_some()));
    }
}

#[test]
fn a_second_signal_ends_the_program_at_once() {
    // After the warm-up, the server is silent about the reset of its prefix cache.
    let silent = Answer {
        when: When { path: Some("/reset_prefix_cache".to_owned()), ..When::default() },
        ..Answer::events(vec![Scripted::action(0, Action::Stall)])
    };
    let workspace = Workspace::new();
    let mut script = script(vec![silent]);
    script.routes.remove("/reset_prefix_cache");
    let exchange = Exchange::playing(script);
    let child = workspace.run_flags(&url(&exchange)).stderr(Stdio::piped()).spawn().expect("runs");
    wait_until(|| exchange.log().iter().any(|line| line.request == 2));
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    // A signal that arrives before the handler of the first has run may count as the first one.
    let mut child = child;
    for signal in [Signal::SIGINT, Signal::SIGTERM].into_iter().cycle() {
        if child.try_wait().expect("a child").is_some() {
            break;
        }
        kill(pid, signal).expect("not yet waited for");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let output = finished(child);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    // A run that ends in order removes it.
    assert!(workspace.path("out.json").exists(), "it ended before it could clean up");
}

#[test]
fn counts_that_no_run_has_are_refused_with_their_field() {
    let usual = scenario(4, "{ kind = \"all-at-once\" }");
    let words = |requests: &str, input: &str, output: &str| {
        let keys = format!("input_tokens = {input}, output_tokens = {output}, seed = 1");
        let workload = format!("workload = {{ pack = \"words\", requests = {requests}, {keys} }}");
        let lines = usual.lines().map(|line| match line.starts_with("workload") {
            true => workload.as_str(),
            false => line,
        });
        lines.collect::<Vec<_>>().join("\n")
    };
    let temperature =
        |text: &str| usual.replace("temperature = 0.0", &format!("temperature = {text}"));
    let arrival = |text: &str| usual.replace("{ kind = \"all-at-once\" }", text);
    for (text, field) in [
        (words("1000000000000", "8", "8"), "`workload.requests`"),
        (
            words("1", "40000000", "8"),
            "`workload.input_tokens` must be from 1 to 10000000 (no model",
        ),
        (words("1", "8", "1000000000000000"), "`workload.output_tokens`"),
        (words("1000000", "10000", "8"), "`workload.requests` of `workload.input_tokens`"),
        (arrival("{ kind = \"closed\", concurrency = 1000000000 }"), "`arrival.concurrency`"),
        (
            words("1000000", "8", "8").replace(
                "{ kind = \"all-at-once\" }",
                "{ kind = \"constant\", requests_per_s = 0.001 }",
            ),
            "days",
        ),
        (usual.replace("requests = 2,", "requests = 1000000000000,"), "`warmup.requests`"),
        (temperature("nan"), "`output.temperature` must be from 0 to 1000000, found NaN"),
        (temperature("inf"), "`output.temperature`"),
        (temperature("-0.5"), "`output.temperature`"),
        (temperature("1e300"), "`output.temperature`"),
    ] {
        let workspace = Workspace::new();
        workspace.write("short.toml", &text);
        let output = workspace.bench().args(PLAN).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{field}: {}", stderr(&output));
        assert!(stderr(&output).contains(field), "{field}: {}", stderr(&output));
        assert_eq!(workspace.left_over(), [""; 0]);
    }
}

#[test]
fn a_host_that_is_not_found_is_the_environments_fault() {
    let workspace = Workspace::new();
    // No resolver asks the network for a label of more than 63 letters.
    let host = "x".repeat(70);
    let output = workspace.run_flags(&format!("http://{host}:8000")).output().expect("runs");
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains(&format!("host `{host}`")), "{}", stderr(&output));
}

#[test]
fn a_password_in_the_url_is_refused_and_not_printed() {
    let workspace = Workspace::new();
    for url in ["http://ada:s3cret@127.0.0.1:1", "http://s3cret@127.0.0.1:1/v2", "ada:s3cret@h"] {
        let output = workspace.run_flags(url).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("password") && !said.contains("s3cret"), "{said}");
    }
}

#[test]
fn of_an_address_that_is_refused_only_the_server_is_shown() {
    let workspace = Workspace::new();
    for rest in ["s3cret", "s3cret?s3cret#s3cret", "v1/s3cret", "s3cret/../v2?key=s3cret"] {
        let url = format!("http://127.0.0.1:1/{rest}");
        let output = workspace.run_flags(&url).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("`http://127.0.0.1:1/…` is not the address"), "{said}");
        assert!(!said.contains("s3cret"), "{said}");
    }
}

fn finished(child: Child) -> Output {
    child.wait_with_output().expect("ended")
}

#[test]
fn wrong_use_is_named() {
    let workspace = Workspace::new();
    workspace.write("wrong.toml", "question = \"?\"\nrev = 0\n");
    let exchange = server(Vec::new());
    let url = url(&exchange);
    let with = |scenario: &str, url: &str| {
        let mut command = workspace.bench();
        command.args(["run", "--url", url, "--engine", "redline.toml", "--scenario", scenario]);
        command.args(["--dataset", "rows.json", "--tokenizer", "tiny.json", "--out", "out.json"]);
        command.output().expect("runs")
    };
    for (scenario, url, expected) in [
        ("wrong.toml", url.as_str(), "scenario `wrong.toml` cannot be used"),
        ("short.toml", "127.0.0.1:80/v2", "hint: give it as `http://HOST:PORT`"),
    ] {
        let output = with(scenario, url);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    assert_eq!(workspace.left_over(), ["wrong.toml"]);
}

fn printed(workspace: &Workspace, arguments: &[&str], expected: &Expect) {
    let output = workspace.bench().args(arguments).output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    expected.assert_eq(&String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_plan_says_what_would_be_sent() {
    let workspace = Workspace::new();
    printed(
        &workspace,
        &PLAN,
        &expect![[r#"
        scenario       short@1
        requests       4
        input tokens   32
        output tokens  20
        last send      0.000000 s
        manifest       e981e536ebba2f358aabd3e53eb683f321199207a522540e3e7bac30f7173d68
    "#]],
    );
    let plan: Value =
        serde_json::from_slice(&fs::read(workspace.path("plan.json")).expect("written"))
            .expect("JSON");
    assert_eq!(plan["manifest"]["requests"][0]["prompt"].as_array().map(Vec::len), Some(8));
    assert_eq!(plan["manifest"]["requests"][0]["send_us"], 0);
}

#[test]
fn a_probe_says_what_the_server_is() {
    let exchange = server(Vec::new());
    let arguments = ["probe", "--url", &url(&exchange), "--engine", "redline.toml"];
    printed(
        &Workspace::new(),
        &arguments,
        &expect![[r#"
            {
              "commit": null,
              "device": "cpu",
              "device_name": null,
              "engine": "redline",
              "metrics": {
                "prefix_hit_tokens": 0.0,
                "prefix_query_tokens": 32.0
              },
              "model": {
                "dtype": null,
                "format": null,
                "id": "emitter",
                "parameters": null,
                "revision": null,
                "source": null,
                "tokenizer_sha256": null,
                "weights": "random",
                "weights_sha256": null
              },
              "schema": "probe.v1",
              "server": {
                "argv": null,
                "config": {
                  "tp": 1
                },
                "config_sha256": null,
                "device": "cpu",
                "env": null,
                "kv_bytes": 4096,
                "kv_dtype": "f32",
                "max_batch_size": null,
                "prefix_cache": null,
                "startup_us": null,
                "tp": 1,
                "variant": null,
                "weights_load_us": null
              },
              "version": "0.9.1"
            }
        "#]],
    );
}

#[test]
fn a_server_that_is_not_ready_has_no_probe() {
    let mut script = Script::steady();
    let loading = json!({"status": 503, "body": {"status": "loading"}});
    script.routes.insert("/health".into(), serde_json::from_value(loading).expect("a route"));
    let exchange = Exchange::playing(script);
    let workspace = Workspace::new();
    let output = workspace
        .bench()
        .args(["probe", "--url", &url(&exchange), "--engine", "redline.toml"])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(stderr(&output).trim(), r#"error: `/health` answered 503: {"status":"loading"}"#);
}

#[test]
fn a_closed_loop_is_measured_too() {
    let workspace = Workspace::new();
    workspace.write("short.toml", &scenario(6, "{ kind = \"closed\", concurrency = 2 }"));
    let (code, found) = workspace.run(&server(Vec::new()), &[]);
    assert_eq!((code, found.status), (Some(0), Status::Ok));
    assert_eq!(found.client.as_ref().and_then(|client| client.streams_max), Some(2));
    let concurrency = found.metrics.as_ref().and_then(|metrics| metrics.concurrency_mean);
    assert!(concurrency.is_some_and(|mean| mean > 0.5 && mean <= 2.0), "{concurrency:?}");
}

#[test]
fn the_help_teaches() {
    let help = |command: &str| {
        let output = Workspace::new().bench().args([command, "--help"]).output().expect("runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let run = help("run");
    for word in ["--timeout-s", "warm up", "Engine file", "What the numbers mean"] {
        assert!(run.contains(word), "`{word}` is missing in:\n{run}");
    }
    for command in [
        "run",
        "sweep",
        "search",
        "serving",
        "plan",
        "verify-manifest",
        "probe",
        "first-answer",
        "abort",
        "export",
        "audit",
    ] {
        let help = help(command);
        let example = format!("  redline-bench {command} ");
        assert!(help.contains("Example") && help.contains(&example), "{help}");
    }
}

#[test]
fn the_emitter_serves_until_its_input_closes() {
    let mut emitter = Command::new(env!("CARGO_BIN_EXE_redline-emitter"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("runs");
    let url = ready_url(&mut emitter);
    let workspace = Workspace::new();
    let output = workspace.run_flags(&url).output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    drop(emitter.stdin.take());
    assert_eq!(emitter.wait().expect("ended").code(), Some(0));
}
