//! View of corrections: events about records, that is retractions, annotations, waivers and
//! epochs.

use schema::event::{Event, EventKind};
use serde::Serialize;

use super::pager::PartLink;
use super::release::Related;
use crate::catalog::Catalog;
use crate::link::Target;
use crate::outside;

/// View of the events, newest first.
#[derive(Debug, Clone, Serialize)]
pub struct CorrectionsView {
    pub events: Vec<EventLine>,
    pub pager: Vec<PartLink>,
}

/// Line about one event: time, kind, subject, reason, runs.
#[derive(Debug, Clone, Serialize)]
pub struct EventLine {
    pub id: String,
    pub anchor: String,
    pub at: String,
    pub kind: &'static str,
    /// Subject of the event: runs, folders or cells.
    pub subject: String,
    pub reason: String,
    pub evidence: String,
    /// Time at which a waiver ends; empty for other events.
    pub expires: String,
    /// Links to the first runs that the event names, and the number of all.
    pub runs: Vec<Related>,
    pub named: usize,
    pub replaced_by: String,
    /// Reason for which the event itself was retracted; empty if it was not.
    pub withdrawn: String,
    pub record: Target,
}

/// Largest number of an event's runs that are linked; the event's file names all.
const RUNS_SHOWN: usize = 3;

/// Returns a line for every event of `catalog`, newest first.
pub fn lines(catalog: &Catalog) -> Vec<EventLine> {
    let mut events: Vec<_> = catalog.registry.events.iter().collect();
    events.sort_by(|a, b| b.record.id.cmp(&a.record.id));
    events.iter().map(|stored| line(catalog, &stored.path, &stored.record)).collect()
}

fn line(catalog: &Catalog, path: &str, event: &Event) -> EventLine {
    let named: Vec<_> = catalog
        .runs
        .iter()
        .filter(|run| !event.targets.is_empty() && event.names(&run.record.id, run.path))
        .collect();
    let run = |run: &&crate::catalog::Run| Related {
        text: outside::name(&run.record.id),
        target: Target::Run { id: run.record.id.clone(), record: run.path.to_owned() },
    };
    let withdrawn = catalog.registry.retracted.get(&event.id);
    EventLine {
        id: outside::name(&event.id),
        anchor: crate::link::anchor(&event.id),
        at: outside::name(&event.at),
        kind: kind(event.kind),
        subject: outside::message(&event.subject()),
        reason: outside::message(&event.reason),
        evidence: outside::message(&event.evidence.join(", ")),
        expires: outside::name(event.expires.as_deref().unwrap_or_default()),
        runs: named.iter().take(RUNS_SHOWN).map(run).collect(),
        named: named.len(),
        replaced_by: outside::name(event.replaced_by.as_deref().unwrap_or_default()),
        withdrawn: withdrawn.map(|by| outside::message(&by.reason)).unwrap_or_default(),
        record: Target::Record { path: path.to_owned() },
    }
}

/// Word for a kind of event on pages.
pub fn kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Retract => "retracted",
        EventKind::Annotate => "remark",
        EventKind::Waive => "waiver",
        EventKind::Epoch => "epoch",
    }
}
