//! Views of figures published elsewhere: the imported reports, their results in the form of their
//! source, and the findings of the rules in them. A report that tries options of a server has a
//! further page, laid out like a lab: option by profile. Nothing is measured or judged here, and a
//! difference of two single runs is only shown as a claim.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use judge::diff::words::plural;
use judge::order;
use judge::summary::difference_pct;
use minijinja::{Value, context};
use schema::run::{Kind, Level, PrintedNote, RunRecord, Status};

use super::figure::{self, Column, Figure};
use super::finding::{self, RuleFindings};
use super::release::extent;
use super::{command, fact, printed};
use crate::catalog::{self, Catalog, ReleaseKey, Run, distinct};
use crate::format::{self, Scale};
use crate::link::{Link, Target};
use crate::{outside, questions};

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

/// Groups the imported records of `catalog` into reports, by source and file.
pub fn reports<'a, 'b>(catalog: &'a Catalog<'b>) -> Vec<Report<'a, 'b>> {
    let mut reports: BTreeMap<(String, String), Vec<&Run>> = BTreeMap::new();
    for run in catalog.runs.iter().filter(|run| run.record.kind == Kind::Imported) {
        reports.entry(catalog::report_of(run.path).unwrap_or_default()).or_default().push(run);
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
        extent => extent(&runs, &catalog::cells(&runs)).replace(" run", " result"),
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
        extent => plural(report.runs.len(), "result"),
        engines => names(|r| format!("{} {}", r.engine.name, r.engine.release)),
        hardware => names(|r| r.hardware.id.clone()),
        found => format!("{} of {}", spoiled.count(), report.runs.len()),
    }
}

/// Builds the view of the page of `report` without the tables of its results, and separately the
/// tables, because they are split into pages. `options` is a link to the report's options, where it
/// tries some as a lab does.
pub fn report(report: &Report, options: Option<Link>) -> (Value, Vec<Value>) {
    let runs = &report.runs;
    let cells = catalog::cells(runs);
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
    let releases = distinct(runs.iter().map(|run| ReleaseKey::of(run.record)));
    let view = context! {
        source => outside::name(&report.source),
        options,
        file => outside::name(&source.file),
        sha256 => outside::name(&source.sha256),
        tool => outside::name(&tool),
        definitions => source.definitions.iter().map(definition).collect::<Value>(),
        // Evidence for the hardware, as its importer stated it.
        evidence,
        releases => releases.iter().map(Link::release).collect::<Value>(),
        extent => extent(runs, &cells).replace(" run", " result"),
        findings => finding::by_rule(runs).into_iter().map(|of| found(runs, of)).collect::<Value>(),
    };
    (view, printed::tables(runs))
}

/// Builds a finding with the results that it concerns, grouped by what the rule says about them.
fn found(runs: &[&Run], of: RuleFindings) -> Value {
    let mut details: Vec<(String, Vec<Link>)> = Vec::new();
    for run in runs {
        for check in run.broken().filter(|check| outside::name(&check.rule) == of.rule) {
            let detail = outside::message(check.detail.as_deref().unwrap_or("no detail"));
            match details.iter_mut().find(|(known, _)| *known == detail) {
                Some((_, blocks)) => blocks.push(Link::block(run)),
                None => details.push((detail, vec![Link::block(run)])),
            }
        }
    }
    let detail = |(text, blocks): (String, Vec<Link>)| context! { text, blocks };
    context! { rule => of, details => details.into_iter().map(detail).collect::<Value>() }
}

/// Name of the metric whose differences the page of a report's options shows.
const METRIC: &str = "total_tokens_per_s";

/// Latency whose mean the page of a report's options shows beside the throughput, as reports label
/// it.
const LATENCY: &str = "Mean TPOT (ms)";

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
pub fn options(report: &Report) -> Value {
    let table_of = |of| {
        let runs = report.runs.iter().copied().filter(|run| subject(run.record) == of);
        table(of, &runs.collect::<Vec<_>>())
    };
    context! {
        report => report.link(),
        head => Column { metric: figure::metric(METRIC), scale: Scale::PER_SECOND }.head(),
        latency => LATENCY,
        tables => subjects(report).map(table_of).collect::<Value>(),
    }
}

/// Builds the table of the options of one model on one hardware, as published.
fn table((model, hardware): (&str, &str), runs: &[&Run]) -> Value {
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
            flags => outside::line(&own.join(" ")),
            cells => scenarios.iter().map(cell).collect::<Value>(),
        }
    };
    let repeat = questions::lab_of(model, hardware);
    let is_concluded = |note: &&PrintedNote| {
        let section = note.section.as_deref().unwrap_or_default();
        section.to_lowercase().starts_with("conclusion")
    };
    let concluded = runs.iter().flat_map(|run| printed::notes(run.record)).filter(is_concluded);
    context! {
        model => Link::model(model),
        hardware => outside::name(hardware),
        conclusion => conclusion(runs),
        // Sentences of the report below its heading `Conclusion`.
        quotes => printed::quotes(concluded),
        rows => choices.iter().map(row).collect::<Value>(),
        shared => shared.iter().map(|flag| outside::line(flag)).collect::<Value>(),
        baseline => outside::name(&baseline.0),
        scenarios => scenarios.iter().map(|scenario| under(runs, scenario)).collect::<Value>(),
        extent => format!(
            "{} of {}",
            plural(runs.len(), "result"),
            plural(choices.len(), "option")
        ),
        // Command that measures the same options with repeats; empty where the suite has no such
        // lab.
        repeat => repeat
            .map_or_else(String::new, |lab| outside::command(&["cargo", "xtask", "lab", lab])),
    }
}

/// Builds the conclusion of a report that names two variants, such as `Baseline` and `Optimized`: both
/// under each profile, and the command of the second. `None` for other reports.
fn conclusion(runs: &[&Run]) -> Option<Value> {
    let variant = |run: &Run| printed::printed(run.record)?.variant.clone();
    let names = distinct(runs.iter().filter_map(|run| variant(run)));
    let [baseline, optimized] = names.as_slice() else { return None };
    let of = |name: &String| -> Vec<&Run> {
        runs.iter().copied().filter(|run| variant(run).as_ref() == Some(name)).collect()
    };
    let (before, after) = (of(baseline), of(optimized));
    let (from, to) = (choice(before.first()?.record), choice(after.first()?.record));
    let row = |run: &&Run| {
        let scenario = catalog::scenario(run.record);
        context! {
            profile => under(runs, &scenario),
            cells => [&from, &to]
                .into_iter()
                .map(|of| cell(runs, (of, &from), &scenario))
                .collect::<Value>(),
        }
    };
    let serve = command::serve(after.first()?.record);
    Some(context! {
        names => names.iter().map(|name| outside::name(name)).collect::<Value>(),
        serve => serve.as_ref().map(|serve| &serve.line),
        notes => serve.iter().flat_map(|serve| &serve.notes).collect::<Value>(),
        rows => after.iter().map(row).collect::<Value>(),
    })
}

/// Formats a scenario of `runs` with the name that the report gives it, where it gives one:
/// `Throughput, random-1024-128-1000@0`.
fn under(runs: &[&Run], scenario: &str) -> String {
    let mut own = runs.iter().filter(|run| catalog::scenario(run.record) == scenario);
    let profile = own.find_map(|run| printed::printed(run.record)?.profile.as_deref());
    let profile = profile.map(|profile| format!("{profile}, ")).unwrap_or_default();
    outside::name(&format!("{profile}{scenario}"))
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
        .map(finely);
    let broken = own.iter().flat_map(|run| run.broken());
    let broken = distinct(broken.map(|check| (check.rule.as_str(), check.level)));
    let errors = broken.iter().filter(|(_, level)| *level == Level::Error);
    let lost = || Figure::missing("not every request was answered");
    Some(context! {
        figure => value(first).map_or_else(lost, |value| as_printed(first.record, value)),
        latency => value(first).and_then(|_| printed::printed(first.record)?.text(LATENCY)).map(outside::name),
        // Difference from the baseline's figure, as published; empty where there is nothing to
        // compare.
        difference => difference.unwrap_or_default(),
        partial => printed::answered(first.record),
        blocks => own.iter().map(|run| Link::block(run)).collect::<Value>(),
        // Checks that the results fail, and those of level error alone.
        rules => broken.iter().map(|(id, _)| failed(id)).collect::<Value>(),
        errors => errors.map(|(id, _)| failed(id)).collect::<Value>(),
    })
}

/// Builds the name of a rule that a result breaks, and whether the method page describes it.
fn failed(rule: &str) -> Value {
    let (id, known) = (outside::name(rule), judge::rule(rule));
    let text = known.map_or_else(|| id.clone(), |rule| format!("{} ({id})", rule.finding));
    context! { id, text, known => known.is_some() }
}

/// Builds the figure of a result's throughput: with the text of the printed row that has this
/// value, or with up to five digits where no row has it.
fn as_printed(record: &RunRecord, value: f64) -> Figure {
    let figure = Figure::published(value, Scale::PER_SECOND);
    let rows = printed::printed(record).map(|printed| printed.rows.as_slice()).unwrap_or_default();
    let row = rows.iter().find(|row| row.text.parse() == Ok(value));
    row.map_or(figure.clone(), |row| Figure { text: outside::name(&row.text), ..figure })
}

/// Formats a change in percent as pages do, and one below 1 % with two decimals: a report states
/// differences of 0.05 %.
fn finely(pct: f64) -> String {
    if pct.abs() >= 1.0 || pct == 0.0 {
        return format::change(pct);
    }
    format!("{pct:+.2} %").replace('-', "\u{2212}")
}
