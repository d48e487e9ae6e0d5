//! `redline-bench audit`: what published results say about how they were measured.

use std::path::{Path, PathBuf};

use anyhow::Context;
use audit::report::{Reading, Unread};
use clap::Args;
use schema::exit::Exit;
use schema::run::{Check, Level, RunRecord};
use serde::Serialize;

/// Judge published results of LMDeploy, SGLang, vLLM and guidellm.
///
/// Reads console blocks (`Serving Benchmark Result`) in logs and pages, and the JSON of vLLM and
/// SGLang. Each result is held against what its own figures imply: an error is a figure that cannot
/// be what its name says, a warning is something to know before comparing it.
///
/// Exit codes: 0 no error; 1 some result has one; 2 something could not be read; 4 no such file.
#[derive(Debug, Args)]
pub struct AuditFlags {
    /// Pages, logs or result files.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// A file and what was found in it.
#[derive(Serialize)]
struct Audited {
    file: String,
    results: Vec<Judged>,
    unread: Vec<Place>,
}

/// A result, by the lines it stands on.
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

/// A place that could not be read.
#[derive(Serialize)]
struct Place {
    line: u64,
    why: String,
}

/// Runs the command.
///
/// # Errors
/// A file cannot be opened.
pub fn execute(flags: &AuditFlags) -> anyhow::Result<Exit> {
    let audited = flags.files.iter().map(|file| read(file)).collect::<anyhow::Result<Vec<_>>>()?;
    if flags.json {
        println!("{}", serde_json::to_string_pretty(&audited)?);
    } else {
        audited.iter().for_each(print);
        print_summary(&audited);
    }
    Ok(exit(&audited))
}

fn read(file: &Path) -> anyhow::Result<Audited> {
    let shown = file.display().to_string();
    let bytes = std::fs::read(file).with_context(|| format!("cannot read `{shown}`"))?;
    // Logs hold progress bars of any encoding; figures are ASCII.
    let text = String::from_utf8_lossy(&bytes);
    let Reading { records, unread } = audit::report::read(&shown, &text);
    Ok(Audited {
        file: shown,
        results: records.into_iter().map(Judged::from).collect(),
        unread: unread.into_iter().map(|Unread { line, why }| Place { line, why }).collect(),
    })
}

impl From<RunRecord> for Judged {
    fn from(record: RunRecord) -> Self {
        let source = record.source.unwrap_or_default();
        Self {
            line_first: source.line_first,
            line_last: source.line_last,
            tool: source.tool,
            engine: record.engine.name,
            model: record.model.id,
            scenario: record.scenario.id,
            requests_ok: record.counts.and_then(|counts| counts.requests_ok),
            checks: record.checks,
        }
    }
}

impl Judged {
    /// Broken rules of `level`.
    fn broken(&self, level: Level) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| !check.ok && check.level == level)
    }
}

fn print(audited: &Audited) {
    for (number, result) in (1..).zip(&audited.results) {
        let requests = result.requests_ok.unwrap_or(0);
        println!(
            "{}:{}: result {number}, {}, {requests} requests; tool {}, server {}, model {}",
            audited.file,
            result.line_first,
            result.scenario,
            result.tool,
            result.engine,
            result.model
        );
        for (level, shown) in [(Level::Error, "error"), (Level::Warning, "warning")] {
            for check in result.broken(level) {
                println!("  {shown:<8} {} {}", check.rule, check.detail.as_deref().unwrap_or(""));
            }
        }
        print_kept(result);
    }
    for place in &audited.unread {
        println!("{}:{}: not read: {}", audited.file, place.line, place.why);
    }
}

/// The rules that hold; in words where others do not, since a reader then asks what is left.
fn print_kept(result: &Judged) {
    let kept = result.checks.iter().filter(|check| check.ok).map(|check| check.rule.as_str());
    if result.broken(Level::Error).next().is_none() {
        return println!("  {:<8} {}", "holds", kept.collect::<Vec<_>>().join(" "));
    }
    for id in kept {
        println!("  {:<8} {id} {}", "holds", audit::rule(id).map_or("", |rule| rule.title));
    }
}

fn print_summary(audited: &[Audited]) {
    let results = || audited.iter().flat_map(|file| &file.results);
    let with = |level| results().filter(|result| result.broken(level).next().is_some()).count();
    println!(
        "{} results: {} with errors, {} with warnings; {} places not read",
        results().count(),
        with(Level::Error),
        with(Level::Warning),
        audited.iter().map(|file| file.unread.len()).sum::<usize>()
    );
}

fn exit(audited: &[Audited]) -> Exit {
    let errors = |file: &Audited| file.results.iter().any(|r| r.broken(Level::Error).count() > 0);
    if audited.iter().any(|file| !file.unread.is_empty()) {
        Exit::Unsound
    } else if audited.iter().any(errors) {
        Exit::Worse
    } else {
        Exit::Well
    }
}
