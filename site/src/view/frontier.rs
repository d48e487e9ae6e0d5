//! Throughput against the speed that each user sees, for one model, and what a million tokens cost
//! at a price that the reader brings.

use std::collections::BTreeMap;

use registry::summary::{self, Summary};
use schema::metric::by_name;
use schema::run::{Kind, RunRecord};
use serde::Serialize;

use super::charts::mark_of;
use super::figure::Figure;
use super::release::{Related, launches};
use crate::catalog::{self, Catalog, Cell, ReleaseKey};
use crate::chart::{Chart, Pareto, ParetoPoint, ParetoSeries};
use crate::format::{self, Scale};
use crate::link::Target;
use crate::{order, outside};

/// The frontiers of a model, one for each load.
#[derive(Debug, Clone, Serialize)]
pub struct FrontierView {
    pub model: String,
    pub model_page: Target,
    pub loads: Vec<Load>,
}

/// The rungs of one ladder, or a scenario that has none.
#[derive(Debug, Clone, Serialize)]
pub struct Load {
    pub name: String,
    pub anchor: String,
    pub chart: Option<Chart>,
    pub rows: Vec<FrontierRow>,
}

/// One engine in one configuration under one load.
#[derive(Debug, Clone, Serialize)]
pub struct FrontierRow {
    pub engine: Related,
    pub hardware: Related,
    pub scenario: String,
    pub config: String,
    pub claimed: bool,
    pub n: String,
    /// Tokens a second that the median user sees.
    pub speed: Figure,
    /// Tokens a second of one GPU, or of a machine without any.
    pub throughput: Figure,
    /// Both for a program: plain numbers.
    pub speed_plain: String,
    pub throughput_plain: String,
    /// Hours of one GPU for a million output tokens.
    pub hours: Figure,
    pub ttft: Figure,
    /// No other row of this hardware and load is better in both speed and throughput.
    pub best: bool,
}

impl FrontierView {
    /// The frontiers of `model`: the latest release of each engine on each hardware.
    #[must_use]
    pub fn new(catalog: &Catalog, model: &str) -> Self {
        let mut runs = catalog.runs_where(|record| record.model.id == model);
        runs.retain(|run| !catalog.twins.contains_key(run.record.id.as_str()));
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
            Load {
                anchor: crate::link::anchor(&name),
                name: outside::name(&name),
                chart: chart(&name, &placed),
                rows: rows(&placed),
            }
        };
        Self {
            model: outside::name(model),
            model_page: Target::Model { model: model.to_owned() },
            loads: names.into_iter().map(load).filter(|load| !load.rows.is_empty()).collect(),
        }
    }
}

/// Ladders first, since they alone hold the number of users.
fn ladder_first(a: &str, b: &str) -> std::cmp::Ordering {
    let ladder = |name: &str| !name.starts_with("ladder");
    ladder(a).cmp(&ladder(b)).then_with(|| order::scenarios(a, b))
}

/// `ladder-c16@1` is a rung of `ladder@1`; other scenarios stand for themselves.
fn load(scenario: &str) -> String {
    let (id, rev) = scenario.split_once('@').unwrap_or((scenario, "0"));
    match id.rsplit_once("-c") {
        Some((ladder, users)) if !users.is_empty() && users.bytes().all(|b| b.is_ascii_digit()) => {
            format!("{ladder}@{rev}")
        }
        _ => scenario.to_owned(),
    }
}

/// A cell with what it is drawn and ranked by.
struct Placed<'a, 'b> {
    key: &'a ReleaseKey,
    cell: &'a Cell<'b>,
    speed: Summary,
    throughput: Summary,
}

impl Placed<'_, '_> {
    /// Whom it is ranked among: measured and claimed figures of one hardware each.
    fn field(&self) -> (&str, bool) {
        (&self.key.hardware, self.cell.key.kind == "imported")
    }

    fn beats(&self, other: &Self) -> bool {
        let place = |placed: &Self| (placed.speed.median, placed.throughput.median);
        self.field() == other.field() && beats(place(self), place(other))
    }
}

/// The cells that have both figures, by hardware, the fastest for a user first.
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

fn rows(placed: &[Placed]) -> Vec<FrontierRow> {
    let best = |here: &Placed| !placed.iter().any(|there| there.beats(here));
    placed.iter().map(|here| row(here, best(here))).collect()
}

/// More series than this have no colors and shapes of their own.
const SERIES_MAX: usize = 6;

fn chart(name: &str, placed: &[Placed]) -> Option<Chart> {
    let mut series: Vec<ParetoSeries> = Vec::new();
    let mut table = Vec::new();
    for placed in placed {
        let Placed { key, cell, .. } = placed;
        let label =
            format!("{} {} on {}, {}", key.engine, key.release, key.hardware, cell.key.config);
        let label = outside::name(&label);
        let (x, y) = (placed.speed.median, placed.throughput.median);
        let shown = |value| format::rounded(value, None);
        let scenario = outside::name(&cell.key.scenario);
        table.push(vec![label.clone(), scenario.clone(), shown(x), shown(y)]);
        let text = format!("{label}, {scenario}: {} and {} tokens/s", shown(x), shown(y));
        let point = ParetoPoint { x, y, mark: mark_of(cell), text };
        match series.iter_mut().find(|known| known.label == label) {
            Some(known) => known.points.push(point),
            None => series.push(ParetoSeries { label, points: vec![point] }),
        }
    }
    if series.is_empty() || series.len() > SERIES_MAX {
        return None;
    }
    let title = format!("Throughput against speed, {}", outside::name(name));
    let caption = "Up and to the right is better; faint points are beaten in both by another of \
                   their kind. Gray: a single run. Hollow: claimed by others."
        .to_owned();
    let pareto = Pareto {
        title: title.clone(),
        description: caption.clone(),
        x_label: "tokens/s that the median user sees".into(),
        y_label: "tokens/s of one GPU, or of a machine without".into(),
        series,
    };
    let heads = ["Engine", "Load", "Speed, tokens/s", "Throughput, tokens/s"];
    let heads = heads.map(str::to_owned).to_vec();
    Some(Chart { title, caption, svg: pareto.draw(), heads, rows: table })
}

/// True where the first of speed and throughput is better in one and not worse in the other.
fn beats(a: (f64, f64), b: (f64, f64)) -> bool {
    a.0 >= b.0 && a.1 >= b.1 && a != b
}

fn row(placed: &Placed, best: bool) -> FrontierRow {
    let Placed { key, cell, speed, throughput } = placed;
    let per_s = Scale { unit: "/s", divisor: 1.0 };
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
        config: outside::name(&cell.key.config),
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

/// Tokens a second that the median user sees.
fn speed(record: &RunRecord) -> Option<f64> {
    let us = by_name("tpot_us_p50")?.value(record).filter(|us| *us > 0.0)?;
    Some(1e6 / us)
}

/// Output tokens a second of one GPU; of the machine where it has none.
fn throughput(record: &RunRecord) -> Option<f64> {
    let all = by_name("output_tokens_per_s")?.value(record).filter(|rate| *rate > 0.0)?;
    let gpus = match audit::rule::on_cpu(record) {
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
    fn what_is_worse_in_both_is_not_best() {
        assert!(beats((2.0, 2.0), (1.0, 2.0)));
        assert!(!beats((2.0, 1.0), (1.0, 2.0)));
        assert!(!beats((1.0, 1.0), (1.0, 1.0)), "equals do not hide each other");
    }
}
