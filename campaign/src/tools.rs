//! Redline's other programs, such as `redline-bench`: their names, and how they are started.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use crate::process::describe;
use crate::stop::{Stop, environment};

pub const BENCH: &str = "redline-bench";
pub const RESULTS: &str = "redline-results";
pub const SITE: &str = "redline-site";
pub const EMITTER: &str = "redline-emitter";
pub const FLOOR: &str = "redline-floor";

/// Redline's other programs, which lie in one folder: by default that of the running program.
#[derive(Debug, Clone)]
pub struct Tools {
    pub dir: PathBuf,
}

impl Tools {
    /// Returns the tools in the folder `dir`, which is not read yet.
    pub fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Checks that the programs of a campaign exist, since a missing one would waste the whole
    /// campaign.
    ///
    /// # Errors
    /// A program is missing.
    pub fn check(&self) -> Result<(), Stop> {
        self.check_for(&[BENCH, RESULTS, SITE])
    }

    /// Checks that the programs `names` exist.
    ///
    /// # Errors
    /// A program is missing.
    pub fn check_for(&self, names: &[&'static str]) -> Result<(), Stop> {
        for &name in names {
            if !self.dir.join(name).is_file() {
                return Err(environment!("`{name}` is not in `{}`", self.dir.display())
                    .with_hint("start it through `cargo xtask`, which builds the tools"));
            }
        }
        Ok(())
    }

    /// Returns the path of the program `name` in the folder of Redline's programs.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Builds the command `redline-bench VERB`.
    pub fn bench(&self, verb: &str) -> Command {
        self.command(BENCH, verb)
    }

    /// Builds the command `redline-results VERB`.
    pub fn results(&self, verb: &str) -> Command {
        self.command(RESULTS, verb)
    }

    /// Builds the command `redline-site VERB`.
    pub fn site(&self, verb: &str) -> Command {
        self.command(SITE, verb)
    }

    /// Builds the command `NAME VERB` of one of the programs.
    pub fn command(&self, name: &str, verb: &str) -> Command {
        let mut command = Command::new(self.dir.join(name));
        command.arg(verb);
        command
    }
}

/// Builds the error of a Redline program that ended with `status` and has printed the cause on
/// standard error. Its exit code is 2 if that of the program was 2, else 4.
pub fn ended(name: &str, verb: &str, status: ExitStatus) -> Stop {
    let message = format!("`{name} {verb}` ended with {}", describe(status));
    // Redline's programs share their exit codes, so that 2 (wrong use) stays 2.
    match status.code() {
        Some(2) => Stop::wrong_use(message),
        _ => Stop::environment(message),
    }
}

/// Builds the error of a Redline program whose output is not what it should be.
pub fn unreadable(name: &str, verb: &str, detail: &impl Display) -> Stop {
    let what = format!("`{name} {verb}` printed something that cannot be parsed");
    environment!("{what}: {detail}")
}
