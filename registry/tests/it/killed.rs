//! Tests of a writer that is killed at every change that it makes to the file system: no record is
//! lost or changed, and the next writer continues.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::libc;
use nix::sys::ptrace;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::scratch::{Scratch, place, repeats, write};

/// Locks of git's library that a record needs.
const LOCKS: [&str; 3] = [".git/index.lock", ".git/HEAD.lock", ".git/refs/heads/main.lock"];

/// System calls that change which files exist.
const CHANGES: [i64; 9] = [
    libc::SYS_mkdir,
    libc::SYS_mkdirat,
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_link,
    libc::SYS_linkat,
    libc::SYS_unlink,
    libc::SYS_unlinkat,
];

/// True where a process stopped at the entry of a system call that makes, renames or removes a file
/// or folder.
fn is_change(pid: Pid) -> bool {
    let registers = ptrace::getregs(pid).unwrap();
    let makes = |flags: u64| flags & libc::O_CREAT as u64 != 0;
    // The kernel's mark of an entry, as against an exit.
    let is_entry = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
    is_entry
        && match registers.orig_rax.cast_signed() {
            libc::SYS_open => makes(registers.rsi),
            libc::SYS_openat => makes(registers.rdx),
            other => CHANGES.contains(&other),
        }
}

/// Records `staged`, and kills the program where it begins its change number `end` of the file
/// system. True when it was killed there, false when it had fewer changes to make.
#[expect(clippy::zombie_processes, reason = "`waitpid` has waited for a program that ended")]
fn is_killed_at(scratch: &Scratch, staged: &Path, end: u32) -> bool {
    let command = scratch.command(&["record", staged.to_str().unwrap(), "--message", "Record"]);
    // A shell that waits and then becomes the program can be traced from its start.
    let mut child = Command::new("sh")
        .args(["-c", "read go; exec \"$@\"", "sh"])
        .arg(command.get_program())
        .args(command.get_args())
        .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_TRACEEXEC;
    ptrace::seize(pid, options).unwrap();
    ptrace::interrupt(pid).unwrap();
    drop(child.stdin.take());
    let exe = format!("/proc/{pid}/exe");
    let (mut is_program, mut changes) = (false, 0);
    loop {
        match waitpid(pid, None).unwrap() {
            WaitStatus::Exited(_, code) => {
                assert_eq!(code, 0);
                return false;
            }
            WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_EXEC) => {
                is_program = fs::read_link(&exe).is_ok_and(|path| path == command.get_program());
            }
            WaitStatus::PtraceSyscall(_) if is_program => {
                changes += u32::from(is_change(pid));
                if changes == end {
                    child.kill().unwrap();
                    child.wait().unwrap();
                    return true;
                }
            }
            _ => {}
        }
        ptrace::syscall(pid, None).unwrap();
    }
}

#[test]
fn every_boundary() {
    let (base, old, new) = (Scratch::new(), repeats("v0.9.1", 1, 1), repeats("v0.9.2", 50, 1));
    let first = base.staged("first", &old);
    write(&first.join("README.md"), "one\n");
    assert_eq!(base.record(&first).code, 0);
    let (head, text) = (base.git(&["rev-parse", "HEAD"]), bytes(&base, &old[0]));
    let staged = base.staged("second", &new);
    write(&staged.join("README.md"), "two\n");
    let mut boundaries = 0;
    for end in 1.. {
        let scratch = base.copy();
        if !is_killed_at(&scratch, &staged, end) {
            break;
        }
        boundaries += 1;
        // A lock that git's library left: the test below shows that the program names it.
        for lock in LOCKS {
            let _ = fs::remove_file(scratch.path(lock));
        }
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
