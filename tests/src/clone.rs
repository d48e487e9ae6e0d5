//! Scratch clones of this repository, with the setup that a user would have.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use schema::run::RunRecord;
use tempfile::TempDir;

use crate::program::{Ended, command, run};
use fixtures::files_under;

/// Clone of a repository in a temporary folder; removed when dropped.
#[derive(Debug)]
pub struct Clone {
    folder: TempDir,
}

impl Clone {
    /// Clones this repository at HEAD; `options` are passed to `git clone`.
    ///
    /// # Panics
    /// Git fails to clone.
    #[track_caller]
    pub fn of_this_repository(options: &[&str]) -> Self {
        Self::of(&repository(), options)
    }

    /// Clones the repository at `root` at HEAD; `options` are passed to `git clone`.
    ///
    /// # Panics
    /// Git fails to clone.
    #[track_caller]
    pub fn of(root: &Path, options: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // With a plain path git would link the objects and ignore `--depth`.
        let source = format!("file://{}", root.display());
        let mut words = vec!["clone", "--quiet"];
        words.extend(options);
        words.extend([source.as_str(), "redline"]);
        run(&mut command(Path::new("git"), folder.path(), &words)).expect_code(0);
        let clone = Self { folder };
        // Commits need an author, and the machine may have none configured.
        clone.git(&["config", "user.name", "A User"]);
        clone.git(&["config", "user.email", "user@example.org"]);
        clone
    }

    /// Clones this repository at HEAD, with the engine's manifest from the working tree, so that
    /// the version is that of the built engine even where its change is not committed yet.
    ///
    /// # Panics
    /// Git fails to clone, or the manifest cannot be copied.
    #[track_caller]
    pub fn as_built() -> Self {
        let clone = Self::of_this_repository(&[]);
        let manifest = "engine/Cargo.toml";
        std::fs::copy(repository().join(manifest), clone.root().join(manifest)).expect("writable");
        clone
    }

    /// Root folder of the clone.
    pub fn root(&self) -> PathBuf {
        self.folder.path().join("redline")
    }

    /// Runs git in the clone and returns its standard output.
    ///
    /// # Panics
    /// Git ends with an error.
    #[track_caller]
    pub fn git(&self, words: &[&str]) -> String {
        run(&mut command(Path::new("git"), &self.root(), words)).expect_code(0).stdout
    }

    /// Command that runs a built program in the clone.
    pub fn program(&self, name: &str, words: &[&str]) -> Command {
        let mut program = command(&crate::program::built(name), &self.root(), words);
        // Shared, so that a clone compiles nothing again.
        program.env("CARGO_TARGET_DIR", target());
        program
    }

    /// Runs a built program in the clone to its end.
    #[track_caller]
    pub fn run(&self, name: &str, words: &[&str]) -> Ended {
        run(&mut self.program(name, words))
    }

    /// Commit of HEAD, and git's status of the working tree, to compare before and after a command.
    #[track_caller]
    pub fn state(&self) -> (String, String) {
        (self.git(&["rev-parse", "HEAD"]), self.git(&["status", "--porcelain=v1", "--branch"]))
    }

    /// Processes whose command line contains the clone's path: process id and command line.
    ///
    /// # Panics
    /// The system has no `/proc` file system.
    pub fn processes(&self) -> Vec<(u32, String)> {
        let root = self.root().display().to_string();
        let entries = std::fs::read_dir("/proc").expect("a proc file system");
        let entries = entries.filter_map(Result::ok);
        let line = |entry: std::fs::DirEntry| {
            let id: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some((id, String::from_utf8_lossy(&line).replace('\0', " ")))
        };
        entries.filter_map(line).filter(|(_, line)| line.contains(&root)).collect()
    }

    /// Run records below `target/campaigns`, which were never committed: path and record.
    ///
    /// # Panics
    /// A file is not a readable run record.
    #[track_caller]
    pub fn uncommitted_runs(&self) -> Vec<(PathBuf, RunRecord)> {
        let files = files_under(&self.root().join("target/campaigns"));
        let runs =
            files.into_iter().filter(|path| path.to_string_lossy().contains("/results/runs/"));
        let read = |path: PathBuf| {
            let text = std::fs::read_to_string(&path).expect("readable");
            let run = serde_json::from_str(&text).expect("a record");
            (path, run)
        };
        runs.map(read).collect()
    }
}

/// Root folder of the repository that the tests belong to.
pub fn repository() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in the workspace").to_path_buf()
}

/// Target folder that the tests were built in. Clones share it, so that dependencies are compiled
/// only once.
pub fn target() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    test.ancestors().nth(3).expect("tests lie in target/release/deps").to_path_buf()
}

/// Value of `PATH` with which `pip` and `npm` fail as without a network. Their stand-ins are made
/// in `folder`; git and all other programs are the real ones.
///
/// # Panics
/// The folder is not writable.
pub fn offline_path(folder: &Path) -> OsString {
    let fails = "echo 'network is unreachable' >&2\nexit 1";
    path_with(folder, &[("python3", fails), ("pip", fails), ("npm", fails)])
}

/// Value of `PATH` with a `cargo` that does nothing and succeeds, made in `folder`. A campaign then
/// measures the engine that was built with the tests.
///
/// # Panics
/// The folder is not writable.
pub fn already_built_path(folder: &Path) -> OsString {
    path_with(folder, &[("cargo", "exit 0")])
}

/// Value of `PATH` with shell scripts in front of the real programs. `scripts` has pairs of name
/// and script; the files are made in `folder`.
///
/// # Panics
/// The folder is not writable.
pub fn path_with(folder: &Path, scripts: &[(&str, &str)]) -> OsString {
    use std::os::unix::fs::PermissionsExt;
    let programs = folder.join("programs");
    std::fs::create_dir_all(&programs).expect("writable");
    for (name, script) in scripts {
        let program = programs.join(name);
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("writable");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
            .expect("permissions can be set");
    }
    let mut path = programs.into_os_string();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}
