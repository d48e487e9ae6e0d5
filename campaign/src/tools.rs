//! The other binaries of the suite, and the arguments by which they are called.

use std::path::{Path, PathBuf};
use std::process::Command;

use schema::exit::Exit;

use crate::process::describe;
use crate::stop::Ends;

/// A tool that is missing, or that ended with an answer which ends the campaign too.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("`{name}` is not in `{}`", .dir.display())]
    Missing { name: &'static str, dir: PathBuf },
    /// The tool has said why on standard error.
    #[error("`{name} {verb}` ended with {}", describe(*.status))]
    Ended { name: &'static str, verb: &'static str, status: std::process::ExitStatus },
    #[error("`{name} {verb}` answered something that cannot be read: {detail}")]
    Answer { name: &'static str, verb: &'static str, detail: String },
}

impl Ends for ToolError {
    fn exit(&self) -> Exit {
        match self {
            // The tools of the suite share their exit codes; 2 stays 2.
            Self::Ended { status, .. } if status.code() == Some(2) => Exit::Unsound,
            _ => Exit::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Missing { .. } => {
                Some("start it through `cargo xtask`, which builds the tools".to_owned())
            }
            _ => None,
        }
    }
}

pub const BENCH: &str = "redline-bench";
pub const RESULTS: &str = "redline-results";
pub const SITE: &str = "redline-site";
pub const EMITTER: &str = "redline-emitter";
pub const FLOOR: &str = "redline-floor";

/// Where the tools lie: beside this program.
#[derive(Debug, Clone)]
pub struct Tools {
    dir: PathBuf,
}

impl Tools {
    /// The tools that lie in the folder `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Checked before anything is measured, since a missing tool would waste the whole campaign.
    ///
    /// # Errors
    /// A tool is missing.
    pub fn check(&self) -> Result<(), ToolError> {
        self.check_for(&[BENCH, RESULTS, SITE])
    }

    /// The same for other tools.
    ///
    /// # Errors
    /// A tool is missing.
    pub fn check_for(&self, names: &[&'static str]) -> Result<(), ToolError> {
        for &name in names {
            if !self.dir.join(name).is_file() {
                return Err(ToolError::Missing { name, dir: self.dir.clone() });
            }
        }
        Ok(())
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where a program lies.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// `redline-bench VERB`.
    #[must_use]
    pub fn bench(&self, verb: &str) -> Command {
        self.command(BENCH, verb)
    }

    /// `redline-results VERB`.
    #[must_use]
    pub fn results(&self, verb: &str) -> Command {
        self.command(RESULTS, verb)
    }

    /// `redline-site VERB`.
    #[must_use]
    pub fn site(&self, verb: &str) -> Command {
        self.command(SITE, verb)
    }

    fn command(&self, name: &str, verb: &str) -> Command {
        let mut command = Command::new(self.dir.join(name));
        command.arg(verb);
        command
    }
}
