//! Flat table of every run of a registry, for spreadsheets and data frames: its columns, its
//! cells, and the table as comma-separated values (RFC 4180).

use schema::metric::METRICS;
use schema::path::{config_name, config_slug};
use schema::run::RunRecord;

use judge::{Registry, Stored};

/// Type of the cells of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CellKind {
    /// Column of text.
    Text,
    /// Column of booleans.
    Flag,
    /// Column of unsigned integers.
    Integer,
    /// Column of floating-point numbers.
    Number,
}

/// Cell of the table. The record gives the reason for a missing one.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Value that the record does not know.
    Missing,
    /// Text, unquoted.
    Text(String),
    /// Boolean, such as whether the run is retracted.
    Flag(bool),
    /// Unsigned integer, such as the number of a block.
    Integer(u32),
    /// Floating-point number, in the unit that the column's name ends in.
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

/// Returns name and type of each column: keys, then metrics in their stored units (which end their
/// names), then the record's hash.
pub fn columns() -> Vec<(&'static str, CellKind)> {
    let metrics = METRICS.iter().map(|metric| (metric.name, CellKind::Number));
    KEYS.into_iter().chain(metrics).chain([("record_sha256", CellKind::Text)]).collect()
}

/// Rows of the table in the order of the runs' paths; each row has one cell per column of
/// [`columns`].
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

/// Formats every run as a line of CSV, metrics in their stored units. A missing value is empty.
pub fn csv(registry: &Registry) -> String {
    let names: Vec<&str> = columns().into_iter().map(|(name, _)| name).collect();
    let mut out = names.join(",");
    out.push('\n');
    for row in rows(registry) {
        let cells: Vec<String> = row.into_iter().map(written).collect();
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

fn written(cell: Cell) -> String {
    match cell {
        Cell::Missing => String::new(),
        Cell::Text(text) => quoted(&text),
        Cell::Flag(flag) => flag.to_string(),
        Cell::Integer(integer) => integer.to_string(),
        Cell::Number(number) => number.to_string(),
    }
}

/// Quotes a text cell. A text that begins with `=`, `+`, `-` or `@` gets an apostrophe, because a
/// spreadsheet would take it for a formula.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().map(plain).collect();
    let lead = if text.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    if lead.is_empty() && !text.contains([',', '"']) {
        return text;
    }
    format!("\"{lead}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use samples::registry::two_runs;

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

    #[test]
    fn a_cell_is_neither_a_formula_nor_two_cells() {
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain\nname"), "plain name");
    }

    #[test]
    fn every_line_has_the_cells_of_the_head() {
        let text = csv(&two_runs());
        let lines: Vec<&str> = text.lines().collect();
        let cells = lines[0].split(',').count();
        assert_eq!(cells, columns().len());
        assert!(lines.iter().all(|line| line.split(',').count() == cells), "{text}");
        assert!(lines[0].contains(",ttft_us_p50,"), "{}", lines[0]);
        assert!(lines[2].contains(",failed,"), "{}", lines[2]);
    }
}
