//! Executors of jobs: this machine, or the user's Slurm. The trait [`Executor`] says what a
//! scheduler is given and what it answers; nothing here knows what a job does.

pub(crate) mod drive;
pub(crate) mod in_turns;
pub(crate) mod job;
pub(crate) mod journal;
pub(crate) mod local;
pub mod slurm;
mod stage_log;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::executor::local::Local;
use crate::executor::slurm::Slurm;
use crate::stop::{Stop, wrong_use};
use crate::world::World;

/// Name of the executor that runs jobs on this machine.
pub const LOCAL: &str = "local";
/// Name of the executor that submits jobs to the user's Slurm.
pub const SLURM: &str = "slurm";

/// A job as a scheduler sees it: a command for one node, with its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Name of this attempt at a job, unique among all jobs of the user for ever. A submitted job
    /// is found by it even if the scheduler's answer to the submission was lost. Contains only
    /// `[a-z0-9-]`.
    pub key: String,
    /// Folder of the job, which controller and node share.
    pub dir: PathBuf,
    /// Program of the job, and its arguments, to run on the node.
    pub argv: Vec<String>,
    /// Environment variables that are set for the job, in addition to those of the controller on
    /// this machine, or those of `sbatch` on Slurm.
    pub env: BTreeMap<String, String>,
    /// Time limit of the job, after which the scheduler may end it.
    pub wall_max: Duration,
    /// Number of GPUs that the job takes on its node; 0 if it needs none.
    pub gpus: u32,
    /// Names of nodes on which an earlier attempt failed and which this attempt avoids.
    pub excluded_nodes: Vec<String>,
}

/// Id by which an executor knows a submitted job: Slurm's job id, or on this machine the job's key
/// with process id and start time.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handle(pub String);

/// State of a job, independent of the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// The job waits for a node; `reason` is why in the scheduler's own words, or the name of its
    /// state.
    Queued { reason: String },
    /// The job runs, or has been assigned a node and is about to start. `node` is its name, empty
    /// if unknown, and `this machine` for a local job.
    Running { node: String },
    /// The job has ended; `node` is where it ran, `None` if it never ran, if the scheduler no
    /// longer knows the node, and on this machine.
    Ended { end: JobEnd, node: Option<String> },
}

/// Why a job ended, as the executor sees it; `said` is the cause as a text. The outcome that the
/// node itself reported is in the job's folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// The job's program ended with exit code 0 or, on this machine, after it had written its final
    /// report.
    Well,
    /// The job failed on its node: its program ended with another exit code than 0 or by a signal,
    /// or the scheduler states another reason.
    Failed { said: String },
    /// The job exceeded its time limit and was ended.
    TimedOut,
    /// The job exceeded its memory limit and was ended.
    OutOfMemory,
    /// The job is lost: its node failed, never became ready or refused to begin it, its process is
    /// gone, or the scheduler no longer knows it.
    LostNode { said: String },
    /// The scheduler took the node for a job of higher priority.
    Preempted,
    /// The job was cancelled, by the controller, a user or the scheduler itself.
    Cancelled,
    /// The scheduler ended the job without giving it a node, as it does when no node can ever run
    /// the job.
    Impossible { said: String },
}

/// Runner of jobs: this machine, or a scheduler that gives each job an allocation of its own. Its
/// methods do not wait for a job to end, and retry nothing.
pub trait Executor {
    /// Returns the name of the executor in records and in `--executor`: `local` or `slurm`.
    fn name(&self) -> &'static str;

    /// Returns true when jobs run on the controller's own machine. They then run one after the
    /// other, since two would disturb each other's measurement, and are cancelled when the
    /// controller stops.
    fn is_here(&self) -> bool {
        false
    }

    /// Returns the interval between two polls of a job.
    fn pause(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Checks that jobs can be submitted: a scheduler's tools are installed and it answers; on this
    /// machine no job of another campaign of the clone runs.
    ///
    /// # Errors
    /// A tool cannot be run, the scheduler does not answer, the call is interrupted, or a job of
    /// another campaign runs on this machine.
    fn preflight(&self) -> Result<(), Stop>;

    /// Submits a job and returns the scheduler's id of it. A caller that does not know the outcome,
    /// such as after a crash, uses [`Self::find`].
    ///
    /// # Errors
    /// Exit code 2: the scheduler refuses the job, or the job's program, a path or the name of a
    /// variable cannot be used. Exit code 4: the scheduler does not answer or its answer cannot be
    /// parsed, the call is interrupted, the job's program cannot be started, or a file in the job's
    /// folder cannot be written.
    fn submit(&self, job: &JobSpec) -> Result<Handle, Stop>;

    /// Finds the latest job with this key, waiting, running or ended; `None` if the executor knows
    /// none.
    ///
    /// # Errors
    /// The scheduler does not answer or its answer cannot be parsed, the call is interrupted, or
    /// the job's file with its process id cannot be read.
    fn find(&self, key: &str) -> Result<Option<Handle>, Stop>;

    /// Queries the state of a job.
    ///
    /// # Errors
    /// The scheduler does not answer or its answer cannot be parsed, the call is interrupted, or
    /// `handle` is not one of this executor.
    fn poll(&self, handle: &Handle) -> Result<JobState, Stop>;

    /// Cancels a job, without waiting for its end; a job that has ended is left unchanged.
    ///
    /// # Errors
    /// The scheduler does not answer or refuses, the call is interrupted, or `handle` is not one of
    /// this executor.
    fn cancel(&self, handle: &Handle) -> Result<(), Stop>;
}

/// Returns the executor `id` for a campaign's jobs, with the user's `--slurm-option` values.
///
/// # Errors
/// The executor is unknown, or an option is malformed or reserved.
pub fn named(
    world: &World,
    (id, options): (&str, &[String]),
    campaign: &str,
) -> Result<Box<dyn Executor>, Stop> {
    match id {
        LOCAL => Ok(Box::new(Local::new(&world.places.campaign(campaign).jobs()))),
        SLURM => {
            let (env, interrupt) = (world.slurm_env.clone(), world.interrupt.clone());
            Ok(Box::new(Slurm::new(options, env, interrupt)?))
        }
        other => Err(wrong_use!("executor `{other}` is unknown; known are {LOCAL}, {SLURM}")),
    }
}
