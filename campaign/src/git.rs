//! The `git` command, for reading releases and making worktrees. The registry makes the commits.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use schema::exit::Exit;

use crate::files::{self, FileError};
use crate::process::{self, Interrupt, ProcessError};
use crate::stop::Ends;

#[derive(Debug, thiserror::Error)]
pub enum GitError {
    #[error("`{}` is not a git clone", .0.display())]
    NotAClone(PathBuf),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error(transparent)]
    File(#[from] FileError),
}

impl Ends for GitError {
    fn exit(&self) -> Exit {
        Exit::Environment
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::NotAClone(_) => Some(
                "releases are read from the history: get the project with `git clone`".to_owned(),
            ),
            Self::Process(error) => error.hint(),
            Self::File(error) => error.hint(),
        }
    }
}

/// A git clone or worktree, used through the `git` command.
#[derive(Debug, Clone)]
pub struct Git {
    program: PathBuf,
    dir: PathBuf,
    interrupt: Interrupt,
}

impl Git {
    /// Opens the clone whose top folder is `dir`.
    ///
    /// # Errors
    /// `dir` is not the top folder of a clone, or `git` cannot be run.
    pub fn open(program: &Path, dir: &Path, interrupt: &Interrupt) -> Result<Self, GitError> {
        let git = Self { program: program.into(), dir: dir.into(), interrupt: interrupt.clone() };
        match git.text(&["rev-parse", "--show-toplevel"]) {
            Ok(top) if same_folder(Path::new(top.trim()), dir) => Ok(git),
            Ok(_) => Err(GitError::NotAClone(dir.into())),
            Err(GitError::Process(ProcessError::Failed { stderr, .. }))
                if stderr.contains("not a git repository") =>
            {
                Err(GitError::NotAClone(dir.into()))
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the same command for another folder, such as a worktree.
    pub fn at(&self, dir: &Path) -> Self {
        Self { dir: dir.into(), ..self.clone() }
    }

    /// Runs `git ARGS` and returns its standard output.
    ///
    /// # Errors
    /// git cannot be run or ends with a non-zero exit code.
    pub fn text(&self, args: &[&str]) -> Result<String, GitError> {
        let mut command = Command::new(&self.program);
        // Hooks of the user's repository could run long, fail, or change the checkout.
        command.arg("-C").arg(&self.dir).args(["-c", "core.hooksPath=/dev/null"]).args(args);
        // Git sets these variables for its hooks; inherited, they would redirect these commands to
        // another repository.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(name);
        }
        // English messages, because `open` recognizes one, and no prompt that nobody answers.
        command.env("LC_ALL", "C").env("GIT_TERMINAL_PROMPT", "0");
        Ok(process::text(&mut command, &self.interrupt)?)
    }

    /// Runs `git ARGS` like [`Git::text`]; `None` if git ends with a non-zero exit code.
    ///
    /// # Errors
    /// git cannot be run, or was interrupted.
    pub fn try_text(&self, args: &[&str]) -> Result<Option<String>, GitError> {
        match self.text(args) {
            Ok(text) => Ok(Some(text)),
            Err(GitError::Process(ProcessError::Failed { .. })) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Commits whose parents this shallow clone lacks.
    ///
    /// # Errors
    /// git fails, or its list cannot be read.
    pub fn shallow_commits(&self) -> Result<BTreeSet<String>, GitError> {
        let path = self.text(&["rev-parse", "--git-path", "shallow"])?;
        let list = files::read_text(&self.dir.join(path.trim()))?;
        Ok(list.lines().map(str::to_owned).collect())
    }
}

/// True when both paths lead to the same folder.
pub fn same_folder(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}
