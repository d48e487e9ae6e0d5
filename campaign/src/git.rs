//! The `git` command, for reading releases and making worktrees. The registry makes the commits.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files;
use crate::process::{self, Interrupt, ProcessError};
use crate::stop::{Stop, environment};

/// A git clone or worktree, used through the `git` command.
#[derive(Debug, Clone)]
pub struct Git {
    dir: PathBuf,
    interrupt: Interrupt,
}

impl Git {
    /// Opens the clone whose top folder is `dir`.
    ///
    /// # Errors
    /// `dir` is not the top folder of a clone, `git` cannot be run or fails, or the wait was
    /// interrupted.
    pub fn open(dir: &Path, interrupt: &Interrupt) -> Result<Self, Stop> {
        let git = Self { dir: dir.into(), interrupt: interrupt.clone() };
        let is_clone = match git.text(&["rev-parse", "--show-toplevel"]) {
            Ok(top) => same_folder(Path::new(top.trim()), dir),
            Err(ProcessError::Failed { stderr, .. }) if stderr.contains("not a git repository") => {
                false
            }
            Err(error) => return Err(error.into()),
        };
        if is_clone {
            return Ok(git);
        }
        Err(environment!("`{}` is not a git clone", dir.display())
            .with_hint("releases are read from the history: get the project with `git clone`"))
    }

    /// Returns a clone or worktree whose `git` commands run in the folder `dir`, otherwise like
    /// this one.
    pub fn at(&self, dir: &Path) -> Self {
        Self { dir: dir.into(), ..self.clone() }
    }

    /// Runs `git ARGS` and returns its standard output.
    ///
    /// # Errors
    /// git cannot be run, ends with a non-zero exit code, or was interrupted.
    pub fn text(&self, args: &[&str]) -> Result<String, ProcessError> {
        let mut command = Command::new("git");
        // Hooks of the user's repository could run long, fail, or change the checkout.
        command.arg("-C").arg(&self.dir).args(["-c", "core.hooksPath=/dev/null"]).args(args);
        // Git sets these variables for its hooks; inherited, they would redirect these commands to
        // another repository.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(name);
        }
        // English messages, because `open` recognizes one, and no prompt that nobody answers.
        command.env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0");
        process::text(&mut command, &self.interrupt)
    }

    /// Runs `git ARGS` like [`Git::text`]; `None` if git ends with a non-zero exit code.
    ///
    /// # Errors
    /// git cannot be run, or was interrupted.
    pub fn try_text(&self, args: &[&str]) -> Result<Option<String>, Stop> {
        match self.text(args) {
            Err(ProcessError::Failed { .. }) => Ok(None),
            run => Ok(Some(run?)),
        }
    }

    /// Returns the folder in which git keeps the objects and refs that all worktrees of the clone
    /// share.
    ///
    /// # Errors
    /// git cannot be run, fails or is interrupted.
    pub fn common_folder(&self) -> Result<PathBuf, ProcessError> {
        let folder = self.text(&["rev-parse", "--git-common-dir"])?;
        // Git states it relative to the folder in which it runs.
        Ok(self.dir.join(folder.trim()))
    }

    /// Returns the hashes of the commits whose parents this shallow clone lacks.
    ///
    /// # Errors
    /// git cannot be run, fails or is interrupted, or its list cannot be read, as in a complete
    /// clone, which has none.
    pub fn shallow_commits(&self) -> Result<BTreeSet<String>, Stop> {
        let path = self.text(&["rev-parse", "--git-path", "shallow"])?;
        let list = files::read_text(&self.dir.join(path.trim()))?;
        Ok(list.lines().map(str::to_owned).collect())
    }
}

/// Returns true when both paths lead to the same existing folder.
pub fn same_folder(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}
