//! Every run of a registry as one flat table, for spreadsheets and data frames. Here are its
//! columns and cells; a module for each form knows how they are written.

mod csv;
#[cfg(feature = "parquet")]
mod parquet;

#[cfg(feature = "parquet")]
pub use self::parquet::parquet;
pub use csv::{csv, quoted};

use schema::metric::METRICS;
use schema::path::{config_name, config_slug};
use schema::run::RunRecord;

use crate::store::{Registry, Stored};

/// What the cells of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellKind {
    /// Words.
    Text,
    /// Yes or no.
    Flag,
    /// A whole number from zero.
    Integer,
    /// Any number.
    Number,
}

/// A cell. One that is missing has its reason in the record.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// The record does not know.
    Missing,
    /// Words.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Integer(u32),
    /// Any number, in the unit that the column's name ends in.
    Number(f64),
}

/// Columns of the table before the metrics.
const KEYS: [(&str, CellKind); 18] = [
    ("path", CellKind::Text),
    ("id", CellKind::Text),
    ("kind", CellKind::Text),
    ("status", CellKind::Text),
    ("validity", CellKind::Text),
    ("retracted", CellKind::Flag),
    ("engine", CellKind::Text),
    ("release", CellKind::Text),
    ("hardware", CellKind::Text),
    ("model", CellKind::Text),
    ("config", CellKind::Text),
    ("config_name", CellKind::Text),
    ("scenario", CellKind::Text),
    ("tier", CellKind::Text),
    ("campaign", CellKind::Text),
    ("block", CellKind::Integer),
    ("repeat", CellKind::Integer),
    ("started_at", CellKind::Text),
];

/// Names of the columns and what is in them: keys, then metrics in their stored units, which end
/// their names, then the record's hash.
#[must_use]
pub fn columns() -> Vec<(&'static str, CellKind)> {
    let metrics = METRICS.iter().map(|metric| (metric.name, CellKind::Number));
    KEYS.into_iter().chain(metrics).chain([("record_sha256", CellKind::Text)]).collect()
}

/// The table's rows, in the order of the runs' paths; each has a cell for each of [`columns`].
pub fn rows(registry: &Registry) -> impl Iterator<Item = Vec<Cell>> {
    registry.runs.iter().map(|run| row(run, registry.retracted.contains_key(&run.record.id)))
}

fn row(run: &Stored<RunRecord>, retracted: bool) -> Vec<Cell> {
    let record = &run.record;
    let slot = record.campaign.as_ref();
    let started = record.time.as_ref().and_then(|time| time.started_at.as_deref());
    let text = |text: &str| Cell::Text(text.to_owned());
    let integer = |value: Option<u32>| value.map_or(Cell::Missing, Cell::Integer);
    let keys: [Cell; KEYS.len()] = [
        text(&run.path),
        text(&record.id),
        text(record.kind.name()),
        text(record.status.name()),
        text(record.validity.verdict.name()),
        Cell::Flag(retracted),
        text(&record.engine.name),
        text(&record.engine.release),
        text(&record.hardware.id),
        text(&record.model.id),
        Cell::Text(config_slug(record)),
        Cell::Text(config_name(record)),
        Cell::Text(format!("{}@{}", record.scenario.id, record.scenario.rev)),
        Cell::Text(format!("{:?}", record.scenario.tier).to_lowercase()),
        slot.map_or(Cell::Missing, |slot| text(&slot.id)),
        integer(slot.map(|slot| slot.block)),
        integer(slot.map(|slot| slot.repeat)),
        started.map_or(Cell::Missing, text),
    ];
    let figures = METRICS.iter().map(|metric| metric.value(record));
    let figures = figures.map(|value| value.map_or(Cell::Missing, Cell::Number));
    keys.into_iter().chain(figures).chain([text(&record.record_sha256)]).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use audit::sample::Sample;

    /// Two runs, the second of which failed.
    pub(crate) fn two_runs() -> Registry {
        let record = Sample::default().record();
        let failed = Sample { serial: 2, ..Sample::default() }.failed_record();
        let mut registry = Registry::default();
        for record in [record, failed] {
            let path = schema::path::of_run(&record).unwrap();
            registry.runs.push(Stored { path, root: 0, record });
        }
        registry
    }

    #[test]
    fn every_cell_is_of_its_columns_kind() {
        let columns = columns();
        for row in rows(&two_runs()) {
            assert_eq!(row.len(), columns.len());
            for (cell, (name, kind)) in row.iter().zip(&columns) {
                let fits = match cell {
                    Cell::Missing => true,
                    Cell::Text(_) => *kind == CellKind::Text,
                    Cell::Flag(_) => *kind == CellKind::Flag,
                    Cell::Integer(_) => *kind == CellKind::Integer,
                    Cell::Number(_) => *kind == CellKind::Number,
                };
                assert!(fits, "{name}: {cell:?}");
            }
        }
    }
}
