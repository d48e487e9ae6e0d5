//! Pages that are lists, split into parts: scenarios, trends, health, corrections, imports.

use super::{Contents, Page, Sources};
use crate::catalog;
use crate::link::Target;
use crate::template::value;
use crate::view::by_scenario::ByScenario;
use crate::view::corrections::{self, CorrectionsView};
use crate::view::health::{self, HealthView};
use crate::view::imports::{self, ImportsView, ReportView};
use crate::view::pager::{Part, split};

/// Rows per part of a list; a row is about a kilobyte.
pub(super) const ROWS: usize = 60;

impl<'a> Contents<'a> {
    /// Returns every page that is a list.
    pub(super) fn lists(&'a self) -> Vec<Page<'a>> {
        let mut pages = self.scenarios();
        pages.extend(self.trends());
        pages.extend(self.health());
        pages.extend(self.corrections());
        pages.extend(self.imports());
        pages.extend(self.claims());
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

    fn health(&'a self) -> Vec<Page<'a>> {
        let (latest, doubts, failures) = health::of(self.catalog);
        let failing = failures.len();
        let page = |(index, part): (usize, Part<health::FailureRow>)| {
            let Part { target, rows, pager } = part;
            let (latest, doubts) = match index {
                0 => (latest.clone(), doubts.clone()),
                _ => (Vec::new(), Vec::new()),
            };
            let view = HealthView { latest, doubts, failures: rows, failing, pager };
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
