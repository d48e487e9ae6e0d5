//! View of a published report that tries options of a server, laid out like a lab: option by
//! profile, with the findings in each result. Nothing is measured or judged here, and a difference
//! of two single runs is only shown as a claim.

use std::collections::{BTreeMap, BTreeSet};

use schema::metric::by_name;
use schema::run::{RunRecord, Status};
use serde::Serialize;

use super::badge::Tone;
use super::figure::{Figure, Head};
use super::imports::Report;
use super::release::{Related, counted};
use crate::catalog::{self, Catalog, Run};
use crate::format::{self, Scale};
use crate::link::Target;
use crate::{order, outside, questions};

/// Metric by which such reports choose an option.
const METRIC: &str = "total_tokens_per_s";

/// Smallest number of options, for one model on one hardware under one scenario, that makes a
/// report a lab.
const OPTIONS_MIN: usize = 3;

/// View of the options that a published report tries.
#[derive(Debug, Clone, Serialize)]
pub struct ClaimsView {
    pub report: Related,
    pub head: Head,
    pub tables: Vec<ClaimTable>,
}

/// Options of one model on one hardware, as published.
#[derive(Debug, Clone, Serialize)]
pub struct ClaimTable {
    pub model: Related,
    pub hardware: String,
    /// Flags that every option of the baseline's engine has.
    pub shared: Vec<String>,
    pub baseline: String,
    pub scenarios: Vec<String>,
    pub rows: Vec<ClaimRow>,
    pub blocks: Vec<ClaimBlock>,
    pub extent: String,
    /// Command that measures the same options with repeats; empty where the suite has no such lab.
    pub repeat: String,
}

/// Row of the table: one option, as published.
#[derive(Debug, Clone, Serialize)]
pub struct ClaimRow {
    pub engine: String,
    /// Flags of the option beyond the shared ones; empty for the baseline.
    pub flags: String,
    pub cells: Vec<Option<ClaimCell>>,
}

/// Published figure of an option under a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct ClaimCell {
    pub figure: Figure,
    /// Difference from the baseline's figure, as published; empty where there is nothing to
    /// compare.
    pub difference: String,
    /// Share of answered requests, where a figure is missing because requests were lost.
    pub partial: String,
    pub blocks: Vec<Related>,
    pub rules: Vec<(String, bool)>,
}

/// Findings of the rules in one published result.
#[derive(Debug, Clone, Serialize)]
pub struct ClaimBlock {
    pub block: Related,
    /// Earlier result whose figures this one repeats digit by digit; empty if there is none.
    pub twin: String,
    /// Findings: rule, true when the method page describes it, urgency, and detail.
    pub findings: Vec<(String, bool, Tone, String)>,
}

/// Option of a report: engine with its release, and flags.
type Choice = (String, Vec<String>);

fn choice(record: &RunRecord) -> Choice {
    let engine = format!("{} {}", record.engine.name, record.engine.release);
    (engine, catalog::config_parts(record))
}

fn subject(record: &RunRecord) -> (&str, &str) {
    (&record.model.id, &record.hardware.id)
}

/// True when the report tries several options of an engine's server under one scenario.
pub fn is_lab(report: &Report) -> bool {
    subjects(report).next().is_some()
}

/// Returns model and hardware for which a report tries options.
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

/// Link to the page of a report's options.
pub fn related(report: &Report) -> Related {
    Related {
        text: outside::name(&format!("Options tried in {} {}", report.source, report.file)),
        target: Target::Claims { source: report.source.clone(), file: report.file.clone() },
    }
}

impl ClaimsView {
    /// Builds the view of the options of `report`.
    pub fn new(catalog: &Catalog, report: &Report) -> Self {
        let source = format!("{} {}", report.source, report.file);
        let table = |of| {
            let runs = report.runs.iter().copied().filter(|run| subject(run.record) == of);
            ClaimTable::new(catalog, of, &runs.collect::<Vec<_>>())
        };
        let title = by_name(METRIC).map_or(METRIC, |metric| metric.title).to_owned();
        Self {
            report: Related { text: outside::name(&source), target: report.target() },
            head: Head { title, unit: SCALE.unit.into(), name: METRIC.into() },
            tables: subjects(report).map(table).collect(),
        }
    }
}

const SCALE: Scale = Scale { unit: "/s", divisor: 1.0 };

impl ClaimTable {
    fn new(catalog: &Catalog, (model, hardware): (&str, &str), runs: &[&Run]) -> Self {
        // The first result is the baseline of the others, as in the report.
        let mut choices: Vec<Choice> = Vec::new();
        let mut scenarios: Vec<String> = Vec::new();
        for run in runs {
            let (choice, scenario) = (choice(run.record), catalog::scenario(run.record));
            if !choices.contains(&choice) {
                choices.push(choice);
            }
            if !scenarios.contains(&scenario) {
                scenarios.push(scenario);
            }
        }
        scenarios.sort_by(|a, b| order::scenarios(a, b));
        let baseline = choices.first().cloned().unwrap_or_default();
        let shared: Vec<String> = baseline
            .1
            .iter()
            .filter(|flag| {
                let mut own = choices.iter().filter(|(engine, _)| *engine == baseline.0);
                own.all(|(_, flags)| flags.contains(flag))
            })
            .cloned()
            .collect();
        let row = |of: &Choice| ClaimRow {
            engine: outside::name(&of.0),
            flags: {
                let own: Vec<String> =
                    of.1.iter().filter(|flag| !shared.contains(flag)).cloned().collect();
                outside::message(&own.join(" "))
            },
            cells: scenarios.iter().map(|scenario| cell(runs, (of, &baseline), scenario)).collect(),
        };
        let argv = |lab: &str| ["cargo", "xtask", "lab", lab].map(str::to_owned);
        Self {
            model: Related {
                text: outside::name(model),
                target: Target::Model { model: model.to_owned() },
            },
            hardware: outside::name(hardware),
            rows: choices.iter().map(row).collect(),
            shared: shared.iter().map(|flag| outside::name(flag)).collect(),
            baseline: outside::name(&baseline.0),
            scenarios: scenarios.iter().map(|scenario| outside::name(scenario)).collect(),
            blocks: runs.iter().map(|run| ClaimBlock::new(catalog, run)).collect(),
            extent: format!(
                "{} of {}",
                counted(runs.len(), "block"),
                counted(choices.len(), "option")
            ),
            repeat: questions::lab_of(model, hardware)
                .map_or_else(String::new, |lab| outside::command(&argv(lab))),
        }
    }
}

/// Returns the results of option `of` under `scenario`; `None` where the report has none.
fn cell(runs: &[&Run], (of, baseline): (&Choice, &Choice), scenario: &str) -> Option<ClaimCell> {
    let metric = by_name(METRIC)?;
    let find = |wanted: &Choice| -> Vec<&Run> {
        let is = |run: &&&Run| {
            choice(run.record) == *wanted && catalog::scenario(run.record) == scenario
        };
        runs.iter().filter(is).copied().collect()
    };
    let own = find(of);
    let first = own.first()?;
    let is_whole = |run: &Run| run.record.status == Status::Ok;
    let value = |run: &Run| metric.value(run.record).filter(|value| is_whole(run) && *value > 0.0);
    let against = find(baseline).first().and_then(|run| value(run)).filter(|_| of != baseline);
    let difference = value(first)
        .zip(against)
        .map(|(value, against)| format!("{} %", format::percent((value / against - 1.0) * 100.0)));
    let figure = match value(first) {
        Some(value) => Figure::single(value, SCALE),
        None => Figure::missing("not every request was answered"),
    };
    let mut rules: Vec<(String, bool)> = Vec::new();
    for check in own.iter().flat_map(|run| run.checks()).filter(|check| !check.ok) {
        let rule = (outside::name(&check.rule), judge::rule(&check.rule).is_some());
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    Some(ClaimCell {
        figure,
        difference: difference.unwrap_or_default(),
        partial: partial(first.record),
        blocks: own.iter().map(|run| block(run)).collect(),
        rules,
    })
}

/// Share of answered requests, `514 of 1000 requests answered, 51.4 %`; empty where all were
/// answered.
fn partial(record: &RunRecord) -> String {
    let counts = record.counts.as_ref();
    let Some((ok, planned)) =
        counts.and_then(|counts| counts.requests_ok.zip(counts.requests_planned))
    else {
        return String::new();
    };
    if ok >= planned {
        return String::new();
    }
    let share = format::as_f64(ok) / format::as_f64(planned) * 100.0;
    format!("{ok} of {planned} requests answered, {share:.1} %")
}

fn block(run: &Run) -> Related {
    let id = &run.record.id;
    Related {
        text: outside::name(id.rsplit('-').next().unwrap_or(id)),
        target: Target::Run { id: id.clone(), record: run.path.to_owned() },
    }
}

impl ClaimBlock {
    fn new(catalog: &Catalog, run: &Run) -> Self {
        let broken = run.checks().filter(|check| !check.ok);
        let twin = catalog.twins.get(run.record.id.as_str());
        Self {
            block: block(run),
            twin: twin
                .map_or_else(String::new, |id| outside::name(id.rsplit('-').next().unwrap_or(id))),
            findings: broken
                .map(|check| {
                    let is_error = check.level == schema::run::Level::Error;
                    (
                        outside::name(&check.rule),
                        judge::rule(&check.rule).is_some(),
                        if is_error { Tone::Firm } else { Tone::Soft },
                        outside::message(check.detail.as_deref().unwrap_or_default()),
                    )
                })
                .collect(),
        }
    }
}
