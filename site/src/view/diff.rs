//! View of a comparison of two consecutive releases on one hardware. Verdicts and figures come
//! from `judge`; this module only formats them.

use std::collections::{BTreeMap, BTreeSet};

use judge::alternation::compare::minutes;
use judge::diff::caveats::caveats;
use judge::diff::grouped::{self, LargeChange, Remark};
use judge::diff::improvement;
use judge::diff::words::{
    WORST_FIRST, deciding_interval, is_not_worse, is_untested, too_few_starts, until,
};
use judge::diff::{CellDiff, Diff, FlagChange, Row};
use judge::order;
use judge::summary::Summary;
use minijinja::value::merge_maps;
use minijinja::{Value, context};
use schema::canonical::sha256_hex;
use schema::comparison::{AppliedWaiver, Broad, DecisionKind};
use schema::verdict::{Cell, Stage, Verdict, VerdictKind};

use super::figure::{self, Figure};
use super::finding::Tone;
use super::{command, tip, words};
use crate::catalog::{ReleaseKey, distinct};
use crate::chart::{
    Bar, BarGroup, Chart, Forest, ForestMark, ForestRow, Key, Look, Tip, bars, range_key,
};
use crate::format::{self, Scale, or_dash};
use crate::judged::Pair;
use crate::link::{self, Target};
use crate::outside;

/// Builds the view of the page that compares the two releases of `pair`, with the figures of
/// `diff`. The page's models are built by [`models`], because they are split into pages.
pub fn view(pair: &Pair, diff: &Diff) -> Value {
    let names = |cells: &[Cell]| -> Value {
        let name = |cell: &Cell| format!("{} {} {}", cell.model, cell.config, cell.scenario);
        cells.iter().map(|cell| outside::name(&name(cell))).collect()
    };
    let shift = |found: &Broad| {
        context! {
            metric => &found.title,
            cells => found.cells,
            effect => format::change(found.effect_pct),
            interval => or_dash(found.interval_pct, format::interval),
        }
    };
    context! {
        counts => counts(diff),
        // Change of each release-blocking metric over all scenarios that were measured side by
        // side, each counted once; it is no verdict.
        broad => diff.broad.iter().map(shift).collect::<Value>(),
        // Cells in which only one of the releases ran.
        baseline_only => names(&diff.baseline_only),
        candidate_only => names(&diff.candidate_only),
        note => &diff.note,
        ..merge_maps([decision(diff), releases(pair)])
    }
}

/// Builds what every page about `pair` says of its releases: their names and pages, and the command
/// that measures both side by side.
pub fn releases(pair: &Pair) -> Value {
    let [baseline, candidate] = pair.releases();
    let command = command::release_bench(&candidate, &["--baseline", &pair.baseline]);
    let [baseline_page, candidate_page] = [baseline, candidate].map(Target::ReleaseOn);
    context! {
        engine => outside::name(&pair.engine),
        hardware => outside::name(&pair.hardware),
        baseline => outside::name(&pair.baseline),
        candidate => outside::name(&pair.candidate),
        baseline_page,
        candidate_page,
        command,
    }
}

/// Builds the decision of a comparison: verdict and its tone, the sentence, what a reader must know
/// beside it (outputs, moved defaults, DEGRADED runs), and the waivers.
pub fn decision(diff: &Diff) -> Value {
    let kind = diff.decision.verdict;
    let waiver = |waiver: &AppliedWaiver| {
        context! {
            title => &waiver.title,
            scenarios => outside::name(&waiver.scenarios.join(", ")),
            until => outside::name(&until(waiver.until.as_deref())),
            reason => outside::message(&waiver.reason),
            // Empty where the waiver's event does not say.
            accepted_by => outside::name(waiver.accepted_by.as_deref().unwrap_or_default()),
            event => outside::name(&waiver.event),
        }
    };
    context! {
        verdict => kind.name(),
        verdict_tone => match kind {
            DecisionKind::Hold => Tone::Loud,
            DecisionKind::Ship => Tone::Firm,
            DecisionKind::Inconclusive => Tone::Soft,
        },
        // The reasons without the verdict, which stands beside them.
        sentence => outside::message(&reasons(&diff.decision.sentence)),
        caveats => caveats(diff).iter().map(|text| outside::message(text)).collect::<Value>(),
        waivers => diff.waivers.iter().map(waiver).collect::<Value>(),
    }
}

/// Returns the sentence of a decision without the verdict that it begins with.
fn reasons(sentence: &str) -> String {
    let (_, reasons) = sentence.split_once(": ").unwrap_or(("", sentence));
    let mut letters = reasons.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Formats a server flag whose values differ between two releases: the flag, and its values in
/// baseline and candidate.
pub fn changed_flag(found: &FlagChange) -> Value {
    let values = |values: &[String]| outside::message(&values.join(", "));
    context! {
        flag => outside::name(&found.flag),
        baseline => values(&found.baseline),
        candidate => values(&found.candidate),
    }
}

/// Builds the parts of a comparison's page, one for each model in one configuration.
pub fn models(pair: &Pair, diff: &Diff) -> Vec<Value> {
    let pages = pages(pair, diff);
    by_model(diff)
        .into_iter()
        .zip(pages.values())
        .map(|(cells, page)| model(pair, diff, page, &cells))
        .collect()
}

/// Largest number of rows of a comparison of releases that are shown on one page; a longer
/// comparison has a page per model and configuration.
const PAGE_ROWS: usize = 150;

/// Returns the largest number of models on one page of a comparison.
pub fn models_per_page(diff: &Diff) -> usize {
    if diff.rows().count() > PAGE_ROWS { 1 } else { usize::MAX }
}

/// Returns the page of a comparison that has the verdicts on each model and configuration.
pub fn pages<'a>(pair: &Pair, diff: &'a Diff) -> BTreeMap<(&'a str, &'a str), Target> {
    let of = |cell: &'a CellDiff| (cell.cell.model.as_str(), cell.cell.config.as_str());
    let models: BTreeSet<_> = diff.cells.iter().map(of).collect();
    let most = models_per_page(diff);
    let page = |(index, model)| match index / most + 1 {
        1 => (model, pair.target()),
        number => (model, Target::Part { of: Box::new(pair.target()), number }),
    };
    models.into_iter().enumerate().map(page).collect()
}

/// Groups the cells of a comparison by model and configuration, each in the order of scenarios.
fn by_model(diff: &Diff) -> Vec<Vec<&CellDiff>> {
    let mut models: BTreeMap<(&str, &str), Vec<&CellDiff>> = BTreeMap::new();
    for cell in &diff.cells {
        models.entry((&cell.cell.model, &cell.cell.config)).or_default().push(cell);
    }
    let mut models: Vec<_> = models.into_values().collect();
    for cells in &mut models {
        cells.sort_by(|a, b| order::scenarios(&a.cell.scenario, &b.cell.scenario));
    }
    models
}

/// Largest number of rows in the forest plots of a release's page; the comparison has all.
const EFFECTS_MAX: usize = 48;

/// Builds the forest plots of a comparison for the page of its candidate, one for each model in one
/// configuration, as many models as have room; rows link to the verdicts on the comparison's page.
pub fn effects(pair: &Pair, diff: &Diff) -> Vec<Forest> {
    let models = by_model(diff);
    let several = models.len() > 1;
    let mut room = EFFECTS_MAX;
    let mut plots = Vec::new();
    for (cells, page) in models.iter().zip(pages(pair, diff).values()) {
        let rows = blocking(diff, cells);
        let Some(plot) = forest_plot(pair, page, &rows, several) else { continue };
        let Some(left) = room.checked_sub(plot.rows.len()) else { break };
        room = left;
        plots.push(plot);
    }
    plots
}

/// Counts the verdicts of each word on metrics of scenarios, worst first. Words that do not occur are
/// left out, and so are verdicts on metrics that are neither release-blocking nor tested.
pub fn counts(diff: &Diff) -> Value {
    let rows = || diff.cells.iter().flat_map(|cell| &cell.rows).filter(|row| !is_untested(row));
    let count = |kind: VerdictKind, not_worse: bool| {
        let of_kind = |row: &&Row| row.verdict.verdict == kind && is_not_worse(row) == not_worse;
        let first = rows().find(of_kind)?;
        let text = format!("{} {}", rows().filter(of_kind).count(), shown(first).2);
        Some(context! { text, tone => tone(kind) })
    };
    let of_kind = |kind: &VerdictKind| [count(*kind, false), count(*kind, true)];
    WORST_FIRST.iter().flat_map(of_kind).flatten().collect()
}

/// Returns the rows of release-blocking metrics of `cells`, which share model and configuration:
/// first those over all scenarios together.
fn blocking<'a>(diff: &'a Diff, cells: &[&'a CellDiff]) -> Vec<&'a Row> {
    let pooled = cells.first().into_iter().flat_map(|cell| diff.pooled_of(&cell.cell));
    let of_cells = cells.iter().flat_map(|cell| &cell.rows).filter(|row| row.gates);
    pooled.chain(of_cells).collect()
}

/// Builds the part of a comparison about `cells`, which share model and configuration.
fn model(pair: &Pair, diff: &Diff, page: &Target, cells: &[&CellDiff]) -> Value {
    let first = cells.first().map(|cell| cell.cell.clone()).unwrap_or_default();
    let blocking = blocking(diff, cells);
    let others = cells.iter().flat_map(|cell| &cell.rows).filter(|row| !row.gates).collect();
    let named = |scenarios: &[String]| outside::name(&grouped::scenarios(scenarios, cells.len()));
    let remark = |remark: &Remark| (named(&remark.scenarios), outside::message(&remark.text));
    let large = |change: &LargeChange| {
        context! {
            metric => &change.title,
            change => range(change.range_pct),
            scenarios => named(&change.scenarios),
        }
    };
    let large_changes = grouped::large(cells);
    let (worse, better): (Vec<&LargeChange>, Vec<&LargeChange>) =
        large_changes.iter().partition(|change| change.worse);
    context! {
        model => outside::name(&first.model),
        config => outside::name(&first.config),
        forest => forest_plot(pair, page, &blocking, false),
        charts => throughput(pair, cells).into_iter().collect::<Value>(),
        // Remarks on the comparison: scenarios and sentence, each sentence once.
        remarks => grouped::remarks(cells).iter().map(remark).collect::<Value>(),
        // Flags that differ because a command sets them.
        changed => distinct(cells.iter().flat_map(|cell| &cell.changed).map(changed_flag)),
        // Flags whose value differs without any command naming them: the candidate moved their
        // default.
        moved => distinct(cells.iter().flat_map(|cell| &cell.moved).map(changed_flag)),
        // Large changes of metrics that are not release-blocking, for the worse and for the better.
        worse => worse.into_iter().map(large).collect::<Value>(),
        better => better.into_iter().map(large).collect::<Value>(),
        blocking => table(blocking),
        others => table(others),
    }
}

/// Builds a table of rows, with the columns that say something about them: starts and time where a
/// metric was decided in turns, the detectable effect where a release-blocking metric is undecided,
/// Cliff's delta where the runs of both releases overlap.
pub fn table(rows: Vec<&Row>) -> Value {
    let overlaps = |row: &&Row| row.verdict.cliffs_delta.is_some_and(|delta| delta.abs() < 1.0);
    context! {
        has_turns => rows.iter().any(|row| row.verdict.alternation.is_some()),
        has_detectable => rows.iter().any(|row| detectable(row).is_some()),
        has_delta => rows.iter().any(overlaps),
        rows => rows.into_iter().map(line).collect::<Value>(),
    }
}

/// Returns the smallest effect, in percent, that as many pairs or starts would have shown, for a
/// release-blocking metric that is undecided: beside a verdict it would say nothing. `None` also where
/// the starts were too few to be tested.
fn detectable(row: &Row) -> Option<f64> {
    let undecided = row.gates && row.verdict.verdict == VerdictKind::Inconclusive;
    row.verdict.mde_pct.filter(|_| undecided && too_few_starts(row).is_none())
}

/// Formats the smallest and the largest of several effects: `+615 to +987 %`.
fn range((low, high): (f64, f64)) -> String {
    if low == high { format::change(low) } else { format::interval((low, high)) }
}

/// Returns effect, interval and verdict of a row as texts; `-` for a missing effect or interval.
pub fn shown(row: &Row) -> (String, String, &'static str) {
    let verdict = &row.verdict;
    let effect = or_dash(verdict.effect_pct, format::change);
    let interval = or_dash(verdict.interval_pct, format::interval);
    let word = match verdict.verdict {
        _ if is_untested(row) => "not judged",
        _ if is_not_worse(row) => "not worse",
        kind => words::verdict(kind),
    };
    (effect, interval, word)
}

/// Returns the position of a row of a table of verdicts on its page. Model and configuration are
/// hashed, because a page may have many such links. A metric in turns may have a row beside that of
/// whole runs.
pub fn anchor(row: &Row) -> String {
    let Cell { model, config, scenario, .. } = &row.verdict.cell;
    let hash = sha256_hex(format!("{model} {config}").as_bytes());
    let turns = if row.verdict.alternation.is_some() { "-in-turns" } else { "" };
    link::anchor(&format!("{scenario}-{}{turns}-{}", row.verdict.metric, &hash[..4]))
}

/// Returns the words for the stage in which a metric was judged in turns, with the reason for which it
/// is undecided although the interval beside it excludes zero.
fn in_turns(row: &Row) -> String {
    let decided = |interval| format!("decided by {}", format::interval(interval));
    let why = too_few_starts(row).or_else(|| deciding_interval(row).map(decided));
    why.map_or_else(|| "in turns".to_owned(), |why| format!("in turns, {why}"))
}

/// Formats `row` (one metric of one cell) as a row of a table of verdicts.
pub fn line(row: &Row) -> Value {
    let verdict = &row.verdict;
    let means = row.baseline.iter().chain(&row.candidate).map(|summary| summary.mean);
    let scale = Scale::fit(row.unit, means.fold(0.0, f64::max));
    let (effect, interval, word) = shown(row);
    let suspected = verdict.suspected && verdict.verdict == VerdictKind::Inconclusive;
    context! {
        anchor => anchor(row),
        scenario => outside::name(&verdict.scenario()),
        metric => &row.title,
        unit => scale.unit,
        baseline => mean(row.baseline.as_ref(), scale),
        candidate => mean(row.candidate.as_ref(), scale),
        effect,
        interval,
        // Cliff's delta over the runs of both releases, with its sign.
        delta => or_dash(verdict.cliffs_delta, format::signed_share),
        pairs => verdict.pairs,
        // Fresh starts of both servers, and the time that was spent until the metric was decided,
        // of its budget; for metrics that were judged in turns.
        starts => or_dash(verdict.alternation, |extent| extent.starts.to_string()),
        spent => or_dash(verdict.alternation, |extent| {
            format!("{} of {}", minutes(extent.spent_us), minutes(extent.budget_us))
        }),
        floor => format!("{} %", verdict.floor_pct),
        detectable => or_dash(detectable(row), |pct| format!("{} %", format::half_width(pct))),
        verdict => word,
        // Qualification of the verdict in a word; the waiver itself stands above the tables.
        stage => match verdict.stage {
            Stage::Confirm if verdict.waiver.is_some() => "confirmed, waived".to_owned(),
            Stage::Alternate if verdict.waiver.is_some() => "in turns, waived".to_owned(),
            _ if verdict.waiver.is_some() => "waived".to_owned(),
            Stage::Estimate => String::new(),
            Stage::Screen if suspected => "suspected, not confirmed".to_owned(),
            Stage::Confirm if suspected => "not reproduced".to_owned(),
            Stage::Screen => String::new(),
            Stage::Confirm => "confirmed".to_owned(),
            Stage::Alternate => in_turns(row),
        },
        tone => tone(verdict.verdict),
    }
}

fn mean(summary: Option<&Summary>, scale: Scale) -> Figure {
    let missing = || Figure::missing("no run of this side knows it");
    summary.map_or_else(missing, |summary| Figure::mean(summary, scale))
}

fn tone(kind: VerdictKind) -> Tone {
    match kind {
        VerdictKind::Regressed | VerdictKind::NewFailure => Tone::Loud,
        VerdictKind::ChangedConfig | VerdictKind::Improved | VerdictKind::FixedFailure => {
            Tone::Firm
        }
        VerdictKind::Unchanged | VerdictKind::Inconclusive => Tone::Soft,
    }
}

fn throughput(pair: &Pair, cells: &[&CellDiff]) -> Option<Chart> {
    let look = Look::of(&pair.engine);
    let page =
        |release: &str| Target::ReleaseOn(ReleaseKey::new(&pair.engine, release, &pair.hardware));
    let mut groups = Vec::new();
    let mut table = Vec::new();
    for cell in cells {
        let output = figure::output().name;
        let Some(row) = cell.rows.iter().find(|row| row.verdict.metric == output) else { continue };
        let bar = |release: &str, summary: Option<&Summary>, variant| Bar {
            series: outside::name(release),
            value: summary.map(|summary| summary.mean),
            range: summary.filter(|summary| summary.n > 1).map(|s| (s.min, s.max)),
            text: mean(summary, Scale::PER_SECOND).text,
            look: look.variant(variant),
            tip: Tip {
                text: outside::message(&format!(
                    "{} {release}, {}: {} output tokens/s; n = {}; on {}",
                    pair.engine,
                    cell.cell.scenario,
                    mean(summary, Scale::PER_SECOND).shown(),
                    summary.map_or(0, |summary| summary.n),
                    pair.hardware
                )),
                address: tip::address(Some(page(release))),
            },
        };
        let bars = vec![
            bar(&pair.baseline, row.baseline.as_ref(), 1),
            bar(&pair.candidate, row.candidate.as_ref(), 0),
        ];
        let label = outside::name(&cell.cell.scenario);
        table.push(vec![label.clone(), bars[0].text.clone(), bars[1].text.clone()]);
        groups.push(BarGroup { label, bars });
    }
    if groups.is_empty() {
        return None;
    }
    let caption = "Mean over the runs that are compared; whiskers span them. Each bar leads to its \
                   release.";
    let heads =
        ["Scenario".to_owned(), outside::name(&pair.baseline), outside::name(&pair.candidate)];
    let drawing = bars("output tokens/s", &groups);
    let keys = [
        Key::series(look.variant(1), "bar", &outside::name(&pair.baseline)),
        Key::series(look, "bar", &outside::name(&pair.candidate)),
        range_key(),
    ];
    let chart = Chart::new("Output tokens per second", caption, drawing, heads, table);
    Some(chart.with_legend(keys))
}

/// Draws the rows of release-blocking metrics, which share model and configuration, metric by
/// metric; `None` where none has an effect. The title names the model where `with_model`.
fn forest_plot(pair: &Pair, page: &Target, rows: &[&Row], with_model: bool) -> Option<Forest> {
    let Cell { model, config, .. } = &rows.first()?.verdict.cell;
    let rows = || rows.iter().copied();
    let titles = distinct(rows().map(|row| &row.title));
    let by_metric = titles.iter().flat_map(|title| rows().filter(move |row| row.title == **title));
    let caption = format!(
        "{} compared with {}; lines are 95 % intervals, the shaded band is the minimum effect. Latencies \
         and memory are drawn so that less of them is to the right. Filled: improved. Red: regressed.",
        outside::name(&pair.candidate),
        outside::name(&pair.baseline)
    );
    let title = if with_model {
        outside::name(&format!("Release-blocking metrics: {model}, {config}"))
    } else {
        "Release-blocking metrics".to_owned()
    };
    Forest::of(&title, &caption, by_metric.filter_map(|row| forest_row(page, row)).collect())
}

fn forest_row(page: &Target, row: &Row) -> Option<ForestRow> {
    let found = improvement::of(row)?;
    let verdict = &row.verdict;
    let (effect, interval, word) = shown(row);
    let waived = if verdict.waiver.is_some() { ", waived" } else { "" };
    Some(ForestRow {
        group: row.title.clone(),
        label: outside::name(&verdict.scenario()),
        text: format!("{effect} {word}{waived}"),
        tip: format!("{effect}, from {interval}; {}; {word}{waived}", extent(verdict)),
        better_pct: found.pct,
        interval_pct: found.interval_pct,
        min_effect_pct: verdict.floor_pct,
        mark: match verdict.verdict {
            VerdictKind::Regressed => ForestMark::Worse,
            VerdictKind::Improved => ForestMark::Solid,
            _ => ForestMark::Hollow,
        },
        page: Some(page.clone()),
        anchor: anchor(row),
    })
}

/// Formats what an effect is computed from: pairs of runs, or starts and pairs of slices.
fn extent(verdict: &Verdict) -> String {
    let pairs = verdict.pairs;
    match verdict.alternation {
        None => format!("n = {pairs} pairs"),
        Some(extent) => format!("n = {} starts, {pairs} pairs of slices", extent.starts),
    }
}

#[cfg(test)]
mod tests;
