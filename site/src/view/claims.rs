//! View of a published report that tries options of a server, laid out like a lab: option by
//! profile, with the findings in each result. Nothing is measured or judged here, and a difference
//! of two single runs is only shown as a claim.

use std::collections::{BTreeMap, BTreeSet};

use judge::order;
use judge::summary::{difference_pct, share_pct};
use minijinja::{Value, context};
use schema::run::{Check, Level, RunRecord, Status};

use super::figure::{self, Column, Figure};
use super::finding::Tone;
use super::imports::{Report, answered};
use super::release::counted;
use crate::catalog::{self, Catalog, Run};
use crate::format::{self, Scale};
use crate::link::{Link, Target, block_number};
use crate::{outside, questions};

/// Metric by which published reports that try options choose one of them.
const METRIC: &str = "total_tokens_per_s";

/// Smallest number of options, for one model on one hardware under one scenario, that makes a
/// report a lab.
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

/// Returns each model and hardware for which a published report tries options.
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

/// Returns a link to the page of a report's options; `None` where the report does not try several
/// options of an engine's server under one scenario.
pub fn link(report: &Report) -> Option<Link> {
    subjects(report).next()?;
    let (source, file) = (report.source.clone(), report.file.clone());
    let text = format!("Options tried in {source} {file}");
    Some(Link::new(&text, Target::Claims { source, file }))
}

/// Builds the view of the options that a published report tries: a table for each model and
/// hardware.
pub fn view(catalog: &Catalog, report: &Report) -> Value {
    let table_of = |of| {
        let runs = report.runs.iter().copied().filter(|run| subject(run.record) == of);
        table(catalog, of, &runs.collect::<Vec<_>>())
    };
    context! {
        report => report.link(),
        head => Column { metric: figure::metric(METRIC), scale: SCALE }.head(),
        tables => subjects(report).map(table_of).collect::<Value>(),
    }
}

const SCALE: Scale = Scale { unit: "/s", divisor: 1.0 };

/// Builds the table of the options of one model on one hardware, as published.
fn table(catalog: &Catalog, (model, hardware): (&str, &str), runs: &[&Run]) -> Value {
    // The first result is the baseline of the others, as in the report.
    let mut choices: Vec<Choice> = Vec::new();
    for choice in runs.iter().map(|run| choice(run.record)) {
        if !choices.contains(&choice) {
            choices.push(choice);
        }
    }
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
        blocks => runs.iter().map(|run| block(catalog, run)).collect::<Value>(),
        extent => format!(
            "{} of {}",
            counted(runs.len(), "block"),
            counted(choices.len(), "option")
        ),
        // Command that measures the same options with repeats; empty where the suite has no such
        // lab.
        repeat => repeat
            .map_or_else(String::new, |lab| outside::command(&["cargo", "xtask", "lab", lab])),
    }
}

/// Returns the results of option `of` under `scenario`; `None` where the report has none.
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
        .map(|pct| format!("{} %", format::percent(pct)));
    let mut rules: Vec<(String, bool)> = Vec::new();
    for check in own.iter().flat_map(|run| run.broken()) {
        let rule = (outside::name(&check.rule), judge::rule(&check.rule).is_some());
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    let lost = || Figure::missing("not every request was answered");
    Some(context! {
        figure => value(first).map_or_else(lost, |value| Figure::single(value, SCALE)),
        // Difference from the baseline's figure, as published; empty where there is nothing to
        // compare.
        difference => difference.unwrap_or_default(),
        partial => partial(first.record),
        blocks => own.iter().map(|run| Link::block(run)).collect::<Value>(),
        rules,
    })
}

/// Formats the share of answered requests, `514 of 1000 requests answered, 51.4 %`; empty where all
/// were answered.
fn partial(record: &RunRecord) -> String {
    let Some((ok, planned)) = answered(record) else { return String::new() };
    let share = share_pct(format::as_f64(ok), format::as_f64(planned)).unwrap_or_default();
    format!("{ok} of {planned} requests answered, {share:.1} %")
}

/// Builds the view of one published result: its link, and the findings of the rules in it.
fn block(catalog: &Catalog, run: &Run) -> Value {
    // Rule, true when the method page describes it, urgency, and detail.
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
