//! Command lines of the tools that `redline-bench serving` replaces: which tool a line means, and what
//! is drawn from the data sets that it names.

use std::fs;
use std::process::Output;

use schema::measurement::Measurement;
use serde_json::{Value, json};
use suite::mock_server::script::{Answer, Script, Shape, Steady, When};

use crate::harness::Exchange;
use crate::workspace::{NO_CACHES, Workspace, server, stderr};

/// Runs `redline-bench serving` with the words of `line`, in a folder with `rows.json` and
/// `lines.jsonl`, against the mock server `exchange`. The server's place and the tokenizer follow, in
/// place of those of the line: the last of several values counts.
pub fn served(workspace: &Workspace, exchange: &Exchange, line: &str) -> Output {
    workspace.write("lines.jsonl", &lines());
    workspace.write("sonnet.txt", &poem());
    let question = |i: usize| json!({"turns": [format!("w{i} w1 w2"), "w3"], "category": "x"});
    let code = |i: usize| json!({"input": format!("w{i}"), "instruction": "w2", "output": "w3"});
    for (id, rows) in [
        ("philschmid/mt-bench", (0..4).map(question).collect::<Vec<_>>()),
        ("likaixin/InstructCoder", (0..4).map(code).collect()),
    ] {
        fs::create_dir_all(workspace.path(id)).expect("a folder");
        let rows: Vec<String> = rows.iter().map(|row| row.to_string() + "\n").collect();
        workspace.write(&format!("{id}/rows.jsonl"), &rows.concat());
    }
    let template = json!({"chat_template": "<s>u {{ messages[0].content }} m", "bos_token": "<s>"});
    workspace.write("tokenizer_config.json", &template.to_string());
    let mut command = workspace.bench();
    command.arg("serving").args(line.split_whitespace());
    command.args(["--tokenizer", "tiny.json", "--out", "own.json"]);
    match line.contains("--base-url ") {
        true => command.args(["--base-url", &format!("http://{}", exchange.address)]),
        false => {
            command.args(["--host", "127.0.0.1", "--port"]).arg(exchange.address.port().to_string())
        }
    };
    command.envs(NO_CACHES).env_remove("OPENAI_API_KEY").output().expect("runs")
}

/// Dataset of the documented form for `--dataset-name custom`: eight prompts, some with a length.
fn lines() -> String {
    let line = |i: usize| format!("{{\"prompt\": \"w{i} w1 w2\", \"output_tokens\": {}}}\n", i + 2);
    (0..8).map(line).collect()
}

/// Poem of twenty lines, each with four tokens.
fn poem() -> String {
    (0..20).map(|i| format!("w{i} w1 w2 w3\n")).collect()
}

pub fn planned(workspace: &Workspace) -> Measurement {
    let text = fs::read(workspace.path("own.json")).expect("a measurement");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn the_last_of_several_values_of_a_flag_counts() {
    let exchange = server(Vec::new());
    for (seeds, counts) in [("--seed 3 --seed 0", 0), ("--seed 0 --seed 3", 3)] {
        let workspace = Workspace::new();
        let line = "--backend openai --model m --dataset-name sharegpt --dataset-path rows.json";
        let output = served(&workspace, &exchange, &format!("{line} --num-prompts 4 {seeds}"));
        assert_eq!(output.status.code(), Some(0), "{seeds}: {}", stderr(&output));
        assert_eq!(planned(&workspace).scenario.seed, Some(counts), "{seeds}");
    }
}

#[test]
fn a_line_that_means_another_workload_in_another_tool_says_which_it_follows_or_is_refused() {
    let exchange = server(Vec::new());
    let rows = "--dataset-path rows.json --num-prompts 4";
    let data = format!("{rows} --dataset-name sharegpt");
    let followed = [
        (
            format!("--backend vllm {data} --save-result"),
            "vLLM's `bench serve` 0.33: `--save-result`",
        ),
        (
            "--backend vllm --dataset-name custom --dataset-path lines.jsonl --num-prompts 2"
                .to_owned(),
            "follows vLLM's `bench serve` 0.33: `--dataset-name custom` is read as it reads it",
        ),
        (
            format!("--backend vllm {rows} --disable-ignore-eos"),
            "0.5.23: `--disable-ignore-eos` is",
        ),
        (format!("--backend vllm-chat {rows}"), "follows SGLang's `bench_serving` 0.5.23: it has"),
        (
            format!("--tool lmdeploy --backend vllm {data}"),
            "follows LMDeploy's `profile_restful_api.py` v0.9.2\n",
        ),
    ];
    for (line, expected) in followed {
        let workspace = Workspace::new();
        let output = served(&workspace, &exchange, &line);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{line}: {}", stderr(&output));
    }
    let random = "--random-input-len 9 --random-output-len 3 --num-prompts 4";
    let refused = [
        (format!("--backend vllm {rows}"), "hint: give `--tool vllm` or `--tool sglang`"),
        (format!("--backend vllm {data}"), "`--backend vllm` with `--dataset-name sharegpt` draws"),
        (
            format!("--backend vllm --dataset-name random {random}"),
            "`--backend vllm` with `--dataset-name random` draws other requests",
        ),
        (format!("{data} --save-result --flush-cache"), "hint: leave one out, or name the tool"),
    ];
    for (line, expected) in refused {
        let workspace = Workspace::new();
        let output = served(&workspace, &exchange, &line);
        assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{line}: {}", stderr(&output));
    }
}

/// Text and number of output tokens of each request that the saved scenario draws.
fn sent(workspace: &Workspace, dataset: &str) -> Vec<(String, String)> {
    let scenario = workspace.left_over().into_iter().find(|name| name.ends_with(".toml"));
    let mut plan = workspace.bench();
    plan.args(["plan", "--scenario", &scenario.expect("the scenario"), "--dataset", dataset]);
    plan.args(["--tokenizer", "tiny.json", "--prompt-form", "text", "--out", "plan.json"]);
    let output = plan.output().expect("runs");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let plan = fs::read(workspace.path("plan.json")).expect("the plan");
    let plan: Value = serde_json::from_slice(&plan).expect("JSON");
    let requests = plan["manifest"]["requests"].as_array().expect("a list").iter();
    let text = |request: &Value| request["text"].as_str().expect("a text").to_owned();
    requests.map(|request| (text(request), request["output_tokens"].to_string())).collect()
}

#[test]
fn the_chat_template_is_written_around_prompts_where_the_tool_does_it() {
    let when = When { path: Some("/v1/chat/completions".to_owned()), ..When::default() };
    let steady = Steady { shape: Shape::Chat, first_us: 10_000, ..Steady::default() };
    let exchange = server(vec![Answer { when, times: 0, ..Answer::steady(steady) }]);
    let texts = |line: &str, dataset: &str| -> Vec<String> {
        let workspace = Workspace::new();
        let output = served(&workspace, &exchange, line);
        assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
        sent(&workspace, dataset).into_iter().map(|(text, _)| text).collect()
    };
    let custom = "--backend openai --dataset-name custom --dataset-path lines.jsonl";
    let custom = format!("{custom} --num-prompts 1 --disable-shuffle");
    assert_eq!(texts(&custom, "lines.jsonl"), ["<s>u w0 w1 w2 m"]);
    assert_eq!(texts(&format!("{custom} --skip-chat-template"), "lines.jsonl"), ["w0 w1 w2"]);
    // Behind a chat route the server writes it.
    let chat = custom.replace("openai", "openai-chat");
    assert_eq!(texts(&chat, "lines.jsonl"), ["w0 w1 w2"]);
    // SGLang's tool takes out the token that the tokenizer adds, and one request warms up.
    let sglang = "--backend sglang --dataset-path rows.json --num-prompts 4";
    let written = texts(&format!("{sglang} --apply-chat-template"), "rows.json");
    assert!(
        written.iter().all(|text| text.starts_with("u w") && text.ends_with(" m")),
        "{written:?}"
    );
    assert!(texts(sglang, "rows.json").iter().all(|text| text.starts_with('w')));
}

#[test]
fn poems_and_questions_are_drawn_as_vllms_tool_draws_them() {
    let exchange = server(Vec::new());
    let texts = |line: &str, dataset: &str| -> Vec<String> {
        let workspace = Workspace::new();
        let output = served(&workspace, &exchange, &format!("--model m {line}"));
        assert_eq!(output.status.code(), Some(0), "{line}: {}", stderr(&output));
        sent(&workspace, dataset).into_iter().map(|(text, _)| text).collect()
    };
    let sonnet = "--dataset-name sonnet --dataset-path sonnet.txt --num-prompts 2 \
                  --sonnet-input-len 62 --sonnet-prefix-len 30 --sonnet-output-len 3";
    let lines = |numbers: &[usize]| -> String {
        let poem = poem();
        let lines: Vec<&str> = poem.lines().collect();
        numbers.iter().map(|number| format!("{}\n", lines[*number])).collect()
    };
    let poem = |others: [usize; 8]| {
        let task = "Pick as many lines as you can from these poem lines:\n";
        format!("<s>u {task}{}{} m", lines(&[0, 1, 2]), lines(&others))
    };
    // `random.seed(0)` and twice `random.choices` of 20 lines in Python.
    let drawn = [[16, 15, 8, 5, 10, 8, 15, 6], [9, 11, 18, 10, 5, 15, 12, 5]];
    assert_eq!(texts(sonnet, "sonnet.txt"), drawn.map(poem));
    let hf = "--dataset-name hf --dataset-path philschmid/mt-bench --hf-output-len 2";
    let rows = "philschmid/mt-bench/rows.jsonl";
    let first = texts(&format!("{hf} --num-prompts 2 --disable-shuffle"), rows);
    assert_eq!(first, ["<s>u w0 w1 w2 m", "<s>u w1 w1 w2 m"]);
    let by_name = "--dataset-name hf --hf-name likaixin/InstructCoder --skip-chat-template";
    let workspace = Workspace::new();
    let code = json!({"input": "w1", "instruction": "w2", "output": "w3"}).to_string();
    workspace.write("code.jsonl", &code);
    let line = format!("--model m {by_name} --dataset-path code.jsonl --num-prompts 1");
    let output = served(&workspace, &exchange, &line);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("note: rows are shuffled"), "{}", stderr(&output));
    let prompt = "w1\n\nw2 Just output the code, do not include any explanation.";
    assert_eq!(sent(&workspace, "code.jsonl"), [(prompt.to_owned(), "200".to_owned())]);
}

#[test]
fn a_missing_chat_template_is_an_error_with_a_way_out() {
    let exchange = server(Vec::new());
    let custom = ["--dataset-name", "custom", "--dataset-path", "lines.jsonl", "--model", "m"];
    let twice = ["--apply-chat-template", "--backend", "sglang-oai-chat", "--dataset-path", "x"];
    for (flags, said) in [
        (&custom[..], "hint: put the model's `tokenizer_config.json`"),
        (&twice[..], "write the chat template twice"),
    ] {
        let workspace = Workspace::new();
        workspace.write("lines.jsonl", &lines());
        let mut command = workspace.bench();
        let url = format!("http://{}", exchange.address);
        command.args(["serving", "--base-url", &url, "--tokenizer", "tiny.json"]).args(flags);
        let output = command.output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

#[test]
fn custom_prompts_are_shuffled_and_repeated_as_vllms_tool_does() {
    let exchange = server(Vec::new());
    let prompts = |flags: &str| -> Vec<String> {
        let workspace = Workspace::new();
        let line = "--backend openai --dataset-name custom --dataset-path lines.jsonl \
                    --skip-chat-template --custom-output-len -1";
        let output = served(&workspace, &exchange, &format!("{line} {flags}"));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let requests = sent(&workspace, "lines.jsonl").into_iter();
        requests.map(|(text, tokens)| text.replace(" w1 w2", "") + ":" + &tokens).collect()
    };
    // `random.seed(0)` and `random.shuffle` of eight rows in Python.
    let shuffled = ["w4:6", "w1:3", "w5:7", "w2:4", "w0:2", "w3:5", "w7:9", "w6:8"];
    assert_eq!(prompts("--num-prompts 8"), shuffled);
    let more = prompts("--num-prompts 11");
    assert_eq!((&more[..8], more.len()), (&shuffled.map(str::to_owned)[..], 11));
    assert_eq!(prompts("--num-prompts 2 --disable-shuffle"), ["w0:2", "w1:3"]);
}

#[test]
fn a_server_is_named_by_a_url_with_or_without_its_scheme_and_path() {
    let header = When {
        head_contains: Some("X-Team: a b\r\n".to_owned()),
        path: Some("/v1/completions".to_owned()),
        ..When::default()
    };
    let shape = Shape::Completions;
    let steady =
        Answer { when: header, times: 0, ..Answer::steady(Steady { shape, ..Steady::default() }) };
    let mut script = Script::steady();
    script.requests = vec![steady];
    let exchange = Exchange::playing(script);
    let address = exchange.address;
    for url in
        [format!("http://{address}/v1"), format!("http://{address}/v1/"), address.to_string()]
    {
        let workspace = Workspace::new();
        let mut command = workspace.bench();
        command.args(["serving", "--base-url", &url, "--tokenizer", "tiny.json", "--model", "m"]);
        command.args(["--random-input-len", "9", "--random-output-len", "3", "--num-prompts", "4"]);
        let output = command.args(["--header", "X-Team=a b", "X-Other=1"]).output().expect("runs");
        assert_eq!(output.status.code(), Some(0), "{url}: {}", stderr(&output));
    }
}

#[test]
fn the_version_names_the_release_and_the_commit() {
    let output = Workspace::new().bench().arg("--version").output().expect("runs");
    let manifest = include_str!("../../../engine/Cargo.toml");
    let release = manifest.lines().find_map(|line| line.strip_prefix("version = "));
    let release = release.expect("a version").trim_matches('"');
    let said = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(said.starts_with(&format!("redline-bench {release} (")), "{said}");
}

#[test]
fn an_engine_file_is_told_all_that_it_lacks_at_once() {
    let workspace = Workspace::new();
    workspace.write("bare.toml", "title = \"Bare\"\nmetrics = {}\n[launch]\nargv = [\"x\"]\n");
    let mut command = workspace.bench();
    let output = command.args(["probe", "--url", "127.0.0.1:1", "--engine", "bare.toml"]).output();
    let output = output.expect("runs");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let said = stderr(&output);
    for field in ["`info.dialect`", "`launch.timeout_s`", "`ready.route`", "`request.route`"] {
        assert!(said.contains(field), "{field}: {said}");
    }
    assert!(!said.contains("`launch.argv`") && !said.contains("`title`"), "{said}");
}
