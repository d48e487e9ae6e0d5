//! Pages of trends: a list of all cells, and the series of each engine, hardware and model, split
//! into parts that contain whole cells.

use std::collections::BTreeMap;

use schema::trend::Trend;
use schema::verdict::Cell;

use super::lists::ROWS;
use super::{Contents, Page, Sources};
use crate::judged::Judged;
use crate::link::Target;
use crate::template::value;
use crate::view::pager::{Part, split};
use crate::view::trend::TrendView;
use crate::view::trends::{TrendLine, TrendsView};

/// Points of a trend page, counted over its cells.
const CELLS_POINTS: usize = 45;

/// Largest number of cells on a trend page.
const CELLS: usize = 6;

/// Group of trends on one page: engine, hardware, model.
type TrendKey<'a> = (&'a str, &'a str, &'a str);

/// Trends of one cell, one per metric.
type CellTrends<'a> = Vec<&'a Trend>;

/// Groups the cells with trends by engine, hardware and model.
fn groups(judged: &Judged) -> BTreeMap<TrendKey<'_>, Vec<CellTrends<'_>>> {
    let mut groups: BTreeMap<TrendKey, Vec<CellTrends>> = BTreeMap::new();
    for trend in &judged.trends {
        let cell = &trend.cell;
        let cells = groups.entry((&cell.engine, &cell.hardware, &cell.model)).or_default();
        match cells.last_mut().filter(|cell| cell[0].cell == trend.cell) {
            Some(cell) => cell.push(trend),
            None => cells.push(vec![trend]),
        }
    }
    groups
}

fn target(cell: &Cell) -> Target {
    Target::Trend {
        engine: cell.engine.clone(),
        hardware: cell.hardware.clone(),
        model: cell.model.clone(),
    }
}

/// Splits `cells`, which share engine, hardware and model, into pages.
fn parts(cells: Vec<CellTrends<'_>>) -> Vec<Part<CellTrends<'_>>> {
    let Some(of) = cells.first().map(|cell| target(&cell[0].cell)) else { return Vec::new() };
    let points = cells.iter().flatten().map(|trend| trend.points.len()).max().unwrap_or(1);
    split(&of, cells, (CELLS_POINTS / points.max(1)).clamp(1, CELLS))
}

/// Returns a line for each cell with trends that passes `test`.
pub(super) fn lines(judged: &Judged, test: impl Fn(&Cell) -> bool) -> Vec<TrendLine> {
    let mut lines = Vec::new();
    for Part { target, rows, .. } in groups(judged).into_values().flat_map(parts) {
        let wanted = rows.iter().filter(|cell| test(&cell[0].cell));
        lines.extend(wanted.filter_map(|cell| TrendLine::new(cell, target.clone())));
    }
    lines
}

impl<'a> Contents<'a> {
    pub(super) fn trends(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        let whole = "Trends".to_owned();
        for ((engine, hardware, model), cells) in groups(self.judged) {
            let runs = self.catalog.runs_where(|record| {
                (record.engine.name.as_str(), record.hardware.id.as_str()) == (engine, hardware)
                    && record.model.id == model
            });
            let sources = Sources::runs(runs).with(self.events());
            let title = format!("{engine} serving {model} on {hardware}");
            let crumbs = vec![(whole.clone(), Some(Target::Trends {})), (title.clone(), None)];
            for Part { target, rows, pager } in parts(cells) {
                let at = ("trend", target.clone());
                let (crumbs, sources) = (crumbs.clone(), sources.clone());
                pages.push(self.page(at, &title, crumbs, sources, move || {
                    let mut view = TrendView::new(self.catalog, &rows.concat(), &target);
                    view.pager.clone_from(&pager);
                    value(&view)
                }));
            }
        }
        let lines = lines(self.judged, |_| true);
        for Part { target, rows, pager } in split(&Target::Trends {}, lines, ROWS) {
            let view = TrendsView { trends: rows, pager };
            let crumbs = vec![(whole.clone(), None)];
            let at = ("trends", target);
            pages.push(self.page(at, &whole, crumbs, self.everything(), move || value(&view)));
        }
        pages
    }
}
