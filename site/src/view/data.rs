//! The data page, and the table of all runs for spreadsheets.

use schema::event::{Event, EventKind};
use serde::Serialize;

use super::overview::PageLine;
use crate::catalog::Catalog;
use crate::outside;

/// The data page.
#[derive(Debug, Clone, Serialize)]
pub struct DataView {
    pub runs: usize,
    pub kernels: usize,
    pub campaigns: usize,
    pub events: Vec<EventLine>,
    pub pages: Vec<PageLine>,
}

/// What was said about records afterwards.
#[derive(Debug, Clone, Serialize)]
pub struct EventLine {
    pub id: String,
    pub at: String,
    pub kind: &'static str,
    pub targets: String,
    pub reason: String,
}

impl DataView {
    /// What `catalog` holds.
    #[must_use]
    pub fn new(catalog: &Catalog) -> Self {
        let event = |event: &Event| EventLine {
            id: outside::name(&event.id),
            at: outside::name(&event.at),
            kind: match event.kind {
                EventKind::Retract => "retracted",
                EventKind::Annotate => "remark",
                EventKind::Waive => "waiver",
                EventKind::Epoch => "epoch",
            },
            targets: outside::message(&event.subject()),
            reason: outside::message(&event.reason),
        };
        Self {
            runs: catalog.runs.len(),
            kernels: catalog.registry.kernels.len(),
            campaigns: catalog.registry.campaigns.len(),
            events: catalog.registry.events.iter().map(|stored| event(&stored.record)).collect(),
            pages: super::overview::page_lines(catalog),
        }
    }
}
