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
