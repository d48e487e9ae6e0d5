//! Flat table of every run of a registry, for spreadsheets and data frames: its columns, its
//! cells, and the table as comma-separated values (RFC 4180).

use schema::metric::METRICS;
use schema::path::{config_name, config_slug};
use schema::run::RunRecord;
use schema::untrusted::is_hidden;

use judge::{Registry, Stored};

/// Cell of the table of runs, by type; the value is `None` where the run's record lacks it.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// Text cell of the table of runs, not quoted; `None` where the record has no such text.
    Text(Option<String>),
    /// Boolean cell of the table of runs, such as whether the run is retracted.
    Flag(Option<bool>),
    /// Cell of the table of runs with an unsigned integer, such as the number of the run's block;
    /// `None` where the record has no such number.
    Integer(Option<u32>),
    /// Cell of the table of runs with the value of a metric, a floating-point number in the
    /// metric's stored unit; `None` where the record has no such value.
    Number(Option<f64>),
}

/// Returns the name of each column of the table of runs, with a cell of the column's type: first
/// what identifies a run, then metrics in their stored units, then the record's hash.
pub fn columns() -> Vec<(&'static str, Cell)> {
    // The cells of an empty record name the columns, so that both always agree.
    cells(&Stored { path: String::new(), root: 0, record: RunRecord::default() }, false)
}

/// Returns the rows of the table in the order of the registry's runs; each row has one cell per
/// column of [`columns`].
pub fn rows(registry: &Registry) -> impl Iterator<Item = Vec<Cell>> {
    registry.runs.iter().map(|run| {
        let retracted = registry.retracted.contains_key(&run.record.id);
        cells(run, retracted).into_iter().map(|(_, cell)| cell).collect()
    })
}

/// Returns the cells of a run's row in the table, each with its column's name.
fn cells(run: &Stored<RunRecord>, retracted: bool) -> Vec<(&'static str, Cell)> {
    let record = &run.record;
    let place = record.campaign.as_ref();
    let started = record.time.as_ref().and_then(|time| time.started_at.clone());
    let text = |text: &str| Cell::Text(Some(text.to_owned()));
    let mut cells = vec![
        ("path", text(&run.path)),
        ("id", text(&record.id)),
        ("kind", text(record.kind.name())),
        ("status", text(record.status.name())),
        ("validity", text(record.validity.verdict.name())),
        // The stored verdict is that of its day; rules were revised since.
        ("validity_by_present_rules", text(judge::validity::headline(record).name())),
        ("retracted", Cell::Flag(Some(retracted))),
        ("engine", text(&record.engine.name)),
        ("release", text(&record.engine.release)),
        ("hardware", text(&record.hardware.id)),
        ("model", text(&record.model.id)),
        ("config", text(&config_slug(record))),
        ("config_name", text(&config_name(record))),
        ("scenario", text(&format!("{}@{}", record.scenario.id, record.scenario.rev))),
        ("tier", text(&format!("{:?}", record.scenario.tier).to_lowercase())),
        ("campaign", Cell::Text(place.map(|place| place.id.clone()))),
        ("block", Cell::Integer(place.map(|place| place.block))),
        ("repeat", Cell::Integer(place.map(|place| place.repeat))),
        ("started_at", Cell::Text(started)),
    ];
    cells.extend(METRICS.iter().map(|metric| (metric.name, Cell::Number(metric.value(record)))));
    cells.push(("record_sha256", text(&record.record_sha256)));
    cells
}

/// Formats the table of all runs of a registry as CSV: a line with the names of the columns, then a
/// line per run, metrics in their stored units. A missing value is empty.
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
        Cell::Text(text) => text.map(|text| quoted(&text)),
        Cell::Flag(flag) => flag.map(|flag| flag.to_string()),
        Cell::Integer(integer) => integer.map(|integer| integer.to_string()),
        Cell::Number(number) => number.map(|number| number.to_string()),
    }
    .unwrap_or_default()
}

/// Formats a text cell for CSV, in quotes where it needs them and with spaces for control
/// characters and others that are not shown. A text that begins with `=`, `+`, `-` or `@` gets an
/// apostrophe, because a spreadsheet would take it for a formula.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| if is_hidden(c) { ' ' } else { c };
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
                let fits = std::mem::discriminant(cell) == std::mem::discriminant(kind);
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
