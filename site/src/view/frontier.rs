//! View of the Pareto frontier of one model: throughput against speed per user, and the cost of a
//! million tokens at a price that the reader enters.

use std::collections::{BTreeMap, BTreeSet};

use judge::summary::{self, Summary};
use schema::metric::by_name;
use schema::run::{Kind, RunRecord};
use serde::Serialize;

use super::charts::mark_of;
use super::config::Shared;
use super::figure::Figure;
use super::release::{Related, launches};
use crate::catalog::{self, Catalog, Cell, ReleaseKey, Run};
use crate::chart::{Chart, Pareto, ParetoPoint, ParetoSeries};
use crate::format::{self, Scale};
use crate::link::Target;
use crate::{order, outside};

/// View of a model's Pareto frontiers, one per load.
#[derive(Debug, Clone, Serialize)]
pub struct FrontierView {
    pub model: String,
    pub model_page: Target,
    pub loads: Vec<Load>,
}

/// A load: the concurrency levels of one concurrency sweep, or a scenario outside of any sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Load {
    pub name: String,
    pub anchor: String,
    /// True for a concurrency sweep, whose rows have different loads.
    pub rungs: bool,
    pub charts: Vec<Chart>,
    /// Parts of the configuration that all rows share, and which rows therefore omit.
    pub shared: Vec<String>,
    /// True when some row has further parts of a configuration.
    pub distinct: bool,
    pub rows: Vec<FrontierRow>,
}

/// Row of the table: one engine in one configuration under one load.
#[derive(Debug, Clone, Serialize)]
pub struct FrontierRow {
    pub engine: Related,
    pub hardware: Related,
    pub scenario: String,
    pub config: String,
    pub claimed: bool,
    pub n: String,
    /// Speed: tokens per second that the median user sees.
    pub speed: Figure,
    /// Throughput: output tokens per second per GPU, or of a machine without GPU.
    pub throughput: Figure,
    /// Speed and throughput as plain numbers, for scripts.
    pub speed_plain: String,
    pub throughput_plain: String,
    /// GPU hours per million output tokens.
    pub hours: Figure,
    pub ttft: Figure,
    /// True when no other row of this hardware and load is better in both speed and throughput.
    pub best: bool,
}

impl FrontierView {
    /// Builds the frontiers of `model`, from the latest release of each engine on each hardware.
    pub fn new(catalog: &Catalog, model: &str) -> Self {
        let runs =
            catalog.runs_where(|record| record.model.id == model && catalog.is_contender(record));
        let mut loads: BTreeMap<String, Vec<(ReleaseKey, Cell)>> = BTreeMap::new();
        for (key, runs) in catalog::latest_releases(&runs) {
            for cell in catalog::cells(&runs) {
                let name = load(&cell.key.scenario);
                loads.entry(name).or_default().push((key.clone(), cell));
            }
        }
        let mut names: Vec<String> = loads.keys().cloned().collect();
        names.sort_by(|a, b| ladder_first(a, b));
        let load = |name: String| {
            let cells = loads.remove(&name).unwrap_or_default();
            let placed = placed(&cells);
            let firsts: Vec<&Run> =
                placed.iter().filter_map(|placed| placed.cell.runs.first().copied()).collect();
            let shared = Shared::of(&firsts);
            let rows = rows(&placed, &shared);
            Load {
                anchor: crate::link::anchor(&name),
                name: outside::name(&name),
                rungs: placed.iter().any(|placed| placed.cell.key.scenario != name),
                charts: charts(&name, &placed, &shared),
                shared: shared.shown(),
                distinct: rows.iter().any(|row| !row.config.is_empty()),
                rows,
            }
        };
        Self {
            model: outside::name(model),
            model_page: Target::Model { model: model.to_owned() },
            loads: names.into_iter().map(load).filter(|load| !load.rows.is_empty()).collect(),
        }
    }
}

/// Order of loads: concurrency sweeps first, because only they fix the number of users.
fn ladder_first(a: &str, b: &str) -> std::cmp::Ordering {
    let ladder = |name: &str| !name.starts_with("ladder");
    ladder(a).cmp(&ladder(b)).then_with(|| order::scenarios(a, b))
}

/// Name of a scenario's load: `ladder-c16@1` belongs to the sweep `ladder@1`; other scenarios are
/// loads of their own.
fn load(scenario: &str) -> String {
    let (id, rev) = scenario.split_once('@').unwrap_or((scenario, "0"));
    match id.rsplit_once("-c") {
        Some((ladder, users)) if !users.is_empty() && users.bytes().all(|b| b.is_ascii_digit()) => {
            format!("{ladder}@{rev}")
        }
        _ => scenario.to_owned(),
    }
}

/// A cell with the two figures by which it is drawn and ranked.
struct Placed<'a, 'b> {
    key: &'a ReleaseKey,
    cell: &'a Cell<'b>,
    speed: Summary,
    throughput: Summary,
}

impl Placed<'_, '_> {
    /// Group within which a cell is ranked: one hardware, measured and published figures
    /// separately.
    fn field(&self) -> (&str, bool) {
        (&self.key.hardware, self.cell.key.kind == "imported")
    }

    fn beats(&self, other: &Self) -> bool {
        let place = |placed: &Self| (placed.speed.median, placed.throughput.median);
        self.field() == other.field() && beats(place(self), place(other))
    }
}

/// Returns the cells that have both figures, by hardware, the fastest for a user first.
fn placed<'a, 'b>(cells: &'a [(ReleaseKey, Cell<'b>)]) -> Vec<Placed<'a, 'b>> {
    let of = |(key, cell): &'a (ReleaseKey, Cell<'b>)| {
        let over = |read: fn(&RunRecord) -> Option<f64>| {
            let values: Vec<f64> = cell.counted().filter_map(|run| read(run.record)).collect();
            summary::of(&values)
        };
        Some(Placed { key, cell, speed: over(speed)?, throughput: over(throughput)? })
    };
    let mut placed: Vec<Placed> = cells.iter().filter_map(of).collect();
    placed.sort_by(|a, b| {
        a.field()
            .cmp(&b.field())
            .then_with(|| b.speed.median.total_cmp(&a.speed.median))
            .then_with(|| a.cell.key.cmp(&b.cell.key))
    });
    placed
}

fn rows(placed: &[Placed], shared: &Shared) -> Vec<FrontierRow> {
    let best = |here: &Placed| !placed.iter().any(|there| there.beats(here));
    placed.iter().map(|here| row(here, shared, best(here))).collect()
}

/// Largest number of series that a chart can give distinct colors and shapes.
const SERIES_MAX: usize = 6;

/// Points of one configuration, and the table rows about them.
struct Drawn<'a> {
    field: (&'a str, bool),
    series: ParetoSeries,
    rows: Vec<Vec<String>>,
}

/// Returns one chart if all series can be distinguished, else one per hardware, with measured and
/// published figures separate.
fn charts(name: &str, placed: &[Placed], shared: &Shared) -> Vec<Chart> {
    let drawn = series(placed, shared);
    if drawn.len() <= SERIES_MAX {
        return chart(name, &drawn.iter().collect::<Vec<_>>()).into_iter().collect();
    }
    let fields: BTreeSet<_> = drawn.iter().map(|drawn| drawn.field).collect();
    let of = |(hardware, claimed): (&str, bool)| {
        let own: Vec<&Drawn> = drawn.iter().filter(|d| d.field == (hardware, claimed)).collect();
        let claimed = if claimed { ", claimed" } else { "" };
        chart(&format!("{name} on {hardware}{claimed}"), &own)
    };
    fields.into_iter().filter_map(of).collect()
}

/// Groups `placed` into series: one per engine, configuration and hardware.
fn series<'a>(placed: &'a [Placed], shared: &Shared) -> Vec<Drawn<'a>> {
    let several = placed.iter().any(|other| other.key.hardware != placed[0].key.hardware);
    let same = |a: &Placed, b: &Placed| {
        a.key == b.key && (&a.cell.key.config, a.field()) == (&b.cell.key.config, b.field())
    };
    let mut drawn: Vec<(&Placed, Drawn)> = Vec::new();
    for placed in placed {
        let Placed { key, cell, .. } = placed;
        let mut label = format!("{} {}", key.engine, key.release);
        if several {
            label.push_str(&format!(" on {}", key.hardware));
        }
        let config = own_config(cell, shared);
        if !config.is_empty() {
            label.push_str(&format!(", {config}"));
        }
        let label = outside::message(&label);
        let (x, y) = (placed.speed.median, placed.throughput.median);
        let shown = |value| format::rounded(value, None);
        let scenario = outside::name(&cell.key.scenario);
        let row = vec![label.clone(), scenario.clone(), shown(x), shown(y)];
        let text = format!("{label}, {scenario}: {} and {} tokens/s", shown(x), shown(y));
        let point = ParetoPoint { x, y, mark: mark_of(cell), text };
        match drawn.iter_mut().find(|(known, _)| same(known, placed)) {
            Some((_, known)) => {
                known.series.points.push(point);
                known.rows.push(row);
            }
            None => {
                let series = ParetoSeries { label, points: vec![point] };
                drawn.push((placed, Drawn { field: placed.field(), series, rows: vec![row] }));
            }
        }
    }
    drawn.into_iter().map(|(_, drawn)| drawn).collect()
}

fn own_config(cell: &Cell, shared: &Shared) -> String {
    cell.runs.first().map(|run| shared.rest(run)).unwrap_or_default()
}

/// Draws a chart. Of too many series it draws those with the highest throughput, and names the
/// others in the caption.
fn chart(name: &str, drawn: &[&Drawn]) -> Option<Chart> {
    let highest = |drawn: &Drawn| drawn.series.points.iter().map(|p| p.y).fold(0.0, f64::max);
    let mut best = drawn.to_vec();
    best.sort_by(|a, b| highest(b).total_cmp(&highest(a)));
    let others = best.split_off(best.len().min(SERIES_MAX));
    if best.is_empty() {
        return None;
    }
    let title = format!("Throughput against speed, {}", outside::name(name));
    let mut caption = "Up and to the right is better; faint points are beaten in both by another \
                       of their kind. Gray: a single run. Hollow: claimed by others."
        .to_owned();
    if !others.is_empty() {
        let names: Vec<&str> = others.iter().map(|drawn| drawn.series.label.as_str()).collect();
        let text = format!(
            "Drawn are the {} that reach the highest throughput; in the table alone: {}.",
            best.len(),
            names.join("; ")
        );
        caption = format!("{caption} {}", outside::message(&text));
    }
    let pareto = Pareto {
        title: title.clone(),
        description: caption.clone(),
        x_label: "tokens/s that the median user sees".into(),
        y_label: "tokens/s of one GPU, or of a machine without".into(),
        series: best.iter().map(|drawn| drawn.series.clone()).collect(),
    };
    let heads = ["Engine", "Load", "Speed, tokens/s", "Throughput, tokens/s"];
    let heads = heads.map(str::to_owned).to_vec();
    let rows = drawn.iter().flat_map(|drawn| drawn.rows.clone()).collect();
    Some(Chart { title, caption, svg: pareto.draw(), heads, rows })
}

/// Pareto dominance: true when `a` is better than `b` in speed or throughput and worse in neither.
fn beats(a: (f64, f64), b: (f64, f64)) -> bool {
    // Equal points do not dominate each other, or both would be hidden.
    a.0 >= b.0 && a.1 >= b.1 && a != b
}

fn row(placed: &Placed, shared: &Shared, best: bool) -> FrontierRow {
    let Placed { key, cell, speed, throughput } = placed;
    let per_s = Scale { unit: "/s", divisor: 1.0 };
    // Converted run by run, so that the range is one of hours and not of throughput.
    let hours: Vec<f64> = cell
        .counted()
        .filter_map(|run| self::throughput(run.record))
        .map(|tokens_per_s| 1e6 / tokens_per_s / 3600.0)
        .collect();
    let ttft = by_name("ttft_us_p50").map(|metric| {
        let scale = super::figure::scale(metric, &[*cell]);
        let mut figure = Figure::of(metric, scale, cell);
        if !figure.missing {
            figure.text = format!("{} {}", figure.text, scale.unit);
        }
        figure
    });
    FrontierRow {
        engine: Related {
            text: outside::name(&format!("{} {}", key.engine, key.release)),
            target: crate::pages::target(key),
        },
        hardware: Related {
            text: outside::name(&key.hardware),
            target: Target::Hardware { hardware: key.hardware.clone() },
        },
        scenario: outside::name(&cell.key.scenario),
        config: own_config(cell, shared),
        claimed: cell.runs.iter().any(|run| run.record.kind == Kind::Imported),
        n: launches(cell),
        speed: Figure::median(speed, per_s),
        throughput: Figure::median(throughput, per_s),
        speed_plain: speed.median.to_string(),
        throughput_plain: throughput.median.to_string(),
        hours: summary::of(&hours).map_or_else(
            || Figure::missing("no throughput"),
            |hours| Figure::median(&hours, Scale { unit: "h", divisor: 1.0 }),
        ),
        ttft: ttft.unwrap_or_else(|| Figure::missing("not recorded")),
        best,
    }
}

/// Speed of a run: tokens per second that the median user sees.
fn speed(record: &RunRecord) -> Option<f64> {
    let us = by_name("tpot_us_p50")?.value(record).filter(|us| *us > 0.0)?;
    Some(1e6 / us)
}

/// Throughput of a run: output tokens per second per GPU, or of the whole machine if it has no
/// GPU.
fn throughput(record: &RunRecord) -> Option<f64> {
    let all = by_name("output_tokens_per_s")?.value(record).filter(|rate| *rate > 0.0)?;
    let gpus = match judge::rule::on_cpu(record) {
        true => 1,
        false => record.server.as_ref().and_then(|server| server.tp).unwrap_or(1).max(1),
    };
    Some(all / f64::from(gpus))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_of_one_ladder_are_one_load() {
        for (scenario, expected) in [
            ("ladder-c16@1", "ladder@1"),
            ("ladder-lite-c4@2", "ladder-lite@2"),
            ("long-chat@1", "long-chat@1"),
            ("sharegpt@0", "sharegpt@0"),
        ] {
            assert_eq!(load(scenario), expected);
        }
    }

    #[test]
    fn of_too_many_series_the_best_are_drawn_and_the_others_named() {
        let series = |index: u32| Drawn {
            field: ("hw", false),
            series: ParetoSeries {
                label: format!("engine {index}"),
                points: vec![ParetoPoint {
                    x: 1.0,
                    y: f64::from(index),
                    mark: crate::chart::Mark::Gray,
                    text: String::new(),
                }],
            },
            rows: vec![vec![format!("engine {index}")]],
        };
        let drawn: Vec<Drawn> = (1..=8).map(series).collect();
        let chart = chart("x", &drawn.iter().collect::<Vec<_>>()).expect("a chart");
        assert!(chart.caption.ends_with("in the table alone: engine 2; engine 1."), "{chart:?}");
        assert!(chart.svg.contains(">engine 8</text>") && !chart.svg.contains(">engine 2</text>"));
        assert_eq!(chart.rows.len(), 8, "nothing is hidden");
    }

    #[test]
    fn what_is_worse_in_both_is_not_best() {
        assert!(beats((2.0, 2.0), (1.0, 2.0)));
        assert!(!beats((2.0, 1.0), (1.0, 2.0)));
        assert!(!beats((1.0, 1.0), (1.0, 1.0)), "equals do not hide each other");
    }
}
