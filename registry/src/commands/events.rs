//! `retract`, `annotate`, `waive` and `epoch`: an event is composed, the pages are rendered with
//! it, and both are committed together.

use std::fs;

use anyhow::Context;
use registry::commit::Clock;
use registry::events::write::{Draft, compose};
use registry::record::record;
use registry::render::render;
use schema::event::{self, EventKind};
use schema::exit::Exit;
use schema::id::ulid;

use super::World;
use crate::cli::{EpochArguments, EventArguments, TargetArguments, WaiveArguments};

/// Characters of a reason that a commit's subject keeps.
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

/// Writes an event and the pages as they are with it.
pub fn write(
    world: &World,
    kind: EventKind,
    draft: Draft,
    given: &EventArguments,
) -> anyhow::Result<Exit> {
    let draft = Draft { reason: given.reason.clone(), evidence: given.evidence.clone(), ..draft };
    let loaded = crate::load(&given.registry, None)?;
    let id = ulid(world.unix_ms, world.random);
    let event = compose(&loaded, kind, draft, (id, world.unix_s()))?;
    let overlay = tempfile::tempdir().context("cannot make a folder for the event")?;
    let path = overlay.path().join(schema::path::of_event(&event.id)?);
    let folder = path.parent().context("an event has no folder")?;
    let text = event::to_text(&event)?;
    fs::create_dir_all(folder).and_then(|()| fs::write(&path, text))?;
    let tools = given.tools_dir.as_deref().unwrap_or(&world.tools);
    render(tools, &given.registry, Some(overlay.path()), overlay.path())?;
    let reason: String = event.reason.chars().take(SUBJECT_CHARS).collect();
    let message = format!("{}: {}\n\n{reason}", event.kind.name(), event.subject());
    let clock = Clock { unix_s: world.unix_s() };
    let recorded = record(&given.registry, overlay.path(), &message, clock)?;
    for note in &recorded.notes {
        eprintln!("note: {note}");
    }
    crate::print(&format!("{} {}: {}", event.kind.name(), event.id, event.subject()))?;
    Ok(Exit::Well)
}
