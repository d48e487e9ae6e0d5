//! Pages of labs, and of published reports that explore options as a lab does.

use super::{Contents, Page, Sources};
use crate::link::Target;
use crate::template::value;
use crate::view::claims::{self, ClaimsView};
use crate::view::imports;
use crate::view::lab::{self, Lab, LabView};
use crate::view::pager::{Part, split};
use crate::view::release::Related;

impl<'a> Contents<'a> {
    pub(super) fn labs(&'a self) -> Vec<Page<'a>> {
        let mut pages = Vec::new();
        for lab in lab::all(self.catalog, self.judged) {
            let campaign = lab.campaign.record_sha256.clone();
            let mut sources =
                Sources::runs(lab.runs.clone()).with(self.events()).with(vec![campaign]);
            sources.fresh |= lab.is_fresh();
            let title = format!("{} on {}", lab.name(), lab.campaign.hardware);
            let crumbs = vec![(lab.name(), None), (lab.campaign.id.clone(), None)];
            let (view, sections) = LabView::new(&lab, self.claims_of(&lab.asked.file.model));
            for Part { target, rows, pager } in split(&lab.target(), sections, 1) {
                let is_first = target == lab.target();
                let view = view.part(rows.into_iter().flatten().collect(), pager, is_first);
                let (crumbs, sources) = (crumbs.clone(), sources.clone());
                pages.push(
                    self.page(("lab", target), &title, crumbs, sources, move || value(&view)),
                );
            }
        }
        pages
    }

    /// Links to the pages of labs that pass `test`, newest first.
    pub(super) fn lab_pages(&'a self, test: impl Fn(&Lab) -> bool) -> Vec<Related> {
        let related = |lab: &Lab| Related {
            text: format!("{}: {}", lab.name(), lab.line().found),
            target: lab.target(),
        };
        lab::all(self.catalog, self.judged).iter().filter(|lab| test(lab)).map(related).collect()
    }

    /// Links to pages about options of a server of `model` that were published elsewhere.
    pub(super) fn claims_of(&self, model: &str) -> Vec<Related> {
        let reports = imports::reports(self.catalog);
        let about = reports.iter().filter(|report| {
            claims::is_lab(report) && report.runs.iter().any(|run| run.record.model.id == model)
        });
        about.map(claims::related).collect()
    }

    /// Pages of published reports that explore options as a lab does.
    pub(super) fn claims(&'a self) -> Vec<Page<'a>> {
        let reports = imports::reports(self.catalog);
        let page = |report: &imports::Report<'_, 'a>| {
            let view = ClaimsView::new(self.catalog, report);
            let Related { text, target } = claims::related(report);
            let whole = "Published figures of others".to_owned();
            let source = format!("{} {}", report.source, report.file);
            let crumbs = vec![
                (whole, Some(Target::Imports {})),
                (source, Some(report.target())),
                ("Options".to_owned(), None),
            ];
            let sources = Sources::runs(report.runs.clone()).with(self.events());
            self.page(("claims", target), &text, crumbs, sources, move || value(&view))
        };
        reports.iter().filter(|report| claims::is_lab(report)).map(page).collect()
    }
}
