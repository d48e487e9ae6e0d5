//! Runs `git fetch` and `git push` as processes, so that addresses, credentials and proxies are
//! those of the user.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use git2::{Oid, Repository};

/// Reference under which the remote's branch is stored while a sync runs.
const FETCHED: &str = "refs/redline/fetched";

/// Error: the remote cannot be reached, or refuses the push.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The program `git` cannot be started.
    #[error("cannot start `git`\nhint: sync uses the git program for the network")]
    Start(#[source] std::io::Error),
    /// A `git` command ended with an error.
    #[error("`git {verb}` of `{remote}` failed: {said}")]
    Failed {
        /// Subcommand of git that failed, such as `fetch`.
        verb: &'static str,
        /// Name or address of the remote.
        remote: String,
        /// Text that git wrote to standard error.
        said: String,
    },
    /// The fetched branch is missing, or is not a commit.
    #[error("what was fetched from `{0}` cannot be read")]
    Fetched(String, #[source] git2::Error),
}

/// One branch of one remote, for fetching and pushing.
#[derive(Debug)]
pub struct Network<'a> {
    dir: &'a Path,
    remote: &'a str,
    branch: String,
}

impl<'a> Network<'a> {
    pub fn new(dir: &'a Path, remote: &'a str, branch: &str) -> Self {
        Self { dir, remote, branch: format!("refs/heads/{branch}") }
    }

    /// Fetches the remote's branch; `None` where the remote does not have it yet.
    pub fn fetch(&self, repo: &Repository) -> Result<Option<Oid>, NetworkError> {
        if self.tip()?.is_none() {
            return Ok(None);
        }
        let refspec = format!("+{}:{FETCHED}", self.branch);
        self.must("fetch", &["--quiet", "--no-tags", self.remote, &refspec])?;
        let read = |error| NetworkError::Fetched(self.remote.to_owned(), error);
        let mut fetched = repo.find_reference(FETCHED).map_err(read)?;
        let commit = fetched.peel_to_commit().map_err(read)?.id();
        fetched.delete().map_err(read)?;
        Ok(Some(commit))
    }

    /// Pushes the branch; `false` when another clone pushed since `seen` was fetched.
    pub fn push(&self, seen: Option<Oid>) -> Result<bool, NetworkError> {
        let refspec = format!("{0}:{0}", self.branch);
        let arguments = ["--quiet", "--no-verify", self.remote, &refspec];
        match self.must("push", &arguments) {
            Ok(_) => Ok(true),
            // Git's messages are translated, so the remote's commit tells why the push failed.
            Err(error) => match self.tip()? == seen.map(|oid| oid.to_string()) {
                true => Err(error),
                false => Ok(false),
            },
        }
    }

    /// Hash of the remote branch's commit, in hex.
    fn tip(&self) -> Result<Option<String>, NetworkError> {
        let said = self.must("ls-remote", &[self.remote, &self.branch])?;
        let lines = String::from_utf8_lossy(&said.stdout).into_owned();
        Ok(lines.split_whitespace().next().map(str::to_owned))
    }

    fn must(&self, verb: &'static str, arguments: &[&str]) -> Result<Output, NetworkError> {
        let mut command = Command::new("git");
        // Hooks are not run, as in this program's own commits.
        command.arg("-C").arg(self.dir).args(["-c", "core.hooksPath=/dev/null", verb]);
        // These variables are set when the caller itself runs in a git hook, and would redirect
        // the command to another repository.
        for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"] {
            command.env_remove(name);
        }
        let output = command.args(arguments).stdin(Stdio::inherit()).output();
        let output = output.map_err(NetworkError::Start)?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        Err(NetworkError::Failed { verb, remote: self.remote.to_owned(), said })
    }
}
