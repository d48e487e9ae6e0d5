//! The commands that need more than a call: one file for each group. `main` reads clock, chance
//! and environment, and passes them in.

pub mod events;
pub mod import;
pub mod lab;
pub mod queries;
pub mod sync;

use std::path::{Path, PathBuf};

use registry::survey::Place;

/// What `main` learnt of the world.
#[derive(Debug, Clone)]
pub struct World {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Bits for the id of what is written.
    pub random: u128,
    /// Folder of this program and its neighbours.
    pub tools: PathBuf,
    /// Names this build of the program.
    pub program: String,
}

impl World {
    /// Where the index of the registry in `dir` lies.
    pub fn place(&self, dir: &Path) -> Place {
        Place { root: dir.to_owned(), program: self.program.clone() }
    }

    /// Seconds since 1970.
    pub fn unix_s(&self) -> i64 {
        i64::try_from(self.unix_ms / 1_000).unwrap_or(i64::MAX)
    }
}
