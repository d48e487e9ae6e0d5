//! A scripted server: `redline-emitter`, told what to answer, on a port of its own.

use std::path::PathBuf;
use std::process::Child;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{built, command, while_running};
use crate::server::Server;

/// A running emitter; ended when dropped.
#[derive(Debug)]
pub struct Scripted {
    server: Server,
    folder: TempDir,
}

impl Scripted {
    /// Answers as a ready Redline does, and to requests what `answers` say, in the order and shape
    /// of the emitter's own scripts.
    ///
    /// # Panics
    /// The emitter does not start.
    #[must_use]
    #[track_caller]
    pub fn answering(answers: &[Value]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let info = json!({
            "engine": "redline", "version": "0.0.1", "device": "cpu", "device_name": "none",
            "config": {"tp": {"value": 1, "source": "default"}},
            "config_sha256": "0".repeat(64),
            "kv": {"pages": 8, "page_tokens": 16, "bytes": 4096, "dtype": "f32"},
            "model": {"id": "scripted", "weights": "random"},
        });
        let script = json!({"requests": answers, "routes": {
            "/health": {"body": {"status": "ok"}},
            "/server_info": {"body": info},
            "/v1/models": {"body": {"data": [{"id": "scripted"}]}},
            "/reset_prefix_cache": {"body": {"freed_pages": 0}},
            "/metrics": {"body": ""},
        }});
        std::fs::write(folder.path().join("script.json"), script.to_string()).expect("writable");
        let words = ["--detach", "--script", "script.json", "--log", "log"];
        let server = Server::start(&mut command(&built("redline-emitter"), folder.path(), &words));
        Self { server, folder }
    }

    #[must_use]
    pub fn url(&self) -> &str {
        &self.server.url
    }

    /// Waits for the `n`-th request of `client`, from 0, warm-up included.
    ///
    /// # Panics
    /// It does not come.
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
