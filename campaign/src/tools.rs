//! Redline's other programs, such as `redline-bench`: their names, and how they are started.

use std::path::{Path, PathBuf};
use std::process::Command;

use schema::exit::Exit;

use crate::process::describe;
use crate::stop::Ends;

/// A Redline program that is missing, failed, or printed something unexpected.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("`{name}` is not in `{}`", .dir.display())]
    Missing { name: &'static str, dir: PathBuf },
    /// The program failed and has printed the cause on standard error.
    #[error("`{name} {verb}` ended with {}", describe(*.status))]
    Ended { name: &'static str, verb: &'static str, status: std::process::ExitStatus },
    #[error("`{name} {verb}` printed something that cannot be parsed: {detail}")]
    Answer { name: &'static str, verb: &'static str, detail: String },
}

impl Ends for ToolError {
    fn exit(&self) -> Exit {
        match self {
            // Redline's programs share their exit codes, so that 2 (wrong use) stays 2.
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

/// Redline's other programs, in the folder of this one.
#[derive(Debug, Clone)]
pub struct Tools {
    dir: PathBuf,
}

impl Tools {
    /// Makes the tools in the folder `dir`.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Checks that the programs of a campaign exist, since a missing one would waste the whole
    /// campaign.
    ///
    /// # Errors
    /// A program is missing.
    pub fn check(&self) -> Result<(), ToolError> {
        self.check_for(&[BENCH, RESULTS, SITE])
    }

    /// Checks that the programs `names` exist.
    ///
    /// # Errors
    /// A program is missing.
    pub fn check_for(&self, names: &[&'static str]) -> Result<(), ToolError> {
        for &name in names {
            if !self.dir.join(name).is_file() {
                return Err(ToolError::Missing { name, dir: self.dir.clone() });
            }
        }
        Ok(())
    }

    /// Folder of the programs.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Path of the program `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Makes the command `redline-bench VERB`.
    pub fn bench(&self, verb: &str) -> Command {
        self.command(BENCH, verb)
    }

    /// Makes the command `redline-results VERB`.
    pub fn results(&self, verb: &str) -> Command {
        self.command(RESULTS, verb)
    }

    /// Makes the command `redline-site VERB`.
    pub fn site(&self, verb: &str) -> Command {
        self.command(SITE, verb)
    }

    fn command(&self, name: &str, verb: &str) -> Command {
        let mut command = Command::new(self.dir.join(name));
        command.arg(verb);
        command
    }
}
