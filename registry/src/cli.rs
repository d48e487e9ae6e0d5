//! Command line of `redline-results`: its commands and flags, whose comments are the help texts.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use registry::list::Filter;
use registry::repository::RESULTS;
use store::layout::RunParts;

/// Adds records to a registry, checks it, compares releases.
///
/// Exit codes: 0 well, 1 a regression or a new failure, 2 wrong use or unsound data, 3
/// inconclusive only, 4 the environment, 101 a bug.
#[derive(Debug, Parser)]
#[command(name = "redline-results", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check whether a commit could be made now, before anything is measured
    Preflight {
        #[command(flatten)]
        place: Place,
    },
    /// Check the records of a folder laid out like results/ and commit them all, or none
    Record(RecordArguments),
    /// Check the whole registry by the storage rules (paths, hashes, history and others), and show
    /// which quality rules its runs break
    Check {
        #[command(flatten)]
        place: Place,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Synchronize this clone with a remote: fetch and push records, and render the pages
    Sync(SyncArguments),
    /// Mark records as wrong: they stay, are shown as retracted, and are never compared
    Retract(TargetArguments),
    /// Add a remark to records
    Annotate(TargetArguments),
    /// Accept a regression of a metric until a given day
    Waive(WaiveArguments),
    /// Declare that machine or data changed: series break at that time
    Epoch(EpochArguments),
    /// Compare two releases, cell by cell
    Diff(DiffArguments),
    /// Record results published elsewhere: console blocks in pages and logs, and result files of
    /// the tools that `redline-bench audit` reads
    ///
    /// Renders the pages and commits records and pages on the branch that is checked out; with
    /// `--dry-run` nothing is written. What a file does not state can be stated by a flag; the
    /// record says that the importing user did.
    Import(ImportArguments),
    /// Show how metrics developed over releases and days, and where their level changed
    Trend(TrendArguments),
    /// Print what a lab has found, or which runs it makes next
    Lab(LabArguments),
    /// List the runs, including retracted ones
    List(ListArguments),
    /// Rank the engines and releases that serve a model on a hardware, by a metric and within
    /// limits
    Best(BestArguments),
    /// Print every run as a row of one flat table, or pack runs into a signed bundle for the
    /// maintainer of another registry
    Export(ExportArguments),
    /// Check a signed bundle of records that somebody submits, or accept it into the registry
    #[command(subcommand)]
    Submit(SubmitCommand),
    /// List the rules by which records are checked
    Rules {
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Print the record of a run
    Show {
        /// Id of the run to print, or the beginning of the id
        run: String,
        #[command(flatten)]
        sources: Sources,
    },
}

/// Registry that a command works on.
#[derive(Debug, Args)]
pub struct Place {
    /// Root of the repository that holds results/
    #[arg(long, default_value = ".")]
    pub registry: PathBuf,
}

/// Registry to read, and a folder of records that are not in it yet.
#[derive(Debug, Args)]
pub struct Sources {
    #[command(flatten)]
    pub place: Place,
    /// Folder laid out like results/ to read in addition to the registry
    #[arg(long)]
    pub overlay: Option<PathBuf>,
}

impl Sources {
    /// Returns the paths of the folders to read, the registry's first.
    pub fn roots(&self) -> Vec<PathBuf> {
        let results = self.place.registry.join(RESULTS);
        std::iter::once(results).chain(self.overlay.clone()).collect()
    }
}

/// Registry to change, and the folder of the program that renders its pages.
#[derive(Debug, Args)]
pub struct Renders {
    #[command(flatten)]
    pub place: Place,
    /// Folder with the program that renders pages; default: the folder of this program
    #[arg(long, hide = true)]
    pub tools_dir: Option<PathBuf>,
}

/// Flags that restrict a command to the runs of one engine or hardware.
#[derive(Debug, Args)]
pub struct On {
    /// Only runs of this engine
    #[arg(long)]
    pub engine: Option<String>,
    /// Only runs on this hardware
    #[arg(long)]
    pub hardware: Option<String>,
}

/// Flags that restrict a command to the runs of some cells.
#[derive(Debug, Args)]
pub struct Cells {
    #[command(flatten)]
    pub on: On,
    /// Only runs of this model
    #[arg(long)]
    pub model: Option<String>,
    /// Only runs of this scenario, as ID or ID@REV
    #[arg(long)]
    pub scenario: Option<String>,
}

impl From<&Cells> for RunParts {
    fn from(given: &Cells) -> Self {
        Self {
            engine: given.on.engine.clone(),
            hardware: given.on.hardware.clone(),
            model: given.model.clone(),
            scenario: given.scenario.clone(),
        }
    }
}

#[derive(Debug, Args)]
pub struct RecordArguments {
    /// Folder with the records to add, laid out like results/
    pub overlay: PathBuf,
    #[command(flatten)]
    pub place: Place,
    /// Message of the commit that adds the records
    #[arg(long, value_parser = message)]
    pub message: String,
    /// Print the commit and its paths as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SyncArguments {
    /// Name or address of the remote, as git knows it
    pub remote: String,
    /// Print what the synchronization did as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub renders: Renders,
}

#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    pub sources: Sources,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Print one line per run, instead of one per release and cell
    #[arg(long)]
    pub runs: bool,
    #[command(flatten)]
    pub cells: Cells,
    /// Only runs of this release, such as v0.9.2
    #[arg(long)]
    pub release: Option<String>,
    /// Only runs with this status: ok, partial, failed, skipped
    #[arg(long, value_parser = ["ok", "partial", "failed", "skipped"])]
    pub status: Option<String>,
    /// Only runs with this validity verdict: valid, degraded, invalid
    #[arg(long, value_parser = ["valid", "degraded", "invalid"])]
    pub validity: Option<String>,
}

#[derive(Debug, Args)]
pub struct BestArguments {
    /// Id of the model that the ranked engines serve
    pub model: String,
    /// Id of the hardware that the ranked engines ran on
    #[arg(long)]
    pub hardware: String,
    /// Only runs of this scenario, as ID or ID@REV
    #[arg(long)]
    pub scenario: Option<String>,
    /// Metric by which engines and releases are ranked
    #[arg(long, default_value = "output_tokens_per_s")]
    pub metric: String,
    /// Limit that the median of a metric over repeats must meet, as METRIC=VALUE in the metric's
    /// unit, such as tpot_us_p50=50000; may be given several times
    #[arg(long)]
    pub slo: Vec<String>,
    #[command(flatten)]
    pub place: Place,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Flags of `export` of which one says what is written.
const FORMS: [&str; 5] = ["csv", "parquet", "pytorch_hud", "inferencex", "bundle"];

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("form").required(true).args(FORMS)))]
pub struct ExportArguments {
    /// Write comma-separated values (RFC 4180); names of columns with a unit contain it
    #[arg(long)]
    pub csv: bool,
    /// Write Apache Parquet into this file; only if the program was built with `--features
    /// parquet`
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    /// Write the figures of measured runs in PyTorch's benchmark format, for the PyTorch HUD
    #[arg(long)]
    pub pytorch_hud: bool,
    /// Write measured runs on GPUs with a limit of their concurrency as results of InferenceX
    #[arg(long)]
    pub inferencex: bool,
    /// Write the selected measured runs with their campaign records into this file, as a signed
    /// bundle that `submit check` and `submit accept` read
    #[arg(long, value_name = "FILE", requires = "sign")]
    pub bundle: Option<PathBuf>,
    /// Sign the bundle with this ed25519 key of SSH: a private key, or the public key of one that
    /// an agent holds
    #[arg(long, value_name = "KEY", requires = "bundle")]
    pub sign: Option<PathBuf>,
    /// Name of the submitter, as the maintainer's list of allowed signers has it; default: git's
    /// `user.email`
    #[arg(long, value_name = "NAME", requires = "bundle")]
    pub submitter: Option<String>,
    #[command(flatten)]
    pub sources: Sources,
    #[command(flatten)]
    pub cells: Cells,
    /// Only runs of this release, such as v0.9.2
    #[arg(long)]
    pub release: Option<String>,
    /// Only runs of the campaign with this id
    #[arg(long)]
    pub campaign: Option<String>,
}

impl ExportArguments {
    /// Returns the filter that the flags select runs by.
    pub fn filter(&self) -> Filter {
        Filter {
            parts: (&self.cells).into(),
            release: self.release.clone(),
            campaign: self.campaign.clone(),
            ..Filter::default()
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum SubmitCommand {
    /// Check a bundle: form, hashes, signature, and all rules over its records. Exit code 3 means
    /// that only remarks were found, which the maintainer decides about
    Check(SubmitCheckArguments),
    /// Check a bundle, and commit its records together with the pages that show them
    Accept(SubmitAcceptArguments),
}

#[derive(Debug, Args)]
pub struct SubmitCheckArguments {
    /// Bundle to check
    pub bundle: PathBuf,
    /// List of allowed signers, in the form of `ssh-keygen -Y verify`; without it, the signature is
    /// verified and its key is not compared
    #[arg(long, value_name = "FILE")]
    pub signers: Option<PathBuf>,
    #[command(flatten)]
    pub place: Place,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct SubmitAcceptArguments {
    /// Bundle whose records to commit
    pub bundle: PathBuf,
    /// List of allowed signers, in the form of `ssh-keygen -Y verify`
    #[arg(long, value_name = "FILE")]
    pub signers: PathBuf,
    /// Reason to accept a bundle on which the check has remarks; it stands in the commit's message
    #[arg(long, value_name = "REASON", value_parser = message)]
    pub despite: Option<String>,
    #[command(flatten)]
    pub renders: Renders,
}

/// Flags of every command that writes an event.
#[derive(Debug, Args)]
pub struct EventArguments {
    /// Reason for the event as a sentence, shown wherever the event is shown
    #[arg(long, value_parser = message)]
    pub reason: String,
    /// Evidence for the reason, such as an address or a file; may be given several times
    #[arg(long)]
    pub evidence: Vec<String>,
    #[command(flatten)]
    pub renders: Renders,
}

#[derive(Debug, Args)]
pub struct TargetArguments {
    /// Records that the event is about: ids of runs, kernel records or events, or the beginnings of
    /// ids; or folders below results/, ending in `/`
    #[arg(required = true)]
    pub targets: Vec<String>,
    /// Id of the run that replaces the retracted one, or the beginning of the id
    #[arg(long)]
    pub replaced_by: Option<String>,
    #[command(flatten)]
    pub event: EventArguments,
}

#[derive(Debug, Args)]
pub struct WaiveArguments {
    /// Cells that the waiver applies to, as ENGINE/HARDWARE/MODEL/CONFIG/SCENARIO@REV, with `*` for
    /// any part
    pub cell: String,
    /// Metric whose regression is accepted, such as tpot_us_p50; `outputs` accepts changed outputs,
    /// with `*` as the scenario of the cell
    #[arg(long)]
    pub metric: String,
    /// Last day of the waiver, such as 2026-01-31, or the time at which it ends, in UTC
    #[arg(long)]
    pub until: String,
    /// Waive the regression only where this release is the candidate
    #[arg(long)]
    pub release: Option<String>,
    /// Person or group that accepts the regression; by default git's `user.name`
    #[arg(long, value_name = "NAME", value_parser = message)]
    pub accepted_by: Option<String>,
    #[command(flatten)]
    pub event: EventArguments,
}

#[derive(Debug, Args)]
pub struct EpochArguments {
    /// Cells whose series the epoch cuts, as ENGINE/HARDWARE/MODEL/CONFIG/SCENARIO@REV, with `*`
    /// for any part
    pub cell: String,
    /// First day of the epoch, such as 2026-01-31, or the time at which it begins, in UTC; default:
    /// now
    #[arg(long)]
    pub since: Option<String>,
    #[command(flatten)]
    pub event: EventArguments,
}

#[derive(Debug, Args)]
pub struct DiffArguments {
    /// Baseline: release to compare with, such as v0.9.1
    pub baseline: String,
    /// Candidate: release to judge, such as v0.9.2
    pub candidate: String,
    #[command(flatten)]
    pub sources: Sources,
    #[command(flatten)]
    pub on: On,
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub format: DiffFormat,
}

#[derive(Debug, Args)]
pub struct LabArguments {
    /// File of the lab, such as suite/labs/cpu-smollm2.toml
    pub file: PathBuf,
    /// Id of the campaign that contains the lab's runs
    #[arg(long, required_unless_present = "outline")]
    pub campaign: Option<String>,
    /// Print how many runs and rounds the lab may take, without regard to records
    #[arg(long, conflicts_with = "campaign")]
    pub outline: bool,
    /// Number of runs that the lab may make; default: the limit in the record of its campaign, else
    /// the budget in its file, or no limit where that names only hours
    #[arg(long)]
    pub runs_max: Option<u32>,
    #[command(flatten)]
    pub sources: Sources,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct ImportArguments {
    /// Pages, logs or result files to read
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Id of the hardware that the results were measured on, such as a100-80g, which most pages do not
    /// state; `unknown` where nobody knows it
    #[arg(long)]
    pub hardware: Option<String>,
    /// Evidence that the results were measured on the hardware, as a sentence
    #[arg(long, requires = "hardware")]
    pub hardware_evidence: Option<String>,
    /// Engine of all results, such as vllm, where a file does not state it
    #[arg(long)]
    pub engine: Option<String>,
    /// Release of the engine, such as v0.10.1, where a file does not state it
    #[arg(long)]
    pub release: Option<String>,
    /// Model of all results, such as Qwen/Qwen3-8B, where a file does not state it
    #[arg(long)]
    pub model: Option<String>,
    /// Scenario of all results, such as sharegpt, where a file does not state it
    #[arg(long)]
    pub scenario: Option<String>,
    /// Folder below results/imports/ for the records; default: derived from the file's name
    #[arg(long)]
    pub source: Option<String>,
    /// Print what would be recorded and its findings, and record nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub renders: Renders,
}

#[derive(Debug, Args)]
pub struct TrendArguments {
    #[command(flatten)]
    pub place: Place,
    #[command(flatten)]
    pub cells: Cells,
    /// Only this metric, such as output_tokens_per_s; default: all release-blocking metrics
    #[arg(long)]
    pub metric: Option<String>,
    #[arg(long, value_enum, default_value_t = TrendFormat::Text)]
    pub format: TrendFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TrendFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DiffFormat {
    Text,
    Md,
    Json,
    Junit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Md,
    Json,
}

fn message(text: &str) -> Result<String, String> {
    if text.trim().is_empty() || text.contains('\0') {
        return Err("a commit needs a message".to_owned());
    }
    Ok(text.to_owned())
}
