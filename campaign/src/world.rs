//! What a command works with: everything that comes from outside, gathered once by `main`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::console::Console;
use crate::inputs::cache::Cache;
use crate::places::Places;
use crate::process::Interrupt;
use crate::redact::Identity;
use crate::tools::Tools;

/// Names or paths of the programs that are run.
#[derive(Debug, Clone)]
pub struct Programs {
    /// Version control.
    pub git: PathBuf,
    /// Builds releases.
    pub cargo: PathBuf,
    /// The compiler, asked for its version.
    pub rustc: PathBuf,
    /// Fetches inputs with its `pip`, and runs clients of others.
    pub python3: PathBuf,
    /// Fetches inputs.
    pub npm: PathBuf,
    /// Unpacks sources, and packs results.
    pub tar: PathBuf,
    /// Configures the build of a peer.
    pub cmake: PathBuf,
    /// Builds it.
    pub ninja: PathBuf,
    /// Tells what GPUs there are.
    pub nvidia_smi: PathBuf,
}

impl Default for Programs {
    fn default() -> Self {
        Self {
            git: "git".into(),
            cargo: "cargo".into(),
            rustc: "rustc".into(),
            python3: "python3".into(),
            npm: "npm".into(),
            tar: "tar".into(),
            cmake: "cmake".into(),
            ninja: "ninja".into(),
            nvidia_smi: "nvidia-smi".into(),
        }
    }
}

/// Identifiers of a campaign and its runs: one time, and random bits that count up, so that they
/// sort in the order in which they were planned.
#[derive(Debug, Clone)]
pub struct Ids {
    unix_ms: u64,
    random: u128,
}

impl Ids {
    #[must_use]
    pub fn new(unix_ms: u64, random: u128) -> Self {
        // The top bit stays free, so that counting never overflows the 80 bits.
        Self { unix_ms, random: random & ((1 << 79) - 1) }
    }

    pub fn next_id(&mut self) -> String {
        self.random += 1;
        schema::id::ulid(self.unix_ms, self.random)
    }
}

/// Everything from outside that a command works with. Below `main` nothing else reads the
/// environment, a clock or the system's random bits.
#[derive(Debug, Clone)]
pub struct World {
    /// Where everything lies in the clone.
    pub places: Places,
    /// Programs of others.
    pub programs: Programs,
    /// The suite's own programs.
    pub tools: Tools,
    /// The suite's files.
    pub catalog: Catalog,
    /// Verified inputs.
    pub cache: Cache,
    /// Wall clock and stopwatch.
    pub clock: Arc<dyn Clock>,
    /// What the user sees.
    pub console: Console,
    /// Set where the user wants an end.
    pub interrupt: Interrupt,
    /// Names that must not enter a record.
    pub identity: Identity,
    /// Variables that change how a server runs, as they are set; they enter the record.
    pub server_env: BTreeMap<String, String>,
    /// Variables by which Slurm's tools find their cluster.
    pub slurm_env: BTreeMap<String, String>,
    /// Folders in which programs are looked for.
    pub search_path: Vec<PathBuf>,
    /// Processor cores that this process may use.
    pub cores: u32,
    /// Of this process.
    pub pid: u32,
    /// This program.
    pub program: PathBuf,
    /// Bits of the system, from which the ids of one campaign are counted up.
    pub random: u128,
    /// Folder of the local cache of models from the hub, below which `hub/` lies.
    pub hub_home: PathBuf,
    /// Paths of inputs by their ids, from the command line.
    pub given: BTreeMap<String, PathBuf>,
    /// The command as it was typed, without the program.
    pub command: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_in_the_order_of_planning() {
        let mut ids = Ids::new(1_700_000_000_000, u128::MAX);
        let made: Vec<String> = (0..50).map(|_| ids.next_id()).collect();
        assert!(made.iter().all(|id| schema::id::is_ulid(id)));
        assert!(made.is_sorted() && made[0] != made[1]);
    }
}
