//! Running the programs that cargo built, and reading what they say.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A program beside the running test: `redline`, `redline-bench` and their siblings.
///
/// # Panics
/// It was not built: `cargo xtask ci` builds every program before it tests.
#[must_use]
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

/// A program of the system, on the path or where daemons are.
#[must_use]
pub fn system(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let daemons = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(daemons).map(|dir| dir.join(name)).find(|p| p.is_file())
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; none when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote there, as text.
    pub stdout: String,
    /// What it wrote there, as text.
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

    /// Asserts the exit code, and shows what the program said where it differs.
    ///
    /// # Panics
    /// The code differs.
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

    /// Asserts that standard error holds `text`.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn expect_said(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "`{text}` is not in\n{}\n---", self.stderr);
        self
    }
}

/// A program with its arguments, in a folder.
#[must_use]
pub fn command<S: AsRef<OsStr>>(program: &Path, folder: &Path, arguments: &[S]) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments).stdin(Stdio::null());
    command
}

/// Runs a program to its end.
///
/// # Panics
/// It cannot be started.
#[track_caller]
pub fn run(command: &mut Command) -> Ended {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Ended::of(&output)
}

/// Waits for a child, at most `limit`.
///
/// # Panics
/// It has not ended by then; it is killed first.
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

/// Looks until `seen` finds something, three minutes at most: the machine may be busy with other
/// tests.
///
/// # Panics
/// It never did.
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

/// As [`until`], and only as long as `child` runs.
///
/// # Panics
/// It never did; what the child left to read on standard error is shown.
#[track_caller]
pub fn while_running<T>(child: &mut Child, what: &str, mut seen: impl FnMut() -> Option<T>) -> T {
    until(what, || {
        // Asked for first: what it did before it ended can still be found.
        let ended = child.try_wait().expect("a child can be waited for");
        let found = seen();
        if let (None, Some(status)) = (&found, ended) {
            let mut said = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                // As far as it is text.
                let _ = stderr.read_to_string(&mut said);
            }
            panic!("{status} before {what} was seen:\n{said}");
        }
        found
    })
}
