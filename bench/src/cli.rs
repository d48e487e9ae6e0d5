//! The command line of `redline-peers`, as `cargo xtask` hands it on.

use std::collections::BTreeMap;
use std::path::PathBuf;

use campaign::Inputs;
use clap::{Args, Parser, Subcommand};

use crate::clients::figure::Row;
use crate::clients::tool::Tool;
use crate::peer::figure::Work;

/// Measures Redline beside other engines and clients, and its own programs under load and at size.
#[derive(Debug, Parser)]
#[command(name = "redline-peers", version, propagate_version = true)]
pub struct Cli {
    /// The clone to work in; else the one around the current folder.
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Where the suite's other binaries lie; else beside this one.
    #[arg(long, global = true, value_name = "DIR")]
    pub tools_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Verb,
}

impl Cli {
    /// The files that stand for inputs, by the inputs' ids.
    #[must_use]
    pub fn given(&self) -> BTreeMap<String, PathBuf> {
        match &self.command {
            Verb::PeerBench(flags) => flags.inputs.by_id(),
            Verb::Soak(flags) => flags.inputs.by_id(),
            Verb::GpuValidation { step: GpuValidation::Pack(flags) } => flags.inputs.by_id(),
            Verb::ClientBench(_) | Verb::ScaleBench(_) | Verb::GpuValidation { .. } => {
                BTreeMap::new()
            }
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Measure the working tree beside another engine, over the same file, and print the table.
    PeerBench(PeerBench),
    /// Measure the load generator beside others and a raw-socket client, against an emitter that
    /// keeps its own log, and print the table.
    ClientBench(ClientBench),
    /// Time the registry's tools and the site over a registry that is made up at size, and print the
    /// table.
    ScaleBench(ScaleBench),
    /// Keep the working tree's server under load, and see whether it holds more and more.
    Soak(Soak),
    /// Show what a release does on a machine without network and compiler, in stages.
    GpuValidation {
        #[command(subcommand)]
        step: GpuValidation,
    },
}

/// The peer is fetched and built into the cache; nothing of it enters the clone.
#[derive(Debug, Args)]
pub struct PeerBench {
    /// A file of `suite/engines/` that has a `[source]`.
    #[arg(value_name = "ENGINE")]
    pub engine: String,
    /// A file of `suite/models/`; else the first model of the target `cpu`.
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    /// Threads of each engine; else as many as the machine has cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// How often each figure is measured on each side.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// Only this; may be repeated.
    #[arg(long = "figure", value_enum, value_name = "NAME")]
    pub figures: Vec<Work>,
    /// All but this, such as `perplexity`, which takes minutes; may be repeated.
    #[arg(long = "skip", value_enum, value_name = "NAME")]
    pub skipped: Vec<Work>,
    /// Print one JSON document instead of the table.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

/// One load follows the other, each answered in full. Between two of them the server's memory,
/// descriptors and threads are read; those of the last quarter are held against the second's.
#[derive(Debug, Args)]
pub struct Soak {
    /// For how long.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub minutes: u32,
    /// A file of `suite/models/`; else the first model of the target `cpu`.
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    #[command(flatten)]
    pub inputs: Inputs,
}

/// Client and emitter have a core each. Everything that is measured is kept under
/// `target/client-bench`, so that rows can be measured one at a time.
#[derive(Debug, Args)]
pub struct ClientBench {
    /// Only this row; may be repeated.
    #[arg(long = "row", value_enum, value_name = "NAME")]
    pub rows: Vec<Row>,
    /// All but this client, such as `aiperf`, whose installation has 1.2 GB; may be repeated.
    #[arg(long = "skip", value_enum, value_name = "CLIENT")]
    pub skipped: Vec<Tool>,
    /// How often each client is measured in each row, in turns.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// The core of the emitter, on which it waits awake.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub emitter_core: usize,
    /// The core of the client.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub client_core: usize,
    /// Measure nothing, and tell what is kept.
    #[arg(long, conflicts_with = "rows")]
    pub kept: bool,
    /// Write the table into `docs/method/client.md` too.
    #[arg(long)]
    pub document: bool,
    /// Print one JSON document instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// The registry is a repository under `target/` that is gone afterwards; the site is made of a tenth
/// of its records.
#[derive(Debug, Args)]
pub struct ScaleBench {
    /// Records of the registry. What is wanted is wanted of as many as there are by default.
    #[arg(long, value_name = "N", default_value_t = crate::scale::WANTED_OF, value_parser = clap::value_parser!(u64).range(20..=1_000_000))]
    pub records: u64,
    /// How often each command is timed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// Make the registry in this folder, which must not be there yet, and leave it.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Write the table into `docs/method/scale.md` too.
    #[arg(long)]
    pub document: bool,
}

#[derive(Debug, Subcommand)]
pub enum GpuValidation {
    /// Build a release and put it into a folder, with all that the stages need.
    Pack(PackFlags),
    /// Carry out the stages that have not been carried out yet.
    Run(RunFlags),
    /// Record the results.
    Collect(CollectFlags),
}

#[derive(Debug, Args)]
pub struct PackFlags {
    /// Such as `v0.10.0`; not needed with `--worktree`.
    #[arg(value_name = "VERSION")]
    pub release: Option<String>,
    /// Pack the working tree as it is; its records are never committed.
    #[arg(long)]
    pub worktree: bool,
    /// A file of `suite/proofs/`.
    #[arg(long, value_name = "ID", default_value = "h200-141g")]
    pub proof: String,
    /// The folder; else one under `target/proofs/`.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct RunFlags {
    /// Where results go, and where those of an earlier call are; else `validation-results`. An archive
    /// of the folder is kept beside it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Only this stage; may be repeated.
    #[arg(long, value_name = "STAGE")]
    pub only: Vec<String>,
}

#[derive(Debug, Args)]
pub struct CollectFlags {
    /// What `run --out` wrote: the folder, or its archive.
    #[arg(value_name = "RESULTS")]
    pub results: PathBuf,
    /// The repository that holds `results/`; else this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn contradictions_are_refused() {
        for args in [
            &["peer-bench"][..],
            &["peer-bench", "llama.cpp", "--repeats", "0"],
            &["peer-bench", "llama.cpp", "--threads", "0"],
            &["peer-bench", "llama.cpp", "--figure", "beauty"],
            &["client-bench", "--row", "beauty"],
            &["client-bench", "--kept", "--row", "paced"],
            &["client-bench", "--repeats", "0"],
            &["scale-bench", "--records", "19"],
            &["scale-bench", "--repeats", "0"],
        ] {
            let words = ["redline-peers"].iter().chain(args);
            assert!(Cli::try_parse_from(words).is_err(), "{args:?} was taken");
        }
    }
}
