//! Slurm executor: submits jobs with `sbatch`, polls them with `scontrol` and `sacct`, and cancels
//! them with `scancel`. Knows the tools and their output; nothing of what a job does, and it starts
//! no daemon.

mod answers;
mod submission;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use answers::Report;
use submission::Options;

use super::{Executor, Handle, JobEnd, JobSpec, JobState, SLURM};
use crate::process::{Interrupt, Written, capture_until, describe};
use crate::stop::{Stop, environment, wrong_use};

/// Time limit of one call of a Slurm tool. The tools retry for some seconds to reach a controller
/// that is down; a longer silence will not end by itself.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the partition that the user's options for `sbatch` name, of several the last one as `sbatch`
/// takes it, else the one that the environment of Slurm's tools names.
pub fn partition<'a>(
    options: &'a [String],
    environment: &'a BTreeMap<String, String>,
) -> Option<&'a str> {
    let named = options.iter().rev().find_map(|option| option.strip_prefix("--partition="));
    named.or_else(|| environment.get("SBATCH_PARTITION").map(String::as_str))
}

/// Environment variables that Slurm's tools receive: those that locate the cluster, and the user's
/// own job settings. Others are withheld because variables such as `SQUEUE_FORMAT` would change the
/// output that is parsed, and because `sbatch` passes everything on to the job.
const SEEN: &str = "\
    HOME LOGNAME PATH SBATCH_ACCOUNT SBATCH_CONSTRAINT SBATCH_PARTITION SBATCH_QOS \
    SBATCH_RESERVATION SLURM_CONF SLURM_CONF_SERVER USER";

/// Argument of `sacct` that limits its search for a job by name to jobs of the last 30 days;
/// campaigns are resumed within days.
const REMEMBERED: &str = "--starttime=now-30days";
/// Error text of a Slurm tool whose controller knows no such job.
const NO_JOB: &str = "Invalid job id specified";
/// Error text of `sacct` where the cluster keeps no accounting.
const NO_ACCOUNTING: &str = "accounting storage is disabled";

/// Returns the environment variables out of `all` that Slurm's tools are started with.
pub fn client_environment(all: impl Iterator<Item = (String, String)>) -> BTreeMap<String, String> {
    all.filter(|(name, _)| SEEN.split(' ').any(|seen| seen == name)).collect()
}

/// Slurm executor of one user on one cluster.
#[derive(Debug)]
pub struct Slurm {
    options: Options,
    /// Complete environment of Slurm's tools, which are found on its `PATH`.
    env: BTreeMap<String, String>,
    interrupt: Interrupt,
}

impl Slurm {
    /// Builds the executor. `options` are additional `sbatch` options such as `--partition=h200`;
    /// `env` is the complete environment of Slurm's tools ([`client_environment`]).
    ///
    /// # Errors
    /// An option is malformed, or is reserved because Redline finds or isolates its jobs by it.
    pub fn new(
        options: &[String],
        env: BTreeMap<String, String>,
        interrupt: Interrupt,
    ) -> Result<Self, Stop> {
        Ok(Self { options: Options::parse(options)?, env, interrupt })
    }

    /// Runs a Slurm tool to its end and captures its output; a tool that is still running after
    /// [`PATIENCE`] is ended, which is an error.
    fn run(&self, tool: &str, words: &[&str]) -> Result<Written, Stop> {
        let mut command = Command::new(tool);
        // An inherited `SQUEUE_FORMAT` or `SLURM_TIME_FORMAT` would change the output.
        command.args(words).env_clear().envs(&self.env);
        capture_until(&mut command, Some(PATIENCE), &self.interrupt)?
            .ok_or_else(|| no_answer(tool, &format!("it was silent for {} s", PATIENCE.as_secs())))
    }

    /// Runs a Slurm tool that has to succeed, and returns its standard output.
    fn ask(&self, tool: &str, words: &[&str]) -> Result<String, Stop> {
        Ok(self.ask_for(tool, words, None)?.unwrap_or_default())
    }

    /// Runs a Slurm tool and returns its standard output; `None` if it fails with the error text
    /// `none`.
    fn ask_for(
        &self,
        tool: &str,
        words: &[&str],
        none: Option<&str>,
    ) -> Result<Option<String>, Stop> {
        let written = self.run(tool, words)?;
        match written.status.success() {
            true => Ok(Some(written.stdout)),
            false if none.is_some_and(|none| written.stderr.contains(none)) => Ok(None),
            false => Err(no_answer(tool, &why(&written))),
        }
    }

    /// Queries the controller for a job with `scontrol`; `None` if it has forgotten the job, which
    /// happens some minutes after the job's end.
    fn known_to_controller(&self, id: &str) -> Result<Option<Report>, Stop> {
        let shown = self.ask_for("scontrol", &["--oneliner", "show", "job", id], Some(NO_JOB))?;
        shown.map(|shown| answers::shown(&shown)).transpose()
    }

    /// Queries accounting for a job with `sacct`; `None` if it is unknown there or the cluster
    /// keeps no accounting.
    fn known_to_accounting(&self, id: &str) -> Result<Option<Report>, Stop> {
        let job = format!("--jobs={id}");
        let words = [&answers::ACCOUNT[..], &[&job]].concat();
        match self.ask_for("sacct", &words, Some(NO_ACCOUNTING))? {
            Some(rows) => answers::accounted(&rows),
            None => Ok(None),
        }
    }

    /// Returns the reason if a job was not started because the prolog of its node failed, else
    /// `None`. Slurm has no state for that: it takes the node out of service and reports the job as
    /// cancelled, as if a user had done it.
    fn was_turned_away(&self, node: &str) -> Result<Option<String>, Stop> {
        let node = format!("--nodes={node}");
        let nodes = self.ask("sinfo", &["--noheader", "--Node", &node, "--format=%T|%E"])?;
        Ok(answers::failed_prolog(&nodes))
    }

    fn state_of(&self, report: Report) -> Result<JobState, Stop> {
        // One more query, only for cancelled jobs: a failed prolog looks like a cancellation.
        let turned_away = match (report.state.as_str(), &report.node) {
            (answers::CANCELLED, Some(node)) => self.was_turned_away(node)?,
            _ => None,
        };
        answers::state_of(report, turned_away)
    }
}

impl Executor for Slurm {
    fn name(&self) -> &'static str {
        SLURM
    }

    /// Returns the interval between polls; long, because each is a query to a controller that
    /// serves the whole site.
    fn pause(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn preflight(&self) -> Result<(), Stop> {
        // A missing tool is found now, not when a job has to be cancelled.
        for tool in ["sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"] {
            self.run(tool, &["-V"])?;
        }
        self.ask("squeue", &[&answers::LIST[..], &["--name=redline"]].concat())?;
        Ok(())
    }

    /// Submits the job with `sbatch`. Returns an error with exit code 2 if Slurm refuses the job
    /// and 4 if it does not answer; after the latter the job may exist all the same.
    fn submit(&self, job: &JobSpec) -> Result<Handle, Stop> {
        let file = submission::write(job)?;
        let words = submission::submission(job, &self.options, &file)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let written = self.run("sbatch", &words)?;
        if written.status.success() {
            return Ok(Handle(answers::submitted(&written.stdout)?));
        }
        // The answer may have been lost after the job was accepted; and Slurm refuses a job that no
        // node can run but keeps it as failed.
        self.find(&job.key)?.ok_or_else(|| refusal(&why(&written)))
    }

    fn find(&self, key: &str) -> Result<Option<Handle>, Stop> {
        let name = format!("--name={key}");
        let listed = self.ask("squeue", &[&answers::LIST[..], &[&name]].concat())?;
        if let Some(id) = answers::latest("squeue", &listed)? {
            return Ok(Some(Handle(id)));
        }
        let words = [&answers::ACCOUNT[..], &[&name, REMEMBERED]].concat();
        match self.ask_for("sacct", &words, Some(NO_ACCOUNTING))? {
            Some(rows) => Ok(answers::latest("sacct", &rows)?.map(Handle)),
            None => Ok(None),
        }
    }

    fn poll(&self, handle: &Handle) -> Result<JobState, Stop> {
        let id = answers::job_id("a journal", &handle.0)?;
        if let Some(report) = self.known_to_controller(id)? {
            return self.state_of(report);
        }
        let report = self.known_to_accounting(id)?;
        match report.map(|report| self.state_of(report)).transpose()? {
            Some(ended @ JobState::Ended { .. }) => Ok(ended),
            // A job that accounting lists as unfinished and the controller does not know was lost
            // between the two and will never run.
            _ => {
                let said = "the scheduler no longer knows the job".to_owned();
                Ok(JobState::Ended { end: JobEnd::LostNode { said }, node: None })
            }
        }
    }

    fn cancel(&self, handle: &Handle) -> Result<(), Stop> {
        let id = answers::job_id("a journal", &handle.0)?;
        self.ask("scancel", &[id])?;
        Ok(())
    }
}

/// Builds the error of a scheduler that cannot be reached.
fn no_answer(tool: &str, said: &str) -> Stop {
    environment!("`{tool}` got no answer: {said}")
        .with_hint("`scontrol ping` says whether a controller is up")
}

/// Builds the error of a scheduler that refuses a job.
fn refusal(said: &str) -> Stop {
    wrong_use!("Slurm refuses the job: {said}").with_hint(
        "`--slurm-option --partition=NAME` and its like go to sbatch, as do SBATCH_ACCOUNT, \
         SBATCH_PARTITION and SBATCH_QOS",
    )
}

/// Returns what a failed tool wrote to standard error in one line, without the tool's name that
/// begins each line; the exit status if it wrote nothing.
fn why(written: &Written) -> String {
    let stderr = written.stderr.trim();
    if stderr.is_empty() {
        return describe(written.status);
    }
    let lines = stderr.lines().map(|line| {
        let line = line.trim();
        line.split_once("error: ").map_or(line, |(_, said)| said)
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use schema::exit::Exit;

    use super::*;

    fn said(stderr: &str) -> String {
        let status = ExitStatus::from_raw(256);
        why(&Written { status, stdout: String::new(), stderr: stderr.to_owned() })
    }

    #[test]
    fn a_refusal_is_wrong_use_and_silence_is_the_environment() {
        let text = "sbatch: error: invalid partition specified: nothere\n\
                    sbatch: error: Batch job submission failed: Invalid partition name specified";
        let refused = refusal(&said(text));
        assert_eq!(
            refused.cause().0,
            "Slurm refuses the job: invalid partition specified: nothere; \
             Batch job submission failed: Invalid partition name specified"
        );
        assert_eq!(refused.exit(), Exit::Unsound);
        let text = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)";
        let silence = no_answer("sbatch", &said(text));
        assert_eq!(
            silence.cause().0,
            "`sbatch` got no answer: Unable to contact slurm controller (connect failure)"
        );
        assert_eq!(silence.exit(), Exit::Environment);
        assert_eq!(refusal(&said("")).cause().0, "Slurm refuses the job: exit code 1");
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
