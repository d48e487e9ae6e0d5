//! Ctrl-C and SIGTERM at any time: no stray server, no lock in the way, no changed tree.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tests::clone::Clone;
use tests::inputs::{CONVERSATIONS, MODEL, cached};
use tests::program::wait;

/// Lines of its progress, and what it is told when they appear.
const MOMENTS: [(&str, Signal); 3] = [
    ("Resolve what is asked for", Signal::SIGINT),
    ("Build v0.9.2", Signal::SIGTERM),
    ("Run 1 of 1", Signal::SIGINT),
];

/// Starts release-bench, waits for a line of its progress that holds `moment`, and signals it.
fn interrupted_at(clone: &Clone, moment: &str, signal: Signal) {
    let words = ["release-bench", "v0.9.2", "--scenario", "thinking-lite", "--repeats", "1"];
    let mut command = clone.program("redline-campaign", &words);
    let mut child =
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let seen = lines.by_ref().map_while(Result::ok).any(|line| line.contains(moment));
    let id = i32::try_from(child.id()).expect("process ids are small");
    kill(Pid::from_raw(id), signal).expect("it runs");
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let ended = wait(child, Duration::from_secs(180));
    assert!(seen, "`{moment}` was never printed");
    assert_eq!(ended.code, Some(4), "{}", rest.join("\n"));
    let said = rest.iter().filter(|line| line.contains("interrupted")).count();
    assert_eq!(said, 1, "{}", rest.join("\n"));
}

#[test]
fn ctrl_c_and_sigterm_leave_nothing_behind() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    let before = clone.state();
    for (moment, signal) in MOMENTS {
        interrupted_at(&clone, moment, signal);
        assert_eq!(before, clone.state());
        assert_eq!(clone.processes(), [], "after {signal} at `{moment}`");
    }
}
