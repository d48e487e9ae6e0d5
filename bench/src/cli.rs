//! The command line of `redline-peers`, whose subcommands `cargo xtask` passes on to this program
//! unchanged.

use std::collections::BTreeMap;
use std::path::PathBuf;

use campaign::{Inputs, parse_hours, parse_time};
use clap::{Args, Parser, Subcommand};

use crate::clients::table::Row;
use crate::clients::tool::Tool;
use crate::peer::figure::Work;

/// Compare Redline with other engines and load generators, test its server under long load, test
/// its gate with planted changes, time its tools on a large registry, and validate releases on GPUs.
#[derive(Debug, Parser)]
#[command(name = "redline-peers", version, propagate_version = true)]
pub struct Cli {
    /// Clone of the repository to work in; default: the clone that contains the current directory.
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Directory of the other Redline binaries; default: the directory of this binary.
    #[arg(long, global = true, value_name = "DIR")]
    pub tools_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Verb,
}

impl Cli {
    /// Returns the local files given with `--input`, by the id of the model or dataset that each
    /// replaces. Empty where none is given, as for subcommands that do not take the flag.
    pub fn given(&self) -> BTreeMap<String, PathBuf> {
        match &self.command {
            Verb::PeerBench(flags) => flags.inputs.by_id(),
            Verb::Soak(flags) => flags.inputs.by_id(),
            Verb::GateBench(flags) => flags.inputs.by_id(),
            Verb::GpuValidation { step: GpuValidation::Pack(flags) } => flags.inputs.by_id(),
            Verb::ClientBench(_) | Verb::ScaleBench(_) | Verb::GpuValidation { .. } => {
                BTreeMap::new()
            }
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Compare the working tree with another engine on the same model file, and print a table.
    PeerBench(PeerBench),
    /// Compare the load generator with others and with a raw-socket client, against a mock server
    /// that logs its own times, and print a table.
    ClientBench(ClientBench),
    /// Find out which planted changes the gate finds, how soon, and how often it errs, and print a
    /// table.
    GateBench(GateBench),
    /// Time the registry's tools and the site on a large simulated registry, and print a table.
    ScaleBench(ScaleBench),
    /// Keep the working tree's server under load for a long time, and detect leaks of memory, KV
    /// pages, files and threads.
    Soak(Soak),
    /// Validate a release in stages on a GPU machine without network and compiler.
    GpuValidation {
        #[command(subcommand)]
        step: GpuValidation,
    },
}

/// Compare the working tree with another engine on the same model file. The other engine is
/// downloaded and built in the cache; nothing of it enters the clone.
#[derive(Debug, Args)]
pub struct PeerBench {
    /// Engine to compare with: a file of `suite/engines/` that has a `[source]`.
    #[arg(value_name = "ENGINE")]
    pub engine: String,
    /// Model to measure, a file of `suite/models/`; default: the first model of the target `cpu`.
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    /// Number of threads of each engine; default: the number of cores.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,
    /// Number of measurements of each figure on each of the two engines; perplexity, which does not
    /// vary, is measured once.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// Measure only the figure NAME; may be repeated.
    #[arg(long = "figure", value_enum, value_name = "NAME")]
    pub figures: Vec<Work>,
    /// Leave out the figure NAME, such as `perplexity`, which takes minutes; may be repeated.
    #[arg(long = "skip", value_enum, value_name = "NAME")]
    pub skipped: Vec<Work>,
    /// Print one JSON document instead of the comparison's table.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

/// Keep the working tree's server under load for a long time, and detect leaks of memory, KV pages,
/// files and threads. Loads follow each other. Each sends four scenarios, with free text, tool calls
/// and structured output, which are answered in full; meanwhile other clients send as many requests
/// and abort each. Between loads the server's memory, descriptors and threads are counted; those of
/// the last quarter of the loads are compared with those of the second quarter. At the end, without
/// load, the server must report no request and no KV page of one.
#[derive(Debug, Args)]
pub struct Soak {
    /// Minutes for which the server is under load; at least eight loads are sent, however long they
    /// take.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub minutes: u32,
    /// Model to serve, a file of `suite/models/`; default: the first model of the target `cpu`.
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    #[command(flatten)]
    pub inputs: Inputs,
}

/// Compare the load generator with others and with a raw-socket client. Client and mock server run
/// on a core each. Results are kept under `target/client-bench`, so that rows can be measured one
/// at a time.
#[derive(Debug, Args)]
pub struct ClientBench {
    /// Measure only the row NAME of the comparison's table; may be repeated.
    #[arg(long = "row", value_enum, value_name = "NAME")]
    pub rows: Vec<Row>,
    /// Leave out the client CLIENT, such as `aiperf`, whose installation takes 1.2 GB; may be
    /// repeated.
    #[arg(long = "skip", value_enum, value_name = "CLIENT")]
    pub skipped: Vec<Tool>,
    /// Number of measurements of each client in each row; the clients alternate.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// Number of the CPU core on which the mock server runs; the server keeps the core busy while
    /// it waits.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub emitter_core: usize,
    /// Number of the CPU core on which the measured client runs.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub client_core: usize,
    /// Print the client comparison's table of earlier results without measuring.
    #[arg(long, conflicts_with = "rows")]
    pub kept: bool,
    /// Also write the table of the client comparison into `docs/method/client.md`.
    #[arg(long)]
    pub document: bool,
    /// Print one JSON document instead of the comparison's table.
    #[arg(long)]
    pub json: bool,
}

/// Find out which planted changes the gate finds, how soon, and how often it errs. Each trial
/// compares HEAD with HEAD and a planted change of `tests/planted/` as `gate` does, with fresh
/// seeds. Kinds of changes take turns in random order. Each finished trial is one line of
/// `docs/method/gate-trials.jsonl`; error rates are completed by replays of the noise recorded there.
#[derive(Debug, Args)]
pub struct GateBench {
    /// Run only trials of the planted change KIND; may be repeated.
    #[arg(long = "kind", value_name = "KIND")]
    pub kinds: Vec<String>,
    /// Begin no further trial after so many hours; default: the session ends when every kind has the
    /// number of trials that `tests/planted/planted.toml` wants.
    #[arg(long, value_name = "H", value_parser = parse_hours)]
    pub hours: Option<f64>,
    /// Run so many trials.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub trials: Option<u32>,
    /// Time of one trial's comparisons, such as `15m` or `90s`.
    #[arg(long = "budget", value_name = "TIME", default_value = "15m", value_parser = parse_time)]
    pub budget_us: u64,
    /// Add trials to those of earlier sessions; without it, earlier trials are an error.
    #[arg(long)]
    pub resume: bool,
    /// Instead of trials, compare identical code for ten minutes in each scenario of a comparison of
    /// releases, for the half-widths of the intervals.
    #[arg(long, conflicts_with_all = ["kinds", "hours", "trials"])]
    pub seven: bool,
    /// Print the table of earlier trials without running any.
    #[arg(long, conflicts_with_all = ["kinds", "hours", "trials", "seven", "resume"])]
    pub kept: bool,
    /// Instead of trials, compare estimators on the alternations that lie below this folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kinds", "hours", "trials", "seven", "resume", "kept"])]
    pub estimators: Option<PathBuf>,
    /// Also write the printed table into `docs/method/gate.md`.
    #[arg(long)]
    pub document: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

/// Time the registry's tools and the site on a large simulated registry. The registry is a
/// repository under `target/` that is removed afterwards, unless `--keep` names another folder; the
/// site is built from a tenth as many records.
#[derive(Debug, Args)]
pub struct ScaleBench {
    /// Number of records in the registry. A median time above a command's limit fails the benchmark
    /// only with the default number.
    #[arg(long, value_name = "N", default_value_t = crate::scale::WANTED_OF, value_parser = clap::value_parser!(u64).range(20..=1_000_000))]
    pub records: u64,
    /// Number of times that each tool command is timed.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    /// Create the simulated registry in this folder, which must be empty or not exist yet, and keep
    /// it.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Also write the table of measured times into `docs/method/scale.md`.
    #[arg(long)]
    pub document: bool,
}

#[derive(Debug, Subcommand)]
pub enum GpuValidation {
    /// Build a release, or the working tree, and pack it into a bundle with the programs, models
    /// and workloads that its stages need.
    Pack(PackFlags),
    /// Pack a GPU validation, run it on this machine and collect its results: all that a clone on
    /// the machine with the GPU needs.
    Here(HereFlags),
    /// Run the stages of the bundle in which this program lies, except those that have run.
    Run(RunFlags),
    /// Read the results that the stages of a bundle left, and print their outcomes; records of a
    /// release are committed to the registry, those of the working tree are not.
    Collect(CollectFlags),
}

#[derive(Debug, Args)]
pub struct PackFlags {
    /// Release to pack into the bundle, such as `v0.10.0`; not needed with `--worktree`.
    #[arg(value_name = "VERSION")]
    pub release: Option<String>,
    /// Pack the working tree into the bundle; the records measured with it are never committed.
    #[arg(long)]
    pub worktree: bool,
    /// GPU validation to pack: the id of a file of `suite/validations/`.
    #[arg(long, value_name = "ID", default_value = "h200-141g")]
    pub validation: String,
    /// Folder in which the bundle is created; default: a folder under `target/validations/`. Its
    /// archive `DIR.tar.xz` is written next to it.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Refuse an archive of more than MIB MiB, and list its largest files; default: no limit.
    #[arg(long, value_name = "MIB")]
    pub size_max: Option<u64>,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct HereFlags {
    #[command(flatten)]
    pub pack: PackFlags,
    /// Repository whose `results/` receives the records; default: this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct RunFlags {
    /// Folder for results, which may contain those of an earlier call; default:
    /// `validation-results`.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Archive to which each stage appends its results, without the samples of single requests;
    /// default: `DIR.tar.gz`, next to the folder.
    #[arg(long, value_name = "FILE")]
    pub archive: Option<PathBuf>,
    /// Run only the stages of the call CALL, within its time limit; the same call made again runs
    /// those that did not end in time.
    #[arg(long, value_name = "CALL")]
    pub call: Option<String>,
    /// Run only the stage STAGE of the bundle; may be repeated.
    #[arg(long, value_name = "STAGE")]
    pub only: Vec<String>,
}

#[derive(Debug, Args)]
pub struct CollectFlags {
    /// Results that `gpu-validation run --out` wrote: the folder or its archive.
    #[arg(value_name = "RESULTS")]
    pub results: PathBuf,
    /// Repository whose `results/` receives the records; default: this clone.
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
            &["gate-bench", "--trials", "0"],
            &["gate-bench", "--hours", "-1"],
            &["gate-bench", "--seven", "--kind", "same"],
            &["gate-bench", "--kept", "--resume"],
            &["scale-bench", "--records", "19"],
            &["scale-bench", "--repeats", "0"],
        ] {
            let words = ["redline-peers"].iter().chain(args);
            assert!(Cli::try_parse_from(words).is_err(), "{args:?} was taken");
        }
    }
}
