//! View of Redline beside other engines: the latest releases of both that answered the same
//! scenarios on one hardware. Ratios come from `judge`; this module only formats them.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use judge::diff::policy;
use judge::side_by_side::{InTurns, Ratio};
use schema::metric::by_name;
use schema::run::{Kind, RunRecord};
use serde::Serialize;

use super::{OWN, distinct};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::view::fact;
use crate::view::figure::{self, Figure, Head};
use crate::view::release::{Related, dates};
use crate::{format, order, outside, pages};

/// Metrics by which the engines are compared.
const METRICS: [&str; 4] = ["output_tokens_per_s", "ttft_us_p50", "tpot_us_p50", "rss_bytes_max"];

/// Comparison of two engines by one model on one hardware.
#[derive(Debug, Clone, Serialize)]
pub struct Engines {
    pub ours: Related,
    pub theirs: Related,
    pub hardware: String,
    pub device: String,
    pub model: String,
    /// Configurations of Redline and of the other engine.
    pub configs: [String; 2],
    /// Days of the runs behind the table.
    pub measured: String,
    pub rows: Vec<Row>,
    /// Commands that measure the comparison again.
    pub commands: Vec<String>,
}

/// Row of the comparison: one metric of a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    pub scenario: String,
    pub head: Head,
    pub ours: Figure,
    pub theirs: Figure,
    /// Ratio of Redline's figure to the other engine's; `-` where they were not run interleaved.
    pub ratio: String,
    pub interval: String,
    pub pairs: String,
}

/// A scenario that both engines answered.
struct Match<'a> {
    ours: Cell<'a>,
    theirs: Cell<'a>,
    in_turns: Option<InTurns<'a>>,
}

/// Compares Redline with every other engine that was measured with the same model on the same
/// hardware.
pub fn all(catalog: &Catalog) -> Vec<Engines> {
    let is_measured =
        |record: &RunRecord| record.kind != Kind::Imported && catalog.is_contender(record);
    let runs = catalog.runs_where(is_measured);
    let mut found = Vec::new();
    for hardware in distinct(runs.iter().map(|run| run.record.hardware.id.as_str())) {
        for model in distinct(runs.iter().map(|run| run.record.model.id.as_str())) {
            let here = runs
                .iter()
                .copied()
                .filter(|run| run.record.hardware.id == hardware && run.record.model.id == model);
            let (ours, others): (Vec<&Run>, Vec<&Run>) =
                here.partition(|run| run.record.engine.name == OWN);
            for engine in distinct(others.iter().map(|run| run.record.engine.name.as_str())) {
                let theirs: Vec<&Run> =
                    others.iter().copied().filter(|run| run.record.engine.name == engine).collect();
                found.extend(latest(catalog, &ours, &theirs));
            }
        }
    }
    found
}

/// Compares the latest release of Redline with the latest release of the other engine that
/// answered one of the same scenarios.
fn latest<'a>(catalog: &Catalog, ours: &[&'a Run<'a>], theirs: &[&'a Run<'a>]) -> Option<Engines> {
    for our in releases(ours) {
        for their in releases(theirs) {
            let matches = matches(&of(ours, our), &of(theirs, their));
            if !matches.is_empty() {
                return Some(engines(catalog, &matches));
            }
        }
    }
    None
}

/// Names of the releases of `runs`, latest first.
fn releases<'a>(runs: &[&'a Run<'a>]) -> Vec<&'a str> {
    let mut names = distinct(runs.iter().map(|run| run.record.engine.release.as_str()));
    names.sort_by(|a, b| order::releases(b, a));
    names
}

fn of<'a>(runs: &[&'a Run<'a>], release: &str) -> Vec<&'a Run<'a>> {
    runs.iter().copied().filter(|run| run.record.engine.release == release).collect()
}

/// Matches cells of both engines, one match per scenario. Of several configurations, the two that
/// ran interleaved in the latest campaign are taken.
fn matches<'a>(ours: &[&'a Run<'a>], theirs: &[&'a Run<'a>]) -> Vec<Match<'a>> {
    let mut found: Vec<Match> = Vec::new();
    let theirs = catalog::cells(theirs);
    for our in catalog::cells(ours) {
        let asked = |cell: &Cell| (cell.key.scenario.clone(), cell.key.text_prompts);
        for their in theirs.iter().filter(|cell| asked(cell) == asked(&our)) {
            found.extend(matched(&our, their));
        }
    }
    found.sort_by(|a, b| {
        let turns = |found: &Match| Reverse(found.in_turns.as_ref().map(|t| t.campaign.clone()));
        order::scenarios(&a.ours.key.scenario, &b.ours.key.scenario)
            .then_with(|| turns(a).cmp(&turns(b)))
    });
    // Keeps the first match of each scenario, which is the latest interleaved one.
    found.dedup_by(|later, first| later.ours.key.scenario == first.ours.key.scenario);
    found
}

/// Matches the runs of two cells that count: those that ran interleaved, else all; `None` where
/// one engine has none.
fn matched<'a>(ours: &Cell<'a>, theirs: &Cell<'a>) -> Option<Match<'a>> {
    let usable = |cell: &Cell<'a>| -> Vec<&'a Run<'a>> {
        cell.runs.iter().copied().filter(|run| run.usable).collect()
    };
    let (mut our_runs, mut their_runs) = (usable(ours), usable(theirs));
    let records = |runs: &[&'a Run<'a>]| -> Vec<&'a RunRecord> {
        runs.iter().map(|run| run.record).collect()
    };
    let in_turns = InTurns::newest(&records(&our_runs), &records(&their_runs));
    if let Some(in_turns) = &in_turns {
        our_runs.retain(|run| in_turns.holds(run.record));
        their_runs.retain(|run| in_turns.holds(run.record));
    }
    let cell = |cell: &Cell<'a>, runs| Cell { key: cell.key.clone(), runs };
    (!our_runs.is_empty() && !their_runs.is_empty()).then(|| Match {
        ours: cell(ours, our_runs),
        theirs: cell(theirs, their_runs),
        in_turns,
    })
}

/// Builds the comparison from `matches`, which must not be empty.
fn engines(catalog: &Catalog, matches: &[Match]) -> Engines {
    let runs: Vec<&Run> = matches
        .iter()
        .flat_map(|found| found.ours.runs.iter().chain(&found.theirs.runs).copied())
        .collect();
    let first = &matches[0];
    let (ours, theirs) = (key(&first.ours), key(&first.theirs));
    let configs = |side: fn(&Match) -> String| {
        let names: Vec<String> = matches.iter().map(side).collect();
        outside::name(&distinct(names.iter().map(String::as_str)).join(", "))
    };
    Engines {
        hardware: outside::name(&ours.hardware),
        device: fact::device(&runs),
        model: outside::name(&first.ours.key.model),
        configs: [
            configs(|found| found.ours.key.config.clone()),
            configs(|found| found.theirs.key.config.clone()),
        ],
        measured: dates(&runs).unwrap_or_else(|| "day unknown".to_owned()),
        rows: matches.iter().flat_map(rows).collect(),
        commands: commands(catalog, matches, &ours, &theirs),
        ours: page(&ours),
        theirs: page(&theirs),
    }
}

fn key(cell: &Cell) -> ReleaseKey {
    cell.runs.first().map(|run| ReleaseKey::of(run.record)).expect("a match has runs")
}

fn page(key: &ReleaseKey) -> Related {
    let text = outside::name(&format!("{} {}", key.engine, key.release));
    Related { text, target: pages::target(key) }
}

/// Rows of the metrics that at least one engine has.
fn rows(found: &Match) -> Vec<Row> {
    let policy = policy::standard().file;
    let row = |name: &&str| {
        let metric = by_name(name)?;
        let scale = figure::scale(metric, &[&found.ours, &found.theirs]);
        let ours = Figure::of(metric, scale, &found.ours);
        let theirs = Figure::of(metric, scale, &found.theirs);
        if ours.missing && theirs.missing {
            return None;
        }
        let ratio = found.in_turns.as_ref().and_then(|turns| turns.ratio(metric, &policy));
        let interval = ratio.and_then(|ratio| ratio.interval);
        let shown = |value: f64| format::rounded(value, None);
        Some(Row {
            scenario: outside::name(&found.ours.key.scenario),
            head: Head::of(metric, scale),
            ours,
            theirs,
            ratio: text(ratio, |ratio: Ratio| format!("{}x", shown(ratio.mean))),
            interval: text(interval, |(low, high)| format!("{} to {}", shown(low), shown(high))),
            pairs: text(ratio, |ratio: Ratio| ratio.pairs.to_string()),
        })
    };
    METRICS.iter().filter_map(row).collect()
}

fn text<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".to_owned(), show)
}

/// Commands of the campaigns that ran both engines interleaved, or, if there is none, the command
/// that would.
fn commands(
    catalog: &Catalog,
    matches: &[Match],
    ours: &ReleaseKey,
    theirs: &ReleaseKey,
) -> Vec<String> {
    let campaigns: BTreeSet<&str> = matches
        .iter()
        .filter_map(|found| Some(found.in_turns.as_ref()?.campaign.as_str()))
        .collect();
    let known = catalog.registry.campaigns.iter().map(|stored| &stored.record);
    let mut commands: Vec<String> = known
        .filter(|record| campaigns.contains(record.id.as_str()) && !record.command.is_empty())
        .map(|record| format!("cargo xtask {}", outside::command(&record.command)))
        .collect();
    if commands.is_empty() {
        let beside = format!("{}@{}", ours.engine, ours.release);
        let version = theirs.release.trim_start_matches('v').to_owned();
        let words = ["release-bench", "--engine", &theirs.engine, &version, "--beside", &beside];
        let command = outside::command(&words.map(str::to_owned));
        commands.push(format!("cargo xtask {command}"));
    }
    commands
}
