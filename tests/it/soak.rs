//! Memory leaks: a server under repeated load does not use more memory at the end.

use std::process::Stdio;
use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached};
use tests::clone::{Clone, path_with};
use tests::program::{built, wait};

#[test]
fn extra_a_minute_of_load_leaves_a_server_as_it_was() {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return };
    let clone = Clone::of_this_repository(&[]);
    // A quarter of the requests: memory that leaks does so in a short load as well.
    let scenario = clone.root().join("suite/scenarios/sharegpt-lite.toml");
    let text = std::fs::read_to_string(&scenario).expect("a scenario");
    let short = text.replace("requests = 48", "requests = 12");
    assert_ne!(short, text, "the scenario has another number of requests");
    std::fs::write(&scenario, short).expect("writable");
    let target = clone.root().join("target");
    // The working tree's engine is the one that was built with the tests.
    let cargo = format!(
        "mkdir -p \"$CARGO_TARGET_DIR/release\"\ncp '{}' \"$CARGO_TARGET_DIR/release/redline\"",
        built("redline").display()
    );
    let path = path_with(&target, &[("cargo", &cargo)]);
    let mut soak = clone.program("redline-peers", &["soak", "--minutes", "1"]);
    soak.env("PATH", path).env("CARGO_TARGET_DIR", &target);
    let soak = soak.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let ended = wait(soak, Duration::from_mins(10)).expect_code(0);
    assert!(ended.stdout.contains("nothing grew"), "{}\n{}", ended.stdout, ended.stderr);
    let loads = ended.stderr.lines().filter(|line| line.contains("] load ")).count();
    assert!(loads >= 8, "{}", ended.stderr);
    assert_eq!(clone.processes(), [], "a process is left");
}
