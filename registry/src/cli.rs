//! The flags of `redline-results`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

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
        /// Root of the repository that holds results/
        #[arg(long, default_value = ".")]
        registry: PathBuf,
    },
    /// Check the records of a folder laid out like results/ and commit them all, or none
    Record(RecordArguments),
    /// Check paths, hashes, history and stored findings of the whole registry
    Check {
        /// Root of the repository that holds results/
        #[arg(long, default_value = ".")]
        registry: PathBuf,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
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
    /// Show how figures went over releases and days, and where they changed
    Trend(TrendArguments),
    /// List the runs
    List {
        /// Root of the repository that holds results/
        #[arg(long, default_value = ".")]
        registry: PathBuf,
        /// Folder laid out like results/ that is read as well
        #[arg(long)]
        overlay: Option<PathBuf>,
        #[arg(long, value_enum, default_value_t = Format::Text)]
        format: Format,
    },
    /// Print the record of a run
    Show {
        /// Id of the run, or the beginning of it
        run: String,
        /// Root of the repository that holds results/
        #[arg(long, default_value = ".")]
        registry: PathBuf,
        /// Folder laid out like results/ that is read as well
        #[arg(long)]
        overlay: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub struct RecordArguments {
    /// Folder laid out like results/
    pub overlay: PathBuf,
    /// Root of the repository that holds results/
    #[arg(long, default_value = ".")]
    pub registry: PathBuf,
    /// Message of the commit
    #[arg(long, value_parser = message)]
    pub message: String,
    /// Print the commit and its paths as JSON
    #[arg(long)]
    pub json: bool,
}

/// What every event takes.
#[derive(Debug, Args)]
pub struct EventArguments {
    /// Root of the repository that holds results/
    #[arg(long, default_value = ".")]
    pub registry: PathBuf,
    /// A sentence, shown wherever the event shows
    #[arg(long, value_parser = message)]
    pub reason: String,
    /// Where it can be seen, such as an address or a file; may be given again
    #[arg(long)]
    pub evidence: Vec<String>,
    /// Folder with the program that renders pages; that of this one
    #[arg(long, hide = true)]
    pub tools_dir: Option<PathBuf>,
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
    /// Root of the repository that holds results/
    #[arg(long, default_value = ".")]
    pub registry: PathBuf,
    /// Folder laid out like results/ that is read as well
    #[arg(long)]
    pub overlay: Option<PathBuf>,
    /// Only this engine
    #[arg(long)]
    pub engine: Option<String>,
    /// Only this hardware
    #[arg(long)]
    pub hardware: Option<String>,
    #[arg(long, value_enum, default_value_t = DiffFormat::Text)]
    pub format: DiffFormat,
}

#[derive(Debug, Args)]
pub struct TrendArguments {
    /// Root of the repository that holds results/
    #[arg(long, default_value = ".")]
    pub registry: PathBuf,
    /// Only this engine
    #[arg(long)]
    pub engine: Option<String>,
    /// Only this hardware
    #[arg(long)]
    pub hardware: Option<String>,
    /// Only this model
    #[arg(long)]
    pub model: Option<String>,
    /// Only this scenario, such as balanced-lite
    #[arg(long)]
    pub scenario: Option<String>,
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
