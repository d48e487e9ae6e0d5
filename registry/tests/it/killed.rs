//! Tests of a writer that is killed at every change that it makes to the file system: HEAD is the old
//! commit or the new one, no record is lost or changed, and the next writer undoes what the killed
//! one has left and continues.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tests::killed::{Killed, killed_at, spread};

use crate::scratch::{Scratch, place, repeats, write};

/// Number of changes at which the writer is killed by default.
const SAMPLED: u32 = 16;

/// A registry with one record, and staged results for a second commit.
struct Base {
    scratch: Scratch,
    old: schema::run::RunRecord,
    staged: PathBuf,
    /// Commit before the second one.
    head: String,
    /// Tree of the second commit.
    tree: String,
    /// Number of changes that the second commit makes to the file system.
    changes: u32,
}

impl Base {
    fn new() -> Self {
        let (scratch, old) = (Scratch::new(), repeats("v0.9.1", 1, 1).remove(0));
        let first = scratch.staged("first", std::slice::from_ref(&old));
        write(&first.join("README.md"), "one\n");
        assert_eq!(scratch.record(&first).code, 0);
        let staged = scratch.staged("second", &repeats("v0.9.2", 50, 1));
        write(&staged.join("README.md"), "two\n");
        write(&staged.join("pages/redline/v0.9.2/cpu.md"), "a page\n");
        let head = scratch.git(&["rev-parse", "HEAD"]);
        let copy = scratch.copy();
        let Killed::Ended { code: 0, changes } = killed_at(&recording(&copy, &staged), u32::MAX)
        else {
            panic!("nothing disturbs it");
        };
        let tree = copy.git(&["rev-parse", "HEAD^{tree}"]);
        Self { scratch, old, staged, head, tree, changes }
    }

    /// Kills the writer at its change number `end`, and checks what it leaves and how another one
    /// continues.
    fn kill_at(&self, end: u32) {
        let scratch = self.scratch.copy();
        let text = bytes(&self.scratch, &self.old);
        let killed = killed_at(&recording(&scratch, &self.staged), end);
        assert_eq!(killed, Killed::Killed, "change {end} of {}", self.changes);
        let head = scratch.git(&["rev-parse", "HEAD"]);
        if head != self.head {
            assert_eq!(scratch.git(&["rev-parse", "HEAD^"]), self.head, "change {end}");
            assert_eq!(scratch.git(&["rev-parse", "HEAD^{tree}"]), self.tree, "change {end}");
        }
        assert_eq!(bytes(&scratch, &self.old), text, "change {end}");
        let check = scratch.results(&["check"]);
        assert_eq!(check.code, 0, "change {end}: {check:?}");
        let again = scratch.record(&self.staged);
        assert_eq!(again.code, 0, "change {end}: {again:?}");
        assert_eq!(scratch.git(&["rev-parse", "HEAD^{tree}"]), self.tree, "change {end}");
        assert_eq!(scratch.git(&["status", "--porcelain"]), "", "change {end}");
        scratch.git(&["fsck", "--strict"]);
    }

    /// Kills the writer at each of its changes in a copy of its own, and returns the first copy in
    /// which `is_reached` holds.
    fn killed_where(&self, is_reached: impl Fn(&Scratch) -> bool) -> Option<Scratch> {
        let mut copies = (1..=self.changes).map(|end| {
            let scratch = self.scratch.copy();
            killed_at(&recording(&scratch, &self.staged), end);
            scratch
        });
        copies.find(|scratch| is_reached(scratch))
    }
}

fn recording(scratch: &Scratch, staged: &Path) -> Command {
    scratch.command(&["record", staged.to_str().unwrap(), "--message", "Record"])
}

#[test]
fn a_writer_that_is_killed_leaves_the_old_or_the_new_head_and_the_next_one_continues() {
    let base = Base::new();
    assert!(base.changes >= SAMPLED, "only {} changes", base.changes);
    // One run may have a change less than another.
    spread(SAMPLED, base.changes - 2).into_iter().for_each(|end| base.kill_at(end));
}

#[test]
fn extra_a_writer_may_be_killed_at_every_change() {
    let base = Base::new();
    (1..=base.changes - 2).for_each(|end| base.kill_at(end));
}

/// Two clones of a registry. One has pushed its record; the sync of the other moves its own commit
/// onto that, renders and pushes.
struct Synced {
    remote: Scratch,
    clone: Scratch,
    /// Commit of the clone before its sync.
    head: String,
    /// Tree after its sync.
    tree: String,
    /// Number of changes that the sync makes to the file system.
    changes: u32,
}

impl Synced {
    fn new() -> Self {
        let remote = Scratch::new();
        assert_eq!(remote.record(&remote.staged("o", &repeats("v0.9.1", 1, 1))).code, 0);
        let clone = Scratch::clone_of(&remote.repo());
        assert_eq!(remote.record(&remote.staged("a", &repeats("v0.9.2", 50, 1))).code, 0);
        assert_eq!(clone.record(&clone.staged("b", &repeats("v0.9.3", 100, 1))).code, 0);
        // Its branch is pushed to, and its work tree does not matter.
        remote.git(&["config", "receive.denyCurrentBranch", "ignore"]);
        let (far, near) = (remote.copy(), clone.copy());
        let Killed::Ended { code: 0, changes } = killed_at(&syncing(&near, &far), u32::MAX) else {
            panic!("nothing disturbs it");
        };
        let head = clone.git(&["rev-parse", "HEAD"]);
        let tree = near.git(&["rev-parse", "HEAD^{tree}"]);
        Self { remote, clone, head, tree, changes }
    }

    /// Kills the sync at its change number `end`, and checks what it leaves and how another one
    /// continues.
    fn kill_at(&self, end: u32) {
        let (remote, clone) = (self.remote.copy(), self.clone.copy());
        let killed = killed_at(&syncing(&clone, &remote), end);
        assert_eq!(killed, Killed::Killed, "change {end} of {}", self.changes);
        let theirs = self.remote.git(&["rev-parse", "HEAD"]);
        if clone.git(&["rev-parse", "HEAD"]) != self.head {
            clone.git(&["merge-base", "--is-ancestor", theirs.trim(), "HEAD"]);
        }
        // A record may be there in part until the next command that writes has removed it.
        let again = clone.rendering(&["sync", remote.repo().to_str().unwrap()]);
        assert_eq!(again.code, 0, "change {end}: {again:?}");
        let check = clone.results(&["check"]);
        assert_eq!(check.code, 0, "change {end}: {check:?}");
        assert_eq!(clone.git(&["rev-parse", "HEAD^{tree}"]), self.tree, "change {end}");
        assert_eq!(clone.git(&["status", "--porcelain"]), "", "change {end}");
        assert_eq!(
            remote.git(&["rev-parse", "main"]),
            clone.git(&["rev-parse", "HEAD"]),
            "change {end}"
        );
        clone.git(&["fsck", "--strict"]);
    }
}

fn syncing(clone: &Scratch, remote: &Scratch) -> Command {
    let (remote, tools) = (remote.repo(), clone.tools());
    let tools = tools.to_str().unwrap();
    clone.command(&["sync", remote.to_str().unwrap(), "--tools-dir", tools])
}

#[test]
fn a_sync_that_is_killed_leaves_the_old_or_the_new_head_and_the_next_one_continues() {
    let synced = Synced::new();
    assert!(synced.changes >= SAMPLED, "only {} changes", synced.changes);
    // One run may have a change less than another.
    spread(SAMPLED, synced.changes - 2).into_iter().for_each(|end| synced.kill_at(end));
}

#[test]
fn extra_a_sync_may_be_killed_at_every_change() {
    let synced = Synced::new();
    (1..=synced.changes - 2).for_each(|end| synced.kill_at(end));
}

/// The user may have gone on meanwhile: what is not the killed writer's stays.
#[test]
fn what_the_user_has_changed_since_a_writer_was_killed_is_not_undone() {
    let base = Base::new();
    let page = "results/README.md";
    let landed = |scratch: &Scratch| fs::read_to_string(scratch.path(page)).unwrap() == "two\n";
    let scratch = base.killed_where(landed).expect("the page is replaced at some change");
    scratch.write(page, "my own words\n");
    scratch.write("results/notes.txt", "mine\n");
    let answer = scratch.record(&base.staged);
    let said = "a rendered file with changes that are not committed: `results/README.md`";
    assert_eq!((answer.code, answer.err.contains(said)), (4, true), "{answer:?}");
    assert_eq!(fs::read_to_string(scratch.path(page)).unwrap(), "my own words\n");
    assert!(scratch.path("results/notes.txt").exists());
}

/// The user may have edited and staged after the killed writer had staged its own page.
#[test]
fn an_edit_after_a_killed_writer_has_staged_its_page_is_not_overwritten() {
    let base = Base::new();
    let page = "results/README.md";
    let staged = |scratch: &Scratch| {
        let lines = scratch.git(&["diff", "--cached", "--name-only"]);
        lines.lines().any(|path| path == page) && scratch.git(&["rev-parse", "HEAD"]) == base.head
    };
    let scratch = base.killed_where(staged).expect("the page is staged at some change");
    scratch.write(page, "my own words\n");
    scratch.write("notes.txt", "mine\n");
    let _ = fs::remove_file(scratch.path(".git/index.lock"));
    scratch.git(&["add", "notes.txt"]);
    let answer = scratch.record(&base.staged);
    assert_eq!(answer.code, 4, "{answer:?}");
    assert_eq!(fs::read_to_string(scratch.path(page)).unwrap(), "my own words\n");
}

/// A lock that a git program may hold is not removed: it is older or much younger than the writer.
#[test]
fn a_lock_of_git_that_is_not_a_killed_writer_s_is_named() {
    let base = Base::new();
    let set = |path: PathBuf, seconds: u64| {
        let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
        fs::File::options().write(true).open(path).unwrap().set_modified(at).unwrap();
    };
    let written = 1_700_000_000;
    for made in [written - 1, written + 3_600] {
        let (scratch, lock) = (base.scratch.copy(), ".git/index.lock");
        scratch.write(lock, "");
        set(scratch.path(lock), made);
        scratch.write(".git/redline-results.lock", "1\n");
        set(scratch.path(".git/redline-results.lock"), written);
        let answer = scratch.record(&base.staged);
        assert_eq!((answer.code, answer.err.contains(lock)), (4, true), "{answer:?}");
        assert!(scratch.path(lock).exists());
    }
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
