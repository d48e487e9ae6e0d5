//! Tests with other projects' clients against the built server: the `openai` package, and the
//! benchmark clients of SGLang and AIPerf. They are installed from the package index; without one
//! the tests are skipped and say so.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::launched::{Launched, tiny_model};
use crate::published::qwen3;

const QUICKSTART: &str = include_str!("../../../docs/quickstart/serve-a-gguf.md");
const OPENAI: &str = "openai==3.54.0";
const SGLANG: &str = "sglang==0.5.23";
/// Version of AIPerf: 139 packages of 1.2 GB, which take about two minutes to install once on two
/// cores.
const AIPERF: &str = "aiperf==0.13.0";

/// Folder in which installed packages are kept for the next run.
fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn run(command: &mut Command) -> Option<Output> {
    command.output().ok().filter(|output| output.status.success())
}

/// Python interpreter of an environment with `package`, or none with a message that the test is
/// skipped.
fn python_with(package: &str) -> Option<PathBuf> {
    let folder = scratch(package);
    let python = folder.join("bin/python");
    let done = folder.join("installed");
    if !done.exists() {
        let made = run(Command::new("python3").args(["-m", "venv"]).arg(&folder)).and_then(|_| {
            let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", package];
            run(Command::new(&python).args(pip))
        });
        if made.is_none() {
            fixtures::skip("the package registries", &format!("`{package}` cannot be installed"));
            return None;
        }
        std::fs::write(&done, "").unwrap();
    }
    Some(python)
}

/// Output of a script, which must succeed.
fn says(python: &Path, script: &str, args: &[&str]) -> String {
    let output = Command::new(python).arg("-c").arg(script).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

const OPENAI_SCRIPT: &str = r#"
import sys
from openai import BadRequestError, NotFoundError, OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="any", max_retries=0)
models = [model.id for model in client.models.list()]
assert models == ["tiny"], models
model = client.models.retrieve("tiny")
assert model.id == "tiny" and model.object == "model", model

completion = client.completions.create(
    model="tiny", prompt="hello", max_tokens=7, temperature=0, n=2, logprobs=2, echo=True,
    seed=3, logit_bias={"50": -100}, presence_penalty=0.5, frequency_penalty=0.1)
assert [choice.index for choice in completion.choices] == [0, 1]
first = completion.choices[0]
assert first.text.startswith("hello") and first.finish_reason in ("length", "stop"), first
assert first.logprobs.token_logprobs[0] is None
assert all(value <= 0 for value in first.logprobs.token_logprobs[1:])
assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens

def streamed_completion():
    stream = client.completions.create(
        model="tiny", prompt="hello", max_tokens=7, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
    text, usage = "", None
    for chunk in stream:
        text += "".join(choice.text for choice in chunk.choices)
        usage = chunk.usage or usage
    return text, usage
text, usage = streamed_completion()
whole = client.completions.create(
    model="tiny", prompt="hello", max_tokens=7, temperature=0, extra_body={"ignore_eos": True})
assert text == whole.choices[0].text and usage == whole.usage, (text, usage, whole)

messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
chat = client.chat.completions.create(
    model="tiny", messages=messages, max_completion_tokens=9, temperature=0,
    logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True})
assert chat.choices[0].message.role == "assistant"
assert len(chat.choices[0].logprobs.content) == 9
assert len(chat.choices[0].logprobs.content[0].top_logprobs) == 2
stream = client.chat.completions.create(
    model="tiny", messages=messages, max_completion_tokens=9, temperature=0, stream=True,
    extra_body={"ignore_eos": True})
text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
assert text == chat.choices[0].message.content, (text, chat)

schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"],
          "additionalProperties": False, "x-guidance": {"whitespace_flexible": False}}
answer = client.chat.completions.create(
    model="tiny", messages=messages, max_tokens=40, temperature=0, response_format={
        "type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
assert answer.choices[0].message.content in ('{"sure":true}', '{"sure":false}'), answer

for wrong, error, code in [
    (dict(model="other", prompt="x"), NotFoundError, "model_not_found"),
    (dict(model="tiny", prompt="x", temperature=-1), BadRequestError, "invalid_value"),
    (dict(model="tiny", prompt="x", suffix="y"), BadRequestError, "unsupported_field"),
]:
    try:
        client.completions.create(**wrong)
        raise SystemExit(f"{wrong} was taken")
    except error as refused:
        assert refused.code == code, refused
print("served")
"#;

#[test]
fn extra_the_openai_package_works_unchanged() {
    let Some(python) = python_with(OPENAI) else { return };
    let model = tiny_model();
    let server = Launched::serve(model.path().to_str().unwrap(), &["--model-name", "tiny"]);
    assert_eq!(says(&python, OPENAI_SCRIPT, &[&server.url]), "served\n");
    // The script of the quickstart, with the test's address.
    let (_, script) = QUICKSTART.split_once("```python\n").expect("a script in Python");
    let (script, _) = script.split_once("```").expect("the script ends");
    let script = script.replace("http://127.0.0.1:23333", &server.url);
    assert!(script.contains(&server.url), "the script names the server's address");
    assert!(!says(&python, &script, &[]).is_empty(), "a streamed answer");
}

/// Runs SGLang's benchmark client from an unpacked wheel. Installing the wheel would need many
/// gigabytes of requirements that the client does not use.
const SGLANG_SCRIPT: &str = r#"
import importlib.util, pathlib, sys

wheel = pathlib.Path(sys.argv[1])
[library] = wheel.glob("sglang/srt/rust_extensions/_bench.*.so")
spec = importlib.util.spec_from_file_location("_bench", library)
bench = importlib.util.module_from_spec(spec)
spec.loader.exec_module(bench)
bench.run_argv(["sglang-bench", *sys.argv[2:]])
"#;

fn sglang() -> Option<PathBuf> {
    let folder = scratch(SGLANG);
    let done = folder.join("opened");
    if !done.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d"]);
        let opened = run(pip.arg(&folder).arg(SGLANG)).and_then(|_| {
            let entries = std::fs::read_dir(&folder).ok()?;
            let wheel = entries
                .map(|entry| entry.unwrap().path())
                .find(|path| path.extension().is_some_and(|ending| ending == "whl"))?;
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder))
        });
        if opened.is_none() {
            fixtures::skip("the package registries", &format!("`{SGLANG}` cannot be downloaded"));
            return None;
        }
        std::fs::write(&done, "").unwrap();
    }
    Some(folder)
}

#[test]
fn extra_sglangs_benchmark_client_completes_a_run() {
    let Some(wheel) = sglang() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let Some((server, model)) = qwen3() else { return };
    for backend in ["sglang-oai", "sglang-oai-chat", "vllm", "lmdeploy-chat"] {
        let results = model.path().join(format!("{backend}.jsonl"));
        let args = [
            wheel.to_str().unwrap(),
            "--backend",
            backend,
            "--base-url",
            &server.url,
            "--model",
            "real",
            "--tokenizer",
            model.path().to_str().unwrap(),
            "--dataset-name",
            "random-ids",
            "--random-input-len",
            "24",
            "--random-output-len",
            "8",
            "--random-range-ratio",
            "1.0",
            "--num-prompts",
            "12",
            "--request-rate",
            "inf",
            "--output-file",
            results.to_str().unwrap(),
            "--disable-tqdm",
        ];
        let said = says(Path::new("python3"), SGLANG_SCRIPT, &args);
        let text = std::fs::read_to_string(&results).unwrap_or_else(|_| panic!("{said}"));
        let result: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(result["completed"], 12, "{backend}: {text}");
        assert_eq!(result["total_output_tokens"], 12 * 8, "{backend}: {text}");
    }
    let metrics = runtime.block_on(async {
        reqwest::get(format!("{}/metrics", server.url)).await.unwrap().text().await.unwrap()
    });
    assert!(!metrics.contains("outcome=\"refused\"} 1"), "{metrics}");
}

/// Number of requests that AIPerf sends.
const AIPERF_REQUESTS: u64 = 12;

/// Report that AIPerf writes after a run over `endpoint`.
fn aiperf(python: &Path, url: &str, tokenizer: &Path, endpoint: &str) -> Value {
    let results = tokenizer.join(endpoint);
    let options = format!(
        "--model real --url {url} --endpoint-type {endpoint} --streaming --extra-inputs \
         ignore_eos:true --use-server-token-count --synthetic-input-tokens-mean 24 \
         --synthetic-input-tokens-stddev 0 --output-tokens-mean 8 --output-tokens-stddev 0 \
         --request-count {AIPERF_REQUESTS} --concurrency 4 --ui none --no-gpu-telemetry"
    );
    let mut command = Command::new(python.with_file_name("aiperf"));
    command.arg("profile").args(options.split_whitespace());
    command.arg("--tokenizer").arg(tokenizer).arg("--output-artifact-dir").arg(&results);
    // Its caches are removed with the test, and nothing is sent to its authors.
    let output = command.env("HF_HOME", tokenizer.join("hub")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report = std::fs::read(results.join("profile_export_aiperf.json"));
    serde_json::from_slice(&report.unwrap_or_else(|_| panic!("{said}"))).unwrap()
}

#[test]
fn extra_aiperf_completes_a_run() {
    let Some(python) = python_with(AIPERF) else { return };
    let Some((server, model)) = qwen3() else { return };
    for endpoint in ["chat", "completions"] {
        let report = aiperf(&python, &server.url, model.path(), endpoint);
        assert_eq!(report["request_count"]["avg"], AIPERF_REQUESTS as f64, "{endpoint}: {report}");
        assert_eq!(report["error_summary"], serde_json::json!([]), "{endpoint}: {report}");
        let tokens = &report["total_usage_completion_tokens"]["avg"];
        assert_eq!(*tokens, (8 * AIPERF_REQUESTS) as f64, "{endpoint}: {report}");
        assert!(report["time_to_first_token"]["avg"].as_f64() > Some(0.0), "{endpoint}: {report}");
    }
}
