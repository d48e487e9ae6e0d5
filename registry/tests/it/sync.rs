//! Tests of two clones of one registry: the records of both end up in one linear history, with the
//! pages of both.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::scratch::{Answer, Scratch, place, repeats};
use schema::canonical::to_file_text;

/// A published registry and two clones of it, each with records of its own.
struct Clones {
    remote: PathBuf,
    ada: Scratch,
    bob: Scratch,
    _origin: Scratch,
}

fn clones() -> Clones {
    let origin = Scratch::new();
    assert_eq!(origin.record(&origin.staged("o", &repeats("v0.9.1", 1, 2))).code, 0);
    let remote = origin.publish();
    let (ada, bob) = (Scratch::clone_of(&remote), Scratch::clone_of(&remote));
    assert_eq!(ada.record(&ada.staged("a", &repeats("v0.9.2", 100, 3))).code, 0);
    assert_eq!(bob.record(&bob.staged("b", &repeats("v0.9.3", 200, 3))).code, 0);
    Clones { remote, ada, bob, _origin: origin }
}

fn sync(scratch: &Scratch, remote: &Path) -> Answer {
    scratch.rendering(&["sync", remote.to_str().unwrap()])
}

fn records(scratch: &Scratch) -> Vec<String> {
    let files = scratch.files().into_iter();
    files.filter(|path| path.starts_with("results/runs/")).collect()
}

#[test]
fn two_clones_end_in_one_line_with_the_pages_of_both() {
    let Clones { remote, ada, bob, _origin } = clones();
    for (clone, moved) in [(&ada, "0 commits moved"), (&bob, "1 commit moved")] {
        let answer = sync(clone, &remote);
        assert_eq!(answer.code, 0, "{answer:?}");
        assert!(answer.out.contains(moved), "{answer:?}");
    }
    assert_eq!(sync(&ada, &remote).code, 0);
    assert_eq!(ada.git(&["rev-parse", "HEAD"]), bob.git(&["rev-parse", "HEAD"]));
    assert_eq!(ada.git(&["rev-list", "--merges", "HEAD"]), "", "the history is no line");
    assert_eq!(records(&ada).len(), 8);
    let readme = fs::read_to_string(ada.path("results/README.md")).unwrap();
    for release in ["v0.9.1", "v0.9.2", "v0.9.3"] {
        assert!(readme.contains(release), "the page does not show {release}:\n{readme}");
    }
    for clone in [&ada, &bob] {
        assert_eq!(clone.state(), ["", "", ""]);
        assert_eq!(clone.results(&["check"]).code, 0);
        clone.git(&["fsck", "--strict"]);
    }
    let head = ada.git(&["rev-parse", "HEAD"]);
    let again = sync(&ada, &remote);
    assert_eq!((again.code, again.out.contains("nothing to push")), (0, true), "{again:?}");
    assert_eq!(ada.git(&["rev-parse", "HEAD"]), head);
}

#[test]
fn clones_that_sync_at_once_wait_for_each_other() {
    let Clones { remote, ada, bob, _origin } = clones();
    let start = |clone: &Scratch| {
        let tools = clone.tools();
        let arguments = ["sync", remote.to_str().unwrap(), "--tools-dir", tools.to_str().unwrap()];
        let mut command = clone.command(&arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    for child in [start(&ada), start(&bob)] {
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    }
    for clone in [&ada, &bob] {
        assert_eq!(sync(clone, &remote).code, 0);
    }
    assert_eq!(ada.git(&["rev-parse", "HEAD"]), bob.git(&["rev-parse", "HEAD"]));
    assert_eq!(records(&ada).len(), 8);
    assert_eq!(ada.git(&["rev-list", "--merges", "HEAD"]), "");
}

#[test]
fn a_remote_without_the_branch_gets_it() {
    let Clones { ada, _origin, .. } = clones();
    let remote = ada.path("../empty.git");
    ada.git(&["init", "--quiet", "--bare", remote.to_str().unwrap()]);
    let answer = sync(&ada, &remote);
    assert_eq!((answer.code, answer.out.contains("pushed")), (0, true), "{answer:?}");
    let head = ada.git(&["ls-remote", remote.to_str().unwrap(), "refs/heads/main"]);
    assert!(head.starts_with(ada.git(&["rev-parse", "HEAD"]).trim()), "{head}");
}

#[test]
fn hooks_are_not_run_and_it_says_so() {
    let Clones { remote, ada, _origin, .. } = clones();
    for hook in ["pre-push", "reference-transaction"] {
        ada.write(&format!(".git/hooks/{hook}"), "#!/bin/sh\nexit 1\n");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(ada.path(&format!(".git/hooks/{hook}")), mode).unwrap();
    }
    ada.git(&["config", "core.fsmonitor", "touch watched; false"]);
    let answer = sync(&ada, &remote);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(answer.err.contains("hooks are not run: pre-push"), "{answer:?}");
    assert!(!ada.path("watched").exists(), "a program that watches files is not run either");
}

#[test]
fn commits_of_other_things_are_not_moved() {
    let Clones { remote, ada, bob, _origin } = clones();
    assert_eq!(sync(&ada, &remote).code, 0);
    bob.write("src/main.rs", "fn main() { println!(); }\n");
    bob.git(&["commit", "--quiet", "--all", "--message", "Mine"]);
    let head = bob.git(&["rev-parse", "HEAD"]);
    let answer = sync(&bob, &remote);
    assert_eq!(
        (answer.code, answer.err.contains("changes `src/main.rs`")),
        (2, true),
        "{answer:?}"
    );
    assert_eq!(bob.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(bob.state(), ["", "", ""]);
}

#[test]
fn changes_of_the_users_stay() {
    let Clones { remote, ada, bob, _origin } = clones();
    assert_eq!(sync(&ada, &remote).code, 0);
    bob.write("src/main.rs", "fn main() { println!(); }\n");
    let before = bob.state();
    let answer = sync(&bob, &remote);
    assert_eq!(
        (answer.code, answer.err.contains("`src/main.rs` has changes")),
        (4, true),
        "{answer:?}"
    );
    assert_eq!(bob.state(), before);
}

#[test]
fn a_remote_that_changed_a_record_is_refused() {
    let Clones { remote, ada, bob, _origin } = clones();
    // Ada edits a record that both clones have, and pushes without any check.
    let shared = &repeats("v0.9.1", 1, 1)[0];
    let path = ada.path(&place(shared));
    let text = fs::read_to_string(&path).unwrap().replace("\"cores\": 2", "\"cores\": 64");
    fs::write(&path, text).unwrap();
    ada.git(&["commit", "--quiet", "--all", "--message", "Tidy up"]);
    ada.git(&["push", "--quiet", remote.to_str().unwrap(), "main"]);
    let head = bob.git(&["rev-parse", "HEAD"]);
    let answer = sync(&bob, &remote);
    assert_eq!(answer.code, 2, "{answer:?}");
    assert!(answer.err.contains("the remote has another record under this path"), "{answer:?}");
    assert_eq!(bob.git(&["rev-parse", "HEAD"]), head);
    assert_eq!(bob.state(), ["", "", ""]);
}

#[test]
fn one_id_in_two_clones_is_refused() {
    let Clones { remote, ada, bob, _origin } = clones();
    assert_eq!(sync(&ada, &remote).code, 0);
    // The same id, measured under another scenario.
    let mut twin = repeats("v0.9.2", 100, 1).remove(0);
    twin.scenario.id = "thinking-lite".into();
    let twin = samples::reseal(twin);
    bob.write(&place(&twin), &to_file_text(&twin).unwrap());
    bob.git(&["add", "."]);
    bob.git(&["commit", "--quiet", "--message", "Twin"]);
    let answer = sync(&bob, &remote);
    assert_eq!((answer.code, answer.err.contains("S05")), (2, true), "{answer:?}");
}

#[test]
fn a_remote_that_cannot_be_reached_is_the_environment() {
    let Clones { ada, _origin, .. } = clones();
    let answer = sync(&ada, Path::new("/nowhere/at/all.git"));
    assert_eq!((answer.code, answer.err.contains("`git ls-remote`")), (4, true), "{answer:?}");
}

/// Synchronizes with a remote that may begin with `-`, where the user's git allows any transport.
fn sync_with(scratch: &Scratch, remote: &str) -> Answer {
    let (repo, tools) = (scratch.repo(), scratch.tools());
    let mut command = Command::new(env!("CARGO_BIN_EXE_redline-results"));
    command.arg("sync").arg("--registry").arg(repo).arg("--tools-dir").arg(tools);
    let output = command.args(["--", remote]).env("GIT_ALLOW_PROTOCOL", "ext:https").output();
    let output = output.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap();
    Answer { code, out: text(output.stdout), err: text(output.stderr) }
}

#[test]
fn a_remote_that_is_an_option_or_a_command_line_runs_nothing() {
    let Clones { ada, _origin, .. } = clones();
    ada.git(&["config", "protocol.ext.allow", "always"]);
    let run = ada.path("run");
    let shown = run.display();
    for (remote, code, said) in [
        (format!("--upload-pack=touch {shown}"), 2, "is no remote but an option of git"),
        ("-".to_owned(), 2, "is no remote but an option of git"),
        (format!("ext::sh -c touch% {shown}"), 4, "transport 'ext' not allowed"),
        ("fd::0".to_owned(), 4, "transport 'fd' not allowed"),
    ] {
        let answer = sync_with(&ada, &remote);
        assert_eq!((answer.code, answer.err.contains(said)), (code, true), "{answer:?}");
        assert!(!run.exists(), "`{remote}` ran a command");
    }
}

#[test]
fn what_is_secret_in_a_remote_is_not_printed() {
    let Clones { ada, _origin, .. } = clones();
    // Nothing listens on port 1.
    let place = "127.0.0.1:1/x?token=s3cret";
    for remote in [format!("https://ada:s3cret@{place}"), format!("https://s3cret@{place}")] {
        let answer = sync_with(&ada, &remote);
        assert_eq!((answer.code, answer.err.contains("s3cret")), (4, false), "{answer:?}");
        assert!(answer.err.contains("`https://***@127.0.0.1:1/x?***`"), "{answer:?}");
    }
    ada.git(&["remote", "add", "far", &format!("https://ada:s3cret@{place}")]);
    let answer = sync_with(&ada, "far");
    assert_eq!((answer.code, answer.err.contains("s3cret")), (4, false), "{answer:?}");
}
