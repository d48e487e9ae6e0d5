//! The commands that need more than a call: one file for each group. `main` reads clock, chance
//! and environment, and passes them in.

pub mod events;

use std::path::PathBuf;

/// What `main` learnt of the world.
#[derive(Debug, Clone)]
pub struct World {
    /// Milliseconds since 1970.
    pub unix_ms: u64,
    /// Bits for the id of what is written.
    pub random: u128,
    /// Folder of this program and its neighbours.
    pub tools: PathBuf,
}

impl World {
    /// Seconds since 1970.
    pub fn unix_s(&self) -> i64 {
        i64::try_from(self.unix_ms / 1_000).unwrap_or(i64::MAX)
    }
}
