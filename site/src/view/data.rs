//! The data page, and the table of all runs for spreadsheets.

use std::fmt::Write;

use schema::event::{Event, EventKind};
use schema::metric::METRICS;
use serde::Serialize;

use super::overview::PageLine;
use super::words;
use crate::catalog::{Catalog, Run, kind_name};
use crate::outside;

/// The data page.
#[derive(Debug, Clone, Serialize)]
pub struct DataView {
    pub runs: usize,
    pub kernels: usize,
    pub campaigns: usize,
    pub events: Vec<EventLine>,
    pub pages: Vec<PageLine>,
}

/// What was said about records afterwards.
#[derive(Debug, Clone, Serialize)]
pub struct EventLine {
    pub id: String,
    pub at: String,
    pub kind: &'static str,
    pub targets: String,
    pub reason: String,
}

impl DataView {
    /// What `catalog` holds.
    #[must_use]
    pub fn new(catalog: &Catalog) -> Self {
        let event = |event: &Event| EventLine {
            id: outside::name(&event.id),
            at: outside::name(&event.at),
            kind: match event.kind {
                EventKind::Retract => "retracted",
                EventKind::Annotate => "remark",
                EventKind::Waive => "waiver",
                EventKind::Epoch => "epoch",
            },
            targets: outside::message(&event.subject()),
            reason: outside::message(&event.reason),
        };
        Self {
            runs: catalog.runs.len(),
            kernels: catalog.registry.kernels.len(),
            campaigns: catalog.registry.campaigns.len(),
            events: catalog.registry.events.iter().map(|stored| event(&stored.record)).collect(),
            pages: super::overview::page_lines(catalog),
        }
    }
}

/// Columns of the table beside the metrics.
const KEYS: [&str; 13] = [
    "path",
    "id",
    "kind",
    "status",
    "validity",
    "retracted",
    "engine",
    "release",
    "hardware",
    "model",
    "config",
    "scenario",
    "repeat",
];

/// Every run as comma-separated values (RFC 4180), metrics in their stored units. A value that is
/// missing is empty; its reason is in the record.
#[must_use]
pub fn csv(catalog: &Catalog) -> String {
    let mut out = KEYS.join(",");
    for metric in METRICS {
        let _ = write!(out, ",{}", metric.name);
    }
    out.push_str(",record_sha256\n");
    for run in &catalog.runs {
        out.push_str(&line(run));
        out.push('\n');
    }
    out
}

fn line(run: &Run) -> String {
    let record = run.record;
    let repeat = record.campaign.as_ref().map(|slot| slot.repeat.to_string());
    let mut cells: Vec<String> = vec![
        quoted(run.path),
        quoted(&record.id),
        kind_name(record.kind).to_owned(),
        words::status(record.status).to_owned(),
        words::validity(record.validity.verdict).to_owned(),
        run.retracted.is_some().to_string(),
        quoted(&record.engine.name),
        quoted(&record.engine.release),
        quoted(&record.hardware.id),
        quoted(&record.model.id),
        quoted(&schema::path::config_name(record)),
        quoted(&format!("{}@{}", record.scenario.id, record.scenario.rev)),
        repeat.unwrap_or_default(),
    ];
    let value = |metric: &schema::metric::Metric| {
        metric.value(record).map(|value| value.to_string()).unwrap_or_default()
    };
    cells.extend(METRICS.iter().map(value));
    cells.push(quoted(&record.record_sha256));
    cells.join(",")
}

/// A text cell. A spreadsheet takes a leading `=`, `+`, `-` or `@` for a formula, so such a text
/// is led by an apostrophe.
fn quoted(text: &str) -> String {
    let text = outside::name(text);
    let lead = if text.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    if lead.is_empty() && !text.contains([',', '"']) {
        return text;
    }
    format!("\"{lead}{}\"", text.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_neither_a_formula_nor_two_cells() {
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain\nname"), "plain name");
    }
}
