//! View of one model of a release: charts, every metric, commands, configuration, runs.

use minijinja::{Value, context};
use schema::metric::METRICS;
use schema::run::{Kind, ServerFacts};
use serde::Serialize;

use super::fact::{self, Fact};
use super::figure::{self, Column, Figure, Head, failed, launches};
use super::finding::{self, RuleFindings};
use super::{charts, words};
use crate::catalog::{Cell, ReleaseKey, Run, distinct};
use crate::chart::Chart;
use crate::format::or_dash;
use crate::link::{self, Link, Target};
use crate::{outside, questions};

/// View of one model in one configuration of a release.
#[derive(Debug, Clone, Serialize)]
pub struct ModelView {
    pub model: String,
    pub anchor: String,
    /// Configuration of the model's servers: the slug without hash, or for published results the
    /// tensor-parallel size and flags that the report states.
    pub config: String,
    /// First digits of the hashes of the full server configurations that share the slug; with more
    /// than four, the last entry says how many others there are.
    pub config_hashes: Vec<String>,
    pub facts: Vec<Fact>,
    pub charts: Vec<Chart>,
    pub detail: Detail,
    pub commands: Value,
    pub configuration: Vec<Fact>,
    pub findings: Vec<RuleFindings>,
    pub runs: Vec<RunRow>,
    /// Number of the model's runs beyond those that its page lists; `data/runs.csv` has all.
    pub more_runs: usize,
}

/// Largest number of runs that the page of a model lists; where there are more, the page counts the
/// others.
const RUNS_MAX: usize = 80;

/// Table of every metric of a model by scenario, with the numbers of runs and of failed requests.
#[derive(Debug, Clone, Serialize)]
pub struct Detail {
    pub scenarios: Vec<String>,
    pub launches: Vec<String>,
    pub rows: Vec<DetailRow>,
    pub failed: Vec<Figure>,
}

/// Row of a metrics table: a metric, and its figure under each scenario.
#[derive(Debug, Clone, Serialize)]
pub struct DetailRow {
    pub head: Head,
    pub figures: Vec<Figure>,
}

/// Line of the list of a model's runs.
#[derive(Debug, Clone, Serialize)]
pub struct RunRow {
    pub id: String,
    pub target: Target,
    pub record: Target,
    pub scenario: String,
    pub started: String,
    pub state: String,
    /// Explanation of the run's failure, doubtful validity, retraction or annotation; empty where
    /// there is nothing to say.
    pub note: String,
    pub output: Figure,
    pub retracted: bool,
}

/// Returns the target of the page of one model of a release in one configuration.
pub fn target(key: &ReleaseKey, model: &str, config: &str) -> Target {
    Target::ModelOn { release: key.clone(), model: model.to_owned(), config: config.to_owned() }
}

/// Builds the views of the models of `cells`, which are sorted by model and configuration.
pub fn all(cells: &[Cell]) -> Vec<ModelView> {
    cells
        .chunk_by(|a, b| (&a.key.model, &a.key.config) == (&b.key.model, &b.key.config))
        .map(ModelView::new)
        .collect()
}

impl ModelView {
    /// Builds the view of the model of `cells`, which share model and configuration.
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
            commands: commands(&model, cells, &runs),
            configuration: fact::configuration(&runs),
            findings: finding::by_rule(&runs),
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
        let rows = METRICS.iter().filter(|metric| metric.name != "requests_failed").map(|metric| {
            let column = Column::new(metric, cells);
            let figures = cells.iter().map(|cell| column.figure(cell)).collect();
            DetailRow { head: column.head(), figures }
        });
        Self {
            scenarios: cells.iter().map(|cell| outside::name(&cell.key.scenario)).collect(),
            launches: cells.iter().map(launches).collect(),
            rows: rows.collect(),
            failed: cells.iter().map(failed).collect(),
        }
    }
}

/// Returns the commands that started the servers of `runs` (at most four), the commands that send
/// the requests of `cells`, to which the runs belong, and the command that measures them again.
pub fn commands(model: &str, cells: &[Cell], runs: &[&Run]) -> Value {
    let lines = runs.iter().filter_map(|run| serve_line(run.record.server.as_ref()?));
    let mut serve = distinct(lines);
    serve.truncate(4);
    let first = runs.first().map(|run| &run.record.engine);
    let (engine, release) =
        first.map(|engine| (engine.name.clone(), engine.release.clone())).unwrap_or_default();
    let published = runs.iter().any(|run| run.record.kind == Kind::Imported);
    // The requests behind published figures are not known one by one; a scenario of the same name
    // is the nearest that can be sent.
    let sent = |cell: &&Cell| !published || questions::is_known(&cell.key.scenario);
    let cells = cells.iter().filter(sent);
    let bench = distinct(cells.map(|cell| bench_command(&engine, &cell.key.scenario)));
    let again =
        ["cargo", "xtask", "release-bench", &release, "--engine", &engine, "--model", model];
    context! {
        // Commands that started the servers, with `{model}` and `{port}` for parts that differ by
        // machine, or the reason for which there are none.
        serve,
        serve_absent => fact::fact("", runs, "server.argv", |_| None).reason,
        bench,
        // Command that measures the same cells on another machine; none for figures published
        // elsewhere.
        again => (!published).then(|| outside::command(&again)),
    }
}

/// Returns the command that started a server, with its environment variables; `None` where it was
/// not recorded.
pub fn serve_line(server: &ServerFacts) -> Option<String> {
    let argv = server.argv.as_ref()?;
    let env = server.env.iter().flatten();
    let mut line: String = env
        .map(|(key, value)| format!("{}={} ", outside::name(key), outside::name(value)))
        .collect();
    line.push_str(&outside::command(argv));
    Some(line)
}

/// Returns the command of the load generator for a scenario, against a running server.
fn bench_command(engine: &str, scenario: &str) -> String {
    let id = scenario.split('@').next().unwrap_or(scenario);
    let files = [format!("suite/engines/{engine}.toml"), format!("suite/scenarios/{id}.toml")];
    let [engine, scenario] = files.map(|file| outside::command(&[file]));
    format!(
        "redline-bench run --url http://127.0.0.1:{{port}} --engine {engine} --scenario {scenario} \
         --dataset {{dataset}} --tokenizer {{tokenizer}} --out {{measurement}}"
    )
}

fn run_rows(cell: &Cell) -> Vec<RunRow> {
    let row = |run: &&Run| {
        let alone = Cell { key: cell.key.clone(), runs: vec![*run] };
        let time = run.record.time.as_ref();
        let started = time.and_then(|time| time.started_at.as_deref());
        RunRow {
            id: outside::name(&run.record.id),
            target: Link::run(run).target,
            record: Target::Record { path: run.path.to_owned() },
            scenario: outside::name(&cell.key.scenario),
            started: or_dash(started, outside::name),
            state: state(run),
            note: note(run),
            output: Column::new(figure::output(), [&alone]).figure(&alone),
            retracted: run.retracted.is_some(),
        }
    };
    cell.runs.iter().map(row).collect()
}

/// Returns status and validity of a run, as words; only the status for a run without figures.
pub fn state(run: &Run) -> String {
    if run.record.metrics.is_none() {
        return run.record.status.name().to_owned();
    }
    let record = run.record;
    format!("{}, {}", record.status.name(), judge::validity::headline(record).name())
}

/// Returns a text on the state of a run: retraction, failure, reasons for its validity,
/// annotations.
pub fn note(run: &Run) -> String {
    let record = run.record;
    let mut parts: Vec<String> = Vec::new();
    parts.extend(run.retracted.as_ref().map(|reason| format!("retracted: {reason}")));
    parts.extend(record.failure.as_ref().map(words::failure));
    parts.extend(record.validity.reasons.iter().cloned());
    parts.extend(run.notes.iter().cloned());
    outside::message(&parts.join("; "))
}
