//! Composes an event from what the user gives on the command line: resolves abbreviated ids and
//! refuses names that match nothing. Pure: no files, no clock.

use anyhow::{Context, Result, anyhow, bail, ensure};
use schema::event::{self, Event, unix_s_of};
use schema::metric::{self, Gates, METRICS};
use schema::verdict::is_cell_pattern;

use judge::diff::cells::cell_of;
use judge::{Registry, by_prefix};

/// Composes an event from `draft`, in which ids may be abbreviated to their beginnings and times be
/// days; `id` is its id, and `unix_s` its time (seconds since 1970).
///
/// # Errors
///
/// The draft names a record, folder, cell or metric that does not exist, has a malformed cell,
/// abbreviates an id that is not unique, has a day or time that cannot be read or an end in the
/// past, or makes an event with [`Event::problems`].
pub fn compose(registry: &Registry, draft: Event, (id, unix_s): (String, i64)) -> Result<Event> {
    let targets = draft.targets.iter().map(|target| resolve(registry, target));
    let targets = targets.collect::<Result<_>>()?;
    let replaced_by = draft.replaced_by.map(|start| resolve_id(registry, &start)).transpose()?;
    if let Some(pattern) = &draft.cell {
        find_cell(registry, pattern)?;
    }
    if let Some(name) = draft.metric.as_deref().filter(|name| metric::by_name(name).is_none()) {
        let gating = METRICS.iter().filter(|metric| metric.gates != Gates::Never);
        let gated: Vec<&str> = gating.map(|metric| metric.name).collect();
        bail!("no metric `{name}`\nhint: the gated ones are {}", gated.join(", "));
    }
    // A waiver includes its last day, and an epoch includes its first.
    let expires = draft.expires.map(|text| time(&text, "T23:59:59Z")).transpose()?;
    if let Some(text) = expires.as_ref().filter(|text| unix_s_of(text) <= Some(unix_s)) {
        bail!("`{text}` is past\nhint: a waiver lasts until a day to come");
    }
    let since = draft.since.map(|text| time(&text, "T00:00:00Z")).transpose()?;
    let at = event::rfc3339_of(unix_s).unwrap_or_default();
    let event = Event { id, at, targets, replaced_by, expires, since, ..draft };
    let problems = event.problems();
    ensure!(problems.is_empty(), "the event is not sound: {}", problems.join("; "));
    Ok(event)
}

/// Resolves a target of an event: returns a folder (a text that ends in `/`) with a run or kernel
/// record in it as a path below `results/`, else the full id that begins with `target`; an error
/// where there is none or more than one.
fn resolve(registry: &Registry, target: &str) -> Result<String> {
    if !target.ends_with('/') {
        return resolve_id(registry, target);
    }
    // Folders are also accepted as they are named from the repository's root.
    let folder = target.strip_prefix("results/").unwrap_or(target);
    let runs = registry.runs.iter().map(|run| &run.path);
    let mut paths = runs.chain(registry.kernels.iter().map(|kernels| &kernels.path));
    if paths.any(|path| path.starts_with(folder)) {
        return Ok(folder.to_owned());
    }
    bail!("no run lies below `{target}`\nhint: name a folder as `runs/redline/v0.9.1/`")
}

fn resolve_id(registry: &Registry, start: &str) -> Result<String> {
    let runs = registry.runs.iter().map(|run| &run.record.id);
    let kernels = registry.kernels.iter().map(|kernels| &kernels.record.id);
    let events = registry.events.iter().map(|event| &event.record.id);
    let ids = runs.chain(kernels).chain(events).map(|id| (id.as_str(), id));
    by_prefix(ids, start).cloned().map_err(|count| match count {
        0 => anyhow!(
            "nothing has an id that begins with `{start}`\nhint: `redline-results list` shows runs; a \
             folder below results/ ends in `/`"
        ),
        count => anyhow!("{count} ids begin with `{start}`\nhint: give more of it"),
    })
}

fn find_cell(registry: &Registry, pattern: &str) -> Result<()> {
    ensure!(
        is_cell_pattern(pattern),
        "`{pattern}` is not a cell\nhint: write `ENGINE/HARDWARE/MODEL/CONFIG/SCENARIO@REV`, with `*` \
         for any"
    );
    ensure!(
        registry.runs.iter().any(|run| cell_of(&run.record).matches(pattern)),
        "no run is in a cell `{pattern}`\nhint: `redline-results list` shows the parts of each cell"
    );
    Ok(())
}

/// Returns `text` as an RFC 3339 time: a time as it is, and a day such as `2026-01-31` with the
/// time of day `clock`, such as `T00:00:00Z`, appended.
fn time(text: &str, clock: &str) -> Result<String> {
    let full = if text.contains('T') { text.to_owned() } else { format!("{text}{clock}") };
    unix_s_of(&full).with_context(|| {
        format!(
            "`{text}` is not a time\nhint: write `2026-01-31` or `2026-01-31T12:00:00Z`, in UTC"
        )
    })?;
    Ok(full)
}
