//! Mock servers: `redline-emitter` with scripted answers, on a free port or in place of a release
//! of the engine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Child;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::clone::path_with;
use crate::program::{built, command, while_running};
use crate::server::Server;

/// Running mock server with scripted answers; killed when dropped.
#[derive(Debug)]
pub struct Scripted {
    server: Server,
    folder: TempDir,
}

impl Scripted {
    /// Starts a mock server that looks like a ready Redline and answers requests by `answers`,
    /// which have the format of the mock server's script files.
    ///
    /// # Panics
    /// The mock server does not start.
    #[track_caller]
    pub fn answering(answers: &[Value]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = script("0.0.1", "scripted", answers);
        std::fs::write(folder.path().join("script.json"), script.to_string()).expect("writable");
        let words = ["--detach", "--script", "script.json", "--log", "log"];
        let server = Server::start(&mut command(&built("redline-emitter"), folder.path(), &words));
        Self { server, folder }
    }

    /// Address of the mock server, as `http://HOST:PORT`.
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Waits until the mock server has received request number `n`, counted from 0 and including
    /// warm-up. `client` is the process that sends the requests.
    ///
    /// # Panics
    /// The client ends before, or the request does not come in time.
    #[track_caller]
    pub fn wait_for_request(&self, n: u64, client: &mut Child) {
        let log: PathBuf = self.folder.path().join("log");
        let number = |line: &str| {
            let line: Value = serde_json::from_str(line).ok()?;
            line["request"].as_u64()
        };
        while_running(client, "a request", || {
            let text = std::fs::read_to_string(&log).ok()?;
            text.lines().filter_map(number).find(|found| *found >= n)
        });
    }
}

/// Script of a mock server: the routes of a ready Redline of `version`, and `answers` to requests.
fn script(version: &str, model: &str, answers: &[Value]) -> Value {
    let info = json!({
        "engine": "redline", "version": version, "device": "cpu", "device_name": "none",
        "config": {"tp": {"value": 1, "source": "default"}},
        "config_sha256": "0".repeat(64),
        "kv": {"pages": 8, "page_tokens": 16, "bytes": 4096, "dtype": "f32"},
        "model": {"id": model, "weights": "random"},
    });
    json!({"requests": answers, "routes": {
        "/health": {"body": {"status": "ok"}},
        "/server_info": {"body": info},
        "/v1/models": {"body": {"data": [{"id": model}]}},
        "/reset_prefix_cache": {"body": {"freed_pages": 0}},
        "/metrics": {"body": ""},
    }})
}

/// Writes a program `redline-VERSION` into `folder` that stands in for the engine of that version.
/// It accepts the engine's flags and answers requests by `answers`.
///
/// # Panics
/// The folder is not writable.
pub fn release(folder: &Path, version: &str, answers: &[Value]) {
    let script_path = folder.join(format!("{version}.json"));
    let script = script(version, "stand-in", answers);
    std::fs::write(&script_path, script.to_string()).expect("writable");
    // The script reads `--port` among the engine's flags and ignores the others.
    let serves = format!(
        "#!/bin/sh\nport=\nfor word in \"$@\"; do\n  case $before in --port) port=$word ;; esac\n  \
         before=$word\ndone\nexec '{}' --detach --script '{}' --listen 127.0.0.1:$port\n",
        built("redline-emitter").display(),
        script_path.display()
    );
    std::fs::write(folder.join(format!("redline-{version}")), serves).expect("writable");
}

/// Value of `PATH` with a `cargo` that "builds" a release of the engine by copying its stand-in
/// from `folder`. The release is the one in whose worktree `cargo` is called.
pub fn path_of_releases(folder: &Path) -> OsString {
    let builds = format!(
        "mkdir -p \"$CARGO_TARGET_DIR/release\"\n\
         exec cp '{}/redline-'\"${{PWD##*/v}}\" \"$CARGO_TARGET_DIR/release/redline\"",
        folder.display()
    );
    path_with(folder, &[("cargo", &builds)])
}
