//! Tests of a writer that is killed at every boundary between two of its writes: no record is lost
//! or changed, and the next writer continues.

use std::cell::Cell;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::scratch::{Scratch, place, repeats, write};
use registry::record::record_watched;

/// Environment variable that makes [`writer`] write: registry, staged results and number of the boundary
/// at which it kills itself, one per line.
const WRITER: &str = "REDLINE_TEST_WRITER";

/// Not a test of its own: the process that [`every_boundary`] starts, and that kills itself.
#[test]
fn writer() {
    let Ok(given) = std::env::var(WRITER) else { return };
    let parts: Vec<&str> = given.split('\n').collect();
    let [registry, staged, end] = parts.as_slice() else { panic!("{given:?}") };
    let left = Cell::new(end.parse::<u32>().unwrap());
    let watch = |boundary: &'static str| {
        left.set(left.get() - 1);
        if left.get() == 0 {
            println!("killed where {boundary}");
            // SIGKILL, so that nothing is cleaned up.
            let pid = std::process::id().to_string();
            let _ = Command::new("kill").args(["-KILL", &pid]).status();
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
    };
    let clock = (1_769_904_000, &watch as &dyn Fn(&'static str));
    record_watched(Path::new(registry), Path::new(staged), "Record runs", clock).unwrap();
}

/// Runs the writer up to boundary number `end`; true when it was killed there.
fn is_killed_at(scratch: &Scratch, staged: &Path, end: u32) -> bool {
    let registry = scratch.repo();
    let given = format!("{}\n{}\n{end}", registry.display(), staged.display());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::writer", "--nocapture"])
        .env(WRITER, given)
        .env("HOME", registry.parent().unwrap())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success() || status.signal() == Some(9), "{status}");
    status.signal() == Some(9)
}

#[test]
fn every_boundary() {
    let mut boundaries = 0;
    for end in 1.. {
        let scratch = Scratch::new();
        let old = repeats("v0.9.1", 1, 1);
        let first = scratch.staged("first", &old);
        write(&first.join("README.md"), "one\n");
        assert_eq!(scratch.record(&first).code, 0);
        let (head, text) = (scratch.git(&["rev-parse", "HEAD"]), bytes(&scratch, &old[0]));
        let new = repeats("v0.9.2", 50, 1);
        let staged = scratch.staged("second", &new);
        write(&staged.join("README.md"), "two\n");
        if !is_killed_at(&scratch, &staged, end) {
            break;
        }
        boundaries += 1;
        // Committed records are present and sound.
        assert_eq!(bytes(&scratch, &old[0]), text, "boundary {end}");
        scratch.git(&["merge-base", "--is-ancestor", head.trim(), "HEAD"]);
        let check = scratch.results(&["check"]);
        assert_eq!(check.code, 0, "boundary {end}: {check:?}");
        // The user has to restore a rendered file that the killed writer had replaced.
        scratch.git(&["checkout", "--quiet", "HEAD", "--", "results/README.md"]);
        let again = scratch.record(&staged);
        assert_eq!(again.code, 0, "boundary {end}: {again:?}");
        for record in old.iter().chain(&new) {
            assert!(scratch.files().contains(&place(record)), "boundary {end}");
        }
        let check = scratch.results(&["check"]);
        assert_eq!(check.code, 0, "boundary {end}: {check:?}");
        let strays = scratch.git(&["status", "--porcelain"]);
        let named = |line: &str| line.starts_with("?? ") && line.contains(".tmp-");
        assert!(strays.lines().all(named), "boundary {end}: {strays}");
        scratch.git(&["fsck", "--strict"]);
    }
    assert!(boundaries >= 12, "only {boundaries} boundaries");
}

fn bytes(scratch: &Scratch, record: &schema::run::RunRecord) -> Vec<u8> {
    fs::read(scratch.path(&place(record))).unwrap()
}

/// A libgit2 that is killed inside one of its own writes leaves a lock beside the file to be
/// replaced, or an object under a temporary name.
#[test]
fn what_a_killed_git_left_is_named_and_costs_nothing() {
    for (left, named) in [
        (".git/index.lock", true),
        (".git/refs/heads/main.lock", true),
        (".git/objects/tmp_object_git2_a1b2c3", false),
        (".git/redline-results.lock", false),
    ] {
        let scratch = Scratch::new();
        let old = repeats("v0.9.1", 1, 1);
        assert_eq!(scratch.record(&scratch.staged("first", &old)).code, 0);
        let (state, text) = (scratch.state(), bytes(&scratch, &old[0]));
        let staged = scratch.staged("second", &repeats("v0.9.2", 50, 1));
        scratch.write(left, "half of what was to be wri");
        let answer = scratch.record(&staged);
        if named {
            let hint =
                format!("{left}`\nhint: wait for it; delete the file if no git program runs");
            assert_eq!((answer.code, answer.err.contains(&hint)), (4, true), "{answer:?}");
            fs::remove_file(scratch.path(left)).unwrap();
            assert_eq!(scratch.state(), state, "{left}");
            assert_eq!(scratch.record(&staged).code, 0, "{left}");
        } else {
            assert_eq!(answer.code, 0, "{left}: {answer:?}");
        }
        assert_eq!((scratch.state(), bytes(&scratch, &old[0])), (state, text), "{left}");
        assert_eq!(scratch.results(&["check"]).code, 0, "{left}");
        scratch.git(&["fsck", "--strict"]);
    }
}

#[test]
fn a_file_that_may_not_grow_leaves_no_trace() {
    let scratch = Scratch::new();
    let staged = scratch.staged("o", &repeats("v0.9.1", 1, 2));
    let before = scratch.state();
    // Files may grow to 4 KiB and no further; a write beyond that returns an error and raises no
    // signal.
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    let command = scratch.command(&["record", staged.to_str().unwrap(), "--message", "Record"]);
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .env("HOME", scratch.repo().parent().unwrap())
        .env("SOURCE_DATE_EPOCH", "1769904000")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.contains("cannot write")), (Some(4), true), "{said}");
    assert_eq!(scratch.state(), before);
    assert!(!scratch.path("results").exists());
    assert_eq!(scratch.record(&staged).code, 0);
}
