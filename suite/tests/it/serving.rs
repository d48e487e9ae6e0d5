//! `redline-bench serving` with the flags of all three tools, against one mock server.

use std::fs;
use std::process::Output;

use schema::measurement::Measurement;
use schema::run::{CacheState, ValidityVerdict};
use schema::scenario::{Arrival, Growth};
use serde_json::{Value, json};
use suite::mock_server::script::{Answer, Framing, Scripted, Shape, Steady, When};

use crate::harness::Exchange;
use crate::workspace::{NO_CACHES, Workspace, assert_refused, server, stderr, url};

/// Flags of each tool for eight conversations, and below for six prompts of fixed length.
const SHAREGPT: [(&str, &[&str]); 3] = [
    ("vllm", &["--dataset-name", "sharegpt", "--ignore-eos", "--save-result"]),
    ("sglang", &[]),
    ("lmdeploy", &["--dataset-name", "sharegpt", "--disable-warmup"]),
];
const RANDOM: [(&str, &[&str]); 3] = [
    ("vllm", &["--random-input-len", "9", "--random-output-len", "6", "--save-result"]),
    ("sglang", &["--random-input", "9", "--random-output", "6", "--random-range-ratio", "1.0"]),
    ("lmdeploy", &["--random-input-len", "9", "--random-output-len", "6", "--random-range", "1"]),
];

/// Runs `redline-bench serving` with `flags` and the flags that all these tests share.
fn serving(workspace: &Workspace, exchange: &Exchange, flags: &[&str]) -> Output {
    let mut command = workspace.bench();
    command.args(["serving", "--base-url", &url(exchange), "--tokenizer", "tiny.json"]);
    command.args(["--out", "own.json"]).args(flags).env_remove("OPENAI_API_KEY");
    command.envs(NO_CACHES).output().expect("runs")
}

fn of_rows<'a>(backend: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["--backend", backend, "--dataset-path", "rows.json", "--num-prompts", "8"], flags].concat()
}

fn of_random<'a>(backend: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    let rows: &[&str] = if backend == "vllm" { &[] } else { &["--dataset-path", "rows.json"] };
    let asked = ["--backend", backend, "--dataset-name", "random", "--num-prompts", "6"];
    [&asked[..], rows, flags].concat()
}

fn own(workspace: &Workspace) -> Measurement {
    let text = fs::read(workspace.path("own.json")).expect("a measurement");
    serde_json::from_slice(&text).expect("JSON")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Name of the one new file with this ending, apart from Redline's own files.
fn left(workspace: &Workspace, ending: &str) -> String {
    let ours = |name: &String| name.starts_with("own.") || name.starts_with("block");
    let mut names = workspace.left_over();
    names.retain(|name| name.ends_with(ending) && !ours(name));
    assert_eq!(names.len(), 1, "{names:?}");
    names.remove(0)
}

/// Result of `redline-bench audit` on a file: tool, answered requests, and the ids of failed error
/// rules.
fn audited(workspace: &Workspace, file: &str) -> (String, u64, Vec<String>) {
    let output = workspace.bench().args(["audit", "--json", file]).output().expect("runs");
    let files: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(files[0]["unread"], json!([]), "{file}");
    let result = &files[0]["results"][0];
    let wrong = |check: &&Value| check["level"] == "error" && check["ok"] == false;
    let checks = result["checks"].as_array().expect("a list").iter().filter(wrong);
    let wrong = checks.map(|check| check["rule"].as_str().unwrap_or_default().to_owned());
    let tool = result["tool"].as_str().expect("a tool").to_owned();
    (tool, result["requests_ok"].as_u64().expect("a count"), wrong.collect())
}

#[test]
fn one_server_under_three_tools_flags_gives_each_ones_block_and_file() {
    let exchange = server(Vec::new());
    for (backend, flags) in SHAREGPT {
        let workspace = Workspace::new();
        let output = serving(&workspace, &exchange, &of_rows(backend, flags));
        assert_eq!(output.status.code(), Some(0), "{backend}: {}", stderr(&output));
        let printed = stdout(&output);
        assert!(printed.starts_with(&format!("--backend {backend} --dataset-name sharegpt ")));
        assert!(printed.contains("\nmeasurement    own.json\nverdict        "), "{printed}");
        workspace.write("block.log", &printed);
        let endings = [("vllm", ".json"), ("sglang", ".jsonl"), ("lmdeploy", ".csv")];
        let ending = endings.iter().find(|(tool, _)| *tool == backend).expect("a tool").1;
        let result = left(&workspace, ending);
        for file in ["block.log", &result] {
            let (tool, answers, mut wrong) = audited(&workspace, file);
            // A console block prints the duration with two digits, too few to check the rates of so
            // short a run.
            wrong.retain(|rule| file != "block.log" || !["E06", "E21", "E36"].contains(&&**rule));
            assert_eq!((tool.as_str(), answers), (backend, 8), "{file}");
            assert_eq!(wrong, [""; 0], "{file}");
        }
        let found = own(&workspace);
        assert_eq!(found.scenario.requests, Some(8));
        assert_ne!(found.validity.verdict, ValidityVerdict::Invalid, "{:?}", found.validity);
        assert_eq!(found.cache.expect("known").state, CacheState::Unknown, "left as it was");
    }
}

#[test]
fn what_is_sent_is_what_the_pack_draws() {
    let packs = |name: &str, lengths: &str| {
        let tools = [("vllm", 0), ("sglang", 42), ("lmdeploy", 1)];
        tools.map(|(tool, seed)| {
            let rows = if (name, tool) == ("random", "vllm") { "" } else { ", dataset = \"rows\"" };
            let ratio = if tool == "vllm" { "0.0" } else { "1.0" };
            format!("pack = \"{name}@{tool}\", seed = {seed}{rows}{}", lengths.replace('R', ratio))
        })
    };
    let exchange = server(Vec::new());
    let cases = SHAREGPT.map(|(backend, flags)| (of_rows(backend, flags), 8));
    let cases = cases.into_iter().zip(packs("sharegpt", ""));
    let random = RANDOM.map(|(backend, flags)| (of_random(backend, flags), 6));
    let lengths = ", input_tokens = 9, output_tokens = 6, range_ratio = R";
    for ((flags, requests), pack) in cases.chain(random.into_iter().zip(packs("random", lengths))) {
        let workspace = Workspace::new();
        let output = serving(&workspace, &exchange, &flags);
        assert_eq!(output.status.code(), Some(0), "{pack}: {}", stderr(&output));
        let scenario = left(&workspace, ".toml");
        let expected = format!(
            "question = \"?\"\nrev = 1\nworkload = {{ {pack}, requests = {requests} }}\n\
             warmup = {{ requests = 0, from = \"disjoint\" }}\n\
             arrival = {{ kind = \"all-at-once\" }}\n\
             output = {{ ignore_eos = true, temperature = 0.0 }}\ntier = \"lite\"\n"
        );
        workspace.write("pack.toml", &expected);
        let planned = |scenario: &str| -> Value {
            let mut command = workspace.bench();
            command.args(["plan", "--scenario", scenario, "--tokenizer", "tiny.json"]);
            command.args(["--dataset", "rows.json", "--prompt-form", "text", "--out", "plan.json"]);
            let output = command.output().expect("runs");
            assert_eq!(output.status.code(), Some(0), "{pack}: {}", stderr(&output));
            serde_json::from_slice(&fs::read(workspace.path("plan.json")).expect("written"))
                .expect("JSON")
        };
        let (ours, packs) = (planned(&scenario), planned("pack.toml"));
        assert_eq!(ours["manifest"]["requests"], packs["manifest"]["requests"], "{pack}");
        assert_eq!(
            json!(own(&workspace).scenario.manifest_sha256),
            ours["manifest_sha256"],
            "{pack}"
        );
    }
}

#[test]
fn a_rate_a_shape_and_a_cap_are_an_arrival() {
    let exchange = server(Vec::new());
    let cases: [(&[&str], Arrival); 6] = [
        (&[], Arrival::AllAtOnce),
        (&["--max-concurrency", "3"], Arrival::Closed { concurrency: 3 }),
        (
            &["--request-rate", "500", "--max-conc", "2"],
            Arrival::Poisson { requests_per_s: 500.0, concurrency_max: Some(2) },
        ),
        (
            &["--request-rate", "500", "--burstiness", "inf"],
            Arrival::Constant { requests_per_s: 500.0, concurrency_max: None },
        ),
        (
            &["--request-rate", "500.5", "--burstiness", "0.5"],
            Arrival::Gamma { requests_per_s: 500.5, shape: 0.5, concurrency_max: None },
        ),
        (&["--request-rate", "inf", "--burstiness", "0.5"], Arrival::AllAtOnce),
    ];
    for (flags, arrival) in cases {
        let workspace = Workspace::new();
        let output = serving(&workspace, &exchange, &of_rows("sglang", flags));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert_eq!(own(&workspace).scenario.arrival, Some(arrival));
    }
}

#[test]
fn a_ramp_up_is_sent_named_and_reported_as_in_vllms_tool() {
    let exchange = server(Vec::new());
    let workspace = Workspace::new();
    let ramp = ["--model", "m", "--ramp-up-strategy", "exponential", "--ramp-up-start-rps", "100"];
    let ramp = [&ramp[..], &["--ramp-up-end-rps", "400", "--burstiness", "inf"]].concat();
    let flags = [RANDOM[0].1, &ramp, &["--max-concurrency", "5"]].concat();
    let output = serving(&workspace, &exchange, &of_random("vllm", &flags));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let arrival = Arrival::Ramp {
        from_requests_per_s: 100.0,
        to_requests_per_s: 400.0,
        growth: Growth::RequestExponential,
        shape: None,
        concurrency_max: Some(5),
    };
    assert_eq!(own(&workspace).scenario.arrival, Some(arrival));
    let name = left(&workspace, ".json");
    assert!(name.starts_with("vllm-ramp-up-exponential-100qps-400qps-concurrency5-m-"), "{name}");
    let text = fs::read_to_string(workspace.path(&name)).expect("written");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    let ends = (&found["ramp_up_start_rps"], &found["ramp_up_end_rps"]);
    assert_eq!(
        (&found["ramp_up_strategy"], ends),
        (&json!("exponential"), (&100.into(), &400.into()))
    );
    assert_eq!((&found["request_rate"], &found["burstiness"]), (&json!("inf"), &json!("inf")));
    for (flags, said) in [
        (["--request-rate", "3"], "hint: leave one of them out"),
        (["--ramp-up-end-rps", "99"], "the rate of vLLM's tool only grows"),
        (["--ramp-up-end-rps", "0"], "invalid value '0' for '--ramp-up-end-rps"),
    ] {
        let output = serving(&workspace, &exchange, &[&ramp[..], &flags].concat());
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(said), "{flags:?}: {}", stderr(&output));
    }
}

#[test]
fn a_request_carries_what_the_flags_ask_and_the_key() {
    let when = When {
        body_contains: Some(r#""temperature":0.7,"top_k":-1,"top_p":0.5"#.to_owned()),
        head_contains: Some("Authorization: Bearer sesame\r\n".to_owned()),
        path: Some("/v1/chat/completions".to_owned()),
        ..When::default()
    };
    let shape = Shape::Chat;
    let asked = Answer { when, times: 0, ..Answer::steady(Steady { shape, ..Steady::default() }) };
    let mut script = suite::mock_server::script::Script::steady();
    script.requests = vec![asked];
    let exchange = Exchange::playing(script);
    let workspace = Workspace::new();
    let mut command = workspace.bench();
    command.args(["serving", "--base-url", &url(&exchange), "--tokenizer", "tiny.json"]);
    command.args(["--out", "own.json", "--backend", "openai-chat", "--dataset-name", "sharegpt"]);
    command.args(["--dataset-path", "rows.json", "--num-prompts", "4", "--top-p", "0.5"]);
    command.args(["--extra-body", r#"{"temperature": 0.7, "ignore_eos": true}"#, "--top-k", "-1"]);
    command.args(["--sharegpt-output-len", "3", "--served-model-name", "other"]);
    let output = command.env("OPENAI_API_KEY", "sesame").output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let counts = own(&workspace).counts.expect("counts");
    assert_eq!((counts.requests_ok, counts.output_tokens_requested), (Some(4), Some(12)));
    assert_eq!(own(&workspace).scenario.route.as_deref(), Some("/v1/chat/completions"));
    let scenario = fs::read_to_string(workspace.path(&left(&workspace, ".toml"))).expect("saved");
    assert!(scenario.contains("chat = true\n"), "{scenario}");
    let output =
        serving(&workspace, &exchange, &of_rows("openai-chat", &["--dataset-name", "sharegpt"]));
    assert_eq!(output.status.code(), Some(1), "other requests are not answered");
}

#[test]
fn results_are_added_where_the_tool_adds_them() {
    let exchange = server(Vec::new());
    let workspace = Workspace::new();
    let lines =
        |name: &str| fs::read_to_string(workspace.path(name)).expect("written").lines().count();
    let run = |backend: &str, flags: &[&str]| {
        let output = serving(&workspace, &exchange, &of_rows(backend, flags));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    };
    for count in 1..=2 {
        run("sglang", &["--output-file", "results/s.jsonl", "--tag", "x"]);
        run("lmdeploy", &["--output-file", "l.csv"]);
        let vllm = ["--dataset-name", "sharegpt", "--result-dir", "results", "--result-filename"];
        run("vllm", &[&vllm[..], &["v.json", "--append-result"]].concat());
        run("vllm", &[&vllm[..], &["one.json", "--save-result", "--metadata", "tp=2"]].concat());
        let found = ["results/s.jsonl", "l.csv", "results/v.json", "results/one.json"].map(lines);
        assert_eq!(found, [count, 1 + count, count, 1], "a table has its head once");
    }
    let text = fs::read_to_string(workspace.path("results/one.json")).expect("written");
    let found: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&found["tp"], &found["backend"]), (&json!("2"), &json!("vllm")));
    let text = fs::read_to_string(workspace.path("results/s.jsonl")).expect("written");
    let found: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&found["tag"], &found["backend"]), (&json!("x"), &json!("sglang")));
}

#[test]
fn sglangs_own_route_is_asked_as_its_tool_asks_and_any_other_by_its_name() {
    let native = ["\"sampling_params\":{\"ignore_eos\":true,\"max_new_tokens\":", "\"text\":"];
    let ids = ["\"top_p\":0.5}", "\"input_ids\":["];
    type Case = (&'static str, &'static [&'static str], &'static str, Shape, [&'static str; 2]);
    let cases: [Case; 4] = [
        ("sglang", &[], "/generate", Shape::Generate, native),
        ("sglang", &["--tokenize-prompt", "--top-p", "0.5"], "/generate", Shape::Generate, ids),
        (
            "sglang-oai-chat",
            &["--endpoint", "/v1/messages"],
            "/v1/messages",
            Shape::Messages,
            ["\"max_tokens\":", "\"messages\":["],
        ),
        (
            "sglang-oai",
            &["--endpoint", "/v1/responses"],
            "/v1/responses",
            Shape::Responses,
            ["\"max_output_tokens\":", "\"input\":"],
        ),
    ];
    for (backend, flags, route, shape, [length, prompt]) in cases {
        let path = Some(route.to_owned());
        let asked = |text: &str| When {
            path: path.clone(),
            body_contains: Some(text.to_owned()),
            ..When::default()
        };
        let answer = |text: &str| Answer {
            when: asked(text),
            times: 0,
            ..Answer::steady(Steady { shape, ..Steady::default() })
        };
        for text in [length, prompt] {
            let mut script = suite::mock_server::script::Script::steady();
            script.requests = vec![answer(text)];
            let workspace = Workspace::new();
            let output = serving(&workspace, &Exchange::playing(script), &of_rows(backend, flags));
            assert_eq!(output.status.code(), Some(0), "{route}, {text}: {}", stderr(&output));
            let counts = own(&workspace).counts.expect("counts");
            assert_eq!(counts.requests_ok, Some(8), "{route}");
            assert_eq!(counts.output_tokens_reported, counts.output_tokens_requested, "{route}");
        }
    }
}

#[test]
fn a_cache_is_flushed_where_the_tools_know_how() {
    let mut script = suite::mock_server::script::Script::steady();
    let route = serde_json::from_value(json!({"body": "flushed"})).expect("a route");
    script.routes.insert("/flush_cache".to_owned(), route);
    let exchange = Exchange::playing(script);
    let workspace = Workspace::new();
    let output = serving(&workspace, &exchange, &of_rows("sglang", &["--flush-cache"]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let cache = own(&workspace).cache.expect("known");
    assert_eq!((cache.state, cache.emptied), (CacheState::Cold, Some(true)));
    let engine = ["--flush-cache", "--engine", "redline.toml"];
    let output = serving(&workspace, &exchange, &of_rows("lmdeploy", &engine));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(own(&workspace).cache.expect("known").state, CacheState::Cold);
}

#[test]
fn what_is_not_followed_is_refused_by_name_before_anything_is_written() {
    let exchange = server(Vec::new());
    let cases: [(&[&str], &str); 27] = [
        (&["--lora-modules", "a", "b"], "`--lora-modules` is not supported"),
        (&["--chat-template-kwargs", "{}"], "hint: the server applies its own template"),
        (&["--profile"], "`--profile` is not supported"),
        (&["--multi"], "hint: give one `--request-rate` at a time"),
        (&["--backend", "other"], "invalid value 'other' for '--backend"),
        (&["--dataset-name", "other"], "[possible values: sharegpt, random, custom"),
        (&["--dataset_name", "burstgpt"], "hint: traces are for `redline-bench run`"),
        (&["--dataset-name=random-mm"], "hint: only text is sent"),
        (&["--backend", "tgi"], "`--backend tgi` is not supported\nhint: its own route"),
        (&["--backend", "vllm-pooling"], "hint: `--backend openai-embeddings` measures"),
        (&["--config", "x.yaml"], "hint: a file of flags is not read"),
        (&["--random-range-ratio", r#"{"input": 0.1}"#], "one number for prompts and outputs"),
        (&["--tool", "sglang"], "hint: `hf download --repo-type dataset anon8231489123/"),
        (&["--tool", "lmdeploy", "--dataset-name", "random"], "hint: give `--random-input-len`"),
        (&["--dataset-path", "rows.json"], "makes its own prompts"),
        (
            &["--dataset-name", "sonnet", "--dataset-path", "x", "--tool", "sglang"],
            "only as in vLLM",
        ),
        (&["--dataset-name", "hf", "--dataset-path", "x"], "does not know the rows of `x`"),
        (&["--dataset-name", "sonnet", "--disable-shuffle"], "hint: give it with `--dataset-path`"),
        (&["--random-range-ratio", "1.0"], "`workload.range_ratio` must be from 0 to below 1"),
        (
            &["--backend", "openai-chat", "--tokenize-prompt"],
            "ids, which `/v1/chat/completions` does not accept",
        ),
        (&["--tool", "vllm", "--flush-cache"], "hint: give `--engine FILE`"),
        (&["--header", "Host=x"], "the client sets `Host` itself"),
        (&["--extra-body", "[1]"], "not a JSON object"),
        (&["--extra-body", r#"{"max_tokens": 1}"#], "`output.extra_body` has `max_tokens`"),
        (&["--extra-body", r#"{"stop": null}"#], "cannot be written as TOML"),
        (&["--goodput", "itl:5"], "give `ttft:MS`, `tpot:MS` or `e2el:MS`"),
        (&["--percentile-metrics", "queue"], "`queue` is no quantity"),
    ];
    assert_refused(&cases, |workspace, flags| serving(workspace, &exchange, flags));
}

#[test]
fn flags_are_taken_as_vllms_own_parser_takes_them() {
    let (workspace, exchange) = (Workspace::new(), server(Vec::new()));
    let flags = ["--tool", "vllm", "--dataset_name", "random", "--num_prompts=6"];
    let lengths = ["--random_input_len", "9", "--random_output_len=6", "--tokenizer_mode", "auto"];
    let output = serving(&workspace, &exchange, &[flags, lengths].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(own(&workspace).scenario.requests, Some(6));
    let note = "note: follows vLLM's `bench serve` 0.33\n";
    assert!(stderr(&output).contains(note), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_had_is_said() {
    let exchange = server(Vec::new());
    let workspace = Workspace::new();
    let sglang = ["--backend", "sglang", "--dataset-path"];
    let run = |flags: &[&str], url: &str| {
        let mut command = workspace.bench();
        command.args(["serving", "--base-url", url]).args(flags).env("HF_HUB_CACHE", "cache");
        let output = command.output().expect("runs");
        (output.status.code(), stderr(&output))
    };
    let here = url(&exchange);
    let (code, said) = run(&[&sglang[..], &["rows.json"]].concat(), &here);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("`emitter` is neither a file nor a folder with a `tokenizer.json`"));
    assert!(said.contains("nor in `cache`\nhint: give one with `--tokenizer`"), "{said}");
    let tokenizer = ["absent.json", "--tokenizer", "tiny.json"];
    let (code, said) = run(&[&sglang[..], &tokenizer].concat(), &here);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("cannot read data set `absent.json`"), "{said}");
    let gone = format!("http://{}", crate::harness::refusing_address());
    let (code, said) = run(&[&sglang[..], &["rows.json"]].concat(), &gone);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("no server answers at"), "{said}");
    let (code, said) = run(&sglang[..2], &format!("{here}/v2"));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("hint: give it as `http://HOST:PORT`"), "{said}");
}

#[test]
fn failures_are_no_result_of_the_tool_and_an_exit_code_of_ours() {
    let failing = |when| Answer {
        when,
        status: 500,
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, "no pages")])
    };
    let first = When { index: Some(1), ..When::default() };
    let exchange = server(vec![failing(first)]);
    let workspace = Workspace::new();
    let output = serving(&workspace, &exchange, &of_rows("sglang", &[]));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("Successful requests:                     7\n"));
    assert!(stdout(&output).contains("verdict        INVALID"), "{}", stdout(&output));
    let cause = "\nfailure        1 of 8 requests: http-500: \"no pages\"\n";
    assert_eq!(stdout(&output).matches(cause).count(), 1, "{}", stdout(&output));
    let exchange = server(vec![Answer { times: 0, ..failing(When::default()) }]);
    let output = serving(&workspace, &exchange, &of_rows("sglang", &["--disable-warmup"]));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("no report: no request was answered"));
    assert!(!stdout(&output).contains("Benchmark Result"), "{}", stdout(&output));
}

#[test]
fn where_standard_error_is_no_terminal_lines_say_how_far_a_run_is() {
    let exchange = server(Vec::new());
    let workspace = Workspace::new();
    let output = serving(&workspace, &exchange, &of_rows("sglang", &[]));
    let said = stderr(&output);
    assert!(said.contains("sharegpt@sglang `serving-") && said.contains("8 requests, "), "{said}");
    assert!(said.ends_with("8 of 8 requests done, 0 failed, in 0:00\n"), "{said}");
    let output = serving(&workspace, &exchange, &of_rows("sglang", &["--disable-tqdm"]));
    assert!(!stderr(&output).contains("done"), "{}", stderr(&output));
}

#[test]
fn a_server_that_is_not_ready_is_waited_for_where_the_flags_say_so() {
    let models = |times, status, text: &str| Answer {
        when: When { path: Some("/v1/models".to_owned()), ..When::default() },
        times,
        status,
        framing: Framing::Length,
        ..Answer::events(vec![Scripted::text(0, text)])
    };
    let mut script = suite::mock_server::script::Script::steady();
    script.routes.remove("/v1/models");
    let ready = models(0, 200, r#"{"data":[{"id":"late"}]}"#);
    script.requests.splice(0..0, [models(2, 503, "loading"), ready]);
    let exchange = Exchange::playing(script);
    let workspace = Workspace::new();
    let output = serving(&workspace, &exchange, &of_rows("sglang", &[]));
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stderr(&output).contains("`/v1/models` answered 503: loading"), "{}", stderr(&output));
    let waiting = of_rows("sglang", &["--ready-check-timeout-sec", "60"]);
    let output = serving(&workspace, &exchange, &waiting);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}
