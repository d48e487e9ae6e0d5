//! Ctrl-C and SIGTERM at any time leave no server running, no lock, and the tree unchanged.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::clone::{Clone, already_built_path};
use tests::program::wait;

/// Starts a campaign, waits until a line of its progress contains `moment`, and sends it the
/// signal.
fn interrupted_at(mut command: Command, moment: &str, signal: Signal) {
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let seen = lines.by_ref().map_while(Result::ok).any(|line| line.contains(moment));
    let id = i32::try_from(child.id()).expect("process ids are small");
    kill(Pid::from_raw(id), signal).expect("it runs");
    // Everything is read, so that the program never blocks on a full pipe.
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let ended = wait(child, Duration::from_secs(180));
    assert!(seen, "`{moment}` was never printed");
    assert_eq!(ended.code, Some(4), "{}", rest.join("\n"));
    let said = rest.iter().filter(|line| line.contains("interrupted")).count();
    assert_eq!(said, 1, "{}", rest.join("\n"));
}

/// Arguments for one run of one scenario.
const ONE: [&str; 4] = ["--scenario", "thinking-lite", "--repeats", "1"];

#[test]
fn a_signal_before_the_first_run_leaves_nothing_behind() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let before = clone.state();
    let words = [&["release-bench", "v0.9.2"], &ONE[..]].concat();
    for (moment, signal) in
        [("Plan the campaign", Signal::SIGINT), ("Build v0.9.2", Signal::SIGTERM)]
    {
        interrupted_at(clone.program("redline-campaign", &words), moment, signal);
        assert_eq!(before, clone.state());
        assert_eq!(clone.processes(), [], "after {signal} at `{moment}`");
    }
}

#[test]
fn a_signal_in_mid_run_leaves_nothing_behind() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::as_built();
    let before = clone.state();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = [&["release-bench", "--worktree"], &ONE[..]].concat();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let mut command = clone.program("redline-campaign", &words);
        command.env("PATH", already_built_path(folder.path()));
        interrupted_at(command, "Run 1 of 1", signal);
        assert_eq!(before, clone.state());
        assert_eq!(clone.processes(), [], "after {signal}");
    }
}
