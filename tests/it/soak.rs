//! Leaks: a server under repeated load, with clients that abort, holds no more at the end, and one
//! that does is found.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fixtures::{CONVERSATIONS, MODEL, cached};
use tests::clone::{Clone, path_with};
use tests::program::{Ended, built, wait};

/// Runs `soak` for a minute with the program `engine` in place of the working tree's engine. `None`
/// where the inputs are missing.
fn soak(engine: &Path) -> Option<Ended> {
    let (Some(_), Some(_)) = (cached(MODEL), cached(CONVERSATIONS)) else { return None };
    let clone = Clone::of_this_repository(&[]);
    // A part of the requests: what leaks does so in a short load as well.
    for (id, requests, fewer) in [
        ("sharegpt-lite", "requests = 48", "requests = 12"),
        ("tools-lite", "requests = 40", "requests = 8"),
        ("structured-lite", "requests = 40", "requests = 8"),
        ("chat-lite-c4", "requests = 40", "requests = 8"),
    ] {
        let scenario = clone.root().join(format!("suite/scenarios/{id}.toml"));
        let text = std::fs::read_to_string(&scenario).expect("a scenario");
        let short = text.replace(requests, fewer);
        assert_ne!(short, text, "`{id}` has another number of requests");
        std::fs::write(&scenario, short).expect("writable");
    }
    let target = clone.root().join("target");
    let install = "install -D -m 755";
    let cargo = format!("{install} '{}' \"$CARGO_TARGET_DIR/release/redline\"", engine.display());
    let path = path_with(&target, &[("cargo", &cargo)]);
    let mut soak = clone.program("redline-peers", &["soak", "--minutes", "1"]);
    soak.env("PATH", path).env("CARGO_TARGET_DIR", &target);
    let soak = soak.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let ended = wait(soak, Duration::from_mins(20));
    assert_eq!(clone.processes(), [], "a process is left");
    let loads: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("] load ")).collect();
    assert!(loads.len() >= 8, "{}", ended.stderr);
    for line in loads {
        assert!(line.contains(" threads, ") && line.contains(" KV page"), "{line}");
        let aborted = line.rsplit("; ").next().and_then(|end| end.split(' ').next());
        let aborted: u64 = aborted.and_then(|count| count.parse().ok()).expect("a number");
        // 36 are sent, and few have an answer before their clients leave.
        assert!((24..=36).contains(&aborted), "{line}");
    }
    Some(ended)
}

#[test]
fn extra_a_minute_of_load_and_aborts_leaves_a_server_as_it_was() {
    let Some(ended) = soak(&built("redline")) else { return };
    let Ended { stdout, stderr, .. } = ended.expect_code(0);
    assert!(stdout.contains("nothing grew"), "{stdout}\n{stderr}");
    assert!(stdout.contains("0 requests with 0 KV pages"), "{stdout}\n{stderr}");
}

#[test]
fn extra_a_server_that_leaks_with_each_aborted_request_is_found() {
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/stand-ins/leaking_server.py");
    let Some(ended) = soak(&stand_in) else { return };
    let Ended { stdout, stderr, .. } = ended.expect_code(1);
    for leak in ["memory from ", "; files from ", "; threads from "] {
        assert!(stdout.contains(leak), "`{leak}` is missing in {stdout}\n{stderr}");
    }
    assert!(stdout.contains("; KV pages without a request from 0 to "), "{stdout}\n{stderr}");
    assert!(!stdout.contains("requests without a client"), "it leaks none: {stdout}");
}
