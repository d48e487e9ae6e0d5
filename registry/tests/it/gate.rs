//! Tests of the scripts behind the hosted workflow, with stand-ins for the programs that they
//! call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use judge::diff::report::MARKER;
use tempfile::TempDir;

/// A folder with the scripts, and stand-ins that log their calls in `calls`.
struct Tree {
    dir: TempDir,
}

/// Stand-in for `cargo`: `xtask gate --out FOLDER` writes a comparison where `$GATE` is the exit
/// code of one, and exits with it.
const CARGO: &str = r##"#!/bin/sh
echo "cargo $*" >>calls
case $GATE in 0 | 1 | 3)
    mkdir -p "$4"
    echo "<!-- redline diff -->" >"$4/diff.md"
    ;;
esac
exit "$GATE"
"##;

/// Stand-in for `gh`, which lists the comment `$FOUND` if it is set.
const GH: &str = r##"#!/bin/sh
echo "gh $*" >>calls
case $2 in --paginate) echo "$FOUND" ;; esac
"##;

impl Tree {
    fn new() -> Self {
        let tree = Self { dir: tempfile::tempdir().unwrap() };
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for script in [".ci/gate", ".ci/comment"] {
            tree.write(script, &fs::read_to_string(root.join(script)).unwrap());
        }
        tree.write("bin/cargo", CARGO);
        tree.write("bin/gh", GH);
        for program in ["bin/cargo", "bin/gh"] {
            let executable = fs::Permissions::from_mode(0o755);
            fs::set_permissions(tree.path(program), executable).unwrap();
        }
        tree
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn run(&self, arguments: &[&str], env: &[(&str, &str)]) -> i32 {
        let path = std::env::var("PATH").unwrap();
        let output = Command::new("bash")
            .args(arguments)
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .envs(env.iter().copied())
            .output()
            .unwrap();
        output.status.code().unwrap()
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }
}

#[test]
fn the_gate_passes_its_arguments_on_and_ends_as_the_comparison_does() {
    for code in ["0", "1", "3"] {
        let tree = Tree::new();
        let words = [".ci/gate", "out", "v0.9.2", "--budget", "8m"];
        assert_eq!(tree.run(&words, &[("GATE", code)]).to_string(), code);
        assert_eq!(tree.calls(), "cargo xtask gate --out out v0.9.2 --budget 8m\n");
        let comment = fs::read_to_string(tree.path("out/diff.md")).unwrap();
        assert_eq!(comment.trim_end(), MARKER);
    }
}

#[test]
fn a_gate_that_could_not_measure_compares_nothing() {
    for code in ["2", "4"] {
        let tree = Tree::new();
        assert_eq!(tree.run(&[".ci/gate", "out"], &[("GATE", code)]).to_string(), code);
        assert!(!tree.path("out/diff.md").exists());
    }
    let tree = Tree::new();
    assert_ne!(tree.run(&[".ci/gate"], &[("GATE", "0")]), 0);
    assert_eq!(tree.calls(), "", "without a folder nothing is started");
}

#[test]
fn a_comparison_replaces_the_one_that_was_there() {
    for (found, words) in [
        ("", "gh api --method POST repos/a/b/issues/7/comments --raw-field body="),
        ("42", "gh api --method PATCH repos/a/b/issues/comments/42 --raw-field body="),
    ] {
        let tree = Tree::new();
        tree.write("diff.md", &format!("{MARKER}\n## v1 -> v2\n"));
        assert_eq!(tree.run(&[".ci/comment", "a/b", "7", "diff.md"], &[("FOUND", found)]), 0);
        let calls = tree.calls();
        assert!(calls.contains(&format!("{words}{MARKER}\n## v1 -> v2")), "{calls}");
        assert!(calls.contains(&format!("startswith(\"{MARKER}\")")), "{calls}");
    }
}
