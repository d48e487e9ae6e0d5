//! View of corrections: events about records, that is retractions, annotations, waivers and
//! epochs.

use minijinja::{Value, context};
use schema::event::{Event, EventKind};

use crate::catalog::{Catalog, Run};
use crate::link::{Link, Target, anchor};
use crate::outside;

/// Largest number of runs that are linked beside an event; the event's file names all.
const RUNS_SHOWN: usize = 3;

/// Returns a line for every event of `catalog`, newest first.
pub fn lines(catalog: &Catalog) -> Vec<Value> {
    let mut events: Vec<_> = catalog.registry.events.iter().collect();
    events.sort_by(|a, b| b.record.id.cmp(&a.record.id));
    events.iter().map(|stored| line(catalog, &stored.path, &stored.record)).collect()
}

fn line(catalog: &Catalog, path: &str, event: &Event) -> Value {
    let is_named = |run: &&Run| !event.targets.is_empty() && event.names(&run.record.id, run.path);
    let named: Vec<&Run> = catalog.runs.iter().filter(is_named).collect();
    let withdrawn = catalog.registry.retracted.get(&event.id);
    context! {
        id => outside::name(&event.id),
        anchor => anchor(&event.id),
        at => outside::name(&event.at),
        kind => kind(event.kind),
        subject => outside::message(&event.subject()),
        reason => outside::message(&event.reason),
        evidence => outside::message(&event.evidence.join(", ")),
        // Time at which a waiver ends; empty for other events.
        expires => outside::name(event.expires.as_deref().unwrap_or_default()),
        // Who accepted the regression of a waiver; empty for other events.
        accepted_by => outside::name(event.accepted_by.as_deref().unwrap_or_default()),
        // Links to the first runs that the event names, and the number of all.
        runs => named.iter().take(RUNS_SHOWN).map(|run| Link::run(run)).collect::<Value>(),
        named => named.len(),
        replaced_by => outside::name(event.replaced_by.as_deref().unwrap_or_default()),
        // Reason for which the event itself was retracted; empty if it was not.
        withdrawn => withdrawn.map(|by| outside::message(&by.reason)).unwrap_or_default(),
        record => Target::Record { path: path.to_owned() },
    }
}

/// Returns the word for a kind of event on pages.
pub fn kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Retract => "retracted",
        EventKind::Annotate => "remark",
        EventKind::Waive => "waiver",
        EventKind::Epoch => "epoch",
    }
}
