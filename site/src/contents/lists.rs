//! Pages of picks and of engines side by side, and pages that are lists, split into parts: scenarios, trends, health,
//! corrections, imports, labs.

use std::collections::BTreeMap;

use minijinja::{Value, context};
use schema::run::RunRecord;
use schema::trend::Trend;
use schema::verdict::Cell;

use super::{Contents, List, Page, Part, Sources, split};
use crate::catalog;
use crate::judged::Judged;
use crate::link::{Link, Target};
use crate::view::lab::{self, Lab};
use crate::view::{corrections, health, imports, pick, side_by_side, subjects, trends};

/// Largest number of rows on one page of a list (of a scenario's figures, failures, corrections,
/// published results or trends); further rows are on further pages. A row is about a kilobyte.
const ROWS: usize = 60;

/// Largest number of tables of published results on a page.
const TABLES: usize = 12;

impl<'a> Contents<'a> {
    /// Returns the pages of engines side by side, one for each model on each hardware that several
    /// engines served.
    pub(super) fn side_by_side(&'a self) -> Vec<Page<'a>> {
        let places = self.catalog.places().into_iter();
        let places = places.filter(|place| side_by_side::has_several(self.catalog, *place));
        let page = |(model, hardware): (&'a str, &'a str)| {
            let here =
                |record: &RunRecord| record.model.id == model && record.hardware.id == hardware;
            let sources = Sources::runs(self.catalog.runs_where(here)).with(self.events());
            let crumbs = vec![
                (model.to_owned(), Some(Target::Model { model: model.to_owned() })),
                (hardware.to_owned(), None),
            ];
            let title = format!("{model} on {hardware}: engines side by side");
            let (model, hardware) = (model.to_owned(), hardware.to_owned());
            let target = Target::SideBySide { model: model.clone(), hardware: hardware.clone() };
            self.page(("side_by_side", target), &title, crumbs, sources, move || {
                side_by_side::view(self.catalog, &model, &hardware)
            })
        };
        places.map(page).collect()
    }

    /// Returns the pages of picks, one for each model and hardware.
    pub(super) fn picks(&'a self) -> Vec<Page<'a>> {
        let mut places: Vec<(&str, &str)> = self
            .judged
            .picks
            .iter()
            .map(|pick| (&*pick.subject.model, &*pick.subject.hardware))
            .collect();
        places.dedup();
        let page = |(model, hardware): (&'a str, &'a str)| {
            let here =
                |record: &RunRecord| record.model.id == model && record.hardware.id == hardware;
            let sources = Sources::runs(self.catalog.runs_where(here)).with(self.events());
            let Link { text, target } = Link::pick(model, hardware);
            let crumbs = vec![
                (model.to_owned(), Some(Target::Model { model: model.to_owned() })),
                (hardware.to_owned(), None),
            ];
            let title = pick::title(self.judged, model, hardware);
            let at = ("pick", target);
            let mut page = self.page(at, &title, crumbs, sources, move || {
                pick::view(self.judged, model, hardware)
            });
            page.frame.summary = format!(
                "Which engine and which flags serve {text} fastest, by number of users, with TTFT, \
                 TPOT and the command to start it."
            );
            page
        };
        places.into_iter().map(page).collect()
    }

    pub(super) fn scenarios(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for scenario in self.catalog.scenarios() {
            let (view, rows) = subjects::scenario(self.catalog, &scenario);
            let runs = self.catalog.runs_where(|record| catalog::scenario(record) == scenario);
            let sources = Sources::runs(runs).with(self.events());
            let at = ("scenario", Target::Scenario { scenario: scenario.clone() });
            let list = List { view, first: context! {}, key: "rows", rows, most: ROWS };
            pages.extend(self.parts(at, &scenario, Vec::new(), sources, list));
        }
        pages
    }

    pub(super) fn health(&'a self) -> Vec<Page<'a>> {
        let (first, rows) = health::view(self.catalog);
        let empty = Vec::<Value>::new;
        let view = context! { latest => empty(), doubts => empty(), failing => rows.len() };
        let list = List { view, first, key: "failures", rows, most: ROWS };
        self.parts(("health", Target::Health {}), "Health", Vec::new(), self.everything(), list)
    }

    pub(super) fn corrections(&'a self) -> Vec<Page<'a>> {
        let rows = corrections::lines(self.catalog);
        let list = List { view: context! {}, first: context! {}, key: "events", rows, most: ROWS };
        let mut sources = Sources::runs(Vec::new()).with(self.events());
        sources.fresh = true;
        let at = ("corrections", Target::Corrections {});
        self.parts(at, "Corrections", Vec::new(), sources, list)
    }

    /// Returns the pages of figures published elsewhere: the list of reports, the results of each,
    /// and the options of those that explore some as a lab does.
    pub(super) fn imports(&'a self) -> Vec<Page<'a>> {
        let reports = imports::reports(self.catalog);
        let runs: Vec<_> = reports.iter().flat_map(|report| report.runs.clone()).collect();
        let options = reports.iter().filter_map(imports::options_link).collect();
        let view = imports::view(self.catalog, &reports, options);
        let whole = "Published elsewhere, not verified".to_owned();
        let mut sources = Sources::runs(runs).with(self.events());
        sources.fresh = true;
        let at = ("imports", Target::Imports {});
        let mut pages = vec![self.page(at, &whole, Vec::new(), sources, move || view.clone())];
        for report in &reports {
            let (view, rows) = imports::report(report, imports::options_link(report));
            let sources = Sources::runs(report.runs.clone()).with(self.events());
            let title = format!("{} {}", report.source, report.file);
            let (above, target) = ((whole.clone(), Some(Target::Imports {})), report.link().target);
            let crumbs = vec![above.clone(), (title.clone(), None)];
            let list = List { view, first: context! {}, key: "tables", rows, most: TABLES };
            let at = ("report", target.clone());
            pages.extend(self.parts(at, &title, crumbs, sources.clone(), list));
            if let Some(Link { text, target: options }) = imports::options_link(report) {
                let view = imports::options(report);
                let crumbs = vec![above, (title, Some(target)), ("Options".to_owned(), None)];
                let at = ("claims", options);
                pages.push(self.page(at, &text, crumbs, sources, move || view.clone()));
            }
        }
        pages
    }

    /// Returns links to the pages of options tried in published reports, for those reports that
    /// have a result of `model`.
    pub(super) fn claims_of(&self, model: &str) -> Vec<Link> {
        let reports = imports::reports(self.catalog);
        let about = reports
            .iter()
            .filter(|report| report.runs.iter().any(|run| run.record.model.id == model));
        about.filter_map(imports::options_link).collect()
    }

    /// True when a run in an overlay may be of a release that supersedes the one that the lab
    /// recommends: it is of the lab's model and hardware.
    fn may_supersede(&self, lab: &Lab<'_>) -> bool {
        let at = (&lab.asked.file.model, &lab.campaign.hardware);
        let mut runs = self.catalog.registry.of_releases().filter(|run| run.root != 0);
        runs.any(|run| (&run.record.model.id, &run.record.hardware.id) == at)
    }

    pub(super) fn labs(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for lab in lab::all(self.catalog, self.judged) {
            let campaign = lab.campaign.record_sha256.clone();
            let mut sources =
                Sources::runs(lab.runs.clone()).with(self.events()).with(vec![campaign]);
            sources.fresh |= lab.root != 0 || self.may_supersede(&lab);
            let title = format!("{} on {}", lab.name(), lab.campaign.hardware);
            let crumbs = vec![(lab.name(), None), (lab.campaign.id.clone(), None)];
            let (view, rows) = lab::view(&lab, self.claims_of(&lab.asked.file.model));
            // Further parts of the page contain only sections.
            let first = context! { is_first => true, conclusion => lab::conclusion(&lab) };
            let view = context! { is_first => false, conclusion => (), ..view };
            let list = List { view, first, key: "sections", rows, most: 1 };
            pages.extend(self.parts(("lab", lab.target()), &title, crumbs, sources, list));
        }
        pages
    }

    /// Returns links to the pages of those labs that pass `test`, newest first.
    pub(super) fn lab_pages(&'a self, test: impl Fn(&Lab) -> bool) -> Vec<Link> {
        let labs = lab::all(self.catalog, self.judged);
        labs.iter().filter(|lab| test(lab)).map(Lab::link).collect()
    }

    /// Returns the pages of trends: a list of all cells, and the series of each engine, hardware
    /// and model, split into pages that contain whole cells.
    pub(super) fn trends(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        let whole = "Trends".to_owned();
        for ((engine, hardware, model), cells) in trend_groups(self.judged) {
            let runs = self.catalog.runs_where(|record| {
                (record.engine.name.as_str(), record.hardware.id.as_str()) == (engine, hardware)
                    && record.model.id == model
            });
            let sources = Sources::runs(runs).with(self.events());
            let title = format!("{engine} serving {model} on {hardware}");
            let crumbs = vec![(whole.clone(), Some(Target::Trends {})), (title.clone(), None)];
            for Part { target, rows, pager } in trend_parts(cells) {
                let at = ("trend", target.clone());
                let (crumbs, sources) = (crumbs.clone(), sources.clone());
                pages.push(self.page(at, &title, crumbs, sources, move || {
                    let view = trends::view(self.catalog, &rows.concat());
                    context! { pager => pager.clone(), ..view }
                }));
            }
        }
        let rows = trend_lines(self.judged, |_| true);
        let list = List { view: context! {}, first: context! {}, key: "trends", rows, most: ROWS };
        let at = ("trends", Target::Trends {});
        pages.extend(self.parts(at, &whole, Vec::new(), self.everything(), list));
        pages
    }
}

/// Number of trend points per metric that a trend page holds at most, summed over its cells, unless
/// a single cell has more.
const CELLS_POINTS: usize = 45;

/// Largest number of cells on a trend page; further cells are on further pages.
const CELLS: usize = 6;

/// Key of the trends that share a page: engine, hardware, model.
type TrendKey<'a> = (&'a str, &'a str, &'a str);

/// Trends of one cell, one for each metric.
type CellTrends<'a> = Vec<&'a Trend>;

/// Groups the cells with trends by engine, hardware and model.
fn trend_groups<'a>(judged: &'a Judged<'_>) -> BTreeMap<TrendKey<'a>, Vec<CellTrends<'a>>> {
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

/// Splits `cells`, which share engine, hardware and model, into pages.
fn trend_parts(cells: Vec<CellTrends<'_>>) -> Vec<Part<CellTrends<'_>>> {
    let Some(Cell { engine, hardware, model, .. }) = cells.first().map(|cell| cell[0].cell.clone())
    else {
        return Vec::new();
    };
    let points = cells.iter().flatten().map(|trend| trend.points.len()).max().unwrap_or(1);
    let most = (CELLS_POINTS / points.max(1)).clamp(1, CELLS);
    split(&Target::Trend { engine, hardware, model }, cells, most)
}

/// Returns one line for each cell that has trends and passes `test`, with a link to them.
pub(super) fn trend_lines(judged: &Judged, test: impl Fn(&Cell) -> bool) -> Vec<Value> {
    let mut lines = Vec::new();
    for Part { target, rows, .. } in trend_groups(judged).into_values().flat_map(trend_parts) {
        let wanted = rows.iter().filter(|cell| test(&cell[0].cell));
        lines.extend(wanted.filter_map(|cell| trends::line(cell, &target)));
    }
    lines
}
