//! The runs of a registry as a table, and finding one by its id.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use schema::path::config_slug;
use schema::run::{RunRecord, Status, ValidityVerdict};
use serde::Serialize;

use crate::finding::plain;
use crate::release::ReleaseKey;
use crate::store::{Registry, Stored};

/// A run that cannot be named.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FindError {
    #[error("no run has an id that begins with `{0}`\nhint: `redline-results list` shows them")]
    None(String),
    #[error("{count} runs have an id that begins with `{start}`\nhint: give more of it")]
    Several { start: String, count: usize },
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
    pub engine: String,
    pub release: String,
    pub hardware: String,
    pub model: String,
    pub config: String,
    /// `id@rev`.
    pub scenario: String,
    pub repeats: usize,
    /// Status to number of runs.
    pub status: BTreeMap<&'static str, usize>,
    /// The worst verdict on the client.
    pub validity: &'static str,
    pub retracted: usize,
    /// Ids of the runs.
    pub runs: Vec<String>,
}

/// One row for each release and cell, later releases last.
#[must_use]
pub fn rows(registry: &Registry) -> Vec<Row> {
    let mut rows: BTreeMap<_, Row> = BTreeMap::new();
    for Stored { record, .. } in &registry.runs {
        let config = config_slug(record);
        let scenario = format!("{}@{}", record.scenario.id, record.scenario.rev);
        let order = ReleaseKey::of(&record.engine.release);
        let key = (
            record.engine.name.clone(),
            order.clone(),
            record.hardware.id.clone(),
            (record.model.id.clone(), config.clone(), scenario.clone()),
        );
        let row = rows.entry(key).or_insert_with(|| Row {
            order,
            engine: record.engine.name.clone(),
            release: record.engine.release.clone(),
            hardware: record.hardware.id.clone(),
            model: record.model.id.clone(),
            config,
            scenario,
            repeats: 0,
            status: BTreeMap::new(),
            validity: "valid",
            retracted: 0,
            runs: Vec::new(),
        });
        row.repeats += 1;
        *row.status.entry(status_name(record.status)).or_default() += 1;
        row.validity = worse(row.validity, validity_name(record.validity.verdict));
        row.retracted += usize::from(registry.retracted.contains_key(&record.id));
        row.runs.push(record.id.clone());
    }
    rows.into_values().collect()
}

/// The word of a status, as records write it.
#[must_use]
pub fn status_name(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Partial => "partial",
        Status::Failed => "failed",
        Status::Skipped => "skipped",
    }
}

/// The word of a verdict on the client, as records write it.
#[must_use]
pub fn validity_name(verdict: ValidityVerdict) -> &'static str {
    match verdict {
        ValidityVerdict::Valid => "valid",
        ValidityVerdict::Degraded => "degraded",
        ValidityVerdict::Invalid => "invalid",
    }
}

fn worse(left: &'static str, right: &'static str) -> &'static str {
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
            row.validity.to_owned(),
        ]
    }));
    columns(&lines)
}

/// Lines of cells as text in columns.
#[must_use]
pub fn columns(lines: &[Vec<String>]) -> String {
    let widest = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = lines.iter().filter_map(|line| line.get(column));
        cells.map(|cell| plain(cell).chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..widest).map(width).collect();
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let _ = write!(row, "{:width$}  ", plain(cell));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned()
}
