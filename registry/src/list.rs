//! The runs of a registry as a table, and finding one by its id.

use std::collections::BTreeMap;
use std::path::Path;

use schema::event::Event;
use schema::run::RunRecord;
use serde::Serialize;

use crate::survey::Survey;
use judge::events::retractions;
use judge::facts::RunFacts;
use judge::release::{ReleaseKey, is_release};
use judge::table::columns;
use judge::{Registry, Stored};
use store::folder::StoreError;
use store::layout::FileKind;

/// A run that cannot be named.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FindError {
    /// No id begins so.
    #[error("no run has an id that begins with `{0}`\nhint: `redline-results list` shows them")]
    None(String),
    /// Several ids do.
    #[error("{count} runs have an id that begins with `{start}`\nhint: give more of it")]
    Several {
        /// As it was given.
        start: String,
        /// How many.
        count: usize,
    },
}

/// What has to be read to find the run whose id begins with `start`: runs with such a name, and
/// imports, whose names are numbers.
///
/// # Errors
/// A folder or file exists and cannot be read.
pub fn load_for_find(roots: &[&Path], start: &str) -> Result<Registry, StoreError> {
    store::load_where(roots, &|path| match path.split('/').next() {
        Some("runs") => FileKind::of(path) != FileKind::Run || name_of(path).starts_with(start),
        folder => folder == Some("imports"),
    })
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The run whose id begins with `start`.
///
/// # Errors
/// No run, or more than one, has such an id.
pub fn find<'a>(registry: &'a Registry, start: &str) -> Result<&'a Stored<RunRecord>, FindError> {
    let mut found = registry.runs.iter().filter(|run| run.record.id.starts_with(start));
    let first = found.next().ok_or_else(|| FindError::None(start.to_owned()))?;
    if first.record.id == start {
        return Ok(first);
    }
    match found.count() {
        0 => Ok(first),
        more => Err(FindError::Several { start: start.to_owned(), count: more + 1 }),
    }
}

/// The repeats of one release in one cell.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Row {
    #[serde(skip)]
    order: ReleaseKey,
    /// The engine's id.
    pub engine: String,
    /// The engine's version.
    pub release: String,
    /// Id of the hardware.
    pub hardware: String,
    /// The model's id.
    pub model: String,
    /// Slug of the configuration, without its hash.
    pub config: String,
    /// `id@rev`.
    pub scenario: String,
    /// Runs.
    pub repeats: usize,
    /// Status to number of runs.
    pub status: BTreeMap<String, usize>,
    /// The worst verdict on the client.
    pub validity: String,
    /// Those of them that were taken back.
    pub retracted: usize,
    /// Ids of the runs.
    pub runs: Vec<String>,
}

/// Which runs are listed; nothing given means all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// The engine's id.
    pub engine: Option<String>,
    /// With or without its `v`.
    pub release: Option<String>,
    /// Id of the hardware.
    pub hardware: Option<String>,
    /// The model's id.
    pub model: Option<String>,
    /// `id`, or `id@rev`.
    pub scenario: Option<String>,
    /// How they ended, by the word of their records.
    pub status: Option<String>,
    /// The verdict on their client, by the word of their records.
    pub validity: Option<String>,
}

impl Filter {
    /// True for runs that are wanted.
    #[must_use]
    pub fn covers(&self, run: &RunFacts) -> bool {
        let is = |wanted: &Option<String>, own: &str| wanted.as_ref().is_none_or(|w| w == own);
        let release = self.release.as_ref().is_none_or(|w| is_release(w, &run.release));
        let id = run.scenario.split('@').next().unwrap_or_default();
        is(&self.engine, &run.engine)
            && release
            && is(&self.hardware, &run.hardware)
            && is(&self.model, &run.model)
            && (is(&self.scenario, &run.scenario) || is(&self.scenario, id))
            && is(&self.status, &run.status)
            && is(&self.validity, &run.validity)
    }
}

/// A run as lists show it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Listed {
    /// Its record's.
    pub id: String,
    /// Below `results/`.
    pub path: String,
    /// What is known of it.
    #[serde(flatten)]
    pub run: RunFacts,
    /// Why it was retracted; it is listed all the same.
    pub retracted: Option<String>,
}

/// The wanted runs of `surveys`, in the order of their paths; `events` says which are retracted.
#[must_use]
pub fn listed(surveys: &[Survey], events: &[Stored<Event>], filter: &Filter) -> Vec<Listed> {
    let mut runs: BTreeMap<&str, (&str, &RunFacts)> = BTreeMap::new();
    for file in surveys.iter().flat_map(|survey| &survey.files) {
        let Some(facts) = &file.facts else { continue };
        if let (Some(id), Some(run)) = (&facts.id, &facts.run) {
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

/// One row for each release and cell, later releases last.
#[must_use]
pub fn rows(runs: &[Listed]) -> Vec<Row> {
    let mut rows: BTreeMap<_, Row> = BTreeMap::new();
    for Listed { id, run, retracted, .. } in runs {
        let order = ReleaseKey::of(&run.release);
        let cell = (run.model.clone(), run.config.clone(), run.scenario.clone());
        let key = (run.engine.clone(), order.clone(), run.hardware.clone(), cell);
        let row = rows.entry(key).or_insert_with(|| Row {
            order,
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

/// The runs as text, one line each.
#[must_use]
pub fn table_of_runs(runs: &[Listed]) -> String {
    if runs.is_empty() {
        return "no runs".to_owned();
    }
    let head = ["RUN", "RELEASE", "HARDWARE", "MODEL", "CONFIG", "SCENARIO", "STATUS", "VALIDITY"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(runs.iter().map(|Listed { id, run, retracted, .. }| {
        let status = match retracted {
            Some(reason) => format!("{}, retracted: {reason}", run.status),
            None => run.status.clone(),
        };
        vec![
            id.clone(),
            format!("{} {}", run.engine, run.release),
            run.hardware.clone(),
            run.model.clone(),
            run.config.clone(),
            run.scenario.clone(),
            status,
            run.validity.clone(),
        ]
    }));
    columns(&lines)
}

fn worse<'a>(left: &'a str, right: &'a str) -> &'a str {
    let rank = |word| ["valid", "degraded", "invalid"].iter().position(|known| *known == word);
    if rank(left) >= rank(right) { left } else { right }
}

/// The rows as text, one line each.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no runs".to_owned();
    }
    let head = ["RELEASE", "HARDWARE", "MODEL", "CONFIG", "SCENARIO", "N", "STATUS", "VALIDITY"];
    let mut lines = vec![head.map(str::to_owned).to_vec()];
    lines.extend(rows.iter().map(|row| {
        let mut status: Vec<String> =
            row.status.iter().map(|(word, count)| format!("{word} {count}")).collect();
        if row.retracted > 0 {
            status.push(format!("retracted {}", row.retracted));
        }
        vec![
            format!("{} {}", row.engine, row.release),
            row.hardware.clone(),
            row.model.clone(),
            row.config.clone(),
            row.scenario.clone(),
            row.repeats.to_string(),
            status.join(", "),
            row.validity.clone(),
        ]
    }));
    columns(&lines)
}
