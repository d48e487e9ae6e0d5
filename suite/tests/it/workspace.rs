//! Folder with all inputs of `redline-bench`, and a mock server to run it against.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use schema::measurement::Measurement;
use serde_json::{Value, json};
use suite::mock_server::script::{Answer, Script};
use tempfile::TempDir;

use crate::harness::Exchange;

/// Variables that keep the data sets of the machine's caches from being found.
pub const NO_CACHES: [(&str, &str); 2] = [("HF_HUB_CACHE", "cache"), ("REDLINE_CACHE", "cache")];
/// Number of requests in the scenario `short.toml`.
pub const REQUESTS: u64 = 4;

/// Arguments that save the plan of the short scenario.
pub const PLAN: [&str; 9] = [
    "plan",
    "--scenario",
    "short.toml",
    "--dataset",
    "rows.json",
    "--tokenizer",
    "tiny.json",
    "--out",
    "plan.json",
];

/// Temporary folder with all inputs of a run: scenario, dataset, tokenizer and engine file.
pub struct Workspace {
    folder: TempDir,
}

impl Workspace {
    pub fn new() -> Self {
        let workspace = Self { folder: TempDir::new().expect("a folder") };
        workspace.write("tiny.json", &tokenizer().to_string());
        workspace.write("rows.json", &rows().to_string());
        workspace.write("short.toml", &scenario(REQUESTS, "{ kind = \"all-at-once\" }"));
        let engine = concat!(env!("CARGO_MANIFEST_DIR"), "/engines/redline.toml");
        workspace.write("redline.toml", &fs::read_to_string(engine).expect("the engine file"));
        workspace
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("writable");
    }

    pub fn bench(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redline-bench"));
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    pub fn run_flags(&self, url: &str) -> Command {
        let mut command = self.bench();
        command.args(["run", "--url", url, "--progress", "none", "--out", "out.json"]);
        command.args(["--engine", "redline.toml", "--scenario", "short.toml"]);
        command.args(["--dataset", "rows.json", "--tokenizer", "tiny.json"]);
        command
    }

    pub fn run(&self, exchange: &Exchange, extra: &[&str]) -> (Option<i32>, Measurement) {
        let output = self.run_flags(&url(exchange)).args(extra).output().expect("runs");
        let text = fs::read(self.path("out.json"))
            .unwrap_or_else(|_| panic!("no file: {}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code(), serde_json::from_slice(&text).expect("a measurement"))
    }

    /// Names of the files that a command added to the folder.
    pub fn left_over(&self) -> Vec<String> {
        let given = ["tiny.json", "rows.json", "short.toml", "redline.toml"];
        let entries = fs::read_dir(self.folder.path()).expect("readable");
        let names = entries.map(|entry| entry.expect("readable").file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        names.filter(|name| !given.contains(&name.as_str())).collect()
    }
}

/// Tokenizer of whole words, with a vocabulary large enough for [`rows`].
pub fn tokenizer() -> Value {
    schema::emitted::tokenizer(200)
}

/// Dataset of twenty conversations with answers of five tokens.
pub fn rows() -> Value {
    let row = |i: usize| {
        let prompt: Vec<String> = (0..8).map(|j| format!("w{}", i * 8 + j)).collect();
        json!({"conversations": [{"from": "human", "value": prompt.join(" ")},
                                 {"from": "gpt", "value": "t t t t t"}]})
    };
    (0..20).map(row).collect()
}

pub fn scenario(requests: u64, arrival: &str) -> String {
    format!(
        "question = \"How fast?\"\nrev = 1\n\
         workload = {{ pack = \"sharegpt@lmdeploy\", dataset = \"rows\", requests = {requests}, seed = 1 }}\n\
         warmup = {{ requests = 2, from = \"disjoint\" }}\narrival = {arrival}\n\
         output = {{ ignore_eos = true, temperature = 0.0 }}\ntier = \"lite\"\n"
    )
}

pub fn url(exchange: &Exchange) -> String {
    format!("http://{}", exchange.address)
}

/// Mock server that answers with the first entry of `first` that matches, else with a steady stream
/// in the route's API format.
pub fn server(first: Vec<Answer>) -> Exchange {
    Exchange::playing(script(first))
}

/// Script of the mock server of [`server`].
pub fn script(first: Vec<Answer>) -> Script {
    let mut script = Script::steady();
    let route = |body: Value| serde_json::from_value(json!({"body": body})).expect("a route");
    let info = json!({
        "engine": "redline", "version": "0.9.1", "device": "cpu",
        "config": {"tp": {"value": 1, "source": "default"}},
        "kv": {"pages": 8, "page_tokens": 4, "bytes": 4096, "dtype": "f32"},
        "model": {"id": "emitter", "weights": "random"},
    });
    script.routes.insert("/server_info".into(), route(info));
    let metrics =
        "redline_prefix_cache_query_tokens_total 32\nredline_prefix_cache_hit_tokens_total 0\n";
    script.routes.insert("/metrics".into(), route(json!(metrics)));
    for steady in script.requests.iter_mut().filter_map(|answer| answer.steady.as_mut()) {
        (steady.first_us, steady.gap_us) = (10_000, 2_000);
    }
    script.requests.splice(0..0, first);
    script
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Checks that a command, which `run` starts with the flags of a case, refuses those of each case with
/// the words beside them, and writes nothing.
pub fn assert_refused(cases: &[(&[&str], &str)], run: impl Fn(&Workspace, &[&str]) -> Output) {
    for (flags, expected) in cases {
        let workspace = Workspace::new();
        let output = run(&workspace, flags);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(expected), "{flags:?}: {said}");
        assert_eq!(workspace.left_over(), [""; 0], "{flags:?}");
    }
}
