//! Tests on read-only and full disks, full at any write of the program or of git. Root may write
//! anywhere, so each disk is a file system of its own, in a mount namespace that ends with the
//! process.

use std::path::Path;
use std::process::{Command, Output};

use crate::scratch::{Scratch, repeats};

/// Runs a shell script as root of its own mount namespace, with the paths of the program and the
/// repository and further arguments. `None` where the machine does not allow users to mount.
fn with_mounts(scratch: &Scratch, script: &str, more: &[&Path]) -> Option<Output> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-c", script, "sh"]);
        command
    };
    let probe = unshare("mount -t tmpfs none /mnt").output();
    if !probe.is_ok_and(|output| output.status.success()) {
        fixtures::skip("mounts of its own", "run it as root");
        return None;
    }
    let mut command = unshare(script);
    command.arg(env!("CARGO_BIN_EXE_redline-results")).arg(scratch.repo()).args(more);
    command.env("HOME", scratch.repo().parent().unwrap()).env_remove("XDG_CONFIG_HOME");
    command.env("SOURCE_DATE_EPOCH", "1769904000").env("GIT_CONFIG_NOSYSTEM", "1");
    Some(command.output().unwrap())
}

/// Script that prints exit code and errors of `record` on a read-only disk, then exit codes of
/// commands that change nothing.
const READ_ONLY: &str = r#"
set -e
mount --bind "$2" "$2"
mount -o remount,bind,ro "$2"
code=0
"$1" record "$3" --message Record --registry "$2" || code=$?
echo "record $code"
"$1" check --registry "$2" >/dev/null
"$1" list --registry "$2"
"#;

#[test]
fn a_read_only_disk_is_named_and_can_still_be_asked() {
    let scratch = Scratch::new();
    let first = scratch.staged("first", &repeats("v0.9.1", 1, 2));
    assert_eq!(scratch.record(&first).code, 0);
    let before = (scratch.state(), scratch.files());
    let second = scratch.staged("second", &repeats("v0.9.2", 50, 2));
    let Some(output) = with_mounts(&scratch, READ_ONLY, &[&second]) else { return };
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.starts_with("record 4\n"), "{said}{errors}");
    assert!(errors.contains("ead-only file system"), "{errors}");
    assert!(said.contains("redline v0.9.1") && !said.contains("v0.9.2"), "{said}");
    assert_eq!((scratch.state(), scratch.files()), before);
}

/// Script that runs `record` for each number of free KiB until they suffice. It prints the result,
/// whether HEAD and the user's state are unchanged, and whether git finds its objects sound.
const FULL: &str = r#"
set -e
mount -t tmpfs -o size=64m none "$4"
state() { git -C "$4/repo" rev-parse HEAD; git -C "$4/repo" status --porcelain; ls "$4/repo"; }
free=0
while [ $free -le 400 ]; do
    rm -rf "$4/repo"
    cp -a "$2" "$4/repo"
    before=$(state "$@")
    used=$(df --block-size=1K --output=used "$4" | tail -n 1)
    mount -o remount,size=$((used + free))k "$4"
    code=0
    "$1" record "$3" --message Record --registry "$4/repo" >/dev/null 2>"$2/../errors" || code=$?
    mount -o remount,size=64m "$4"
    same=no
    if [ "$(state "$@")" = "$before" ]; then same=yes; fi
    git -C "$4/repo" fsck --strict 2>/dev/null >/dev/null || same=broken
    echo "$free $code $same $(head -n 1 "$2/../errors")"
    if [ $code -eq 0 ]; then break; fi
    "$1" record "$3" --message Record --registry "$4/repo" >/dev/null
    free=$((free + 4))
done
"$1" check --registry "$4/repo" | tail -n 1
"#;

#[test]
fn a_disk_that_is_full_at_any_write_leaves_no_trace() {
    let scratch = Scratch::new();
    let staged = scratch.staged("o", &repeats("v0.9.1", 1, 2));
    let disk = scratch.path("../disk");
    std::fs::create_dir(&disk).unwrap();
    let Some(output) = with_mounts(&scratch, FULL, &[&staged, &disk]) else { return };
    let said = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}{errors}");
    let lines: Vec<&str> = said.lines().collect();
    let [full @ .., enough, sound] = lines.as_slice() else { panic!("{said}") };
    assert!(full.len() >= 10, "{said}");
    for line in full {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        assert_eq!(words[1..3], ["4", "yes"], "{line}");
        assert!(words[3].starts_with("error: "), "{line}");
    }
    assert_eq!(enough.split(' ').nth(1), Some("0"), "{said}");
    assert_eq!(*sound, "storage: sound");
}
