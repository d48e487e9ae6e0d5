//! Runs the programs that cargo built, and collects their output and exit codes.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Path of a program built beside the running test: `redline`, `redline-bench` and the others.
///
/// # Panics
/// The program was not built; `cargo xtask ci` builds every program before it tests.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("tests lie in target/release/deps");
    let program = folder.join(name);
    assert!(
        program.is_file(),
        "`{}` is missing; hint: cargo build --release --workspace --bins",
        program.display()
    );
    program
}

/// Path of a program of the system, searched on `PATH` and in the folders of daemons; `None` if it
/// is not installed.
pub fn system(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(daemons).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// Exit code and output of a program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output of the program, as text.
    pub stdout: String,
    /// Standard error of the program, as text.
    pub stderr: String,
}

impl Ended {
    fn of(output: &Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Asserts the exit code; a failure shows the program's output.
    ///
    /// # Panics
    /// The exit code differs.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "exit code\n--- stdout\n{}\n--- stderr\n{}\n---",
            self.stdout,
            self.stderr
        );
        self
    }

    /// Asserts that standard error contains `text`.
    ///
    /// # Panics
    /// Standard error does not contain the text.
    #[track_caller]
    pub fn expect_said(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "`{text}` is not in\n{}\n---", self.stderr);
        self
    }
}

/// Command for a program with its arguments, to run in `folder` without standard input.
pub fn command<S: AsRef<OsStr>>(program: &Path, folder: &Path, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command
}

/// Runs a program to its end and returns its exit code and output.
///
/// # Panics
/// The program cannot be started.
#[track_caller]
pub fn run(command: &mut Command) -> Ended {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Ended::of(&output)
}

/// Waits for a child process to end, at most for the time `limit`.
///
/// # Panics
/// The child has not ended in time; it is killed first.
#[track_caller]
pub fn wait(mut child: Child, limit: Duration) -> Ended {
    let start = Instant::now();
    while child.try_wait().expect("a child can be waited for").is_none() {
        if start.elapsed() > limit {
            child.kill().expect("a child can be killed");
            panic!("still running after {limit:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ended::of(&child.wait_with_output().expect("the child has ended"))
}

/// Polls `seen` until it returns a value, for at most three minutes, since other tests may keep the
/// machine busy. `what` names the value in the panic message.
///
/// # Panics
/// No value came in time.
#[track_caller]
pub fn until<T>(what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = seen() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(180), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Polls `seen` as [`until`] does, but stops as soon as `child` has ended.
///
/// # Panics
/// No value came in time, or the child ended before; its standard error is shown.
#[track_caller]
pub fn while_running<T>(child: &mut Child, what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    until(what, || {
        // The child's state is read before `seen`, so that what it did just before its end still
        // counts.
        let ended = child.try_wait().expect("a child can be waited for");
        let found = seen();
        if let (None, Some(status)) = (&found, ended) {
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                // Output that is not UTF-8 is left out.
                let _ = stderr.read_to_string(&mut said);
            }
            panic!("{status} before {what} was seen:\n{said}");
        }
        found
    })
}
