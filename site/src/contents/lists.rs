//! The pages that are lists, each cut into parts: scenarios, trends, health, corrections, imports.

use std::collections::BTreeMap;

use schema::trend::Trend;
use schema::verdict::Cell;

use super::{Contents, Page, Sources};
use crate::catalog;
use crate::judged::Judged;
use crate::link::Target;
use crate::template::value;
use crate::view::by_scenario::ByScenario;
use crate::view::corrections::{self, CorrectionsView};
use crate::view::health::{self, HealthView};
use crate::view::imports::{self, ImportsView, ReportView};
use crate::view::pager::{Part, split};
use crate::view::release::Related;
use crate::view::trend::{TrendLine, TrendView, TrendsView};

/// Rows of a part, of about a kilobyte each.
const ROWS: usize = 60;

/// What trends are grouped by: engine, hardware, model.
type TrendKey<'a> = (&'a str, &'a str, &'a str);

fn trends(judged: &Judged) -> BTreeMap<TrendKey<'_>, Vec<&Trend>> {
    let mut groups: BTreeMap<TrendKey, Vec<&Trend>> = BTreeMap::new();
    for trend in &judged.trends {
        let cell = &trend.cell;
        groups.entry((&cell.engine, &cell.hardware, &cell.model)).or_default().push(trend);
    }
    groups
}

fn trend_target(cell: &Cell) -> Target {
    Target::Trend {
        engine: cell.engine.clone(),
        hardware: cell.hardware.clone(),
        model: cell.model.clone(),
    }
}

/// The pages of trends whose cells pass `test`.
pub(super) fn trend_pages(judged: &Judged, test: impl Fn(&Cell) -> bool) -> Vec<Related> {
    let groups = trends(judged).into_values().filter(|group| test(&group[0].cell));
    let page = |group: Vec<&Trend>| {
        let mut page = TrendLine::new(&group, trend_target(&group[0].cell)).page;
        page.text = format!("Over releases: {}", page.text);
        page
    };
    groups.map(page).collect()
}

impl<'a> Contents<'a> {
    /// Every page that is a list.
    pub(super) fn lists(&'a self) -> Vec<Page<'a>> {
        let mut pages = self.scenarios();
        pages.extend(self.trends());
        pages.extend(self.health());
        pages.extend(self.corrections());
        pages.extend(self.imports());
        pages
    }

    fn scenarios(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for scenario in self.catalog.names(catalog::scenario) {
            let (view, rows) = ByScenario::new(self.catalog, &scenario);
            let target = Target::Scenario { scenario: scenario.clone() };
            for part in split(&target, rows, ROWS) {
                let Part { target, rows, pager } = part;
                let view = ByScenario { rows, pager, ..view.clone() };
                let runs = self.catalog.runs_where(|record| catalog::scenario(record) == scenario);
                let sources = Sources::runs(runs).with(self.events());
                let crumbs = vec![(scenario.clone(), None)];
                let at = ("scenario", target);
                pages.push(self.page(at, &scenario, crumbs, sources, move || value(&view)));
            }
        }
        pages
    }

    fn trends(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        let mut lines = Vec::new();
        let whole = "Trends".to_owned();
        for ((engine, hardware, model), group) in trends(self.judged) {
            let target = trend_target(&group[0].cell);
            lines.push(TrendLine::new(&group, target.clone()));
            let runs = self.catalog.runs_where(|record| {
                (record.engine.name.as_str(), record.hardware.id.as_str()) == (engine, hardware)
                    && record.model.id == model
            });
            let sources = Sources::runs(runs).with(self.events());
            let title = format!("{engine} serving {model} on {hardware}");
            let crumbs = vec![(whole.clone(), Some(Target::Trends {})), (title.clone(), None)];
            // A part holds whole cells, since a chart is one cell's.
            let cells: Vec<Vec<&Trend>> =
                group.chunk_by(|a, b| a.cell == b.cell).map(<[_]>::to_vec).collect();
            let points = group.iter().map(|trend| trend.points.len()).max().unwrap_or(1);
            let most = (CELLS_POINTS / points.max(1)).clamp(1, 6);
            for Part { target, rows, pager } in split(&target, cells, most) {
                let at = ("trend", target);
                let (crumbs, sources) = (crumbs.clone(), sources.clone());
                pages.push(self.page(at, &title, crumbs, sources, move || {
                    let mut view = TrendView::new(&rows.concat());
                    view.pager.clone_from(&pager);
                    value(&view)
                }));
            }
        }
        for Part { target, rows, pager } in split(&Target::Trends {}, lines, ROWS) {
            let view = TrendsView { lines: rows, pager };
            let crumbs = vec![(whole.clone(), None)];
            let at = ("trends", target);
            pages.push(self.page(at, &whole, crumbs, self.everything(), move || value(&view)));
        }
        pages
    }

    fn health(&'a self) -> Vec<Page<'a>> {
        let (latest, failures) = health::of(self.catalog);
        let failing = failures.len();
        let page = |(index, part): (usize, Part<health::FailureRow>)| {
            let Part { target, rows, pager } = part;
            let latest = if index == 0 { latest.clone() } else { Vec::new() };
            let view = HealthView { latest, failures: rows, failing, pager };
            let crumbs = vec![("Health".to_owned(), None)];
            let at = ("health", target);
            self.page(at, "Health", crumbs, self.everything(), move || value(&view))
        };
        split(&Target::Health {}, failures, ROWS).into_iter().enumerate().map(page).collect()
    }

    fn corrections(&'a self) -> Vec<Page<'a>> {
        let lines = corrections::lines(self.catalog);
        let page = |part| {
            let Part { target, rows, pager } = part;
            let view = CorrectionsView { events: rows, pager };
            let mut sources = Sources::runs(Vec::new()).with(self.events());
            sources.fresh = true;
            let crumbs = vec![("Corrections".to_owned(), None)];
            let at = ("corrections", target);
            self.page(at, "Corrections", crumbs, sources, move || value(&view))
        };
        split(&Target::Corrections {}, lines, ROWS).into_iter().map(page).collect()
    }

    fn imports(&'a self) -> Vec<Page<'a>> {
        let reports = imports::reports(self.catalog);
        let runs: Vec<_> = reports.iter().flat_map(|report| report.runs.clone()).collect();
        let view = ImportsView::new(self.catalog, &reports);
        let whole = "Published figures of others".to_owned();
        let mut sources = Sources::runs(runs).with(self.events());
        sources.fresh = true;
        let at = ("imports", Target::Imports {});
        let crumbs = vec![(whole.clone(), None)];
        let mut pages = vec![self.page(at, &whole, crumbs, sources, move || value(&view))];
        for report in &reports {
            let (view, rows) = ReportView::new(self.catalog, report);
            let sources = Sources::runs(report.runs.clone()).with(self.events());
            let title = format!("{} {}", report.source, report.file);
            let crumbs = vec![(whole.clone(), Some(Target::Imports {})), (title.clone(), None)];
            for Part { target, rows, pager } in split(&report.target(), rows, ROWS) {
                let view = ReportView { blocks: rows, pager, ..view.clone() };
                let at = ("report", target);
                let (crumbs, sources) = (crumbs.clone(), sources.clone());
                pages.push(self.page(at, &title, crumbs, sources, move || value(&view)));
            }
        }
        pages
    }
}

/// Points of a part of a page of trends, over its cells.
const CELLS_POINTS: usize = 60;
