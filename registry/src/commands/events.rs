//! Commands `retract`, `annotate`, `waive` and `epoch`: compose an event, render the pages with
//! it, and commit both together.

use std::fs;

use anyhow::Context;
use judge::Registry;
use registry::commit::Clock;
use registry::events::{Draft, compose};
use registry::record::record;
use registry::render::render;
use registry::repository::RESULTS;
use schema::event::{self, EventKind};
use schema::exit::Exit;
use schema::id::{ulid, ulid_unix_ms};

use super::World;
use crate::cli::{EpochArguments, EventArguments, Renders, TargetArguments, WaiveArguments};

/// Number of characters of a reason that go into the commit's message.
const SUBJECT_CHARS: usize = 50;

impl From<&TargetArguments> for Draft {
    fn from(given: &TargetArguments) -> Self {
        Self {
            targets: given.targets.clone(),
            replaced_by: given.replaced_by.clone(),
            ..Self::default()
        }
    }
}

impl From<&WaiveArguments> for Draft {
    fn from(given: &WaiveArguments) -> Self {
        Self {
            cell: Some(given.cell.clone()),
            metric: Some(given.metric.clone()),
            until: Some(given.until.clone()),
            release: given.release.clone(),
            ..Self::default()
        }
    }
}

impl From<&EpochArguments> for Draft {
    fn from(given: &EpochArguments) -> Self {
        Self { cell: Some(given.cell.clone()), since: given.since.clone(), ..Self::default() }
    }
}

/// Time of a new event: now, or just after the latest event where that is later. An event can only
/// name earlier ones, and the clocks of two machines differ.
fn after_the_others(registry: &Registry, unix_ms: u64) -> u64 {
    let times = registry.events.iter().filter_map(|event| ulid_unix_ms(&event.record.id));
    times.max().map_or(unix_ms, |latest| unix_ms.max(latest + 1))
}

/// Writes an event, renders the pages with it, and commits both.
pub fn write(
    world: &World,
    kind: EventKind,
    draft: Draft,
    given: &EventArguments,
) -> anyhow::Result<Exit> {
    let draft = Draft { reason: given.reason.clone(), evidence: given.evidence.clone(), ..draft };
    let Renders { place, tools_dir } = &given.renders;
    let loaded = crate::said(store::load(&[&place.registry.join(RESULTS)])?);
    let id = ulid(after_the_others(&loaded, world.unix_ms), world.random);
    let event = compose(&loaded, kind, draft, (id, world.unix_s()))?;
    let overlay = tempfile::tempdir().context("cannot make a folder for the event")?;
    let path = overlay.path().join(schema::path::of_event(&event.id)?);
    let folder = path.parent().context("an event has no folder")?;
    let text = event::to_text(&event)?;
    fs::create_dir_all(folder).and_then(|()| fs::write(&path, text))?;
    let tools = tools_dir.as_deref().unwrap_or(&world.tools);
    // Before the commit, so that event and pages are in one commit.
    render(tools, &place.registry, Some(overlay.path()), overlay.path())?;
    let reason: String = event.reason.chars().take(SUBJECT_CHARS).collect();
    let message = format!("{}: {}\n\n{reason}", event.kind.name(), event.subject());
    let clock = Clock { unix_s: world.unix_s() };
    let recorded = record(&place.registry, overlay.path(), &message, clock)?;
    for note in &recorded.notes {
        eprintln!("note: {note}");
    }
    crate::print(&format!("{} {}: {}", event.kind.name(), event.id, event.subject()))?;
    Ok(Exit::Well)
}
