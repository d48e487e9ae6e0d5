//! A server process that a test starts, waits for and stops.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Longest time that a server may take to print `ready`, or to end.
const READY_MAX: Duration = Duration::from_secs(60);

/// HTTP client that uses no proxy, whatever the environment names: servers of tests run here.
///
/// # Panics
/// The client cannot be made.
pub fn client() -> reqwest::blocking::Client {
    reqwest::blocking::Client::builder().no_proxy().build().expect("a client")
}

/// Running server process; killed when dropped.
#[derive(Debug)]
pub struct Server {
    child: Child,
    lines: Receiver<String>,
    /// Address of the server, as `http://HOST:PORT`.
    pub url: String,
}

impl Server {
    /// Starts a server and waits until it prints `ready http://HOST:PORT` on standard error.
    ///
    /// # Panics
    /// The server ends, or prints nothing for a minute.
    #[track_caller]
    pub fn start(command: &mut Command) -> Self {
        let mut child = command
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stderr = child.stderr.take().expect("standard error is piped");
        let mut server = Self { child, lines: forward(stderr), url: String::new() };
        let mut said = String::new();
        while server.url.is_empty() {
            let line = server
                .lines
                .recv_timeout(READY_MAX)
                .unwrap_or_else(|_| panic!("{command:?} never said `ready`:\n{said}"));
            match line.strip_prefix("ready ") {
                Some(url) => server.url = url.trim().to_owned(),
                None => said = format!("{said}{line}\n"),
            }
        }
        server
    }

    /// Process id of the server.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the server.
    ///
    /// # Panics
    /// The process has ended.
    pub fn signal(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).expect("process ids are small");
        kill(Pid::from_raw(id), signal).expect("the server runs");
    }

    /// Waits for the server to end and returns its exit code; `None` if a signal ended it.
    ///
    /// # Panics
    /// The server cannot be waited for.
    pub fn wait(mut self) -> Option<i32> {
        // The channel closes when the process closes its standard error, which it does at its end.
        while self.lines.recv_timeout(READY_MAX).is_ok() {}
        self.child.wait().expect("a child can be waited for").code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads lines of standard error on a thread, so that a read with a time limit is possible.
fn forward(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    receiver
}
