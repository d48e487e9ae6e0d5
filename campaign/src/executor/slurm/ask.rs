//! Calls of Slurm's command-line tools: their environment, time limit and errors. Knows nothing of
//! a particular tool's output.

use std::collections::BTreeMap;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use schema::exit::Exit;

use crate::files::FileError;
use crate::process::{Interrupt, ProcessError, capture_until, describe};
use crate::stop::Ends;

/// Time limit of one call. The tools retry for some seconds to reach a controller that is down; a
/// longer silence will not end by itself.
const PATIENCE: Duration = Duration::from_secs(120);

/// Environment variables that Slurm's tools receive: those that locate the cluster, and the user's
/// own job settings. Others are withheld because variables such as `SQUEUE_FORMAT` would change the
/// output that is parsed, and because `sbatch` passes everything on to the job.
const SEEN: &[&str] = &[
    "HOME",
    "LOGNAME",
    "PATH",
    "SBATCH_ACCOUNT",
    "SBATCH_CONSTRAINT",
    "SBATCH_PARTITION",
    "SBATCH_QOS",
    "SBATCH_RESERVATION",
    "SLURM_CONF",
    "SLURM_CONF_SERVER",
    "USER",
];

#[derive(Debug, thiserror::Error)]
pub enum SlurmError {
    #[error(transparent)]
    Tool(#[from] ProcessError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("`{tool}` got no answer: {said}")]
    NoAnswer { tool: &'static str, said: String },
    #[error("`{tool}` answered {answer}, where {expected} was expected")]
    Unreadable { tool: &'static str, answer: String, expected: &'static str },
    #[error("Slurm refuses the job: {said}")]
    Refused { said: String },
    #[error("{0}")]
    WrongUse(String),
}

impl Ends for SlurmError {
    fn exit(&self) -> Exit {
        match self {
            Self::Refused { .. } | Self::WrongUse(_) => Exit::Unsound,
            _ => Exit::Environment,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Tool(error) => error.hint(),
            Self::File(error) => error.hint(),
            Self::NoAnswer { .. } => Some("`scontrol ping` says whether a controller is up".into()),
            Self::Unreadable { .. } => {
                Some("the answers of Slurm 22.05 are known; is the tool a wrapper?".into())
            }
            Self::Refused { .. } => Some(
                "`--slurm-option --partition=NAME` and its like go to sbatch, as do SBATCH_ACCOUNT, \
                 SBATCH_PARTITION and SBATCH_QOS"
                    .into(),
            ),
            Self::WrongUse(_) => None,
        }
    }
}

/// Selects the variables that Slurm's tools are started with.
pub fn client_environment(all: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    all.filter(|(name, _)| SEEN.contains(&name.as_str())).collect()
}

/// Slurm's tools, found on the `PATH` of their environment.
#[derive(Debug)]
pub struct Tools {
    env: BTreeMap<String, String>,
    interrupt: Interrupt,
}

impl Tools {
    pub fn new(env: BTreeMap<String, String>, interrupt: Interrupt) -> Self {
        Self { env, interrupt }
    }

    /// Runs a tool to its end and captures its output.
    ///
    /// # Errors
    /// It cannot be started, does not end within two minutes, or the wait was interrupted.
    pub fn ask(&self, tool: &'static str, words: &[&str]) -> Result<Said, SlurmError> {
        let mut command = Command::new(tool);
        // An inherited `SQUEUE_FORMAT` or `SLURM_TIME_FORMAT` would change the output.
        command.args(words).env_clear().envs(&self.env);
        match capture_until(&mut command, Some(PATIENCE), &self.interrupt)? {
            Some(said) => Ok(Said {
                tool,
                status: said.status,
                stderr: said.stderr.trim().to_owned(),
                stdout: said.stdout,
            }),
            None => {
                let said = format!("it was silent for {} s", PATIENCE.as_secs());
                Err(SlurmError::NoAnswer { tool, said })
            }
        }
    }
}

/// Output and exit status of a tool.
#[derive(Debug)]
pub struct Said {
    tool: &'static str,
    status: ExitStatus,
    pub stdout: String,
    stderr: String,
}

impl Said {
    /// Standard error of a tool that failed; `None` if it succeeded.
    pub fn refused(&self) -> Option<&str> {
        (!self.status.success()).then_some(&self.stderr)
    }

    /// Converts a failed call into the error that the scheduler cannot be reached.
    pub fn no_answer(self) -> SlurmError {
        let said = self.why();
        SlurmError::NoAnswer { tool: self.tool, said }
    }

    /// Converts a failed call into the error that the scheduler refuses the job.
    pub fn refusal(self) -> SlurmError {
        SlurmError::Refused { said: self.why() }
    }

    /// Returns standard error in one line, without the tool's name that begins each line.
    fn why(&self) -> String {
        if self.stderr.is_empty() {
            return describe(self.status);
        }
        let lines = self.stderr.lines().map(|line| {
            let line = line.trim();
            line.split_once("error: ").map_or(line, |(_, said)| said)
        });
        lines.collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn said(stderr: &str) -> Said {
        let status = ExitStatus::from_raw(256);
        Said { tool: "sbatch", status, stdout: String::new(), stderr: stderr.to_owned() }
    }

    #[test]
    fn a_refusal_is_wrong_use_and_silence_is_the_environment() {
        let text = "sbatch: error: invalid partition specified: nothere\n\
                    sbatch: error: Batch job submission failed: Invalid partition name specified";
        let refusal = said(text).refusal();
        assert_eq!(
            refusal.to_string(),
            "Slurm refuses the job: invalid partition specified: nothere; \
             Batch job submission failed: Invalid partition name specified"
        );
        assert_eq!(refusal.exit(), Exit::Unsound);
        let text = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
        let silence = said(text).no_answer();
        assert_eq!(
            silence.to_string(),
            "`sbatch` got no answer: Unable to contact slurm controller (connect failure)"
        );
        assert_eq!(silence.exit(), Exit::Environment);
        assert_eq!(said("").refusal().to_string(), "Slurm refuses the job: exit code 1");
    }

    #[test]
    fn tools_see_where_the_cluster_is_and_nothing_that_changes_their_answers() {
        let all = [
            ("SLURM_CONF", "/etc/slurm.conf"),
            ("SQUEUE_FORMAT", "%i"),
            ("SBATCH_PARTITION", "h200"),
            ("SBATCH_ARRAY_INX", "1-3"),
            ("HF_TOKEN", "secret"),
        ];
        let seen = client_environment(all.iter().map(|(n, v)| ((*n).into(), (*v).into())));
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["SBATCH_PARTITION", "SLURM_CONF"]);
    }
}
