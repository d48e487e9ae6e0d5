//! Scratch repository: a real git repository in a temporary folder, and the binary run on it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use samples::Sample;
use schema::canonical::to_file_text;
use schema::path::of_run;
use schema::run::RunRecord;
use tempfile::TempDir;

/// Stand-in for the page renderer: lists the records of registry and staged results in
/// `results/README.md`.
const RENDERER: &str = r#"#!/bin/sh
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --registry) registry="$2/results" ;;
    --overlay) overlay="$2" ;;
    --out) out="$2" ;;
  esac
  shift 2
done
{
  echo "rendered from"
  for root in "$registry" "$overlay"; do
    [ -d "$root" ] && (cd "$root" && find . -name "*.json" -o -name "*.toml")
  done | sort -u
} > "$out/.README" && mv "$out/.README" "$out/README.md"
"#;

pub struct Scratch {
    dir: TempDir,
}

impl Scratch {
    /// Creates a repository on branch `main` with one commit of one file.
    pub fn new() -> Self {
        let scratch = Self::unborn();
        scratch.write("src/main.rs", "fn main() {}\n");
        scratch.git(&["add", "."]);
        scratch.git(&["commit", "--quiet", "--message", "First"]);
        scratch
    }

    /// Creates a registry with three committed records.
    pub fn recorded() -> (Self, Vec<RunRecord>) {
        let scratch = Self::new();
        let records = repeats("v0.9.1", 1, 3);
        assert_eq!(scratch.record(&scratch.staged("o", &records)).code, 0);
        (scratch, records)
    }

    /// Creates a repository without a commit.
    pub fn unborn() -> Self {
        let scratch = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scratch.repo()).unwrap();
        scratch.git(&["init", "--quiet", "--initial-branch", "main"]);
        scratch
    }

    /// Clones the repository at `from`.
    pub fn clone_of(from: &Path) -> Self {
        let scratch = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(scratch.repo()).unwrap();
        scratch.git(&["clone", "--quiet", from.to_str().unwrap(), "."]);
        scratch
    }

    /// Copies the repository with its work tree.
    pub fn copy(&self) -> Self {
        let copy = Self { dir: tempfile::tempdir().unwrap() };
        let status = Command::new("cp").arg("-a").arg(self.repo()).arg(copy.repo()).status();
        assert!(status.unwrap().success());
        copy
    }

    /// Creates a bare copy of this repository, to serve as remote.
    pub fn publish(&self) -> PathBuf {
        let remote = self.dir.path().join("remote.git");
        self.git(&["clone", "--quiet", "--bare", ".", remote.to_str().unwrap()]);
        remote
    }

    pub fn repo(&self) -> PathBuf {
        self.dir.path().join("repo")
    }

    pub fn path(&self, path: &str) -> PathBuf {
        self.repo().join(path)
    }

    pub fn write(&self, path: &str, text: &str) {
        write(&self.path(path), text);
    }

    /// Runs git without the user's own configuration, and returns its output.
    pub fn git(&self, arguments: &[&str]) -> String {
        let output = self.try_git(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "git {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn try_git(&self, arguments: &[&str]) -> Output {
        Command::new("git")
            .args(["-c", "user.name=Ada", "-c", "user.email=ada@example.org"])
            .args(arguments)
            .current_dir(self.repo())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .output()
            .unwrap()
    }

    /// Creates a folder of staged results with these records at their paths.
    pub fn staged(&self, name: &str, records: &[RunRecord]) -> PathBuf {
        let staged = self.dir.path().join(name);
        fs::create_dir_all(&staged).unwrap();
        for record in records {
            write(&staged.join(of_run(record).unwrap()), &to_file_text(record).unwrap());
        }
        staged
    }

    /// Runs `redline-results` with its home in the scratch folder, so that no git configuration of
    /// the user has an effect.
    pub fn results(&self, arguments: &[&str]) -> Answer {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Answer {
            code: output.status.code().unwrap(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_redline-results"));
        command.args(arguments).args(["--registry", self.repo().to_str().unwrap()]);
        command.env("HOME", self.dir.path()).env_remove("XDG_CONFIG_HOME");
        // 2026-02-01, a month after the made-up records.
        command.env("SOURCE_DATE_EPOCH", "1769904000");
        command
    }

    pub fn record(&self, staged: &Path) -> Answer {
        self.results(&["record", staged.to_str().unwrap(), "--message", "Record runs"])
    }

    /// Creates a folder with a stand-in for the program that renders pages. It writes one page,
    /// which names the records that it was rendered from.
    pub fn tools(&self) -> PathBuf {
        let tools = self.dir.path().join("tools");
        let program = tools.join("redline-site");
        if !program.exists() {
            write(&program, RENDERER);
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        tools
    }

    /// Runs a command that renders the pages.
    pub fn rendering(&self, arguments: &[&str]) -> Answer {
        let tools = self.tools();
        self.results(&[arguments, &["--tools-dir", tools.to_str().unwrap()]].concat())
    }

    /// Everything that a user would notice: status, staged and unstaged changes.
    pub fn state(&self) -> [String; 3] {
        [self.git(&["status", "--porcelain"]), self.git(&["diff", "--cached"]), self.git(&["diff"])]
    }

    /// Lists the files of HEAD.
    pub fn files(&self) -> Vec<String> {
        let names = self.git(&["ls-tree", "-r", "--name-only", "HEAD"]);
        names.lines().map(str::to_owned).collect()
    }
}

/// Exit code, standard output and standard error of the binary.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub out: String,
    pub err: String,
}

pub fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Sound records of one release, `count` repeats.
pub fn repeats(release: &str, serial: u64, count: u64) -> Vec<RunRecord> {
    let sample = |index: u64| Sample {
        release: release.to_owned(),
        serial: serial + index,
        seed: serial + index,
        repeat: u32::try_from(index).unwrap() + 1,
        ..Sample::default()
    };
    (0..count).map(|index| sample(index).record()).collect()
}

/// Path of a record below the repository's root.
pub fn place(record: &RunRecord) -> String {
    format!("results/{}", of_run(record).unwrap())
}
