//! Charts of a model: throughput by scenario, repeats around their median, latency distributions;
//! and bar charts of engines side by side.

use std::collections::BTreeMap;

use judge::diff::words::plural;
use judge::quantile::Bins;
use judge::summary::difference_pct;
use judge::validity;
use schema::run::Histograms;

use super::figure::{self, Column};
use super::table::Row;
use super::tip;
use crate::catalog::{Cell, Run};
use crate::chart::{
    Bar, BarGroup, Chart, Curve, DotRow, Key, Look, Tip, bars, cdf, dots, hollow_key, range_key,
};
use crate::link::Link;
use crate::{format, outside};

/// Latency distributions that a chart draws as curves: name of the histogram in the record, label,
/// style of the curve.
const LATENCIES: [(&str, &str, char); 4] = [
    ("ttft_us", "TTFT", 'b'),
    ("tpot_us", "TPOT", 'a'),
    ("itl_token_us", "ITL", 'c'),
    ("e2e_us", "E2E", 'd'),
];

/// Quantiles, as shares from 0 to 1, at which a latency distribution is listed in the chart's
/// table.
const TABLE_SHARES: [f64; 6] = [0.1, 0.5, 0.9, 0.95, 0.99, 1.0];

/// Returns the charts of one model in one configuration: output throughput by scenario, repeats
/// around their median, and the latency distributions of each scenario that has samples.
pub fn of_model(cells: &[Cell]) -> Vec<Chart> {
    let mut charts = vec![throughput(cells), repeats(cells)];
    charts.extend(cells.iter().filter_map(latencies));
    charts
}

fn throughput(cells: &[Cell]) -> Chart {
    let column = Column::new(figure::output(), cells);
    let mut groups = Vec::new();
    let mut rows = Vec::new();
    for cell in cells {
        let figure = column.figure(cell);
        let label = outside::name(&cell.key.scenario);
        rows.push(vec![label.clone(), figure.shown(), figure.title.clone()]);
        let bars = vec![Bar { tip: tip::of_run(cell, &column), ..bar("", 0, &column, cell) }];
        groups.push(BarGroup { label, bars });
    }
    let heads = ["Scenario", "Output tokens/s", "Exactly"];
    let drawing = bars("output tokens/s", &groups);
    Chart::new("Output tokens per second", MEDIANS, drawing, heads, rows).with_legend(legend(cells))
}

/// Caption of charts of medians.
const MEDIANS: &str = "Median over the runs of the newest campaign; whiskers span them.";

/// Returns the entries of a legend about `cells`: the range of runs, and published figures, where
/// some cell has them.
fn legend<'c, 'r: 'c>(cells: impl IntoIterator<Item = &'c Cell<'r>>) -> Vec<Key> {
    let (mut has_range, mut has_hollow) = (false, false);
    for cell in cells {
        has_range |= cell.counted().nth(1).is_some();
        has_hollow |= is_published(cell);
    }
    let range = has_range.then(range_key);
    range.into_iter().chain(has_hollow.then(hollow_key)).collect()
}

fn repeats(cells: &[Cell]) -> Chart {
    let column = Column::new(figure::output(), cells);
    let mut repeats_of = Vec::new();
    let mut rows = Vec::new();
    for cell in cells {
        let Some(spread) = figure::summary(column.metric, cell) else { continue };
        let figure = column.figure(cell);
        let label = outside::name(&cell.key.scenario);
        let repeat = |(index, run): (usize, &Run)| {
            let value = validity::value(column.metric, run.record)?;
            let pct = difference_pct(value, spread.median).unwrap_or_default();
            let text = format!("{} tokens/s; run {}", format::rounded(value, None), index + 1);
            Some((pct, Tip { text, address: tip::address(Some(Link::run(run).target)) }))
        };
        let repeats: Vec<_> = cell.counted().enumerate().filter_map(repeat).collect();
        let listed: Vec<String> = repeats.iter().map(|(pct, _)| format::change(*pct)).collect();
        rows.push(vec![label.clone(), figure.shown(), listed.join(", ")]);
        repeats_of.push(DotRow { label, value: figure.shown(), repeats, look: look_of(cell) });
    }
    let caption = "Output tokens per second of each run of the newest campaign.";
    let heads = ["Scenario", "Median /s", "Runs, in order"];
    Chart::new("Run to run", caption, dots(&repeats_of), heads, rows)
}

/// Metrics for which pages draw engines side by side, each with a sentence on how to read it.
const DRAWN: [(&str, &str); 3] = [
    ("output_tokens_per_s", "More is better."),
    ("tpot_us_p50", "Less is better: what a user waits for each further token."),
    (
        "ttft_us_p50",
        "Less is better: what a user waits for the first token, which is time in the queue where \
         all requests come at once.",
    ),
];

/// Largest number of bars for which a chart is drawn. With more it would be unreadable; the tables
/// contain all figures.
const BARS_MAX: usize = 40;

/// Returns a bar chart of engines for each metric of `DRAWN` that some of `rows` have, one group
/// of bars per scenario; no chart where there would be too many bars. Each row comes with its
/// series name.
pub fn side_by_side(rows: &[(String, &Row)], scenarios: &[&str]) -> Vec<Chart> {
    let bars = rows.iter().flat_map(|(_, row)| row.cells.iter().flatten()).count();
    if bars > BARS_MAX {
        return Vec::new();
    }
    let chart = |(name, reading): &(&str, &str)| of_engines(name, reading, rows, scenarios);
    DRAWN.iter().filter_map(chart).collect()
}

fn of_engines(
    name: &str,
    reading: &str,
    rows: &[(String, &Row)],
    scenarios: &[&str],
) -> Option<Chart> {
    let every = rows.iter().flat_map(|(_, row)| row.cells.iter().flatten().copied());
    let column = Column::new(figure::metric(name), every);
    let variants = variants(rows.iter().map(|(_, row)| row.first));
    let mut groups = Vec::new();
    let mut listed = Vec::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        let label = outside::name(scenario);
        let mut bars = Vec::new();
        for ((series, row), variant) in rows.iter().zip(&variants) {
            let Some(cell) = row.cells[index] else { continue };
            let figure = column.figure(cell);
            listed.push(vec![label.clone(), series.clone(), figure.shown(), figure.title.clone()]);
            bars.push(bar(series, *variant, &column, cell));
        }
        groups.push(BarGroup { label, bars });
    }
    if !groups.iter().flat_map(|group| &group.bars).any(|bar| bar.value.is_some()) {
        return None;
    }
    let title = column.metric.title;
    let (whole, unit) = match column.scale.unit {
        "/s" => (format!("{title} per second"), "per second"),
        unit => (title.to_owned(), unit),
    };
    let caption = format!("{reading} {MEDIANS}");
    let head = format!("{title}, {unit}");
    let heads = ["Scenario", "Engine", &head, "Exactly"];
    let cells = rows.iter().flat_map(|(_, row)| row.cells.iter().flatten().copied());
    let drawing = bars(&head, &groups);
    Some(Chart::new(&whole, &caption, drawing, heads, listed).with_legend(legend(cells)))
}

/// Returns, for each of `cells`, its index among those of the same engine.
pub fn variants<'c, 'r: 'c>(cells: impl Iterator<Item = &'c Cell<'r>>) -> Vec<usize> {
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    let next = |cell: &'c Cell<'r>| {
        let count = known.entry(engine(cell)).or_default();
        *count += 1;
        *count - 1
    };
    cells.map(next).collect()
}

/// Builds the bar of a cell: the median of the column's metric, with the range of the repeats as
/// whisker. `variant` is the index of its series among those of its engine.
fn bar(series: &str, variant: usize, column: &Column, cell: &Cell) -> Bar {
    let found = figure::summary(column.metric, cell);
    let drawn = |value: f64| value / column.scale.divisor;
    Bar {
        series: series.to_owned(),
        value: found.map(|found| drawn(found.median)),
        range: found.filter(|f| f.n > 1).map(|f| (drawn(f.min), drawn(f.max))),
        text: if found.is_some() { column.figure(cell).shown() } else { "no figure".to_owned() },
        look: look_of(cell).variant(variant),
        tip: tip::of_cell(cell, &[tip::figure(cell, column)]),
    }
}

/// Returns the chart of the latency distributions of `cell`; `None` where no run has samples.
pub fn latencies(cell: &Cell) -> Option<Chart> {
    let mut curves = Vec::new();
    let mut rows = Vec::new();
    for (name, label, style) in LATENCIES {
        let Some(pooled) = pooled(cell, name) else { continue };
        let at = |shares: &[f64]| pooled.reached(shares).into_iter().map(|us| us / 1000.0);
        let shares = curve_shares();
        let points = at(&shares).zip(shares.iter().copied()).collect();
        let mut row = vec![label.to_owned()];
        row.extend(at(&TABLE_SHARES).map(|ms| format::rounded(ms, None)));
        rows.push(row);
        curves.push(Curve { label: label.into(), style, look: look_of(cell), points });
    }
    if curves.is_empty() {
        return None;
    }
    let title = format!("Latencies, {}", outside::name(&cell.key.scenario));
    let launches = cell.counted().count();
    let caption =
        format!("Share of samples up to each latency, {} pooled.", plural(launches, "run"));
    let heads = ["ms", "p10", "p50", "p90", "p95", "p99", "max"];
    let keys: Vec<Key> = curves.iter().map(Curve::key).collect();
    Some(Chart::new(&title, &caption, cdf(&curves), heads, rows).with_legend(keys))
}

/// Pools the histogram `name` over the runs that the summaries of `cell` use; `None` without
/// samples.
fn pooled(cell: &Cell, name: &str) -> Option<Bins> {
    let named = cell.records().filter_map(|run| run.histograms.as_ref());
    let named = named.flat_map(Histograms::named).filter(|(known, _)| *known == name);
    Bins::pooled(named.filter_map(|(_, histogram)| histogram))
}

/// Returns the shares of samples at which the curve of a latency distribution has points: even
/// steps, and closer ones in the tail.
fn curve_shares() -> Vec<f64> {
    let body = (0_u32..=28).map(|step| f64::from(step) / 30.0);
    body.chain([0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1.0]).collect()
}

/// Returns the look of a cell's figures in charts: the color of its engine, and an outline for
/// published figures.
pub fn look_of(cell: &Cell) -> Look {
    Look::of(engine(cell)).hollow(is_published(cell))
}

fn engine<'a>(cell: &Cell<'a>) -> &'a str {
    cell.runs.first().map(|run| run.record.engine.name.as_str()).unwrap_or_default()
}

fn is_published(cell: &Cell) -> bool {
    cell.key.kind == "imported"
}
