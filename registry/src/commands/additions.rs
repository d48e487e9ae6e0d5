//! Commands that write to the registry: `preflight` and `record`; `retract`, `annotate`, `waive` and
//! `epoch`, which compose an event; and `sync`. Events are committed together with the pages that show
//! them.

use std::fs;
use std::path::Path;

use anyhow::Context;
use judge::Registry;
use judge::diff::words::plural;
use registry::events::compose;
use registry::record::{self, Recorded, render};
use registry::repository::{RESULTS, WorkTree};
use registry::sync::{self, Means};
use registry::undo::undo_killed;
use schema::event::{self, Event, EventKind};
use schema::exit::Exit;
use schema::id::{ulid, ulid_unix_ms};
use tempfile::TempDir;

use super::{World, print, print_findings, print_json, print_notes, reported};
use crate::cli::{
    EpochArguments, EventArguments, RecordArguments, Renders, SyncArguments, TargetArguments,
    WaiveArguments,
};

/// Number of characters after which an event's reason is cut in the message of its commit.
const SUBJECT_CHARS: usize = 50;

pub fn preflight(registry: &Path) -> anyhow::Result<Exit> {
    let tree = WorkTree::open(registry)?;
    undo_killed(&tree)?;
    print_json(&tree.ready()?)?;
    Ok(Exit::Well)
}

pub fn record(world: &World, given: &RecordArguments) -> anyhow::Result<Exit> {
    let registry = &given.place.registry;
    let recorded = record::record(registry, &given.overlay, &given.message, world.unix_s())?;
    print_notes(&recorded.notes);
    print_findings(&recorded.remarks);
    if given.json {
        print_json(&recorded)?;
        return Ok(Exit::Well);
    }
    let commit = recorded.commit.as_deref().unwrap_or("none");
    let mut lines = vec![match recorded.paths.len() {
        0 => format!("nothing new: {} holds all {} files", recorded.branch, recorded.known),
        n => format!("commit {commit} on {}: {n} files", recorded.branch),
    }];
    lines.extend(recorded.paths.iter().map(|path| format!("  {path}")));
    print(&lines.join("\n"))?;
    Ok(Exit::Well)
}

/// Temporary folder, laid out like `results/`, with new files that are to be committed together
/// with the pages that show them.
pub(super) struct StagedResults(TempDir);

impl StagedResults {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self(tempfile::tempdir().context("cannot make a folder for the records")?))
    }

    pub(super) fn write(&self, place: &Path, text: &str) -> anyhow::Result<()> {
        let path = self.0.path().join(place);
        fs::create_dir_all(path.parent().context("a record has no folder")?)?;
        Ok(fs::write(path, text)?)
    }

    /// Renders the pages that show the staged files, commits both, and prints the notes of the
    /// commit: one commit never contains records without their pages.
    pub(super) fn commit(
        &self,
        world: &World,
        to: &Renders,
        message: &str,
    ) -> anyhow::Result<Recorded> {
        let (registry, staged) = (&to.place.registry, self.0.path());
        let tools = to.tools_dir.as_deref().unwrap_or(&world.tools);
        // Pages must not show what a killed writer has left, which is undone here.
        undo_killed(&WorkTree::open(registry)?)?;
        render(tools, registry, Some(staged), staged)?;
        let recorded = record::record(registry, staged, message, world.unix_s())?;
        print_notes(&recorded.notes);
        Ok(recorded)
    }
}

/// Returns the time of a new event, in milliseconds since 1970: now, or one millisecond after the
/// latest event where that is later. An event can only name earlier events, and the clocks of two
/// machines differ.
pub(super) fn after_the_others(registry: &Registry, unix_ms: u64) -> u64 {
    let times = registry.events.iter().filter_map(|event| ulid_unix_ms(&event.record.id));
    times.max().map_or(unix_ms, |latest| unix_ms.max(latest + 1))
}

/// Writes and commits an event that retracts or annotates records.
pub fn about(world: &World, kind: EventKind, given: &TargetArguments) -> anyhow::Result<Exit> {
    let (targets, replaced_by) = (given.targets.clone(), given.replaced_by.clone());
    event(
        world,
        &given.event,
        Event {
            targets,
            replaced_by,
            ..Event::draft(kind, &given.event.reason, &given.event.evidence)
        },
    )
}

/// Writes and commits an event that accepts a regression of a metric until a given day.
pub fn waive(world: &World, given: &WaiveArguments) -> anyhow::Result<Exit> {
    let (cell, metric) = (Some(given.cell.clone()), Some(given.metric.clone()));
    let (expires, release) = (Some(given.until.clone()), given.release.clone());
    let by_git = || WorkTree::open(&given.event.renders.place.registry)?.user_name();
    let accepted_by = Some(given.accepted_by.clone().map_or_else(by_git, Ok)?);
    let draft = Event::draft(EventKind::Waive, &given.event.reason, &given.event.evidence);
    event(world, &given.event, Event { cell, metric, expires, release, accepted_by, ..draft })
}

/// Writes and commits an event that declares that machine or data changed.
pub fn epoch(world: &World, given: &EpochArguments) -> anyhow::Result<Exit> {
    let (cell, since) = (Some(given.cell.clone()), given.since.clone());
    event(
        world,
        &given.event,
        Event {
            cell,
            since,
            ..Event::draft(EventKind::Epoch, &given.event.reason, &given.event.evidence)
        },
    )
}

/// Writes an event, renders the pages with it, and commits both.
fn event(world: &World, given: &EventArguments, draft: Event) -> anyhow::Result<Exit> {
    let registry = &given.renders.place.registry;
    undo_killed(&WorkTree::open(registry)?)?;
    let loaded = reported(store::load(&[&registry.join(RESULTS)])?);
    let id = ulid(after_the_others(&loaded, world.unix_ms), world.random);
    let event = compose(&loaded, draft, (id, world.unix_s()))?;
    let staged = StagedResults::new()?;
    staged.write(schema::path::of_event(&event.id)?.as_ref(), &event::to_text(&event)?)?;
    let reason: String = event.reason.chars().take(SUBJECT_CHARS).collect();
    let message = format!("{}: {}\n\n{reason}", event.kind.name(), event.subject());
    staged.commit(world, &given.renders, &message)?;
    print(&format!("{} {}: {}", event.kind.name(), event.id, event.subject()))?;
    Ok(Exit::Well)
}

/// Synchronizes a clone of the registry with a remote and prints the result.
pub fn synchronize(world: &World, given: &SyncArguments) -> anyhow::Result<Exit> {
    let synced = sync::sync(Means {
        registry: &given.renders.place.registry,
        remote: &given.remote,
        tools: given.renders.tools_dir.as_deref().unwrap_or(&world.tools),
        unix_s: world.unix_s(),
    })?;
    print_notes(&synced.notes);
    if given.json {
        print_json(&synced)?;
        return Ok(Exit::Well);
    }
    print(&format!(
        "{} and `{}` are at {}: {} in, {} moved behind, {} rendered again, {}",
        synced.branch,
        given.remote,
        synced.commit.as_deref().unwrap_or("none"),
        plural(synced.records_in, "record"),
        plural(synced.commits_moved, "commit"),
        plural(synced.pages_rendered, "page"),
        if synced.pushed { "pushed" } else { "nothing to push" }
    ))?;
    Ok(Exit::Well)
}
