//! What a node does, step by step: its own journal, from which it goes on and its controller tells.

use std::collections::BTreeSet;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::executor::job::FileFact;
use crate::lines::{self, LinesError};

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// The machine is looked at.
    Began,
    /// Something that whoever watches should know, such as a machine that is slower than before.
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
        /// Its outcome, and what is to be said against it.
        said: Vec<String>,
        /// Launch to end.
        wall_us: u64,
    },
    /// Every run of the block has its record.
    BlockDone {
        block: u32,
        files: Vec<FileFact>,
    },
    /// A block that was interrupted is begun again; its files lie in this folder.
    SetAside {
        block: u32,
        folder: String,
    },
}

/// What was done so far.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    pub blocks_done: BTreeSet<u32>,
    /// Begun and not done.
    pub block_open: Option<u32>,
    /// Records of the blocks that are done.
    pub files: Vec<FileFact>,
    /// Blocks that were set aside before.
    pub aside: usize,
    /// Time of all launches, those of discarded blocks too.
    pub wall_us: u64,
}

impl Progress {
    #[must_use]
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

/// The steps of a job so far.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> Result<Vec<Step>, LinesError> {
    lines::read(path).map(|read| read.lines)
}
