//! Slurm executor: submits jobs with `sbatch`, polls them with `scontrol` and `sacct`, and cancels
//! them with `scancel`. Knows the tools and their output; nothing of what a job does, and it starts
//! no daemon.

mod answers;
mod ask;
mod options;
mod script;
mod states;

use std::collections::BTreeMap;
use std::time::Duration;

use answers::Report;
pub use ask::client_environment;
use ask::{SlurmError, Tools};
use options::Options;

use super::{Executor, Handle, JobSpec, JobState, SLURM};
use crate::process::Interrupt;
use crate::stop::Stop;

/// Period in which accounting is searched for a job by name; campaigns are resumed within days.
const REMEMBERED: &str = "--starttime=now-30days";

/// Slurm executor of one user on one cluster.
#[derive(Debug)]
pub struct Slurm {
    tools: Tools,
    options: Options,
}

impl Slurm {
    /// Makes the executor. `options` are additional `sbatch` options such as `--partition=h200`;
    /// `env` is the complete environment of Slurm's tools ([`client_environment`]).
    ///
    /// # Errors
    /// An option is malformed, or is reserved because Redline finds or isolates its jobs by it.
    pub fn new(
        options: &[String],
        env: BTreeMap<String, String>,
        interrupt: Interrupt,
    ) -> Result<Self, Stop> {
        Ok(Self { tools: Tools::new(env, interrupt), options: Options::parse(options)? })
    }

    /// Queries the controller for a job with `scontrol`; `None` if the controller has forgotten it,
    /// which happens some minutes after the job's end.
    fn known_to_controller(&self, id: &str) -> Result<Option<Report>, SlurmError> {
        let said = self.tools.ask("scontrol", &["--oneliner", "show", "job", id])?;
        match said.refused() {
            None => answers::shown(&said.stdout).map(Some),
            Some(why) if answers::is_unknown_id(why) => Ok(None),
            Some(_) => Err(said.no_answer()),
        }
    }

    /// Queries accounting for a job with `sacct`; `None` if it is unknown there or the cluster
    /// keeps no accounting.
    fn known_to_accounting(&self, id: &str) -> Result<Option<Report>, SlurmError> {
        let job = format!("--jobs={id}");
        let said = self.tools.ask("sacct", &[&answers::ACCOUNT[..], &[&job]].concat())?;
        match said.refused() {
            None => answers::accounted(&said.stdout),
            Some(why) if answers::is_without_accounting(why) => Ok(None),
            Some(_) => Err(said.no_answer()),
        }
    }

    /// Returns the reason if a job was not started because a node's prolog failed. Slurm has no
    /// state for that: it takes the node out of service and reports the job as cancelled, as if a
    /// user had done it.
    fn was_turned_away(&self, node: &str) -> Result<Option<String>, SlurmError> {
        let node = format!("--nodes={node}");
        let said = self.tools.ask("sinfo", &["--noheader", "--Node", &node, "--format=%T|%E"])?;
        match said.refused() {
            None => Ok(answers::failed_prolog(&said.stdout)),
            Some(_) => Err(said.no_answer()),
        }
    }

    fn find_job(&self, key: &str) -> Result<Option<Handle>, SlurmError> {
        let name = format!("--name={key}");
        let listed = self.tools.ask("squeue", &[&answers::LIST[..], &[&name]].concat())?;
        if listed.refused().is_some() {
            return Err(listed.no_answer());
        }
        if let Some(id) = answers::latest("squeue", &listed.stdout)? {
            return Ok(Some(Handle(id)));
        }
        let words = [&answers::ACCOUNT[..], &[&name, REMEMBERED]].concat();
        let kept = self.tools.ask("sacct", &words)?;
        match kept.refused() {
            None => Ok(answers::latest("sacct", &kept.stdout)?.map(Handle)),
            Some(why) if answers::is_without_accounting(why) => Ok(None),
            Some(_) => Err(kept.no_answer()),
        }
    }

    fn state_of(&self, handle: &Handle) -> Result<JobState, SlurmError> {
        let id = answers::job_id("a journal", &handle.0)?;
        let report = match self.known_to_controller(id)? {
            Some(report) => report,
            // A job that accounting lists as unfinished and the controller does not know was lost
            // between the two and will never run.
            None => match self.known_to_accounting(id)?.filter(states::is_over) {
                Some(report) => report,
                None => return Ok(JobState::Unknown),
            },
        };
        // One more query, only for cancelled jobs: a failed prolog looks like a cancellation.
        let turned_away = match (states::is_cancelled(&report), &report.node) {
            (true, Some(node)) => self.was_turned_away(node)?,
            _ => None,
        };
        states::state_of(report, turned_away)
    }
}

impl Executor for Slurm {
    fn name(&self) -> &'static str {
        SLURM
    }

    /// Interval between polls; long, because each is a query to a controller that serves the whole
    /// site.
    fn pause(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn preflight(&self) -> Result<(), Stop> {
        // A missing tool is found now, not when a job has to be cancelled.
        for tool in ["sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"] {
            self.tools.ask(tool, &["-V"])?;
        }
        let said = self.tools.ask("squeue", &[&answers::LIST[..], &["--name=redline"]].concat())?;
        match said.refused() {
            None => Ok(()),
            Some(_) => Err(said.no_answer().into()),
        }
    }

    /// Returns an error with exit code 2 for a refusal and 4 for no answer; after the latter the
    /// job may exist all the same.
    fn submit(&self, job: &JobSpec) -> Result<Handle, Stop> {
        let file = script::write(job)?;
        let words = script::submission(job, &self.options, &file)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = self.tools.ask("sbatch", &words)?;
        if said.refused().is_none() {
            return Ok(Handle(answers::submitted(&said.stdout)?));
        }
        // The answer may have been lost after the job was accepted; and Slurm refuses a job that no
        // node can run but keeps it as failed.
        match self.find_job(&job.key)? {
            Some(handle) => Ok(handle),
            None => Err(said.refusal().into()),
        }
    }

    fn find(&self, key: &str) -> Result<Option<Handle>, Stop> {
        Ok(self.find_job(key)?)
    }

    fn poll(&self, handle: &Handle) -> Result<JobState, Stop> {
        Ok(self.state_of(handle)?)
    }

    fn cancel(&self, handle: &Handle) -> Result<(), Stop> {
        let id = answers::job_id("a journal", &handle.0)?;
        let said = self.tools.ask("scancel", &[id])?;
        match said.refused() {
            None => Ok(()),
            Some(_) => Err(said.no_answer().into()),
        }
    }
}
