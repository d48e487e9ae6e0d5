//! Lists the runs of a registry as a table, and finds a run by the beginning of its id.

use std::collections::BTreeMap;
use std::iter;
use std::path::Path;

use anyhow::{Result, anyhow};
use schema::event::Event;
use schema::run::RunRecord;
use schema::scenario::id_of;
use serde::Serialize;

use crate::survey::Survey;
use judge::events::retractions;
use judge::facts::RunFacts;
use judge::order::{ReleaseKey, is_release};
use judge::table::columns;
use judge::{Registry, Stored, by_prefix};
use store::folder::StoreError;
use store::layout::{FileKind, RunParts};

/// Loads only the files that can contain the run whose id begins with `start`: files of runs whose
/// name begins with `start`, and all imported records, whose file names are numbers.
///
/// # Errors
///
/// One of `roots` exists and is no folder, or a folder, a file or its metadata cannot be read.
pub fn load_for_find(roots: &[&Path], start: &str) -> Result<Registry, StoreError> {
    store::load_where(roots, &|path| match path.split('/').next() {
        // Folders must pass, because nothing below a rejected folder is read.
        Some("runs") => FileKind::of(path) != FileKind::Run || name_of(path).starts_with(start),
        folder => folder == Some("imports"),
    })
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Returns the run whose id begins with `start`.
///
/// # Errors
///
/// No run has such an id, or several do and `start` is not the whole id of the first of them.
pub fn find<'a>(registry: &'a Registry, start: &str) -> Result<&'a Stored<RunRecord>> {
    let runs = registry.runs.iter().map(|run| (run.record.id.as_str(), run));
    by_prefix(runs, start).map_err(|count| match count {
        0 => anyhow!(
            "no run has an id that begins with `{start}`\nhint: `redline-results list` shows them"
        ),
        count => {
            anyhow!("{count} runs have an id that begins with `{start}`\nhint: give more of it")
        }
    })
}

/// Row of the list: the repeats of one release in one cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Id of the engine of the row's runs.
    pub engine: String,
    /// Version of the engine of the row's runs.
    pub release: String,
    /// Id of the hardware of the row's runs.
    pub hardware: String,
    /// Id of the model of the row's runs.
    pub model: String,
    /// Configuration slug of the row's runs, without its hash.
    pub config: String,
    /// Scenario of the row's runs, as `id@rev`.
    pub scenario: String,
    /// Number of runs that the row of the list stands for, including retracted ones.
    pub repeats: usize,
    /// Number of the row's runs by status, such as `ok` or `failed`.
    pub status: BTreeMap<String, usize>,
    /// Worst validity verdict of the row's runs.
    pub validity: String,
    /// Number of the row's runs that are retracted.
    pub retracted: usize,
    /// Ids of the row's runs.
    pub runs: Vec<String>,
}

/// Filter of a list. Without any field set, all runs are listed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Engine, hardware, model and scenario of the listed runs; each is `None` where all are
    /// listed.
    pub parts: RunParts,
    /// Release of the listed runs, with or without its `v`; `None` for all releases.
    pub release: Option<String>,
    /// Status of the listed runs, as records spell it; `None` for all.
    pub status: Option<String>,
    /// Validity verdict of the listed runs, as records spell it; `None` for all.
    pub validity: Option<String>,
    /// Id of the campaign of the listed runs; `None` for all.
    pub campaign: Option<String>,
}

impl Filter {
    /// Returns true when the filter selects `run`.
    pub fn covers(&self, run: &RunFacts) -> bool {
        let is = |wanted: &Option<String>, own: &str| wanted.as_ref().is_none_or(|w| w == own);
        let RunParts { engine, hardware, model, scenario } = &self.parts;
        is(engine, &run.engine)
            && self.release.as_ref().is_none_or(|wanted| is_release(wanted, &run.release))
            && is(hardware, &run.hardware)
            && is(model, &run.model)
            && (is(scenario, &run.scenario) || is(scenario, id_of(&run.scenario)))
            && is(&self.status, &run.status)
            && is(&self.validity, &run.validity)
            && is(&self.campaign, run.campaign.as_deref().unwrap_or_default())
    }
}

/// Run as a list shows it: id, path, facts, retraction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// Id of the run's record.
    pub id: String,
    /// Path of the run's record, below `results/`.
    pub path: String,
    /// Facts about the run, such as engine, release, hardware, model, scenario, status and
    /// validity.
    #[serde(flatten)]
    pub run: RunFacts,
    /// Reason for which the run was retracted, if it was; retracted runs are listed all the same.
    pub retracted: Option<String>,
}

/// Returns the runs of `surveys` that `filter` selects, in the order of their paths; of a path in
/// several surveys, the first. `events` tells which of them are retracted.
pub fn listed(surveys: &[Survey], events: &[Stored<Event>], filter: &Filter) -> Vec<Listed> {
    let mut runs: BTreeMap<&str, (&str, &RunFacts)> = BTreeMap::new();
    for file in surveys.iter().flat_map(|survey| &survey.files) {
        let Some(facts) = &file.facts else { continue };
        if let (Some(id), Some(run)) = (&facts.id, &facts.run) {
            // The first folder's file counts, as it does when records are loaded.
            runs.entry(&file.path).or_insert((id, run));
        }
    }
    let named: Vec<(&str, &str)> = runs.iter().map(|(path, (id, _))| (*id, *path)).collect();
    let retracted = retractions(events, &named);
    let wanted = runs.into_iter().filter(|(_, (_, run))| filter.covers(run));
    wanted
        .map(|(path, (id, run))| Listed {
            id: id.to_owned(),
            path: path.to_owned(),
            run: run.clone(),
            retracted: retracted.get(id).map(|retraction| retraction.reason.clone()),
        })
        .collect()
}

/// Groups runs into rows, one per release and cell, by engine, then by release (later ones last),
/// then by hardware, model, configuration and scenario.
pub fn rows(runs: &[Listed]) -> Vec<Row> {
    let mut rows: BTreeMap<_, Row> = BTreeMap::new();
    for Listed { id, run, retracted, .. } in runs {
        let cell = (run.model.clone(), run.config.clone(), run.scenario.clone());
        let key = (run.engine.clone(), ReleaseKey::of(&run.release), run.hardware.clone(), cell);
        let row = rows.entry(key).or_insert_with(|| Row {
            engine: run.engine.clone(),
            release: run.release.clone(),
            hardware: run.hardware.clone(),
            model: run.model.clone(),
            config: run.config.clone(),
            scenario: run.scenario.clone(),
            repeats: 0,
            status: BTreeMap::new(),
            validity: "valid".to_owned(),
            retracted: 0,
            runs: Vec::new(),
        });
        row.repeats += 1;
        *row.status.entry(run.status.clone()).or_default() += 1;
        row.validity = worse(&row.validity, &run.validity).to_owned();
        row.retracted += usize::from(retracted.is_some());
        row.runs.push(id.clone());
    }
    rows.into_values().collect()
}

/// Formats runs as a text table, one line per run.
pub fn table_of_runs(runs: &[Listed]) -> String {
    let head = ["RUN", "RELEASE", "HARDWARE", "MODEL", "CONFIG", "SCENARIO", "STATUS", "VALIDITY"];
    below(head, runs, |Listed { id, run, retracted, .. }| {
        let status = match retracted {
            Some(reason) => format!("{}, retracted: {reason}", run.status),
            None => run.status.clone(),
        };
        [
            id.clone(),
            format!("{} {}", run.engine, run.release),
            run.hardware.clone(),
            run.model.clone(),
            run.config.clone(),
            run.scenario.clone(),
            status,
            run.validity.clone(),
        ]
    })
}

/// Formats a text table with a head and one line per item; returns `no runs` if there are no items.
fn below<T>(head: [&str; 8], items: &[T], line: impl Fn(&T) -> [String; 8]) -> String {
    if items.is_empty() {
        return "no runs".to_owned();
    }
    let lines = iter::once(head.map(str::to_owned)).chain(items.iter().map(line));
    columns(&lines.map(Vec::from).collect::<Vec<_>>())
}

fn worse<'a>(left: &'a str, right: &'a str) -> &'a str {
    let rank = |word| ["valid", "degraded", "invalid"].iter().position(|known| *known == word);
    if rank(left) >= rank(right) { left } else { right }
}

/// Formats rows as a text table, one line per release and cell.
pub fn table(rows: &[Row]) -> String {
    let head = ["RELEASE", "HARDWARE", "MODEL", "CONFIG", "SCENARIO", "N", "STATUS", "VALIDITY"];
    below(head, rows, |row| {
        let mut status: Vec<String> =
            row.status.iter().map(|(word, count)| format!("{word} {count}")).collect();
        if row.retracted > 0 {
            status.push(format!("retracted {}", row.retracted));
        }
        [
            format!("{} {}", row.engine, row.release),
            row.hardware.clone(),
            row.model.clone(),
            row.config.clone(),
            row.scenario.clone(),
            row.repeats.to_string(),
            status.join(", "),
            row.validity.clone(),
        ]
    })
}
