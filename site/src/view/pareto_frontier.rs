//! View of the Pareto frontier of one model: throughput and speed per user, and the cost of a
//! million tokens at a price that the reader enters.

use std::collections::{BTreeMap, BTreeSet};

use judge::facts::sweep;
use judge::order;
use judge::pareto::{Tradeoff, by_throughput, frontier};
use judge::summary::Summary;
use minijinja::{Value, context};
use schema::run::Kind;

use super::charts::look_of;
use super::figure::{self, Column, Figure, launches};
use super::finding::{self, Finding};
use super::table::Shared;
use super::tip;
use crate::catalog::{self, Catalog, Cell, ReleaseKey};
use crate::chart::{Chart, ParetoPoint, ParetoSeries, Tip, pareto, pareto_legend, with_variants};
use crate::format::{self, Scale};
use crate::link::{self, Link, Target};
use crate::outside;

/// Builds the view of the Pareto frontiers of `model`, one per load, from the latest release of
/// each engine on each hardware. A load is one concurrency sweep with all its levels, or one
/// scenario outside of any sweep.
pub fn view(catalog: &Catalog, model: &str) -> Value {
    let runs =
        catalog.runs_where(|record| record.model.id == model && catalog.is_contender(record));
    let mut loads: BTreeMap<(bool, String), Vec<(ReleaseKey, Cell)>> = BTreeMap::new();
    for (key, runs) in catalog::latest_releases(&runs) {
        for cell in catalog::cells(&runs) {
            let sweep = cell.runs.first().and_then(|run| sweep(&run.record.scenario));
            // Sweeps are first, because only they fix the number of users.
            let load = (sweep.is_none(), sweep.unwrap_or_else(|| cell.key.scenario.clone()));
            loads.entry(load).or_default().push((key.clone(), cell));
        }
    }
    let mut loads: Vec<_> = loads.into_iter().collect();
    loads.sort_by(|((a_alone, a), _), ((b_alone, b), _)| {
        a_alone.cmp(b_alone).then_with(|| order::scenarios(a, b))
    });
    let of_load = |((is_alone, name), cells): &((bool, String), Vec<(ReleaseKey, Cell)>)| {
        let placed = placed(cells);
        let shared = Shared::of(placed.iter().map(|placed| placed.cell));
        let mut marks: Vec<Vec<Finding>> = placed.iter().map(Placed::marks).collect();
        let common = finding::take_common(&mut marks);
        (!placed.is_empty()).then(|| {
            context! {
                anchor => link::anchor(name),
                name => outside::name(name),
                // True for a concurrency sweep, whose rows have different loads.
                rungs => !is_alone,
                charts => charts(name, &placed, &shared),
                shared => shared.shown(),
                // Findings about the figures of every row.
                common,
                // True when some row has parts of a configuration that are not shared.
                distinct => placed.iter().any(|placed| !shared.rest_of(placed.cell).is_empty()),
                rows => placed
                    .iter()
                    .zip(marks)
                    .map(|(of, badges)| context! { badges, ..row(of, &shared) })
                    .collect::<Value>(),
            }
        })
    };
    context! {
        model => outside::name(model),
        model_page => Target::Model { model: model.to_owned() },
        loads => loads.iter().filter_map(of_load).collect::<Value>(),
    }
}

/// Cell with the speed, throughput and cost by which it is drawn and ranked.
struct Placed<'a, 'b> {
    key: &'a ReleaseKey,
    cell: &'a Cell<'b>,
    tradeoff: Tradeoff,
    /// True where no other cell of its hardware, load and origin (measured or published) is at
    /// least as good in speed and throughput and better in one.
    is_best: bool,
}

impl Placed<'_, '_> {
    /// Returns the group within which a cell is ranked: its hardware, and whether its figures were
    /// published elsewhere.
    fn field(&self) -> (&str, bool) {
        (&self.key.hardware, self.cell.key.kind == "imported")
    }

    /// Returns the findings about the figures of the cell.
    fn marks(&self) -> Vec<Finding> {
        finding::of_records(&self.cell.records().collect::<Vec<_>>())
    }
}

/// Returns the cells that have both speed and throughput, by hardware and origin (measured first),
/// the fastest for one user first.
fn placed<'a, 'b>(cells: &'a [(ReleaseKey, Cell<'b>)]) -> Vec<Placed<'a, 'b>> {
    let of = |(key, cell): &'a (ReleaseKey, Cell<'b>)| {
        let tradeoff = Tradeoff::of(&cell.records().collect::<Vec<_>>())?;
        Some(Placed { key, cell, tradeoff, is_best: false })
    };
    let mut placed: Vec<Placed> = cells.iter().filter_map(of).collect();
    placed.sort_by(|a, b| {
        a.field()
            .cmp(&b.field())
            .then_with(|| a.tradeoff.fastest_first(&b.tradeoff))
            .then_with(|| a.cell.key.cmp(&b.cell.key))
    });
    for field in placed.chunk_by_mut(|a, b| a.field() == b.field()) {
        let points: Vec<(f64, f64)> = field.iter().map(|placed| placed.tradeoff.point()).collect();
        for index in frontier(&points) {
            field[index].is_best = true;
        }
    }
    placed
}

/// Largest number of series to which a chart can give distinct colors and shapes.
const SERIES_MAX: usize = 6;

/// Points of one configuration in a Pareto chart, and the rows about them in the chart's data
/// table.
struct Drawn<'a> {
    field: (&'a str, bool),
    series: ParetoSeries,
    rows: Vec<Vec<String>>,
}

/// Draws one Pareto chart if all series can be distinguished, else one per hardware, with measured
/// and published figures separate.
fn charts(name: &str, placed: &[Placed], shared: &Shared) -> Vec<Chart> {
    let drawn = series(placed, shared);
    if drawn.len() <= SERIES_MAX {
        return chart(name, &drawn.iter().collect::<Vec<_>>()).into_iter().collect();
    }
    let fields: BTreeSet<_> = drawn.iter().map(|drawn| drawn.field).collect();
    let of = |(hardware, claimed): (&str, bool)| {
        let own: Vec<&Drawn> = drawn.iter().filter(|d| d.field == (hardware, claimed)).collect();
        let claimed = if claimed { ", published elsewhere" } else { "" };
        chart(&format!("{name} on {hardware}{claimed}"), &own)
    };
    fields.into_iter().filter_map(of).collect()
}

/// Groups `placed` into series: one per release of an engine, configuration, hardware and origin
/// (measured or published).
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
        let config = shared.rest_of(cell);
        if !config.is_empty() {
            label.push_str(&format!(", {config}"));
        }
        let label = outside::message(&label);
        let (x, y) = placed.tradeoff.point();
        let shown = |value| format::rounded(value, None);
        let scenario = outside::name(&cell.key.scenario);
        let row = vec![label.clone(), scenario.clone(), shown(x), shown(y)];
        let range = |of: &Summary| (of.n > 1).then_some((of.min, of.max));
        let (x_range, y_range) =
            (range(&placed.tradeoff.speed), range(&placed.tradeoff.throughput));
        let point = ParetoPoint { x, y, x_range, y_range, tip: point_tip(placed) };
        match drawn.iter_mut().find(|(known, _)| same(known, placed)) {
            Some((_, known)) => {
                known.series.points.push(point);
                known.rows.push(row);
            }
            None => {
                let series = ParetoSeries { label, look: look_of(cell), points: vec![point] };
                drawn.push((placed, Drawn { field: placed.field(), series, rows: vec![row] }));
            }
        }
    }
    drawn.into_iter().map(|(_, drawn)| drawn).collect()
}

/// Returns the tooltip of a point: speed, throughput and TTFT, the findings about them, and what
/// every tooltip says.
fn point_tip(placed: &Placed) -> Tip {
    let Placed { cell, tradeoff: Tradeoff { speed, throughput, .. }, .. } = placed;
    let rate = |title: &str, of: &Summary| {
        tip::labeled(title, &Figure::median(of, Scale::PER_SECOND), "tokens/s")
    };
    let ttft = Column::new(figure::metric("ttft_us_p50"), [*cell]);
    let figures =
        [rate("per user", speed), rate("throughput", throughput), tip::figure(cell, &ttft)];
    let marks = placed.marks().into_iter().map(|mark| mark.text);
    tip::of_cell(cell, &figures.into_iter().chain(marks).collect::<Vec<_>>())
}

/// Draws a Pareto chart of the `SERIES_MAX` series with the highest throughput, and names the
/// others in the caption. `None` without series.
fn chart(name: &str, drawn: &[&Drawn]) -> Option<Chart> {
    let points = |drawn: &&Drawn| drawn.series.points.iter().map(|p| (p.x, p.y)).collect();
    let by_throughput = by_throughput(&drawn.iter().map(points).collect::<Vec<_>>());
    let mut best: Vec<&Drawn> = by_throughput.into_iter().map(|index| drawn[index]).collect();
    let others = best.split_off(best.len().min(SERIES_MAX));
    if best.is_empty() {
        return None;
    }
    let title = format!("Throughput and speed per user, {}", outside::name(name));
    let mut caption = "Medians; up and to the right is better. A line joins the points of a configuration \
                       that no other of its points dominates. Each point leads to its run, or to its \
                       release."
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
    let best = with_variants(best.iter().map(|drawn| drawn.series.clone()).collect());
    let best: Vec<&ParetoSeries> = best.iter().collect();
    let drawing = pareto(
        "speed: output tokens/s per user",
        "throughput: output tokens/s per GPU (CPU: machine)",
        &best,
    );
    let heads = ["Engine", "Load", "Speed, tokens/s", "Throughput, tokens/s"];
    let rows = drawn.iter().flat_map(|drawn| drawn.rows.clone()).collect();
    Some(Chart::new(&title, &caption, drawing, heads, rows).with_legend(pareto_legend(&best)))
}

/// Builds the row of a Pareto table: one engine in one configuration under one load.
fn row(placed: &Placed, shared: &Shared) -> Value {
    let Placed { key, cell, tradeoff: Tradeoff { speed, throughput, hours }, is_best } = placed;
    let column = Column::new(figure::metric("ttft_us_p50"), [*cell]);
    let mut ttft = column.figure(cell);
    if !ttft.missing {
        ttft.text = format!("{} {}", ttft.text, column.scale.unit);
    }
    context! {
        engine => Link::release(key),
        hardware => Link::hardware(&key.hardware),
        scenario => outside::name(&cell.key.scenario),
        config => shared.rest_of(cell),
        claimed => cell.runs.iter().any(|run| run.record.kind == Kind::Imported),
        n => launches(cell),
        speed => Figure::median(speed, Scale::PER_SECOND),
        throughput => Figure::median(throughput, Scale::PER_SECOND),
        // Speed and throughput as plain numbers, for scripts.
        speed_plain => speed.median.to_string(),
        throughput_plain => throughput.median.to_string(),
        // GPU hours per million output tokens.
        hours => Figure::median(hours, Scale { unit: "h", divisor: 1.0 }),
        ttft,
        best => is_best,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_series_the_best_are_drawn_and_the_others_named() {
        let series = |index: u32| Drawn {
            field: ("hw", false),
            series: ParetoSeries {
                label: format!("engine {index}"),
                look: crate::chart::Look::of("redline"),
                points: vec![ParetoPoint {
                    x: 1.0,
                    y: f64::from(index),
                    x_range: None,
                    y_range: None,
                    tip: Tip::plain("a point"),
                }],
            },
            rows: vec![vec![format!("engine {index}")]],
        };
        let drawn: Vec<Drawn> = (1..=8).map(series).collect();
        let chart = chart("x", &drawn.iter().collect::<Vec<_>>()).expect("a chart");
        assert!(chart.caption.ends_with("in the table alone: engine 2; engine 1."), "{chart:?}");
        let keys: Vec<&str> = chart.legend.iter().map(|key| key.text.as_str()).collect();
        assert!(keys.contains(&"engine 8") && !keys.contains(&"engine 2"), "{keys:?}");
        assert_eq!(chart.rows.len(), 8, "nothing is hidden");
        let swatches: BTreeSet<&str> =
            chart.legend[..6].iter().map(|key| key.swatch.as_str()).collect();
        assert_eq!(swatches.len(), 6, "series of one engine differ in shape: {swatches:?}");
    }
}
