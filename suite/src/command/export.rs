//! `redline-bench export`: writes a saved measurement in the format of another benchmark tool.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::samples::{Line, Sample};
use schema::untrusted;
use whole_file::DATA_MAX;

use super::files;
use super::files::ScenarioFile;
use crate::export::{Format, ReportFacts, export, name_of};

/// Write a saved measurement in the format of another benchmark tool.
///
/// Keys, order, units and definitions are those of the tool, including which output tokens it
/// counts and how it computes percentiles. Unknown values are null or left out. Formats with
/// figures of single requests need the samples file beside the measurement.
///
/// Exit codes: 0 written; 2 wrong use, or the measurement cannot be parsed or has no figures; 4 a
/// file cannot be read or written.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct ExportFlags {
    /// Measurement written by `redline-bench run --out`, or the samples file beside it.
    #[arg(value_name = "MEASUREMENT")]
    measurement: PathBuf,
    /// Format of the tool in which the measurement is written.
    #[arg(long, value_enum)]
    format: Format,
    /// File to write the exported measurement to; standard output by default.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Kind of server to state in the export, since a measurement does not contain it.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// Model name to state in the export, since a measurement does not contain it.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Scenario file that was run, for the name of the dataset and the requested lengths.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

const EXAMPLE: &str = "\
Example:

  redline-bench export m.json --format vllm-json --backend vllm --model Qwen/Qwen3-8B --out v.json
  redline-bench export m.json --format lmdeploy        the console block of published pages";

/// Value of one `--export FORMAT=FILE` flag: the format in which to write a measurement, and the
/// file.
#[derive(Clone, Debug)]
pub struct ExportTo {
    format: Format,
    file: PathBuf,
}

impl ExportTo {
    /// True when the format has the texts of the answers.
    pub fn has_texts(&self) -> bool {
        self.format.has_texts()
    }
}

impl FromStr for ExportTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = text.split_once('=').ok_or("give it as `FORMAT=FILE`")?;
        let format = Format::from_str(format, false).map_err(|_| {
            let names: Vec<String> =
                Format::value_variants().iter().copied().map(name_of).collect();
            format!("`{format}` is not a format; the formats are {}", names.join(", "))
        })?;
        Ok(Self { format, file: file.into() })
    }
}

/// Measurement read back from disk, with its samples if their file exists.
#[derive(Debug)]
pub struct Saved {
    /// Measurement as read from its file: status, metrics, verdict and facts.
    pub measurement: Measurement,
    samples: Vec<Sample>,
}

impl Saved {
    /// Reads the measurement at `path`, or the one beside `path` if that is a samples file, and the
    /// measurement's samples.
    ///
    /// # Errors
    /// A file cannot be read, or is no measurement or samples file. A missing samples file is no
    /// error.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        // Either file of the pair may be given on the command line.
        let path = match shown.strip_suffix(".samples.jsonl") {
            Some(stem) => PathBuf::from(format!("{stem}.json")),
            None => path.to_owned(),
        };
        let shown = path.display();
        let text = whole_file::read_text(&path, "measurement", DATA_MAX)?;
        let measurement: Measurement = serde_json::from_str(&text)
            .with_context(|| format!("`{shown}` is not a measurement by `redline-bench run`"))?;
        files::check_schema(&path, &measurement.schema, schema::measurement::SCHEMA)?;
        let samples = samples(&path.with_extension("samples.jsonl"))?;
        Ok(Self { measurement, samples })
    }

    /// Returns the measurement as text in the tool format `format`.
    ///
    /// # Errors
    /// The measurement lacks metrics, counts or times, as when no request was answered, or the
    /// format needs samples and there are none.
    pub fn export(&self, format: Format, asked: &ReportFacts) -> anyhow::Result<String> {
        export(format, &self.measurement, &self.samples, asked)
    }
}

/// Reads the samples file at `path` and returns its samples in the order of the plan; returns none
/// if the file does not exist.
fn samples(path: &Path) -> anyhow::Result<Vec<Sample>> {
    let shown = path.display();
    let text = match whole_file::read_text(path, "samples", DATA_MAX) {
        Err(error) if error.system() == Some(ErrorKind::NotFound) => return Ok(Vec::new()),
        read => read?,
    };
    let mut samples = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line: Line = serde_json::from_str(line)
            .with_context(|| format!("line {number} of `{shown}` is not a sample"))?;
        if let Line::Sample(sample) = line {
            samples.push(*sample);
        }
    }
    // The file lists samples in the order in which the requests ended.
    samples.sort_by_key(|sample| sample.request);
    Ok(samples)
}

/// Writes the `measurement` that was written to `out` in all `wanted` formats to their files. A
/// format that cannot represent it is reported and skipped: the measurement itself is already
/// written. A device or pipe keeps no samples.
///
/// # Errors
/// The measurement or its samples file cannot be read or has another format, or a report cannot be
/// written.
pub fn export_all(
    wanted: &[ExportTo],
    (out, measurement): (&Path, &Measurement),
    asked: &ReportFacts,
) -> anyhow::Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let saved = match whole_file::is_stream(out)? {
        true => Saved { measurement: measurement.clone(), samples: Vec::new() },
        false => Saved::open(out)?,
    };
    for ExportTo { format, file } in wanted {
        match saved.export(*format, asked) {
            Ok(text) => files::text(file, &text)?,
            Err(error) => {
                let (file, error) = (untrusted::path(file), untrusted::report(&*error));
                eprintln!("not exported to `{file}`: {error}");
            }
        }
    }
    Ok(())
}

/// Runs `redline-bench export` and returns its exit code.
///
/// # Errors
/// The measurement, its samples or the scenario cannot be read, the scenario is not the one that
/// was run, the report cannot be made (no request was answered, or samples are missing), or it
/// cannot be written.
pub fn execute(flags: &ExportFlags) -> anyhow::Result<Exit> {
    let saved = Saved::open(&flags.measurement)?;
    let scenario = flags.scenario.as_deref().map(ScenarioFile::open).transpose()?;
    if let Some(file) = &scenario {
        ensure!(
            // Otherwise the report would state the dataset and the lengths of another scenario.
            saved.measurement.scenario.file_sha256.as_ref() == Some(&file.sha256),
            "`{}` is not the scenario that was run: its file has another hash",
            file.id
        );
    }
    let asked = ReportFacts {
        backend: flags.backend.clone(),
        model: flags.model.clone(),
        workload: scenario.map(|file| file.scenario.workload),
        ..ReportFacts::default()
    };
    let text = saved.export(flags.format, &asked)?;
    match &flags.out {
        Some(out) => files::text(out, &text)?,
        None => whole_file::print(&text)?,
    }
    Ok(Exit::Well)
}
