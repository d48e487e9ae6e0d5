//! Tables of results published elsewhere, in the form of their source: its rows, labels, digits and
//! flags, one column per result, with its sentences as quotes below. Nothing is computed or rounded
//! here.

use judge::summary::share_pct;
use minijinja::{Value, context};
use schema::metric::{METRICS, Metric};
use schema::printed::{LINKS_MAX, NOTES_MAX};
use schema::run::{Kind, Printed, PrintedLink, PrintedNote, PrintedRow, RunRecord, Source};

use super::command;
use crate::catalog::{self, ReleaseKey, Run, distinct};
use crate::format::{self, Scale};
use crate::link::{Link, block_number};
use crate::outside;

/// Largest number of results beside one another in a table.
const COLUMNS_MAX: usize = 20;

/// Row of a table: section, label, which of several equal labels it is, and the text of each column
/// that has the row.
type Row = ((String, String, usize), Vec<Option<String>>);

/// Returns what the report prints about the result of an imported record; `None` for other records
/// and for the first reader, which did not keep it.
pub fn printed(record: &RunRecord) -> Option<&Printed> {
    record.source.as_ref().filter(|_| record.kind == Kind::Imported)?.printed.as_ref()
}

/// Returns the sentences that the report prints beside the result of an imported record.
pub fn notes(record: &RunRecord) -> impl Iterator<Item = &PrintedNote> {
    printed(record).into_iter().flat_map(|printed| &printed.notes).take(NOTES_MAX)
}

/// Builds quotes from `notes`, each with its links. The heading above several notes stands at the
/// first one.
pub fn quotes<'a>(notes: impl Iterator<Item = &'a PrintedNote>) -> Value {
    let link = |link: &PrintedLink| {
        context! { text => outside::name(&link.text), url => link.url.clone() }
    };
    let mut last = String::new();
    let quote = |note: &PrintedNote| {
        let section = outside::name(note.section.as_deref().unwrap_or_default());
        let title = if section == last { String::new() } else { section.clone() };
        last = section;
        context! {
            section => title,
            text => outside::line(&note.text),
            links => note.links.iter().take(LINKS_MAX).map(link).collect::<Value>(),
        }
    };
    notes.map(quote).collect()
}

/// Builds the tables of `runs`, which are results of one report in its order: one table for each
/// model, hardware and profile, and for each 20 results of them.
pub fn tables(runs: &[&Run]) -> Vec<Value> {
    let subject = |run: &Run| {
        let profile = printed(run.record).and_then(|printed| printed.profile.clone());
        (run.record.model.id.clone(), run.record.hardware.id.clone(), profile)
    };
    let mut tables = Vec::new();
    for of in distinct(runs.iter().map(|run| subject(run))) {
        let own: Vec<&Run> = runs.iter().copied().filter(|run| subject(run) == of).collect();
        tables.extend(own.chunks(COLUMNS_MAX).map(table));
    }
    tables
}

/// Parts that all results of a table have, which stand above it once, and what the heads of its
/// columns have to say.
struct Shared {
    headings: Vec<String>,
    flags: Vec<String>,
    /// True where the results were served by different commands, so that each column has its flags.
    own_flags: bool,
    several_engines: bool,
    several_scenarios: bool,
}

/// Builds the table of `runs`, which share model, hardware and profile.
pub fn table(runs: &[&Run]) -> Value {
    let records: Vec<&RunRecord> = runs.iter().map(|run| run.record).collect();
    let settings = common(&records, settings);
    let servers = records.iter().map(|record| record.server.as_ref());
    let served = distinct(servers.map(|server| server.map(|server| (&server.env, &server.argv))));
    let engines = distinct(records.iter().map(|record| ReleaseKey::of(record)));
    let scenarios = distinct(records.iter().map(|record| &record.scenario.id));
    let shared = Shared {
        headings: common(&records, headings),
        flags: common(&records, catalog::config_parts),
        own_flags: served.len() > 1,
        several_engines: engines.len() > 1,
        several_scenarios: scenarios.len() > 1,
    };
    let first = records.first();
    let profile = first.and_then(|record| printed(record)?.profile.as_deref());
    let command = first.filter(|_| !shared.own_flags).and_then(|record| command(record));
    context! {
        model => first.map(|record| Link::model(&record.model.id)),
        hardware => first.map(|record| outside::name(&record.hardware.id)).unwrap_or_default(),
        profile => profile.map(outside::name).unwrap_or_default(),
        engine => (engines.len() == 1).then(|| engines.first().map(Link::release)),
        headings => outside::message(&shared.headings.join(" \u{203a} ")),
        // Serving command of all results with notes on what it leaves out; none where they have
        // different ones.
        command => command.as_ref().map(|(line, _)| line),
        notes => command.iter().flat_map(|(_, notes)| notes).collect::<Value>(),
        own_flags => shared.own_flags,
        flags => shared.own_flags.then(|| shown(&shared.flags)),
        settings => shown(&settings),
        columns => runs.iter().map(|run| column(run, &shared)).collect::<Value>(),
        rows => lines_of(rows(&records, &settings)),
        quotes => quotes(records.iter().flat_map(|record| notes(record))),
    }
}

/// Builds the head of the column of one result.
fn column(run: &Run, shared: &Shared) -> Value {
    let record = run.record;
    let rest = |mut all: Vec<String>, shared: &[String]| -> Vec<String> {
        all.retain(|part| !shared.contains(part));
        all
    };
    let name = rest(headings(record), &shared.headings).join(" \u{203a} ");
    let flags = rest(catalog::config_parts(record), &shared.flags);
    context! {
        block => Link::block(run),
        // Words by which the report tells the result from the others of the table.
        name => outside::message(&name),
        scenario => shared.several_scenarios.then(|| outside::name(&record.scenario.id)),
        engine => shared.several_engines.then(|| Link::release(&ReleaseKey::of(record))),
        flags => shared.own_flags.then(|| shown(&flags)),
        lines => record.source.as_ref().map(lines).unwrap_or_default(),
        // Number of an earlier result of the same report with the same figures.
        twin => run.twin.map(block_number).unwrap_or_default(),
        partial => answered(record),
    }
}

fn shown(parts: &[String]) -> Value {
    parts.iter().map(|part| outside::line(part)).collect()
}

/// Returns the headings above a result, and the name of its variant.
fn headings(record: &RunRecord) -> Vec<String> {
    let Some(printed) = printed(record) else { return Vec::new() };
    printed.headings.iter().chain(&printed.variant).cloned().collect()
}

/// Returns the settings of the benchmark tool as `name=value`.
fn settings(record: &RunRecord) -> Vec<String> {
    let rows = printed(record).map(|printed| printed.settings.as_slice()).unwrap_or_default();
    rows.iter().map(setting).collect()
}

fn setting(row: &PrintedRow) -> String {
    format!("{}={}", row.label, row.text)
}

/// Returns the parts that all records have, in the order of the first one.
fn common(records: &[&RunRecord], parts: impl Fn(&RunRecord) -> Vec<String>) -> Vec<String> {
    let all: Vec<Vec<String>> = records.iter().map(|record| parts(record)).collect();
    let Some((first, rest)) = all.split_first() else { return Vec::new() };
    first.iter().filter(|part| rest.iter().all(|own| own.contains(part))).cloned().collect()
}

/// Returns the serving command that the report states, with its environment variables, and notes on
/// those that it leaves out; `None` where the report states none.
fn command(record: &RunRecord) -> Option<(String, Vec<String>)> {
    let server = record.server.as_ref()?;
    Some(command::line(&command::environment(server), server.argv.as_ref()?))
}

/// Formats the lines of a result in its report: `lines 98 to 124`, or `line 9`.
pub fn lines(source: &Source) -> String {
    let Source { line_first, line_last, .. } = source;
    if line_first == line_last {
        return format!("line {line_first}");
    }
    format!("lines {line_first} to {line_last}")
}

/// Formats the share of answered requests, `514 of 1000 requests answered, 51.4 %`; empty where all
/// were answered, or the report does not say.
pub fn answered(record: &RunRecord) -> String {
    let counts = record.counts.as_ref();
    let counts = counts.and_then(|counts| counts.requests_ok.zip(counts.requests_planned));
    let Some((ok, planned)) = counts.filter(|(ok, planned)| ok < planned) else {
        return String::new();
    };
    let share = share_pct(format::as_f64(ok), format::as_f64(planned)).unwrap_or_default();
    format!("{ok} of {planned} requests answered, {share:.1} %")
}

/// Joins the printed rows of `records`, one column each: settings except the `shared` ones, figures
/// of the log, and the result itself. A row that only some results have stands where they have it.
fn rows(records: &[&RunRecord], shared: &[String]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (column, record) in records.iter().enumerate() {
        let kept = printed(record).cloned().unwrap_or_else(|| of_fields(record));
        let printed = &kept;
        let own = printed.settings.iter().filter(|row| !shared.contains(&setting(row)));
        let own = own.map(|row| ("Settings", row));
        let log = printed.log.iter().map(|row| ("Log", row));
        let result =
            printed.rows.iter().map(|row| (row.section.as_deref().unwrap_or("Result"), row));
        let mut seen: Vec<(&str, &str)> = Vec::new();
        let mut next = 0;
        for (section, PrintedRow { label, text, .. }) in own.chain(log).chain(result) {
            let nth = seen.iter().filter(|known| **known == (section, label)).count();
            seen.push((section, label));
            let key = (section.to_owned(), label.clone(), nth);
            let at = rows.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
                rows.insert(next, (key, vec![None; records.len()]));
                next
            });
            rows[at].1[column] = Some(text.clone());
            next = at + 1;
        }
    }
    rows
}

/// Returns the figures in the fields of a record of the first reader, which kept no printed rows.
fn of_fields(record: &RunRecord) -> Printed {
    let row = |metric: &Metric| {
        let value = metric.value(record).filter(|value| value.is_finite())?;
        let Scale { unit, divisor } = Scale::fit(metric.unit, 0.0);
        Some(PrintedRow {
            section: Some("Figures that the record kept".to_owned()),
            label: format!("{} {unit}", metric.title),
            text: format::exactly(value / divisor),
        })
    };
    Printed { rows: METRICS.iter().filter_map(row).collect(), ..Printed::default() }
}

/// Builds the lines of a table from its rows, in their order. A line has the title of its section
/// only where the line before is of another section.
fn lines_of(rows: Vec<Row>) -> Value {
    let mut last = String::new();
    let line = |((section, label, _), cells): Row| {
        let title = if section == last { String::new() } else { outside::name(&section) };
        last = section;
        let cell = |text: Option<String>| text.map(|text| outside::message(&text));
        context! {
            // Title of the section that begins with the row; empty within a section.
            section => title,
            label => outside::message(&label),
            // Texts as printed; none where the report does not print the row for that result.
            cells => cells.into_iter().map(cell).collect::<Value>(),
        }
    };
    rows.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rows: &[(&str, &str)]) -> RunRecord {
        let row = |(label, text): &(&str, &str)| PrintedRow {
            section: None,
            label: (*label).to_owned(),
            text: (*text).to_owned(),
        };
        let printed = Printed { rows: rows.iter().map(row).collect(), ..Printed::default() };
        let source = Source { printed: Some(printed), ..Source::default() };
        RunRecord { kind: Kind::Imported, source: Some(source), ..RunRecord::default() }
    }

    #[test]
    fn a_row_that_only_some_results_have_stands_where_they_have_it() {
        let all = [
            record(&[("A", "1.00"), ("C", "3")]),
            record(&[("A", "1.10"), ("B", "2"), ("C", "3"), ("A", "again")]),
        ];
        let rows = rows(&all.iter().collect::<Vec<_>>(), &[]);
        let shown = rows.iter().map(|((_, label, _), cells)| {
            let cells: Vec<&str> = cells.iter().map(|cell| cell.as_deref().unwrap_or("")).collect();
            format!("{label}: {}", cells.join("|"))
        });
        let expected = ["A: 1.00|1.10", "B: |2", "C: 3|3", "A: |again"];
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }
}
