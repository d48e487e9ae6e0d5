//! Commands that need more than one call, one file per group. `main` reads clock, random bits and
//! environment, and passes them in.

pub mod events;
pub mod import;
pub mod lab;
pub mod queries;
pub mod sync;

use std::path::{Path, PathBuf};

use registry::survey::Place;

/// Inputs from the environment that `main` reads once.
#[derive(Debug, Clone)]
pub struct World {
    /// Current time in milliseconds since 1970.
    pub unix_ms: u64,
    /// Random bits for the id of a new record.
    pub random: u128,
    /// Folder of this program, with the other programs beside it.
    pub tools: PathBuf,
    /// Name of this build of the program.
    pub program: String,
}

impl World {
    /// Location of the index of the registry in `dir`.
    pub fn place(&self, dir: &Path) -> Place {
        Place { root: dir.to_owned(), program: self.program.clone() }
    }

    /// Current time in seconds since 1970.
    pub fn unix_s(&self) -> i64 {
        i64::try_from(self.unix_ms / 1_000).unwrap_or(i64::MAX)
    }
}
