//! Every run of a registry as one flat table, for spreadsheets and data frames.

use std::fmt::Write as _;

use schema::metric::{METRICS, Metric};
use schema::path::{config_name, config_slug};
use schema::run::Kind;

use crate::list::{status_name, validity_name};
use crate::store::{Registry, Stored};
use schema::run::RunRecord;

/// Columns of the table before the metrics, whose names end in their units.
const KEYS: [&str; 18] = [
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
    "config_name",
    "scenario",
    "tier",
    "campaign",
    "block",
    "repeat",
    "started_at",
];

/// Every run as comma-separated values (RFC 4180), metrics in their stored units. A value that is
/// missing is empty; its reason is in the record.
#[must_use]
pub fn csv(registry: &Registry) -> String {
    let mut out = KEYS.join(",");
    for metric in METRICS {
        let _ = write!(out, ",{}", metric.name);
    }
    out.push_str(",record_sha256\n");
    for run in &registry.runs {
        out.push_str(&line(run, registry.retracted.contains_key(&run.record.id)));
        out.push('\n');
    }
    out
}

fn line(run: &Stored<RunRecord>, retracted: bool) -> String {
    let record = &run.record;
    let slot = record.campaign.as_ref();
    let of_slot = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
    let started = record.time.as_ref().and_then(|time| time.started_at.as_deref());
    let keys: [String; KEYS.len()] = [
        quoted(&run.path),
        quoted(&record.id),
        kind_name(record.kind).to_owned(),
        status_name(record.status).to_owned(),
        validity_name(record.validity.verdict).to_owned(),
        retracted.to_string(),
        quoted(&record.engine.name),
        quoted(&record.engine.release),
        quoted(&record.hardware.id),
        quoted(&record.model.id),
        quoted(&config_slug(record)),
        quoted(&config_name(record)),
        quoted(&format!("{}@{}", record.scenario.id, record.scenario.rev)),
        format!("{:?}", record.scenario.tier).to_lowercase(),
        slot.map(|slot| quoted(&slot.id)).unwrap_or_default(),
        of_slot(slot.map(|slot| slot.block)),
        of_slot(slot.map(|slot| slot.repeat)),
        started.map(quoted).unwrap_or_default(),
    ];
    let value =
        |metric: &Metric| metric.value(record).map(|value| value.to_string()).unwrap_or_default();
    let figures = METRICS.iter().map(value);
    let cells: Vec<String> = keys.into_iter().chain(figures).collect();
    format!("{},{}", cells.join(","), quoted(&record.record_sha256))
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Measured => "measured",
        Kind::Imported => "imported",
        Kind::Simulated => "simulated",
    }
}

/// A text cell. A spreadsheet takes a leading `=`, `+`, `-` or `@` for a formula, so such a text
/// is led by an apostrophe.
#[must_use]
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
    use audit::sample::Sample;

    #[test]
    fn a_cell_is_neither_a_formula_nor_two_cells() {
        assert_eq!(quoted("=1+1"), "\"'=1+1\"");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("plain\nname"), "plain name");
    }

    #[test]
    fn every_line_has_the_cells_of_the_head() {
        let record = Sample::default().record();
        let failed = Sample { serial: 2, ..Sample::default() }.failed_record();
        let mut registry = Registry::default();
        for record in [record, failed] {
            let path = schema::path::of_run(&record).unwrap();
            registry.runs.push(Stored { path, root: 0, record });
        }
        let text = csv(&registry);
        let lines: Vec<&str> = text.lines().collect();
        let cells = lines[0].split(',').count();
        assert_eq!(cells, KEYS.len() + METRICS.len() + 1);
        assert!(lines.iter().all(|line| line.split(',').count() == cells), "{text}");
        assert!(lines[0].contains(",ttft_us_p50,"), "{}", lines[0]);
        assert!(lines[2].contains(",failed,"), "{}", lines[2]);
    }
}
