//! The command line of `redline-campaign`, whose subcommands `cargo xtask` passes on unchanged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::executor::LOCAL;
use crate::server_spec::Runtime;

/// Build releases of an engine, measure them, and record the results.
#[derive(Debug, Parser)]
#[command(name = "redline-campaign", version, propagate_version = true)]
pub struct Cli {
    /// Clone of the repository to work in; default: the clone that contains the current directory.
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Directory of the other Redline binaries; default: the directory of this binary.
    #[arg(long, global = true, value_name = "DIR")]
    pub tools_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Verb,
}

impl Cli {
    /// Returns the folder that takes the place of the clone: the one given with `--root`, or for
    /// `node` without it the job's folder, since a job names every file that it needs and runs on
    /// machines that have no clone. `None` if the command has to find the clone itself.
    pub fn root(&self) -> Option<&Path> {
        match (&self.root, &self.command) {
            (Some(dir), _) => Some(dir),
            (None, Verb::Node(flags)) => Some(&flags.dir),
            (None, _) => None,
        }
    }

    /// Returns the local files given with `--input`, by the id of the model or dataset that each
    /// replaces. Empty for subcommands without inputs.
    pub fn given(&self) -> BTreeMap<String, PathBuf> {
        match &self.command {
            Verb::ReleaseBench(flags) => flags.inputs.by_id(),
            Verb::Fetch(flags) => flags.inputs.by_id(),
            Verb::Lab(flags) => flags.inputs.by_id(),
            Verb::Reproduce(flags) => flags.inputs.by_id(),
            Verb::Serve(flags) => flags.inputs.by_id(),
            Verb::Gate(flags) => flags.inputs.by_id(),
            Verb::Kernels(_) | Verb::Matrix(_) | Verb::Node(_) | Verb::Ingest(_) => BTreeMap::new(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Build a release, serve each model, run the scenarios, record and publish the results.
    ReleaseBench(Box<ReleaseBench>),
    /// Say within a budget of minutes whether the working tree is slower than a release.
    ///
    /// Of another engine, a wheel or an image of a pull request is compared with a release:
    /// `gate vllm@v0.11.0 --candidate-wheel FILE`.
    ///
    /// Both are built, and their servers answer slices of the same requests in turns, on fresh starts
    /// again and again, until every release-blocking metric is decided or the budget is spent. The
    /// first line of the answer is the verdict. Nothing is committed.
    ///
    /// Exit codes: 0 nothing release-blocking became worse; 1 something did, or outputs changed;
    /// 2 wrong use; 3 something is undecided; 4 the environment.
    Gate(Box<Gate>),
    /// Finish a campaign from the folders of its jobs alone: verify, record, commit, render.
    Ingest(Ingest),
    /// Find out which server options are worth using, and in which scenarios. Each round of runs is
    /// chosen from the results of the rounds before.
    Lab(Lab),
    /// Download models and datasets into the cache.
    Fetch(Fetch),
    /// Measure a committed run again on this machine, and say whether its figures come out again.
    ///
    /// For a result that was published elsewhere, the path of its imported record, or of the folder of
    /// its page, takes the place of the id: the page's rows are printed with both figures. Results are
    /// measured under the scenario that has their workload, with the flags of their server.
    ///
    /// Equal by hash must be: the engine's binary, its arguments, the requests, and the outputs of
    /// the fixed prompts. The release-blocking figures must fall into the intervals that the runs
    /// of the record's campaign predict. Another kind of machine is no success. Nothing is
    /// committed.
    ///
    /// Exit codes: 0 reproduced; 1 not reproduced; 2 wrong use; 3 another kind of machine, or a
    /// campaign with a single run; 4 the environment.
    Reproduce(Reproduce),
    /// Build a release and serve a model with it in the foreground.
    Serve(Serve),
    /// Run the engine's kernel benchmarks, compare a model's speed with the machine's limits, and
    /// record both.
    Kernels(Kernels),
    /// Print for each target, model, scenario and engine of the suite whether figures are measured,
    /// published elsewhere, planned or impossible, and the commands that measure what is planned.
    Matrix(Matrix),
    /// Run one job of a campaign from the folder that the controller has prepared (internal).
    #[command(hide = true)]
    Node(NodeFlags),
}

/// Local files that are used in place of downloads.
#[derive(Debug, Args, Default)]
pub struct Inputs {
    /// Use this local file for a model or dataset instead of downloading it; its SHA-256 must be
    /// the pinned one, if one is pinned.
    #[arg(long = "input", value_name = "ID=PATH", value_parser = parse_input)]
    given: Vec<(String, PathBuf)>,
}

impl Inputs {
    /// Returns the local files by the id of the model or dataset that each replaces.
    pub fn by_id(&self) -> BTreeMap<String, PathBuf> {
        self.given.iter().cloned().collect()
    }
}

/// Flags that say where a campaign's jobs run and where its records go.
#[derive(Debug, Clone, Args, Default)]
pub struct Execution {
    /// Fail a run when its server makes no progress for this many seconds; default: two minutes.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout_s: Option<u32>,
    /// Repository whose `results/` receives the records; default: this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
    /// Executor of the jobs: `local` (this machine), or `slurm` (nodes of the cluster that this
    /// machine submits to).
    #[arg(long, value_name = "ID", default_value = LOCAL)]
    pub executor: String,
    /// Additional long option for `sbatch`, such as `--slurm-option=--partition=h200`; may be
    /// repeated.
    #[arg(long = "slurm-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub slurm_options: Vec<String>,
}

/// Flags that say how a campaign gets engines that are neither Redline nor built from source.
#[derive(Debug, Clone, Copy, Args, Default)]
pub struct Packages {
    /// Run engines that have a container image in the image of their release, with this container
    /// runtime.
    #[arg(long, value_enum, value_name = "RUNTIME")]
    pub container: Option<Runtime>,
    /// Measure engines that are Python packages as they are installed on this machine; default: each
    /// release is installed into a virtual environment of its own.
    #[arg(long, conflicts_with = "container")]
    pub installed: bool,
}

/// Which runs of a campaign share a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Servers {
    /// None: each run starts its own server.
    #[default]
    PerRun,
    /// Those of one model in one repeat.
    PerModel,
}

impl Servers {
    /// Returns the value of `--servers`.
    pub fn name(self) -> &'static str {
        match self {
            Self::PerRun => "per-run",
            Self::PerModel => "per-model",
        }
    }
}

#[derive(Debug, Args, Default)]
pub struct ReleaseBench {
    /// Release to measure, such as `v0.9.2`; not needed with `--worktree` or `--url`.
    #[arg(value_name = "VERSION")]
    pub release: Option<String>,
    /// Engine to measure: a file of `suite/engines/`.
    #[arg(long, value_name = "ID", default_value = "redline")]
    pub engine: String,
    /// Hardware target: a file of `suite/targets/`; default: the target that matches this machine's
    /// GPU, else `cpu`.
    #[arg(long, value_name = "ID")]
    pub target: Option<String>,
    /// Measure only this model of the target; may be repeated.
    #[arg(long = "model", value_name = "ID")]
    pub models: Vec<String>,
    /// Measure this scenario instead of the target's scenarios; may be repeated.
    #[arg(long = "scenario", value_name = "ID")]
    pub scenarios: Vec<String>,
    /// Number of runs per variant and scenario, each on a fresh server; default: the target's
    /// number, or with `--baseline` the release policy's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// Compare with this release: runs of both are interleaved over the target's scenarios and its
    /// concurrency sweep; then both servers answer slices of each scenario's requests in turns, which
    /// decides what changed. Where both do not fit into memory side by side, fresh pairs of runs
    /// confirm what the runs suspect.
    #[arg(long, value_name = "VERSION")]
    pub baseline: Option<String>,
    /// Stop after the runs: nothing is decided, differences stay suspected.
    #[arg(long, requires = "baseline")]
    pub no_confirm: bool,
    /// Also measure this release of another engine, interleaved on the same inputs, and show the
    /// engines side by side; may be repeated.
    #[arg(long, value_name = "ENGINE@VERSION", value_parser = crate::plan::parse_other_engine)]
    #[arg(conflicts_with_all = ["baseline", "url", "worktree"])]
    pub beside: Vec<(String, String)>,
    #[command(flatten)]
    pub packages: Packages,
    /// Also measure a variant of the release with these server flags: NAME='FLAGS'; may be
    /// repeated.
    #[arg(long = "variant", value_name = "NAME=FLAGS", value_parser = crate::plan::parse_variant)]
    pub variants: Vec<(String, Vec<String>)>,
    /// Measure the working tree as it is; its records stay under `target/` and are never committed.
    #[arg(long, conflicts_with = "url")]
    pub worktree: bool,
    /// Measure a server that is already running; its records stay under `target/` and are never
    /// committed.
    #[arg(long, value_name = "URL")]
    #[arg(conflicts_with_all = ["baseline", "variants", "container", "installed"])]
    pub url: Option<String>,
    /// Which runs share a server: none, each starts its own, or those of a model in one repeat, in
    /// random order. The prefix cache of a shared server is emptied before each run.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    #[arg(conflicts_with_all = ["baseline", "beside", "variants", "url"])]
    pub servers: Servers,
    #[command(flatten)]
    pub execution: Execution,
    /// Resume the latest unfinished campaign of this release; finished runs are not repeated.
    #[arg(long, conflicts_with = "dry_run")]
    pub resume: bool,
    /// Refuse a plan that is expected to take more GPU-hours than this, and stop before a run that
    /// would exceed them.
    #[arg(long, value_name = "H", value_parser = parse_hours)]
    pub max_gpu_hours: Option<f64>,
    /// Print the plan and stop; works for any target, whatever machine this is.
    #[arg(long)]
    pub dry_run: bool,
    /// Start without asking for confirmation, even if the plan takes more than two hours or an
    /// unknown number of GPU-hours.
    #[arg(long)]
    pub yes: bool,
    /// True to leave the records under `target/` whatever is measured; `reproduce` sets it.
    #[arg(skip)]
    pub uncommitted: bool,
    /// Models and scenarios that are measured with each other; empty for all with all. `reproduce` sets
    /// it.
    #[arg(skip)]
    pub only: Vec<(String, String)>,
    /// Name and flags of the variant that is measured in place of the plain release; `reproduce` sets
    /// it.
    #[arg(skip)]
    pub in_place: Option<(String, Vec<String>)>,
    /// What a gate compares; `None` for every other campaign.
    #[arg(skip)]
    pub gate: Option<GateRequest>,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct Gate {
    /// Baseline: a release such as `v0.9.2`, a commit of this clone such as `main`, or a release of
    /// another engine as ENGINE@VERSION; default: the newest release.
    #[arg(value_name = "BASELINE")]
    pub baseline: Option<String>,
    /// Candidate, named like the baseline; default: the working tree, unless the baseline is of another
    /// engine.
    #[arg(long, value_name = "NAME")]
    #[arg(conflicts_with_all = ["candidate_wheel", "candidate_image"])]
    pub candidate: Option<String>,
    /// Compare the baseline, a release of a Python package, with this wheel of the package, such as one
    /// that was built from a pull request. Its other packages are those of the release where the wheel
    /// allows it.
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["candidate_image", "container", "installed"])]
    pub candidate_wheel: Option<PathBuf>,
    /// Compare the baseline, in the image of its release, with this container image of the same engine.
    /// It runs by its digest.
    #[arg(long, value_name = "IMAGE", requires = "container")]
    pub candidate_image: Option<String>,
    /// Start the candidate with these server flags: NAME='FLAGS'.
    #[arg(long, value_name = "NAME=FLAGS", value_parser = crate::plan::parse_variant)]
    pub variant: Option<(String, Vec<String>)>,
    /// Time for all comparisons, beside builds and downloads, such as `15m` or `90s`.
    #[arg(long = "budget", value_name = "TIME", default_value = "15m", value_parser = parse_time)]
    pub budget_us: u64,
    /// Hardware target: a file of `suite/targets/`; default: the target that matches this machine's
    /// GPU, else `cpu`.
    #[arg(long, value_name = "ID")]
    pub target: Option<String>,
    /// Compare with this model of the target; may be repeated; default: the target's first.
    #[arg(long = "model", value_name = "ID")]
    pub models: Vec<String>,
    /// Compare under this scenario; may be repeated; default: the target's concurrency sweep.
    #[arg(long = "scenario", value_name = "ID")]
    pub scenarios: Vec<String>,
    #[command(flatten)]
    pub packages: Packages,
    /// Folder for the comparison: `diff.json`, `diff.md`, `diff.xml` (JUnit) and the campaign's
    /// record; default: `target/gate`.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub execution: Execution,
    /// Resume the latest unfinished gate; finished starts are not repeated.
    #[arg(long, conflicts_with = "dry_run")]
    pub resume: bool,
    /// Print the plan and stop.
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

/// Candidate of a gate, as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GateCandidate {
    /// Working tree of this clone.
    Tree,
    /// Release or commit by its name.
    Named(String),
    /// Wheel at this path.
    Wheel(PathBuf),
    /// Container image of this name.
    Image(String),
}

/// What a gate compares, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub struct GateRequest {
    /// Baseline as the user named it; `None` for the newest release.
    pub baseline: Option<String>,
    pub candidate: GateCandidate,
    /// Name and flags of the candidate's variant.
    pub variant: Option<(String, Vec<String>)>,
    pub budget_us: u64,
    /// Folder for the comparison.
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct Lab {
    /// Lab to run: the name of a file in `suite/labs/`, or the path of a lab file.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Largest number of runs of the lab; overrides the budget in the lab's file.
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_runs: Option<u32>,
    /// Largest total time of all runs of the lab, in hours; overrides the budget in the lab's file.
    #[arg(long, value_name = "H", conflicts_with = "resume", value_parser = parse_hours)]
    pub max_hours: Option<f64>,
    #[command(flatten)]
    pub packages: Packages,
    #[command(flatten)]
    pub execution: Execution,
    /// Resume the latest unfinished campaign of this lab; finished runs are not repeated.
    #[arg(long, conflicts_with = "dry_run")]
    pub resume: bool,
    /// Print the plan of the lab and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Start without asking for confirmation, even if the lab may take more than two hours.
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct Reproduce {
    /// Run to measure again: its id, or the beginning of the id. Or the path of an imported record, or
    /// of the folder of a page, below `results/imports`.
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Number of new runs, each on a fresh server.
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
    #[command(flatten)]
    pub packages: Packages,
    /// Which runs share a server: none, each starts its own, or those of a model in one repeat, in
    /// random order. The prefix cache of a shared server is emptied before each run.
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    pub servers: Servers,
    /// Repository whose `results/` has the record; default: this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
    /// Executor of the jobs: `local` (this machine), or `slurm` (nodes of the cluster that this
    /// machine submits to).
    #[arg(long, value_name = "ID", default_value = LOCAL)]
    pub executor: String,
    /// Additional long option for `sbatch`, such as `--slurm-option=--partition=h200`; may be
    /// repeated.
    #[arg(long = "slurm-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub slurm_options: Vec<String>,
    /// Refuse a plan that is expected to take more GPU-hours than this, and stop before a run that
    /// would exceed them. Of a page whose servers had different flags, each set of flags is a plan.
    #[arg(long, value_name = "H", value_parser = parse_hours)]
    pub max_gpu_hours: Option<f64>,
    /// Print the plan and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Start without asking for confirmation, even if the plan takes more than two hours.
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct NodeFlags {
    /// Folder of the job, which contains `job.json`.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Start the job when the line `go` is read on standard input; exit if standard input closes
    /// first.
    #[arg(long)]
    pub when_told: bool,
}

#[derive(Debug, Args)]
pub struct Ingest {
    /// Folder of a campaign, or a folder that contains the folders of its jobs.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Repository whose `results/` receives the records; default: this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Fetch {
    /// Ids of models and datasets of the suite; default: everything that the target matching this
    /// machine needs.
    pub ids: Vec<String>,
    /// Dataset of the suite, fetched like those among the ids.
    #[arg(long, value_name = "ID")]
    pub dataset: Option<String>,
    /// Take the dataset from this local file, also in later commands; its SHA-256 must be the
    /// pinned one.
    #[arg(long, value_name = "FILE", requires = "dataset")]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct Serve {
    #[arg(value_name = "VERSION")]
    pub release: String,
    #[arg(long, value_name = "ID")]
    pub model: String,
    /// Additional flags for `redline serve`, after `--`.
    #[arg(last = true)]
    pub flags: Vec<String>,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct Kernels {
    /// Release to benchmark; default: the working tree, whose record stays under `target/`.
    #[arg(value_name = "VERSION", conflicts_with = "worktree")]
    pub release: Option<String>,
    /// Benchmark the working tree; this is the default without VERSION.
    #[arg(long)]
    pub worktree: bool,
    /// Model whose speed is compared with the machine's limits: the name of a file of
    /// `suite/models/` without `.toml`; default: the first model of the target `cpu`.
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    /// Repository whose `results/` receives the records; default: this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Matrix {
    /// Print the matrix of this target only; may be repeated.
    #[arg(long = "target", value_name = "ID")]
    pub targets: Vec<String>,
    /// Repository whose `results/` is read; default: this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
}

/// Parses a time such as `15m`, `90s` or `1h` into microseconds.
///
/// # Errors
/// The text is no such time, or no time at all.
pub fn parse_time(text: &str) -> Result<u64, String> {
    let wrong = || "expected a time such as `15m`, `90s` or `1h`".to_owned();
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds: u64 = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    match number.checked_mul(seconds * 1_000_000) {
        Some(us) if us > 0 => Ok(us),
        _ => Err(wrong()),
    }
}

/// Parses a positive number of hours.
///
/// # Errors
/// The text is no such number.
pub fn parse_hours(text: &str) -> Result<f64, String> {
    let hours: f64 = text.parse().map_err(|_| "expected a number of hours".to_owned())?;
    match hours.is_finite() && hours > 0.0 {
        true => Ok(hours),
        false => Err("expected more than no hours".to_owned()),
    }
}

fn parse_input(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((id, path)) if !id.is_empty() && !path.is_empty() => Ok((id.to_owned(), path.into())),
        _ => Err("expected ID=PATH".to_owned()),
    }
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
            &["release-bench", "v1.0.0", "--no-confirm"][..],
            &["release-bench", "--worktree", "--url", "http://x"],
            &["release-bench", "v1.0.0", "--repeats", "0"],
            &["release-bench", "v1.0.0", "--timeout-s", "0"],
            &["release-bench", "v1.0.0", "--variant", "big"],
            &["release-bench", "v1.0.0", "--input", "sharegpt-head"],
            &["release-bench", "v1.0.0", "--beside", "vllm"],
            &["release-bench", "v1.0.0", "--beside", "vllm@1", "--baseline", "v0.9.0"],
            &["release-bench", "v1.0.0", "--container", "lorry"],
            &["release-bench", "v1.0.0", "--container", "docker", "--installed"],
            &["release-bench", "--url", "http://x", "--installed"],
            &["release-bench", "v1.0.0", "--max-gpu-hours", "-1"],
            &["release-bench", "v1.0.0", "--max-gpu-hours", "NaN"],
            &["gate", "--budget", "15"],
            &["gate", "--budget", "0m"],
            &["gate", "--budget", "-1m"],
            &["gate", "--budget", "9é"],
            &["gate", "--budget", "18446744073709551615h"],
            &["gate", "--resume", "--dry-run"],
            &["gate", "x@1", "--candidate-wheel", "x.whl", "--candidate", "x@2"],
            &["gate", "x@1", "--candidate-wheel", "x.whl", "--container", "docker"],
            &["gate", "x@1", "--candidate-wheel", "x.whl", "--installed"],
            &["gate", "x@1", "--candidate-wheel", "x.whl", "--candidate-image", "x:y"],
            &["gate", "x@1", "--candidate-image", "x:y"],
            &["lab"],
            &["lab", "x", "--max-runs", "0"],
            &["lab", "x", "--max-hours", "-1"],
            &["lab", "x", "--resume", "--dry-run"],
            &["lab", "x", "--container", "docker", "--installed"],
            &["lab", "x", "--resume", "--max-runs", "9"],
            &["kernels", "v1.0.0", "--worktree"],
            &["fetch", "sharegpt", "--from", "rows.json"],
            &["serve", "v1.0.0"],
        ] {
            let words = ["redline-campaign"].iter().chain(args);
            assert!(Cli::try_parse_from(words).is_err(), "{args:?} was taken");
        }
    }
}
