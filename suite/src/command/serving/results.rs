//! Files of `redline-bench serving`. It writes the tool's console block to standard output, the tool's
//! result file, and Redline's own measurement.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use schema::scenario::Arrival;
use schema::untrusted;
use whole_file::DATA_MAX;

use super::super::export::Saved;
use super::super::files;
use super::flags::{ResultFlags, Tool};
use super::scenario::Wanted;
use crate::export::{Format, ReportFacts, compact_date, name_of, python_float};
use crate::workload::arrival::{ramp_up_strategy, requested_rate};

/// Paths and formats of the files in which one run of `redline-bench serving` leaves its results.
#[derive(Debug, PartialEq, Eq)]
pub struct Places {
    /// Path of the file for Redline's own measurement.
    pub own: PathBuf,
    /// Flags that define the workload, printed before the console block as scripts of published
    /// pages do.
    echo: String,
    /// Path of the tool's result file, `None` if none is written.
    result: Option<PathBuf>,
    format: Format,
    block: Format,
    appends: bool,
}

impl Places {
    /// Returns the paths of a run's results, from the flags or else by the tool's naming rules.
    /// `now` is the start time as RFC 3339, `model` the model name in reports.
    pub fn of(flags: &ResultFlags, wanted: &Wanted, model: &str, now: &str) -> Self {
        let habits = wanted.tool.habits();
        let asked = flags.save_result || flags.append_result || habits.always_appends;
        let folder = flags.result_dir.clone().unwrap_or_default();
        let name = || match &flags.result_filename {
            Some(name) => name.clone(),
            None => file_name(flags.label.as_deref(), wanted, model, now),
        };
        let own = format!("redline-{}-{}.json", name_of(wanted.backend), compact_date(now));
        // Redline's own file is put beside the result file, wherever a flag puts that.
        let beside = flags.output_file.as_deref().and_then(Path::parent).unwrap_or(&folder);
        Self {
            echo: echo(wanted),
            own: flags.out.clone().unwrap_or_else(|| beside.join(own)),
            result: flags.output_file.clone().or_else(|| asked.then(|| folder.join(name()))),
            format: if flags.save_detailed { habits.detailed } else { habits.result },
            block: habits.block,
            appends: flags.append_result || habits.always_appends,
        }
    }

    /// Creates the folders for the results before anything is sent.
    ///
    /// # Errors
    /// A folder cannot be created, or the measurement would go to a device or pipe.
    pub fn prepare(&self) -> anyhow::Result<()> {
        let own = self.own.display();
        let is_stream =
            whole_file::is_stream(&self.own).with_context(|| format!("cannot write `{own}`"))?;
        ensure!(
            !is_stream,
            "`{own}` keeps no measurement, and the tool's report is made from it and its samples\n\
             hint: give `--out` a file"
        );
        let folders = [Some(&self.own), self.result.as_ref()].into_iter().flatten();
        folders.filter_map(|file| file.parent()).try_for_each(files::make_folder)
    }

    /// Prints the tool's console block and writes the tool's result file. If they cannot be made,
    /// as when no request was answered, it only prints why there is no report.
    ///
    /// # Errors
    /// The run's measurement or samples, or the result file that is appended to, cannot be read, or
    /// the result file cannot be written.
    pub fn report(&self, asked: &ReportFacts) -> anyhow::Result<()> {
        let saved = Saved::open(&self.own)?;
        // Both texts are made before one is written, so that an error leaves no half of a report.
        let made = saved.export(self.block, asked).and_then(|block| {
            let result = self.result.as_ref().map(|_| saved.export(self.format, asked));
            Ok((block, result.transpose()?))
        });
        let (block, result) = match made {
            Ok(made) => made,
            Err(error) => {
                eprintln!("no report: {}", untrusted::report(&*error));
                return Ok(());
            }
        };
        // The server's name of the model is part of the block.
        whole_file::print(&format!("{}\n{}", self.echo, untrusted::lines(&block)))?;
        if let (Some(path), Some(text)) = (&self.result, result) {
            if self.appends {
                self.append(path, &text)?
            } else {
                files::text(path, &text)?
            }
            whole_file::print(&format!("result         {}\n", untrusted::path(path)))?;
        }
        Ok(())
    }

    /// Appends the result `text` to the tool's result file at `path`. The header line of a CSV is
    /// written only once.
    fn append(&self, path: &Path, text: &str) -> anyhow::Result<()> {
        let before = match whole_file::read_text(path, "result file", DATA_MAX) {
            Err(error) if error.system() == Some(ErrorKind::NotFound) => String::new(),
            read => read?,
        };
        let headless = text.split_once('\n').filter(|_| self.format == Format::LmdeployCsv);
        let rows = headless.filter(|_| !before.is_empty()).map_or(text, |(_, rows)| rows);
        let gap = if before.is_empty() || before.ends_with('\n') { "" } else { "\n" };
        files::text(path, &format!("{before}{gap}{rows}"))
    }
}

/// Formats the workload flags of the run as one line, by which `redline-bench audit` and readers
/// recognize it.
fn echo(wanted: &Wanted) -> String {
    let workload = &wanted.scenario.workload;
    let (backend, dataset) = (name_of(wanted.backend), name_of(wanted.dataset));
    let mut echo = format!(
        "--backend {backend} --dataset-name {dataset} --num-prompts {} --seed {}",
        workload.requests, workload.seed
    );
    let lengths = workload.input_tokens.zip(workload.output_tokens);
    if let Some((input, output)) = lengths.filter(|_| wanted.dataset.is_random()) {
        let ratio = python_float(workload.range_ratio.unwrap_or(0.0));
        echo += &format!(" --random-input-len {input}");
        if !wanted.backend.embeds() {
            echo += &format!(" --random-output-len {output}");
        }
        echo += &format!(" --random-range-ratio {ratio}");
    }
    echo
}

/// Returns the file name that the tool gives its result file by default.
fn file_name(label: Option<&str>, wanted: &Wanted, model: &str, now: &str) -> String {
    let (workload, arrival) = (&wanted.scenario.workload, &wanted.scenario.arrival);
    let backend = name_of(wanted.backend);
    // Digits 5 to 8 of the date, month and day of `2026-01-02T...`.
    let day: String = now.chars().filter(char::is_ascii_digit).skip(4).take(4).collect();
    let lengths = workload.input_tokens.zip(workload.output_tokens);
    let random = lengths.filter(|_| wanted.dataset.is_random());
    let stem = format!("{backend}_{day}_{}", workload.requests);
    match (wanted.tool, random) {
        (Tool::Vllm, _) => {
            let cap = arrival.concurrency_max();
            let cap = cap.map(|cap| format!("-concurrency{cap}")).unwrap_or_default();
            let model = model.rsplit('/').next().unwrap_or_default();
            let label = label.unwrap_or(&backend);
            format!("{label}-{}qps{cap}-{model}-{}.json", rate_name(arrival), compact_date(now))
        }
        (_, Some((input, output))) => format!("{stem}_{input}_{output}.jsonl"),
        (Tool::Lmdeploy, None) => format!("{stem}_sharegpt.csv"),
        (Tool::Sglang | Tool::SglangOld, None) => {
            format!("{stem}_{}.jsonl", name_of(wanted.dataset))
        }
    }
}

/// Returns the request rate as the file name of vLLM's tool has it.
fn rate_name(arrival: &Arrival) -> String {
    if let Arrival::Ramp { from_requests_per_s: from, to_requests_per_s: to, growth, .. } = arrival
        && let Some(strategy) = ramp_up_strategy(*growth)
    {
        return format!("ramp-up-{strategy}-{from}qps-{to}");
    }
    requested_rate(arrival).map_or_else(|| "inf".to_owned(), python_float)
}
