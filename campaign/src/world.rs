//! The environment of a command: clocks, folders and variables, gathered once by `main`
//! and passed to everything below it.

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

/// Generator of ULIDs for a campaign and its runs. All share one timestamp, and their random part
/// counts up, so that ids sort in the order in which the runs were planned.
#[derive(Debug, Clone)]
pub struct Ids {
    unix_ms: u64,
    random: u128,
}

impl Ids {
    pub fn new(unix_ms: u64, random: u128) -> Self {
        // The top bit stays zero, so that counting up never overflows the 80 random bits.
        Self { unix_ms, random: random & ((1 << 79) - 1) }
    }

    pub fn next_id(&mut self) -> String {
        self.random += 1;
        // The timestamp stays that of the campaign, so that its ids sort together.
        schema::id::ulid(self.unix_ms, self.random)
    }
}

/// The environment of a command. Below `main` nothing else reads environment variables, a clock or
/// the system's random bits.
#[derive(Debug, Clone)]
pub struct World {
    /// Paths of folders and files in the clone.
    pub places: Places,
    /// Redline's other binaries, such as `redline-bench`.
    pub tools: Tools,
    /// Catalog of the suite's files in `suite/`, such as scenarios, models and engines.
    pub catalog: Catalog,
    /// Cache of downloaded inputs, verified by hash, and of builds of rival engines.
    pub cache: Cache,
    /// Wall clock, and a steady clock for durations.
    pub clock: Arc<dyn Clock>,
    /// Console for output to the user.
    pub console: Console,
    /// Interrupt flag, which Ctrl-C and other signals set.
    pub interrupt: Interrupt,
    /// Names of host and user, which are removed from records.
    pub identity: Identity,
    /// Environment variables that change how a server runs, such as `CUDA_VISIBLE_DEVICES`, with
    /// their values; they enter the records of runs.
    pub server_env: BTreeMap<String, String>,
    /// Environment variables that Slurm's tools are started with, such as those that locate their
    /// cluster.
    pub slurm_env: BTreeMap<String, String>,
    /// Folders of the `PATH`, in which programs are looked for.
    pub search_path: Vec<PathBuf>,
    /// Number of processor cores that this process may use.
    pub cores: u32,
    /// Process id of this program, written to lock files.
    pub pid: u32,
    /// Path of this program's binary, which jobs start again on their nodes.
    pub program: PathBuf,
    /// Random bits of the system, from which a campaign's ids are counted up.
    pub random: u128,
    /// Hugging Face home directory (`HF_HOME`), which contains the model cache `hub/`.
    pub hub_home: PathBuf,
    /// Local files given with `--input`, by the id of the model or dataset that each replaces.
    pub given: BTreeMap<String, PathBuf>,
    /// Arguments of this program as they were typed, without the program's name.
    pub command: Vec<String>,
}

impl World {
    /// Prints the heading of a step, with the time since the command began.
    pub fn step(&self, heading: &str) {
        self.console.step(self.clock.elapsed(), heading);
    }
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
