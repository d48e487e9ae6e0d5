//! Views of figures published elsewhere: the imported reports, their results, and the findings of
//! the rules in them. A report that tries options of a server has a further page, laid out like a
//! lab: option by profile. Nothing is measured or judged here, and a difference of two single runs
//! is only shown as a claim.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use judge::diff::words::plural;
use judge::order;
use judge::summary::{difference_pct, share_pct};
use minijinja::{Value, context};
use schema::metric::Metric;
use schema::run::{Check, Kind, Level, RunRecord, Status};

use super::fact;
use super::figure::{self, Column, Figure};
use super::finding::{self, Tone};
use super::release::extent;
use crate::catalog::{self, Catalog, ReleaseKey, Run, distinct};
use crate::format::{self, Scale};
use crate::link::{Link, Target, block_number};
use crate::{outside, questions};

/// Names of the metrics that are columns in the list of a report's results.
const COLUMNS: [&str; 4] = ["output_tokens_per_s", "requests_per_s", "ttft_us_p50", "tpot_us_p50"];

/// Imported report with its results, ordered by their ids.
#[derive(Debug)]
pub struct Report<'a, 'b> {
    pub source: String,
    /// First digits of the hash of the report's file.
    pub file: String,
    pub runs: Vec<&'a Run<'b>>,
}

impl Report<'_, '_> {
    /// Returns a link to the page of the imported report.
    pub fn link(&self) -> Link {
        Link::report((self.source.clone(), self.file.clone()))
    }
}

/// Returns source and file of the imported record at `path`, which is
/// `imports/<source>/<hash>/<block>.json`; `None` for a shorter path.
pub fn report_of(path: &str) -> Option<(String, String)> {
    let mut parts = path.split('/').skip(1).map(str::to_owned);
    Some((parts.next()?, parts.next()?))
}

/// Groups the imported records of `catalog` into reports, by source and file.
pub fn reports<'a, 'b>(catalog: &'a Catalog<'b>) -> Vec<Report<'a, 'b>> {
    let mut reports: BTreeMap<(String, String), Vec<&Run>> = BTreeMap::new();
    for run in catalog.runs.iter().filter(|run| run.record.kind == Kind::Imported) {
        reports.entry(report_of(run.path).unwrap_or_default()).or_default().push(run);
    }
    let report = |((source, file), runs)| Report { source, file, runs };
    reports.into_iter().map(report).collect()
}

/// Builds the view of the list of imported `reports`. `options` are links to the pages of reports
/// that try options of a server as a lab does.
pub fn view(catalog: &Catalog, reports: &[Report], options: Vec<Link>) -> Value {
    let runs: Vec<&Run> = reports.iter().flat_map(|report| report.runs.clone()).collect();
    let mut findings = finding::by_rule(&runs);
    findings.sort_by_key(|finding| Reverse(finding.count));
    let models = catalog::names(&runs, |record| &record.model.id);
    context! {
        extent => extent(&runs, &catalog::cells(&runs)).replace(" run", " block"),
        reports => reports.iter().map(line).collect::<Value>(),
        // Findings over all results, most frequent first.
        findings,
        models => models.into_iter().map(Link::model).collect::<Value>(),
        options,
        // Number of results whose figures repeat those of another digit by digit.
        repeated => catalog.twins.len(),
    }
}

/// Builds the line about one imported report: source, file, engines, hardware, number of results,
/// and number of those that break a rule of level error.
fn line(report: &Report) -> Value {
    let names = |read: fn(&RunRecord) -> String| {
        let names: BTreeSet<String> = report.runs.iter().map(|run| read(run.record)).collect();
        outside::name(&Vec::from_iter(names).join(", "))
    };
    let spoiled =
        report.runs.iter().filter(|run| run.broken().any(|check| check.level == Level::Error));
    context! {
        source => report.link(),
        file => names(|r| r.source.as_ref().map(|s| s.file.clone()).unwrap_or_default()),
        extent => plural(report.runs.len(), "block"),
        engines => names(|r| format!("{} {}", r.engine.name, r.engine.release)),
        hardware => names(|r| r.hardware.id.clone()),
        found => format!("{} of {}", spoiled.count(), report.runs.len()),
    }
}

/// Builds the view of the page of `report` without its results, and separately the results, because
/// they are split into pages. `options` is a link to the report's options, where it tries some as a
/// lab does.
pub fn report(catalog: &Catalog, report: &Report, options: Option<Link>) -> (Value, Vec<Value>) {
    let runs = &report.runs;
    let cells = catalog::cells(runs);
    let columns = COLUMNS.map(|name| printed(figure::metric(name), runs));
    let source = runs.first().and_then(|run| run.record.source.clone()).unwrap_or_default();
    let tool = match &source.tool_version {
        _ if source.tool.is_empty() => String::new(),
        Some(version) => format!("{} {version}", source.tool),
        None => format!("{} of unknown version", source.tool),
    };
    let evidence = runs.iter().filter_map(|run| run.record.hardware.evidence.as_deref());
    let mut evidence: Vec<String> = evidence.map(outside::message).collect();
    evidence.dedup();
    let definition = |(name, value): (&String, &serde_json::Value)| {
        (outside::name(name), outside::message(&fact::plain(value)))
    };
    let view = context! {
        source => outside::name(&report.source),
        options,
        file => outside::name(&source.file),
        sha256 => outside::name(&source.sha256),
        tool => outside::name(&tool),
        definitions => source.definitions.iter().map(definition).collect::<Value>(),
        // Evidence for the hardware, as its importer stated it.
        evidence,
        extent => extent(runs, &cells).replace(" run", " block"),
        findings => finding::by_rule(runs),
        heads => columns.iter().map(Column::head).collect::<Value>(),
    };
    (view, runs.iter().map(|run| block(catalog, run, &columns)).collect())
}

/// Builds the column of a metric in the list of a report's results, with a unit that fits the
/// largest printed figure. The list shows what the report prints, also figures that are not sound.
fn printed(metric: &'static Metric, runs: &[&Run]) -> Column {
    let largest = runs.iter().filter_map(|run| metric.value(run.record)).fold(0.0, f64::max);
    Column { metric, scale: Scale::fit(metric.unit, largest) }
}

/// Builds the row about one result of a published report.
fn block(catalog: &Catalog, run: &Run, columns: &[Column]) -> Value {
    let record = run.record;
    let figure = |column: &Column| match column.metric.value(record) {
        Some(value) => Figure::single(value, column.scale),
        None => Figure::missing("not in the report"),
    };
    let figures = columns.iter().map(figure);
    let source = record.source.as_ref();
    context! {
        lines => source
            .map(|source| format!("{}\u{2013}{}", source.line_first, source.line_last))
            .unwrap_or_default(),
        engine => Link::release(&ReleaseKey::of(record)),
        hardware => outside::name(&record.hardware.id),
        model => Link::model(&record.model.id),
        scenario => outside::name(&catalog::scenario(record)),
        config => outside::name(&catalog::config(record)),
        figures => figures.collect::<Value>(),
        partial => answered(record).map_or_else(String::new, |(ok, planned)| {
            format!("{ok} of {planned} requests answered")
        }),
        ..result(catalog, run)
    }
}

/// Builds what both pages of a report show of a published result: its link, the earlier result with
/// the same figures, and the rules that it breaks.
fn result(catalog: &Catalog, run: &Run) -> Value {
    // Broken rules: id, true when the method page describes it, urgency, and detail.
    let finding = |check: &Check| {
        (
            outside::name(&check.rule),
            judge::rule(&check.rule).is_some(),
            if check.level == Level::Error { Tone::Firm } else { Tone::Soft },
            outside::message(check.detail.as_deref().unwrap_or_default()),
        )
    };
    context! {
        block => Link::block(run),
        // Earlier result whose figures this one repeats digit by digit; empty if there is none.
        twin => catalog.twin_of(run.record).map(block_number).unwrap_or_default(),
        findings => run.broken().map(finding).collect::<Value>(),
    }
}

/// Returns the numbers of answered and of planned requests of a published result; `None` where all
/// were answered, or the report does not say.
fn answered(record: &RunRecord) -> Option<(u64, u64)> {
    let counts = record.counts.as_ref()?;
    counts.requests_ok.zip(counts.requests_planned).filter(|(ok, planned)| ok < planned)
}

/// Name of the metric whose figures the page of a report's options shows.
const METRIC: &str = "total_tokens_per_s";

/// Smallest number of options of one engine, for one model on one hardware under one scenario, for
/// which a published report has a page of options.
const OPTIONS_MIN: usize = 3;

/// Option of a published report: engine with its release, and flags.
type Choice = (String, Vec<String>);

fn choice(record: &RunRecord) -> Choice {
    let engine = format!("{} {}", record.engine.name, record.engine.release);
    (engine, catalog::config_parts(record))
}

fn subject(record: &RunRecord) -> (&str, &str) {
    (&record.model.id, &record.hardware.id)
}

/// Returns each pair of a model and a hardware for which a published report tries at least
/// `OPTIONS_MIN` options of one engine under one scenario.
fn subjects<'a>(report: &'a Report) -> impl Iterator<Item = (&'a str, &'a str)> {
    let mut options: BTreeMap<_, BTreeSet<Vec<String>>> = BTreeMap::new();
    for run in &report.runs {
        let (engine, flags) = choice(run.record);
        let at = (subject(run.record), catalog::scenario(run.record), engine);
        options.entry(at).or_default().insert(flags);
    }
    let many = options.into_iter().filter(|(_, flags)| flags.len() >= OPTIONS_MIN);
    let subjects: BTreeSet<(&str, &str)> = many.map(|((subject, ..), _)| subject).collect();
    subjects.into_iter()
}

/// Returns a link to the page of a report's options; `None` where the report tries, for no model,
/// hardware and scenario, at least `OPTIONS_MIN` options of one engine.
pub fn options_link(report: &Report) -> Option<Link> {
    subjects(report).next()?;
    let (source, file) = (report.source.clone(), report.file.clone());
    let text = format!("Options tried in {source} {file}");
    Some(Link::new(&text, Target::Claims { source, file }))
}

/// Builds the view of the options that a published report tries: a table for each model and
/// hardware.
pub fn options(catalog: &Catalog, report: &Report) -> Value {
    let table_of = |of| {
        let runs = report.runs.iter().copied().filter(|run| subject(run.record) == of);
        table(catalog, of, &runs.collect::<Vec<_>>())
    };
    context! {
        report => report.link(),
        head => Column { metric: figure::metric(METRIC), scale: Scale::PER_SECOND }.head(),
        tables => subjects(report).map(table_of).collect::<Value>(),
    }
}

/// Builds the table of the options of one model on one hardware, as published.
fn table(catalog: &Catalog, (model, hardware): (&str, &str), runs: &[&Run]) -> Value {
    // The first result is the baseline of the others, as in the report.
    let choices: Vec<Choice> = distinct(runs.iter().map(|run| choice(run.record)));
    let mut scenarios: Vec<String> = runs.iter().map(|run| catalog::scenario(run.record)).collect();
    scenarios.sort_by(|a, b| order::scenarios(a, b));
    scenarios.dedup();
    let baseline = choices.first().cloned().unwrap_or_default();
    // Flags that every option of the baseline's engine has.
    let mut shared = baseline.1.clone();
    for (_, flags) in choices.iter().filter(|(engine, _)| *engine == baseline.0) {
        shared.retain(|flag| flags.contains(flag));
    }
    let row = |of: &Choice| {
        let own = of.1.iter().filter(|flag| !shared.contains(flag));
        let own: Vec<&str> = own.map(String::as_str).collect();
        let cell = |scenario: &String| cell(runs, (of, &baseline), scenario);
        context! {
            engine => outside::name(&of.0),
            // Flags of the option beyond the shared ones; empty for the baseline.
            flags => outside::message(&own.join(" ")),
            cells => scenarios.iter().map(cell).collect::<Value>(),
        }
    };
    let repeat = questions::lab_of(model, hardware);
    context! {
        model => Link::model(model),
        hardware => outside::name(hardware),
        rows => choices.iter().map(row).collect::<Value>(),
        shared => shared.iter().map(|flag| outside::name(flag)).collect::<Value>(),
        baseline => outside::name(&baseline.0),
        scenarios => scenarios.iter().map(|scenario| outside::name(scenario)).collect::<Value>(),
        blocks => runs.iter().map(|run| result(catalog, run)).collect::<Value>(),
        extent => format!(
            "{} of {}",
            plural(runs.len(), "block"),
            plural(choices.len(), "option")
        ),
        // Command that measures the same options with repeats; empty where the suite has no such
        // lab.
        repeat => repeat
            .map_or_else(String::new, |lab| outside::command(&["cargo", "xtask", "lab", lab])),
    }
}

/// Builds the table cell of option `of` under `scenario`: its figure, the difference from the
/// baseline, and its results; `None` where the report has none.
fn cell(runs: &[&Run], (of, baseline): (&Choice, &Choice), scenario: &str) -> Option<Value> {
    let find = |wanted: &Choice| -> Vec<&Run> {
        let is = |run: &&&Run| {
            choice(run.record) == *wanted && catalog::scenario(run.record) == scenario
        };
        runs.iter().filter(is).copied().collect()
    };
    let own = find(of);
    let first = own.first()?;
    let value = |run: &Run| {
        let value = figure::metric(METRIC).value(run.record);
        value.filter(|value| run.record.status == Status::Ok && *value > 0.0)
    };
    let against = find(baseline).first().and_then(|run| value(run)).filter(|_| of != baseline);
    let difference = value(first)
        .zip(against)
        .and_then(|(value, against)| difference_pct(value, against))
        .map(format::change);
    let rule = |check: &Check| (outside::name(&check.rule), judge::rule(&check.rule).is_some());
    let lost = || Figure::missing("not every request was answered");
    Some(context! {
        figure => value(first).map_or_else(lost, |value| Figure::single(value, Scale::PER_SECOND)),
        // Difference from the baseline's figure, as published; empty where there is nothing to
        // compare.
        difference => difference.unwrap_or_default(),
        partial => partial(first.record),
        blocks => own.iter().map(|run| Link::block(run)).collect::<Value>(),
        rules => distinct(own.iter().flat_map(|run| run.broken()).map(rule)),
    })
}

/// Formats the share of answered requests, `514 of 1000 requests answered, 51.4 %`; empty where all
/// were answered.
fn partial(record: &RunRecord) -> String {
    let Some((ok, planned)) = answered(record) else { return String::new() };
    let share = share_pct(format::as_f64(ok), format::as_f64(planned)).unwrap_or_default();
    format!("{ok} of {planned} requests answered, {share:.1} %")
}
