//! Tooltips of marks in charts: figures with their ranges, number of runs, flags and hardware, and
//! the page that a mark links to.

use judge::rule::on_cpu;
use schema::run::{Kind, RunRecord};

use super::figure::{Column, Figure, launches};
use crate::catalog::{self, Cell, ReleaseKey};
use crate::chart::Tip;
use crate::link::{Link, Place, Target};
use crate::outside;

/// Returns the tooltip of a cell's mark, with `figures`, on a page about several releases or engines:
/// it links to the run, or to the release's page for a median.
pub fn of_cell(cell: &Cell, figures: &[String]) -> Tip {
    let mut runs = cell.counted();
    let target = match (runs.next(), runs.next()) {
        (Some(run), Some(_)) => Some(Target::ReleaseOn(ReleaseKey::of(run.record))),
        (Some(run), None) => Some(Link::run(run).target),
        (None, _) => None,
    };
    Tip { text: text(cell, figures), address: address(target) }
}

/// Returns the tooltip of a cell's mark on the page of its release: it links to the first run.
pub fn of_run(cell: &Cell, column: &Column) -> Tip {
    let target = cell.counted().next().map(|run| Link::run(run).target);
    Tip { text: text(cell, &[figure(cell, column)]), address: address(target) }
}

/// Formats the figure of a cell for a tooltip: title, value with its spread, and unit.
pub fn figure(cell: &Cell, column: &Column) -> String {
    labeled(column.metric.title, &column.figure(cell), column.scale.unit)
}

/// Formats a figure for a tooltip: `Output tokens 834 /s ±6.0 %`.
pub fn labeled(title: &str, figure: &Figure, unit: &str) -> String {
    let spread = figure.spread.as_deref().unwrap_or_default();
    format!("{title} {} {unit} {spread}", figure.text).trim_end().to_owned()
}

/// Returns the address of a target from the root of the site.
pub fn address(target: Option<Target>) -> Option<String> {
    target?.address(Place::Html, 0)
}

fn text(cell: &Cell, figures: &[String]) -> String {
    let Some(record) = cell.runs.first().map(|run| run.record) else { return String::new() };
    let mut parts =
        vec![format!("{} {}, {}", record.engine.name, record.engine.release, cell.key.scenario)];
    parts.extend_from_slice(figures);
    parts.push(format!("n = {}", launches(cell)));
    parts.push(configuration(record).join(" "));
    let flags = flags(record);
    if !flags.is_empty() {
        parts.push(format!("flags {flags}"));
    }
    parts.push(format!("on {}", record.hardware.id));
    if record.kind == Kind::Imported {
        parts.push("published elsewhere, not verified".to_owned());
    }
    outside::message(&parts.join("; "))
}

/// Returns the configuration of a record in parts, for readers: on a machine without a GPU the data
/// type and the number of threads in place of the tensor-parallel size, which is always 1 there.
pub fn configuration(record: &RunRecord) -> Vec<String> {
    if record.kind == Kind::Imported || !on_cpu(record) {
        return catalog::config_parts(record);
    }
    let Some(server) = &record.server else { return catalog::config_parts(record) };
    let reported = server.config.as_ref().and_then(|config| config.get("threads"));
    let argv = server.argv.as_deref().unwrap_or_default();
    let asked = argv.iter().skip_while(|word| *word != "--threads").nth(1).cloned();
    let threads = reported.map(ToString::to_string).or(asked);
    let mut parts: Vec<String> = record.model.dtype.iter().cloned().collect();
    parts.extend(threads.map(|threads| format!("{threads} threads")));
    parts.extend(server.variant.clone());
    if parts.is_empty() { catalog::config_parts(record) } else { parts }
}

/// Returns the flags of the server behind a measured record that say how it serves: without the
/// model, the address, and a tensor-parallel size on a machine without a GPU. The configuration of
/// an imported record consists of its flags.
fn flags(record: &RunRecord) -> String {
    if record.kind == Kind::Imported {
        return String::new();
    }
    let argv = record.server.as_ref().and_then(|server| server.argv.as_deref()).unwrap_or_default();
    let mut rest = argv.iter().skip_while(|word| !word.starts_with('-')).peekable();
    let mut shown: Vec<&str> = Vec::new();
    while let Some(flag) = rest.next() {
        let value = rest.next_if(|next| !next.starts_with('-'));
        let is_place = [Some(flag), value].into_iter().flatten().any(|word| word.contains('{'));
        if is_place || (flag == "--tp" && on_cpu(record)) || !flag.starts_with('-') {
            continue;
        }
        shown.push(flag);
        shown.extend(value.map(String::as_str));
    }
    outside::command(&shown)
}

#[cfg(test)]
mod tests {
    use samples::Sample;

    use super::*;
    use crate::view::figure::output;

    #[test]
    fn a_tooltip_says_number_of_runs_range_flags_and_hardware() {
        let argv: Vec<String> = ["--tp", "1", "--threads", "2"].map(str::to_owned).to_vec();
        let of = |serial: u64| Sample {
            argv: argv.clone(),
            serial,
            speed: 1.0 + f64::from(u32::try_from(serial).unwrap_or(0)) / 10.0,
            ..Sample::default()
        };
        let records = vec![of(1).record(), of(2).record()];
        let registry = samples::registry::registry(records);
        let catalog = catalog::Catalog::of(&registry);
        let runs: Vec<_> = catalog.runs.iter().collect();
        let cells = catalog::cells(&runs);
        let column = Column::new(output(), &cells);
        let tip = of_cell(&cells[0], &[figure(&cells[0], &column)]);
        for part in ["; n = 2; ", "; flags --threads 2; on cpu-example", "Output tokens ", " /s ±"]
        {
            assert!(tip.text.contains(part), "`{part}` is not in `{}`", tip.text);
        }
        assert!(tip.address.expect("a page").starts_with("r/redline/"));
        let first = of_run(&cells[0], &column).address.expect("a page");
        assert!(first.starts_with("run/"), "{first}");
        let alone = Cell { key: cells[0].key.clone(), runs: vec![runs[0]] };
        assert!(of_cell(&alone, &[]).address.expect("a page").starts_with("run/"));
    }
}
