//! A `redline` process for a test, ended when the test ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::tiny_gguf::tiny_llama_gguf;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::NamedTempFile;

/// Server process that is ready to take requests.
pub struct Launched {
    child: Child,
    pub url: String,
    stderr: Option<BufReader<ChildStderr>>,
}

/// Command that runs `redline` with `args`.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redline"));
    prepare(&mut command, args);
    command
}

/// Sets the arguments of a command, and an environment that is the same on every machine.
pub fn prepare(command: &mut Command, args: &[&str]) {
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // The hub cache of the user who runs the test must not matter.
    command.env("HF_HUB_CACHE", "hub");
}

/// Command that runs `redline` with `args` after the shell's command `limit`, such as `ulimit -n 64`.
pub fn limited(limit: &str, args: &[&str]) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_redline")]);
    prepare(&mut shell, args);
    shell
}

/// Exit code and last line of a process that ends by itself.
pub fn end_of(args: &[&str]) -> (Option<i32>, String) {
    end_of_command(&mut command(args))
}

/// Exit code and last line of the process of a command, which ends by itself.
pub fn end_of_command(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), text.lines().last().unwrap_or_default().to_owned())
}

impl Launched {
    /// Serves `model` on a free port.
    pub fn serve(model: &str, flags: &[&str]) -> Self {
        let args = [&["serve", model, "--port", "0", "--device", "cpu"], flags].concat();
        Self::spawn(command(&args))
    }

    /// Starts a command that becomes a server, and waits until it is ready.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        let url = loop {
            let start = said.len();
            if stderr.read_line(&mut said).unwrap() == 0 {
                child.wait().unwrap();
                panic!("it ended instead:\n{said}");
            }
            if let Some(url) = said[start..].strip_prefix("ready ") {
                break url.trim().to_owned();
            }
        };
        Self { child, url, stderr: Some(stderr) }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Memory of the process from `/proc`, in bytes: `VmRSS:` for the current size, `VmHWM:` for
    /// the peak.
    pub fn memory_bytes(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Next line that the process writes to standard error.
    pub fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.stderr.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub fn address(&self) -> SocketAddr {
        self.url.strip_prefix("http://").unwrap().parse().unwrap()
    }

    /// Closes the process's standard error, so that its messages are not read any more.
    pub fn stop_listening(&mut self) {
        self.stderr = None;
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        kill(pid, signal).unwrap();
    }

    pub async fn get(&self, path: &str) -> Value {
        let response = reqwest::get(format!("{}{path}", self.url)).await.unwrap();
        response.json().await.unwrap()
    }

    /// Value of the first line of `/metrics` that begins with `name`.
    pub async fn metric(&self, name: &str) -> f64 {
        let page = reqwest::get(format!("{}/metrics", self.url)).await.unwrap();
        let page = page.text().await.unwrap();
        let line = page.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no {name}")).rsplit(' ').next().unwrap().parse().unwrap()
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        post(&format!("{}{path}", self.url), body).await
    }

    /// Sends SIGTERM and returns the exit code and the messages after `ready`.
    pub fn terminate(self) -> (Option<i32>, String) {
        self.signal(Signal::SIGTERM);
        self.wait()
    }

    /// Waits for the end and returns the exit code and the messages after `ready`.
    pub fn wait(mut self) -> (Option<i32>, String) {
        let code = self.child.wait().unwrap().code();
        let mut rest = String::new();
        if let Some(stderr) = &mut self.stderr {
            stderr.read_to_string(&mut rest).unwrap();
        }
        (code, rest)
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub async fn post(url: &str, body: &Value) -> Value {
    let response = reqwest::Client::new().post(url).json(body).send().await.unwrap();
    response.json().await.unwrap()
}

/// Small made-up model in a temporary file, deleted with the returned handle.
pub fn tiny_model() -> NamedTempFile {
    let mut file = tempfile::Builder::new().prefix("tiny").suffix(".gguf").tempfile().unwrap();
    file.write_all(&tiny_llama_gguf(1)).unwrap();
    file
}
