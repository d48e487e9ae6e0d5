//! Where jobs run: on this machine, or where the user's own scheduler puts them. Knows what a
//! scheduler must be told and what it may answer; nothing of what a job does.

pub mod collect;
pub(crate) mod confirm;
pub(crate) mod drive;
pub(crate) mod job;
pub(crate) mod journal;
pub(crate) mod local;
pub(crate) mod prepared;
pub(crate) mod resume;
mod retry;
pub mod slurm;
mod stage_log;
mod submit;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::stop::Stop;

/// The executor that is this machine itself.
pub const LOCAL: &str = "local";
/// The executor that is the user's own Slurm.
pub const SLURM: &str = "slurm";

/// What a scheduler must know of a job: one list of blocks on one allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSpec {
    /// Names this attempt among all jobs of the user, for ever: who asks the scheduler for it finds
    /// what was submitted, even when the answer to the submission was lost. `[a-z0-9-]` alone.
    pub key: String,
    /// The job's folder, which controller and node share.
    pub dir: PathBuf,
    /// What is to be run there.
    pub argv: Vec<String>,
    /// Variables that it needs, and no others of the controller's.
    pub env: BTreeMap<String, String>,
    /// The job may be ended after this.
    pub wall_max: Duration,
    /// Of one node; zero where it needs none.
    pub gpus: u32,
    /// Nodes on which an attempt failed.
    pub excluded_nodes: Vec<String>,
}

/// The scheduler's own name of a job, as its tools take it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Handle(pub String);

/// How far a job is, in the words of no scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobState {
    /// Waits; the reason is the scheduler's.
    Queued {
        /// In the scheduler's own words.
        reason: String,
    },
    /// Runs, or has been given its node and is about to.
    Running {
        /// The node's name, as the scheduler has it.
        node: String,
    },
    /// Is over.
    Ended {
        /// Why.
        end: JobEnd,
        /// The node that it ran on, where it ran and the scheduler still knows.
        node: Option<String>,
    },
    /// The scheduler does not know it, and can no longer have it.
    Unknown,
}

/// Why a job is over. What a job made of its work is told by its folder, not by this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobEnd {
    /// By itself, with exit code 0.
    Well,
    /// By itself, with another exit code or a signal.
    Failed {
        /// What the scheduler says of it.
        said: String,
    },
    /// Of the time that it was given.
    TimedOut,
    /// Of the memory that it was given.
    OutOfMemory,
    /// The node went away under it, or never became ready.
    LostNode {
        /// What the scheduler says of it.
        said: String,
    },
    /// The scheduler wanted the node for another.
    Preempted,
    /// Somebody cancelled it.
    Cancelled,
    /// No node of this scheduler could ever run it.
    Impossible {
        /// What the scheduler says of it.
        said: String,
    },
}

impl JobEnd {
    /// Whether another node may do better: neither the job nor the engine is to blame.
    #[must_use]
    pub fn is_of_the_infrastructure(&self) -> bool {
        matches!(self, Self::LostNode { .. } | Self::Preempted)
    }
}

/// Runs jobs, one allocation each. All calls return at once; none is repeated by itself.
pub trait Executor {
    /// `local`, `slurm`: as records and `--executor` say it.
    fn name(&self) -> &'static str;

    /// True where jobs run on the controller's own machine: one after the other, since two would
    /// spoil each other's numbers, and no longer than somebody waits for them.
    fn is_here(&self) -> bool {
        false
    }

    /// How long to wait between two looks.
    fn pause(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Whether jobs can be submitted here: tools are found and the scheduler answers.
    ///
    /// # Errors
    /// They are not, or it does not; says what to install or start.
    fn preflight(&self) -> Result<(), Stop>;

    /// Hands a job to the scheduler. Who does not know whether that worked asks [`Self::find`].
    ///
    /// # Errors
    /// The scheduler refuses it (exit code 2), or does not answer (4).
    fn submit(&self, job: &JobSpec) -> Result<Handle, Stop>;

    /// The latest job of this key, where the scheduler has one, running or ended.
    ///
    /// # Errors
    /// The scheduler does not answer.
    fn find(&self, key: &str) -> Result<Option<Handle>, Stop>;

    /// How far a job is.
    ///
    /// # Errors
    /// The scheduler does not answer.
    fn poll(&self, handle: &Handle) -> Result<JobState, Stop>;

    /// Ends a job; one that has ended is left as it is.
    ///
    /// # Errors
    /// The scheduler does not answer.
    fn cancel(&self, handle: &Handle) -> Result<(), Stop>;
}
