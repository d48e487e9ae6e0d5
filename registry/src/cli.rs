//! The flags of `redline-results`.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use registry::repository::RESULTS;
use store::layout::RunParts;

/// Adds records to a registry, checks it, compares releases.
///
/// Exit codes: 0 well, 1 a regression or a new failure, 2 wrong use or unsound data, 3 inconclusive only, 4 the
/// environment, 101 a bug.
#[derive(Debug, Parser)]
#[command(name = "redline-results", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say whether a commit could be made now, before anything is measured
    Preflight {
        #[command(flatten)]
        place: Place,
    },
    /// Check the records of a folder laid out like results/ and commit them all, or none
    Record(RecordArguments),
    /// Check paths, hashes, history and stored findings of the whole registry
    Check {
        #[command(flatten)]
        place: Place,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Bring this clone and a remote together: one line of records, and the pages of both
    Sync(SyncArguments),
    /// Say that records were wrong: they stay, and are shown as retracted and never compared
    Retract(TargetArguments),
    /// Remark on records
    Annotate(TargetArguments),
    /// Accept a regression of a metric until a day
    Waive(WaiveArguments),
    /// Say that machine or data changed: series break there
    Epoch(EpochArguments),
    /// Compare two releases, cell by cell
    Diff(DiffArguments),
    /// Record published results of others: console blocks in pages and logs, and result files of
    /// the tools that `redline-bench audit` reads
    Import(ImportArguments),
    /// Show how figures went over releases and days, and where they changed
    Trend(TrendArguments),
    /// Say what a lab has found, or what it launches next
    Lab(LabArguments),
    /// List the runs, those that were retracted as well
    List(ListArguments),
    /// Rank what serves a model on a hardware, by a metric and within limits
    Best(BestArguments),
    /// Print every run as one flat table
    Export(ExportArguments),
    /// List the rules by which records are checked
    Rules {
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Print the record of a run
    Show {
        /// Id of the run, or the beginning of it
        run: String,
        #[command(flatten)]
        sources: Sources,
    },
}

/// The registry that is meant.
#[derive(Debug, Args)]
pub struct Place {
    /// Root of the repository that holds results/
    #[arg(long, default_value = ".")]
    pub registry: PathBuf,
}

/// The registry, and records that are not in it yet.
#[derive(Debug, Args)]
pub struct Sources {
    #[command(flatten)]
    pub place: Place,
    /// Folder laid out like results/ that is read as well
    #[arg(long)]
    pub overlay: Option<PathBuf>,
}

impl Sources {
    /// The folders that are read, the registry's first.
    pub fn roots(&self) -> Vec<PathBuf> {
        let results = self.place.registry.join(RESULTS);
        std::iter::once(results).chain(self.overlay.clone()).collect()
    }
}

/// The registry that is changed, and what renders its pages.
#[derive(Debug, Args)]
pub struct Renders {
    #[command(flatten)]
    pub place: Place,
    /// Folder with the program that renders pages; that of this one
    #[arg(long, hide = true)]
    pub tools_dir: Option<PathBuf>,
}

/// Whose runs are meant, and on what.
#[derive(Debug, Args)]
pub struct On {
    /// Only this engine
    #[arg(long)]
    pub engine: Option<String>,
    /// Only this hardware
    #[arg(long)]
    pub hardware: Option<String>,
}

/// The cells that are meant.
#[derive(Debug, Args)]
pub struct Cells {
    #[command(flatten)]
    pub on: On,
    /// Only this model
    #[arg(long)]
    pub model: Option<String>,
    /// Only this scenario, as ID or ID@REV
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
    /// Folder laid out like results/
    pub overlay: PathBuf,
    #[command(flatten)]
    pub place: Place,
    /// Message of the commit
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
    /// Print what was done as JSON
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
    /// One line for each run, not for each release and cell
    #[arg(long)]
    pub runs: bool,
    #[command(flatten)]
    pub cells: Cells,
    /// Only this release, such as v0.9.2
    #[arg(long)]
    pub release: Option<String>,
    /// Only runs that ended so: ok, partial, failed, skipped
    #[arg(long, value_parser = ["ok", "partial", "failed", "skipped"])]
    pub status: Option<String>,
    /// Only runs with this verdict on the client: valid, degraded, invalid
    #[arg(long, value_parser = ["valid", "degraded", "invalid"])]
    pub validity: Option<String>,
}

#[derive(Debug, Args)]
pub struct BestArguments {
    /// Model that is to be served
    pub model: String,
    /// Hardware that it is served on
    #[arg(long)]
    pub hardware: String,
    /// Only this scenario, as ID or ID@REV
    #[arg(long)]
    pub scenario: Option<String>,
    /// Metric to rank by
    #[arg(long, default_value = "output_tokens_per_s")]
    pub metric: String,
    /// A limit that the median has to keep, as METRIC=VALUE in the metric's unit, such as
    /// tpot_us_p50=50000; may be given again
    #[arg(long)]
    pub slo: Vec<String>,
    #[command(flatten)]
    pub place: Place,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("form").required(true).args(["csv", "parquet"])))]
pub struct ExportArguments {
    /// Comma-separated values (RFC 4180); units are the last part of a column's name
    #[arg(long)]
    pub csv: bool,
    /// Apache Parquet, into this file; only where the program was built with `--features parquet`
    #[arg(long, value_name = "FILE")]
    pub parquet: Option<PathBuf>,
    #[command(flatten)]
    pub sources: Sources,
}

/// What every event takes.
#[derive(Debug, Args)]
pub struct EventArguments {
    /// A sentence, shown wherever the event shows
    #[arg(long, value_parser = message)]
    pub reason: String,
    /// Where it can be seen, such as an address or a file; may be given again
    #[arg(long)]
    pub evidence: Vec<String>,
    #[command(flatten)]
    pub renders: Renders,
}

#[derive(Debug, Args)]
pub struct TargetArguments {
    /// Ids of runs, kernels records or events, or the beginnings of such; or folders below
    /// results/, ending in `/`
    #[arg(required = true)]
    pub targets: Vec<String>,
    /// Run that takes the place of the retracted one
    #[arg(long)]
    pub replaced_by: Option<String>,
    #[command(flatten)]
    pub event: EventArguments,
}

#[derive(Debug, Args)]
pub struct WaiveArguments {
    /// ENGINE/HARDWARE/MODEL/CONFIG/SCENARIO@REV, with `*` for any part
    pub cell: String,
    /// Metric whose regression is accepted, such as tpot_us_p50
    #[arg(long)]
    pub metric: String,
    /// Last day, such as 2026-01-31, or a time in UTC
    #[arg(long)]
    pub until: String,
    /// Only where this release is the candidate
    #[arg(long)]
    pub release: Option<String>,
    #[command(flatten)]
    pub event: EventArguments,
}

#[derive(Debug, Args)]
pub struct EpochArguments {
    /// ENGINE/HARDWARE/MODEL/CONFIG/SCENARIO@REV, with `*` for any part
    pub cell: String,
    /// First day, such as 2026-01-31, or a time in UTC; now, where it is not given
    #[arg(long)]
    pub since: Option<String>,
    #[command(flatten)]
    pub event: EventArguments,
}

#[derive(Debug, Args)]
pub struct DiffArguments {
    /// Release that is compared against, such as v0.9.1
    pub baseline: String,
    /// Release that is judged, such as v0.9.2
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
    /// A lab, such as suite/labs/cpu-smollm2.toml
    pub file: PathBuf,
    /// Id of the campaign that launched it
    #[arg(long, required_unless_present = "outline")]
    pub campaign: Option<String>,
    /// Say what it may come to, of launches and rounds, and nothing of what was launched
    #[arg(long, conflicts_with = "campaign")]
    pub outline: bool,
    /// Launches that the lab may make; else as its file says
    #[arg(long)]
    pub runs_max: Option<u32>,
    #[command(flatten)]
    pub sources: Sources,
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

#[derive(Debug, Args)]
pub struct ImportArguments {
    /// Pages, logs or result files
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// What the results were measured on, such as a100-80g; pages do not show it
    #[arg(long, requires = "hardware_evidence")]
    pub hardware: Option<String>,
    /// A sentence: what the claim of the hardware rests on
    #[arg(long, requires = "hardware")]
    pub hardware_evidence: Option<String>,
    /// Folder below results/imports/; else after the file's name
    #[arg(long)]
    pub source: Option<String>,
    /// Say what would be recorded, and record nothing
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
    /// Only this metric, such as output_tokens_per_s; else all that gate
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
