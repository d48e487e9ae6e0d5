//! Jobs on the user's own Slurm, through its command-line tools. Knows what they are told and what
//! their answers mean; nothing of what a job does, and it starts no daemon.

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

/// How far back accounting is asked for a job by name: a campaign is resumed within days.
const REMEMBERED: &str = "--starttime=now-30days";

/// A cluster's scheduler, as one user sees it.
#[derive(Debug)]
pub struct Slurm {
    tools: Tools,
    options: Options,
}

impl Slurm {
    /// `options` are more words for `sbatch`, such as `--partition=h200`; `env` is all that its
    /// tools see of the environment ([`client_environment`]).
    ///
    /// # Errors
    /// An option is none, or one of those by which jobs are found and kept apart.
    pub fn new(
        options: &[String],
        env: BTreeMap<String, String>,
        interrupt: Interrupt,
    ) -> Result<Self, Stop> {
        Ok(Self { tools: Tools::new(env, interrupt), options: Options::parse(options)? })
    }

    /// What the controller knows of a job: it forgets one some minutes after its end.
    fn known_to_controller(&self, id: &str) -> Result<Option<Report>, SlurmError> {
        let said = self.tools.ask("scontrol", &["--oneliner", "show", "job", id])?;
        match said.refused() {
            None => answers::shown(&said.stdout).map(Some),
            Some(why) if answers::is_unknown_id(why) => Ok(None),
            Some(_) => Err(said.no_answer()),
        }
    }

    /// How a job that the controller has forgotten ended, where accounting is kept.
    fn known_to_accounting(&self, id: &str) -> Result<Option<Report>, SlurmError> {
        let job = format!("--jobs={id}");
        let said = self.tools.ask("sacct", &[&answers::ACCOUNT[..], &[&job]].concat())?;
        match said.refused() {
            None => answers::accounted(&said.stdout),
            Some(why) if answers::is_without_accounting(why) => Ok(None),
            Some(_) => Err(said.no_answer()),
        }
    }

    /// A failed check before a job has no state of its own: Slurm takes the node out of service and
    /// calls the job cancelled, as if somebody had wanted that.
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
            // What is not over for accounting, and unknown to the controller, will never run: it
            // was lost between the two.
            None => match self.known_to_accounting(id)?.filter(states::is_over) {
                Some(report) => report,
                None => return Ok(JobState::Unknown),
            },
        };
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

    /// Every look is a question to a controller that serves the whole site.
    fn pause(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn preflight(&self) -> Result<(), Stop> {
        for tool in ["sbatch", "squeue", "sacct", "scontrol", "scancel", "sinfo"] {
            self.tools.ask(tool, &["-V"])?;
        }
        let said = self.tools.ask("squeue", &[&answers::LIST[..], &["--name=redline"]].concat())?;
        match said.refused() {
            None => Ok(()),
            Some(_) => Err(said.no_answer().into()),
        }
    }

    /// A refusal has exit code 2, and a scheduler that does not answer 4: then the job may be there
    /// all the same.
    fn submit(&self, job: &JobSpec) -> Result<Handle, Stop> {
        let file = script::write(job)?;
        let words = script::submission(job, &self.options, &file)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let said = self.tools.ask("sbatch", &words)?;
        if said.refused().is_none() {
            return Ok(Handle(answers::submitted(&said.stdout)?));
        }
        // The answer may have been lost and not the job; and a job that no node could ever run is
        // refused, and kept as one that has failed.
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
