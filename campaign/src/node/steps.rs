//! Step log of a job: what its node has begun and finished. The node resumes from it, and the
//! controller prints progress from it.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::executor::job::FileFact;
use crate::lines::{self, LinesError};

/// One line of a job's step log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// The node has begun to check the machine.
    Began,
    /// A note for the user, such as that the machine is slower than before.
    Noted {
        said: String,
    },
    BlockBegun {
        block: u32,
    },
    RunBegun {
        run: String,
    },
    RunEnded {
        run: String,
        /// Summary lines of the run: its figures or failure, and findings about its validity.
        said: Vec<String>,
        /// Time from the server's start to its end in microseconds.
        wall_us: u64,
    },
    /// All runs of the block have their records.
    BlockDone {
        block: u32,
        files: Vec<FileFact>,
    },
    /// The files of an interrupted block were moved to `folder`; the block begins again.
    SetAside {
        block: u32,
        folder: String,
    },
}

/// Progress of a job, from all lines of its step log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    pub blocks_done: BTreeSet<u32>,
    /// Number of the block that is begun and not done.
    pub block_open: Option<u32>,
    /// Record files of the finished blocks.
    pub files: Vec<FileFact>,
    /// Number of interrupted blocks that were set aside.
    pub aside: usize,
    /// Time of all runs in microseconds, including those of discarded blocks.
    pub wall_us: u64,
}

impl Progress {
    pub fn of(steps: &[Step]) -> Self {
        let mut progress = Self::default();
        for step in steps {
            match step {
                Step::BlockBegun { block } => progress.block_open = Some(*block),
                Step::BlockDone { block, files } => {
                    progress.block_open = None;
                    progress.blocks_done.insert(*block);
                    progress.files.extend_from_slice(files);
                }
                Step::SetAside { .. } => progress.aside += 1,
                Step::RunEnded { wall_us, .. } => progress.wall_us += wall_us,
                Step::Began | Step::Noted { .. } | Step::RunBegun { .. } => {}
            }
        }
        progress
    }
}

/// Reads the step log of a job.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> Result<Vec<Step>, LinesError> {
    lines::read(path).map(|read| read.lines)
}
