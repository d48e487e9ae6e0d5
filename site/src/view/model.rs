//! View of one model of a release: charts, every metric, commands, configuration, runs.

use schema::metric::{Gates, METRICS};
use schema::run::{Kind, ServerFacts};
use serde::Serialize;

use super::badge::{self, Badge, Finding};
use super::fact::{self, Fact};
use super::figure::{self, Figure, Head};
use super::release::{failed, launches};
use super::{charts, words};
use crate::catalog::{Cell, ReleaseKey, Run};
use crate::chart::Chart;
use crate::link::{self, Target};
use crate::{format, outside, questions};

/// View of one model in one configuration.
#[derive(Debug, Clone, Serialize)]
pub struct ModelView {
    pub model: String,
    pub anchor: String,
    /// Configuration slug of the servers.
    pub config: String,
    /// Hashes of the full configurations behind the slug.
    pub config_hashes: Vec<String>,
    pub facts: Vec<Fact>,
    pub charts: Vec<Chart>,
    pub detail: Detail,
    pub commands: Commands,
    pub configuration: Vec<Fact>,
    pub findings: Vec<Finding>,
    pub runs: Vec<RunRow>,
    /// Number of runs beyond those listed; the table of all runs has them.
    pub more_runs: usize,
}

/// Largest number of runs that are listed; a longer list is for programs to read.
const RUNS_MAX: usize = 80;

/// Table of every metric by scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Detail {
    pub scenarios: Vec<String>,
    pub launches: Vec<String>,
    pub rows: Vec<DetailRow>,
    pub failed: Vec<Figure>,
}

/// Row of the table: a metric, and its figure under each scenario.
#[derive(Debug, Clone, Serialize)]
pub struct DetailRow {
    pub head: Head,
    pub gates: bool,
    pub figures: Vec<Figure>,
}

/// Commands that produced the figures, and commands that reproduce them.
#[derive(Debug, Clone, Serialize)]
pub struct Commands {
    /// Commands that started the servers, with `{model}` and `{port}` for parts that differ by
    /// machine.
    pub serve: Vec<String>,
    /// Reason for which there is no serve command.
    pub serve_absent: String,
    pub bench: Vec<String>,
    /// Command that measures the same cells on another machine; `None` for figures published
    /// elsewhere.
    pub again: Option<String>,
}

/// Line of the list of runs.
#[derive(Debug, Clone, Serialize)]
pub struct RunRow {
    pub id: String,
    pub target: Target,
    pub record: Target,
    pub scenario: String,
    pub started: String,
    pub state: String,
    /// Explanation of a failure, a broken rule or a retraction; empty where there is nothing to
    /// say.
    pub note: String,
    pub output: Figure,
    pub badges: Vec<Badge>,
    pub retracted: bool,
}

/// Target of the page of one model of a release in one configuration.
pub fn target(key: &ReleaseKey, model: &str, config: &str) -> Target {
    Target::ModelOn {
        engine: key.engine.clone(),
        release: key.release.clone(),
        hardware: key.hardware.clone(),
        model: model.to_owned(),
        config: config.to_owned(),
    }
}

/// Builds the models of `cells`, which are sorted by model and configuration.
pub fn all(cells: &[Cell]) -> Vec<ModelView> {
    cells
        .chunk_by(|a, b| (&a.key.model, &a.key.config) == (&b.key.model, &b.key.config))
        .map(ModelView::new)
        .collect()
}

impl ModelView {
    /// Builds the view of `cells`, which share model and configuration.
    pub fn new(cells: &[Cell]) -> Self {
        let runs: Vec<&Run> = cells.iter().flat_map(|cell| cell.runs.iter().copied()).collect();
        let key = cells.first().map(|cell| cell.key.clone());
        let (model, config) = key.map(|key| (key.model, key.config)).unwrap_or_default();
        Self {
            anchor: link::anchor(&format!("{model}-{config}")),
            model: outside::name(&model),
            config: outside::name(&config),
            config_hashes: config_hashes(&runs),
            facts: fact::model(&runs),
            charts: charts::of_model(cells),
            detail: Detail::new(cells),
            commands: Commands::new(&model, cells, &runs),
            configuration: fact::configuration(&runs),
            findings: badge::findings(&runs),
            more_runs: runs.len().saturating_sub(RUNS_MAX),
            runs: cells.iter().flat_map(run_rows).take(RUNS_MAX).collect(),
        }
    }
}

fn config_hashes(runs: &[&Run]) -> Vec<String> {
    let fact = fact::fact("", runs, "server.config_sha256", |record| {
        record.server.as_ref()?.config_sha256.as_ref().map(|hash| outside::short_hash(hash, 8))
    });
    fact.values
}

impl Detail {
    /// Builds the table of every metric of `cells`, one column per cell.
    pub fn new(cells: &[Cell]) -> Self {
        let every: Vec<&Cell> = cells.iter().collect();
        let rows = METRICS.iter().filter(|metric| metric.name != "requests_failed").map(|metric| {
            let scale = figure::scale(metric, &every);
            DetailRow {
                head: Head::of(metric, scale),
                gates: metric.gates != Gates::Never,
                figures: cells.iter().map(|cell| Figure::of(metric, scale, cell)).collect(),
            }
        });
        Self {
            scenarios: cells.iter().map(|cell| outside::name(&cell.key.scenario)).collect(),
            launches: cells.iter().map(launches).collect(),
            rows: rows.collect(),
            failed: cells.iter().map(failed).collect(),
        }
    }
}

impl Commands {
    /// Collects the commands behind `runs`, which are those of `cells`.
    pub fn new(model: &str, cells: &[Cell], runs: &[&Run]) -> Self {
        let reason = fact::fact("", runs, "server.argv", |_| None).reason;
        let mut commands: Vec<String> = Vec::new();
        for run in runs {
            let Some(line) = run.record.server.as_ref().and_then(serve_line) else { continue };
            if !commands.contains(&line) && commands.len() < 4 {
                commands.push(line);
            }
        }
        let first = runs.first().map(|run| &run.record.engine);
        let (engine, release) =
            first.map(|engine| (engine.name.clone(), engine.release.clone())).unwrap_or_default();
        let published = runs.iter().any(|run| run.record.kind == Kind::Imported);
        // The requests behind published figures are not known one by one; a scenario of the same
        // name is the nearest that can be sent.
        let sent = |cell: &&Cell| !published || questions::is_known(&cell.key.scenario);
        let mut bench: Vec<String> = Vec::new();
        for cell in cells.iter().filter(sent) {
            let command = bench_command(&engine, &cell.key.scenario);
            if !bench.contains(&command) {
                bench.push(command);
            }
        }
        let again =
            ["cargo", "xtask", "release-bench", &release, "--engine", &engine, "--model", model];
        let again: Vec<String> = again.into_iter().map(str::to_owned).collect();
        let again = (!published).then(|| outside::command(&again));
        Self { serve: commands, serve_absent: reason, bench, again }
    }
}

/// Command that started a server, with its environment variables; `None` where it was not
/// recorded.
pub fn serve_line(server: &ServerFacts) -> Option<String> {
    let argv = server.argv.as_ref()?;
    let env = server.env.iter().flatten();
    let mut line: String = env
        .map(|(key, value)| format!("{}={} ", outside::name(key), outside::name(value)))
        .collect();
    line.push_str(&outside::command(argv));
    Some(line)
}

/// Command of the load generator for a scenario, against a running server.
pub fn bench_command(engine: &str, scenario: &str) -> String {
    let id = scenario.split('@').next().unwrap_or(scenario);
    let (engine, file) =
        (format!("suite/engines/{engine}.toml"), format!("suite/scenarios/{id}.toml"));
    let argv = [
        "redline-bench",
        "run",
        "--url",
        "http://127.0.0.1:{port}",
        "--engine",
        &engine,
        "--scenario",
        &file,
        "--dataset",
        "{dataset}",
        "--tokenizer",
        "{tokenizer}",
        "--out",
        "{measurement}",
    ];
    outside::command(&argv.map(str::to_owned))
}

fn run_rows(cell: &Cell) -> Vec<RunRow> {
    let output = schema::metric::by_name("output_tokens_per_s");
    let row = |run: &&Run| {
        let alone = Cell { key: cell.key.clone(), runs: vec![*run] };
        let time = run.record.time.as_ref();
        let started = time.and_then(|time| time.started_at.as_deref());
        RunRow {
            id: outside::name(&run.record.id),
            target: Target::Run { id: run.record.id.clone(), record: run.path.to_owned() },
            record: Target::Record { path: run.path.to_owned() },
            scenario: outside::name(&cell.key.scenario),
            started: started.map_or_else(|| "-".to_owned(), outside::name),
            state: state(run),
            note: note(run),
            output: output.map_or_else(
                || Figure::missing("no such metric"),
                |metric| Figure::of(metric, format::Scale::fit(metric.unit, 0.0), &alone),
            ),
            badges: badge::of_runs(&[*run]),
            retracted: run.retracted.is_some(),
        }
    };
    cell.runs.iter().map(row).collect()
}

/// Status and validity of a run, as words; only the status for a run without figures.
pub fn state(run: &Run) -> String {
    if run.record.metrics.is_none() {
        return run.record.status.name().to_owned();
    }
    let record = run.record;
    format!("{}, {}", record.status.name(), record.validity.verdict.name())
}

/// Sentence that explains the state of a run.
pub fn note(run: &Run) -> String {
    let record = run.record;
    let mut parts: Vec<String> = Vec::new();
    parts.extend(run.retracted.as_ref().map(|reason| format!("retracted: {reason}")));
    if let Some(failure) = &record.failure {
        let (class, phase) = (words::class(failure.class), words::phase(failure.phase));
        parts.push(format!("{class} while {phase}: {}", failure.message));
    }
    parts.extend(record.validity.reasons.iter().cloned());
    parts.extend(run.notes.iter().cloned());
    outside::message(&parts.join("; "))
}
