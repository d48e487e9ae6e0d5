//! `redline-bench audit`: checks published results of other tools for contradictions between their
//! figures.

use std::path::{Path, PathBuf};

use clap::Args;
use reports::{Reading, Unread};
use schema::exit::Exit;
use schema::run::{Check, Level, RunRecord};
use schema::untrusted;
use serde::Serialize;
use whole_file::DATA_MAX;

/// Check published results of other tools for contradictions.
///
/// Reads console blocks (`Serving Benchmark Result`) in logs and pages, the tables that guidellm and
/// AIPerf print, LMDeploy's CSV, and the JSON of vLLM (also in PyTorch's benchmark format), SGLang,
/// guidellm, AIPerf, llm-d, inference-perf, inference-benchmarker, trtllm-bench, MLCommons'
/// endpoints, `evalscope perf` and InferenceX. Each result is checked against what its own figures imply. An error means that a
/// figure cannot be what its name says; a warning means something to know before comparing it.
///
/// Exit codes: 0 no result has an error; 1 a result has one; 2 wrong use, or a part of a file could
/// not be parsed; 4 a file cannot be read.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLE)]
pub struct AuditFlags {
    /// Pages, logs or result files to check.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print the checked results and their findings as JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLE: &str = "\
Example:

  redline-bench audit page.md result.json --json

Each finding names its rule and the figures that contradict each other, such as a mean TPOT that
differs from the one implied by E2E and TTFT. `holds` lists the rules that the result passes.";

/// File checked by `redline-bench audit`: the results found in it, and the places that could not be
/// read.
#[derive(Serialize)]
struct Audited {
    file: String,
    results: Vec<Judged>,
    unread: Vec<Unread>,
}

/// Benchmark result found in a checked file, with the numbers of its first and last line in the
/// file and the outcome of every rule that applies.
#[derive(Serialize)]
struct Judged {
    line_first: u64,
    line_last: u64,
    tool: String,
    engine: String,
    model: String,
    scenario: String,
    requests_ok: Option<u64>,
    checks: Vec<Check>,
}

/// Runs `redline-bench audit` and returns its exit code.
///
/// # Errors
/// A file cannot be read, or standard output cannot be written. A result that cannot be read from a
/// file is reported in the output, and is no error.
pub fn execute(flags: &AuditFlags) -> anyhow::Result<Exit> {
    let audited = flags.files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let text = if flags.json {
        untrusted::json(&serde_json::to_string_pretty(&audited)?) + "\n"
    } else {
        let text: String = audited.iter().flat_map(lines).chain([summary(&audited)]).collect();
        untrusted::lines(&text)
    };
    whole_file::print(&text)?;
    Ok(exit(&audited))
}

fn read(file: &Path) -> anyhow::Result<Audited> {
    let shown = file.display().to_string();
    let bytes = whole_file::read(file, "file", DATA_MAX)?;
    // Logs hold progress bars in any encoding, but all figures are ASCII.
    let text = String::from_utf8_lossy(&bytes);
    let Reading { records, unread } = reports::read(&shown, &text);
    Ok(Audited { file: shown, results: records.into_iter().map(Judged::from).collect(), unread })
}

impl From<RunRecord> for Judged {
    fn from(record: RunRecord) -> Self {
        let checks = judge::findings(&record);
        let source = record.source.unwrap_or_default();
        Self {
            line_first: source.line_first,
            line_last: source.line_last,
            tool: source.tool,
            engine: record.engine.name,
            model: record.model.id,
            scenario: record.scenario.id,
            requests_ok: record.counts.and_then(|counts| counts.requests_ok),
            checks,
        }
    }
}

impl Judged {
    /// Returns the rules of severity `level` that the result fails.
    fn broken(&self, level: Level) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| !check.ok && check.level == level)
    }
}

/// Formats the report on one checked file, as lines that each end in a newline.
fn lines(audited: &Audited) -> Vec<String> {
    let file = &audited.file;
    let mut lines = Vec::new();
    for (number, result) in (1..).zip(&audited.results) {
        let Judged { line_first, tool, engine, model, scenario, .. } = result;
        // guidellm's tables do not print how many requests there were.
        let requests = result.requests_ok.map(|requests| format!(", {requests} requests"));
        lines.push(format!(
            "{file}:{line_first}: result {number}, {scenario}{}; tool {tool}, server {engine}, \
             model {model}\n",
            requests.unwrap_or_default()
        ));
        for (level, shown) in [(Level::Error, "error"), (Level::Warning, "warning")] {
            lines.extend(result.broken(level).map(|check| {
                let detail = check.detail.as_deref().unwrap_or_default();
                format!("  {shown:<8} {} {detail}\n", check.rule)
            }));
        }
        lines.extend(kept(result));
    }
    let unread = audited.unread.iter();
    lines.extend(unread.map(|place| format!("{file}:{}: not read: {}\n", place.line, place.why)));
    lines
}

/// Formats the lines that list the rules which the result passes. If it fails a rule with level
/// error, each passed rule gets a line with its title, because readers then ask which figures
/// remain usable.
fn kept(result: &Judged) -> Vec<String> {
    let kept = result.checks.iter().filter(|check| check.ok).map(|check| check.rule.as_str());
    if result.broken(Level::Error).next().is_none() {
        return vec![format!("  {:<8} {}\n", "holds", kept.collect::<Vec<_>>().join(" "))];
    }
    let title = |id| judge::rule(id).map_or("", |rule| rule.title);
    kept.map(|id| format!("  {:<8} {id} {}\n", "holds", title(id))).collect()
}

fn summary(audited: &[Audited]) -> String {
    let results = || audited.iter().flat_map(|file| &file.results);
    let with = |level| results().filter(|result| result.broken(level).next().is_some()).count();
    format!(
        "{} results: {} with errors, {} with warnings; {} places not read\n",
        results().count(),
        with(Level::Error),
        with(Level::Warning),
        audited.iter().map(|file| file.unread.len()).sum::<usize>()
    )
}

fn exit(audited: &[Audited]) -> Exit {
    let errors = |file: &Audited| file.results.iter().any(|r| r.broken(Level::Error).count() > 0);
    // Unread places outrank errors, because the list of errors may then be incomplete.
    if audited.iter().any(|file| !file.unread.is_empty()) {
        Exit::Unsound
    } else if audited.iter().any(errors) {
        Exit::Worse
    } else {
        Exit::Well
    }
}
