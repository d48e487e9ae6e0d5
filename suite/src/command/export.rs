//! `redline-bench export`: a saved measurement in the format of another tool.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use schema::exit::Exit;
use schema::measurement::Measurement;
use schema::samples::{Line, Sample};

use super::inputs::ScenarioFile;
use super::write;
use crate::export::{Asked, ExportError, Format, Report, export};

/// Write a saved measurement as another tool of the field writes its results.
///
/// Keys, order, units and definitions are those of the tool: what each credits as output tokens,
/// and how it takes percentiles. What is not known is null or left out. Formats with figures of
/// single requests are made from the samples beside the measurement.
///
/// Exit codes: 0 written; 2 the measurement cannot be read or has no figures; 4 a file cannot be
/// read or written.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct ExportFlags {
    /// What `redline-bench run --out` wrote, or the samples beside it.
    #[arg(value_name = "MEASUREMENT")]
    measurement: PathBuf,
    #[arg(long, value_enum)]
    format: Format,
    /// Where it goes; standard output by default.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The server's kind, which a measurement does not say.
    #[arg(long, value_name = "NAME")]
    backend: Option<String>,
    /// The model, which a measurement does not say.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The scenario file that was run, for the name of the data set and the lengths asked for.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
}

const EXAMPLE: &str = "\
Example:

  redline-bench export m.json --format vllm-json --backend vllm --model Qwen/Qwen3-8B --out v.json
  redline-bench export m.json --format lmdeploy        the console block of published pages";

/// One `FORMAT=FILE` of `--export`.
#[derive(Clone, Debug)]
pub struct ExportTo {
    format: Format,
    file: PathBuf,
}

impl FromStr for ExportTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = text.split_once('=').ok_or("give it as `FORMAT=FILE`")?;
        let format = Format::from_str(format, false).map_err(|_| {
            let names: Vec<String> =
                Format::value_variants().iter().map(|format| format.name()).collect();
            format!("`{format}` is no format: there are {}", names.join(", "))
        })?;
        Ok(Self { format, file: file.into() })
    }
}

/// A measurement as it lies on disk, and its samples.
#[derive(Debug)]
pub struct Saved {
    /// Engine whose kernels were measured.
    pub measurement: Measurement,
    samples: Vec<Sample>,
}

impl Saved {
    /// Opens the measurement at `path`, or the one whose samples lie there.
    ///
    /// # Errors
    /// It cannot be read, or it is no measurement. Without samples it is whole all the same.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let shown = path.display().to_string();
        let path = match shown.strip_suffix(".samples.jsonl") {
            Some(stem) => PathBuf::from(format!("{stem}.json")),
            None => path.to_owned(),
        };
        let shown = path.display();
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read measurement `{shown}`"))?;
        let measurement: Measurement = serde_json::from_str(&text)
            .with_context(|| format!("`{shown}` is not what `redline-bench run` wrote"))?;
        ensure!(
            measurement.schema == schema::measurement::SCHEMA,
            "`{shown}` is a `{}`, not a `{}`",
            measurement.schema,
            schema::measurement::SCHEMA
        );
        let samples = samples(&path.with_extension("samples.jsonl"))?;
        Ok(Self { measurement, samples })
    }

    /// The text of it in `format`.
    ///
    /// # Errors
    /// The format cannot hold it.
    pub fn export(&self, format: Format, asked: &Asked) -> Result<String, ExportError> {
        let report = Report { measurement: &self.measurement, samples: &self.samples, asked };
        export(format, &report)
    }
}

/// The samples in the order of the plan; none where there is no such file.
fn samples(path: &Path) -> anyhow::Result<Vec<Sample>> {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.with_context(|| format!("cannot read samples `{shown}`"))?,
    };
    let mut samples = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line: Line = serde_json::from_str(line)
            .with_context(|| format!("line {number} of `{shown}` is no sample"))?;
        if let Line::Sample(sample) = line {
            samples.push(*sample);
        }
    }
    samples.sort_by_key(|sample| sample.request);
    Ok(samples)
}

/// Writes the measurement at `saved` in all of `wanted`. One that a format cannot hold is said and
/// passed over: what was measured is on disk.
///
/// # Errors
/// A file cannot be read or written.
pub fn export_all(wanted: &[ExportTo], saved: &Path, asked: &Asked) -> anyhow::Result<()> {
    if wanted.is_empty() {
        return Ok(());
    }
    let saved = Saved::open(saved)?;
    for ExportTo { format, file } in wanted {
        match saved.export(*format, asked) {
            Ok(text) => write::text(file, &text)?,
            Err(error) => eprintln!("not exported to `{}`: {error}", file.display()),
        }
    }
    Ok(())
}

/// Runs the command.
///
/// # Errors
/// The measurement cannot be read or has no figures, or the result cannot be written.
pub fn execute(flags: &ExportFlags) -> anyhow::Result<Exit> {
    let saved = Saved::open(&flags.measurement)?;
    let scenario = flags.scenario.as_deref().map(ScenarioFile::open).transpose()?;
    if let Some(file) = &scenario {
        ensure!(
            saved.measurement.scenario.file_sha256.as_ref() == Some(&file.sha256),
            "`{}` is not the scenario that was run: its file has another hash",
            file.id
        );
    }
    let asked = Asked {
        backend: flags.backend.clone(),
        model: flags.model.clone(),
        workload: scenario.map(|file| file.scenario.workload),
        ..Asked::default()
    };
    let text = saved.export(flags.format, &asked)?;
    match &flags.out {
        Some(out) => write::text(out, &text)?,
        None => std::io::stdout()
            .write_all(text.as_bytes())
            .context("cannot write to standard output")?,
    }
    Ok(Exit::Well)
}
