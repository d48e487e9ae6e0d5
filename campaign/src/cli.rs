//! The command line, as `cargo xtask` hands it on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand};

use crate::executor::LOCAL;
use crate::launch::container::Runtime;

/// Builds a release, measures it, and records the result.
#[derive(Debug, Parser)]
#[command(name = "redline-campaign", version, propagate_version = true)]
pub struct Cli {
    /// The clone to work in; else the one around the current folder.
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
    /// Where the suite's other binaries lie; else beside this one.
    #[arg(long, global = true, value_name = "DIR")]
    pub tools_dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) command: Verb,
}

impl Cli {
    /// The clone to work in, where the command line names one. A job names everything that it
    /// needs, so that its own folder will do.
    #[must_use]
    pub fn root(&self) -> Option<&Path> {
        match (&self.root, &self.command) {
            (Some(dir), _) => Some(dir),
            (None, Verb::Node(flags)) => Some(&flags.dir),
            (None, _) => None,
        }
    }

    /// The files that stand for inputs, by the inputs' ids.
    #[must_use]
    pub fn given(&self) -> BTreeMap<String, PathBuf> {
        match &self.command {
            Verb::ReleaseBench(flags) => flags.inputs.by_id(),
            Verb::Fetch(flags) => flags.inputs.by_id(),
            Verb::Lab(flags) => flags.inputs.by_id(),
            Verb::Serve(flags) => flags.inputs.by_id(),
            Verb::Kernels(_) | Verb::Node(_) | Verb::Ingest(_) => BTreeMap::new(),
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Build a release, serve each model, run the scenarios, record and publish the results.
    ReleaseBench(Box<ReleaseBench>),
    /// Finish a campaign from the folders of its jobs alone: verify, record, commit, render.
    Ingest(Ingest),
    /// Find out which options of a server are worth it, for which load: what is launched next follows
    /// from what was found.
    Lab(Lab),
    /// Fetch models and data sets into the cache.
    Fetch(Fetch),
    /// Build a release and serve a model with it in the foreground.
    Serve(Serve),
    /// Run the engine's op benches, and a model beside the machine's limits, and record them.
    Kernels(Kernels),
    /// Carry out a job of a campaign: what its controller has put into a folder.
    #[command(hide = true)]
    Node(NodeFlags),
}

/// Files that stand for inputs.
#[derive(Debug, Args, Default)]
pub struct Inputs {
    /// Use this file for an input instead of fetching it; its hash must be the pinned one.
    #[arg(long = "input", value_name = "ID=PATH", value_parser = parse_input)]
    given: Vec<(String, PathBuf)>,
}

impl Inputs {
    /// The files, by the inputs' ids.
    #[must_use]
    pub fn by_id(&self) -> BTreeMap<String, PathBuf> {
        self.given.iter().cloned().collect()
    }
}

/// Where launches are made, and where their records go.
#[derive(Debug, Clone, Args, Default)]
pub struct Execution {
    /// Call a run hung when its server sends nothing for this long; else after two minutes.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub timeout_s: Option<u32>,
    /// The repository that holds `results/`; else this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
    /// Where jobs run: `local`, or `slurm`, for nodes of the cluster that this machine submits to.
    #[arg(long, value_name = "ID", default_value = LOCAL)]
    pub executor: String,
    /// One more long option for `sbatch`, such as `--slurm-option=--partition=h200`; may be repeated.
    #[arg(long = "slurm-option", value_name = "OPTION", allow_hyphen_values = true)]
    pub slurm_options: Vec<String>,
}

#[derive(Debug, Args, Default)]
pub struct ReleaseBench {
    /// Such as `v0.9.2`; not needed with `--worktree` or `--url`.
    #[arg(value_name = "VERSION")]
    pub release: Option<String>,
    /// Engine to measure: a file of `suite/engines/`.
    #[arg(long, value_name = "ID", default_value = "redline")]
    pub engine: String,
    /// Hardware class: a file of `suite/targets/`; else the one that fits, else `cpu`.
    #[arg(long, value_name = "ID")]
    pub target: Option<String>,
    /// Only this model of the target; may be repeated.
    #[arg(long = "model", value_name = "ID")]
    pub models: Vec<String>,
    /// This scenario instead of the target's; may be repeated.
    #[arg(long = "scenario", value_name = "ID")]
    pub scenarios: Vec<String>,
    /// Fresh launches per scenario; else as the target says, or the policy with `--baseline`.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: Option<u32>,
    /// Measure this release too, interleaved, and judge: a screen over the target's scenarios and
    /// its ladder, then fresh launches of the cells that differ.
    #[arg(long, value_name = "VERSION")]
    pub baseline: Option<String>,
    /// Stop at what the screen suspects: no confirmation on fresh launches.
    #[arg(long, requires = "baseline")]
    pub no_confirm: bool,
    /// Measure this release of another engine too, interleaved on the same inputs, and show both
    /// side by side; may be repeated.
    #[arg(long, value_name = "ENGINE@VERSION", value_parser = crate::plan::parse_other_engine)]
    #[arg(conflicts_with_all = ["baseline", "url", "worktree"])]
    pub beside: Vec<(String, String)>,
    /// Run engines that are packages in their container images.
    #[arg(long, value_enum, value_name = "RUNTIME", conflicts_with = "url")]
    pub container: Option<Runtime>,
    /// Measure one more configuration: NAME='FLAGS'; may be repeated.
    #[arg(long = "variant", value_name = "NAME=FLAGS", value_parser = crate::plan::parse_variant)]
    pub variants: Vec<(String, Vec<String>)>,
    /// Measure the working tree as it is; its records stay under `target/`.
    #[arg(long, conflicts_with = "url")]
    pub worktree: bool,
    /// Measure a server that is already running; its records stay under `target/`.
    #[arg(long, value_name = "URL", conflicts_with_all = ["baseline", "variants"])]
    pub url: Option<String>,
    #[command(flatten)]
    pub execution: Execution,
    /// Go on with the latest campaign of this release that did not come to its end: what is done is
    /// not done again.
    #[arg(long, conflicts_with = "dry_run")]
    pub resume: bool,
    /// Start nothing that is expected to take more GPU-hours, and no launch that would exceed them.
    #[arg(long, value_name = "H", value_parser = parse_hours)]
    pub max_gpu_hours: Option<f64>,
    /// Print the plan and stop; of any target, whatever this machine is.
    #[arg(long)]
    pub dry_run: bool,
    /// Start without asking a plan of more than two hours, or one whose hours on GPUs are unknown.
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct Lab {
    /// A file of `suite/labs/`, or the path of one.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Make no more launches, in place of what the file's budget says.
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub max_runs: Option<u32>,
    /// Take no more hours of launches, in place of what the file's budget says.
    #[arg(long, value_name = "H", conflicts_with = "resume", value_parser = parse_hours)]
    pub max_hours: Option<f64>,
    #[command(flatten)]
    pub execution: Execution,
    /// Go on with the latest lab of this name that did not come to its end: what is done is not done
    /// again.
    #[arg(long, conflicts_with = "dry_run")]
    pub resume: bool,
    /// Print the plan and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Start without asking a lab that may take more than two hours.
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct NodeFlags {
    /// The job's folder.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Begin when `go` is read on standard input, and end where that never comes.
    #[arg(long)]
    pub when_told: bool,
}

#[derive(Debug, Args)]
pub struct Ingest {
    /// A campaign's folder, or one with the folders of its jobs.
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// The repository that holds `results/`; else this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Fetch {
    /// Models and data sets of the suite; none for all that the fitting target needs.
    pub ids: Vec<String>,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct Serve {
    #[arg(value_name = "VERSION")]
    pub release: String,
    #[arg(long, value_name = "ID")]
    pub model: String,
    /// More flags of `redline serve`, after `--`.
    #[arg(last = true)]
    pub flags: Vec<String>,
    #[command(flatten)]
    pub inputs: Inputs,
}

#[derive(Debug, Args)]
pub struct Kernels {
    /// A release; else the working tree, whose record stays under `target/`.
    #[arg(value_name = "VERSION", conflicts_with = "worktree")]
    pub release: Option<String>,
    /// The working tree, as without VERSION.
    #[arg(long)]
    pub worktree: bool,
    /// A file of `suite/models/`, which is measured beside the machine's limits; else the first
    /// model of the target `cpu`.
    #[arg(long, value_name = "ID")]
    pub model: Option<String>,
    /// The repository that holds `results/`; else this clone.
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
}

fn parse_hours(text: &str) -> Result<f64, String> {
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
            &["release-bench", "v1.0.0", "--max-gpu-hours", "-1"],
            &["release-bench", "v1.0.0", "--max-gpu-hours", "NaN"],
            &["lab"],
            &["lab", "x", "--max-runs", "0"],
            &["lab", "x", "--max-hours", "-1"],
            &["lab", "x", "--resume", "--dry-run"],
            &["lab", "x", "--resume", "--max-runs", "9"],
            &["kernels", "v1.0.0", "--worktree"],
            &["serve", "v1.0.0"],
        ] {
            let words = ["redline-campaign"].iter().chain(args);
            assert!(Cli::try_parse_from(words).is_err(), "{args:?} was taken");
        }
    }
}
