//! From what a user types to an event: ids are resolved, and what names nothing is refused. Pure:
//! no files, no clock.

use schema::event::{self, Event, EventKind, unix_s_of};
use schema::metric::{self, Gates, METRICS};
use schema::verdict::is_cell_pattern;

use judge::Registry;
use judge::diff::cells::cell_of;

/// An event that would say nothing, or not what was meant.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EventError {
    /// Nothing is called so.
    #[error(
        "nothing has an id that begins with `{0}`\nhint: `redline-results list` shows runs; a folder below results/ ends in `/`"
    )]
    NoTarget(String),
    /// The beginning of an id fits several.
    #[error("{count} ids begin with `{start}`\nhint: give more of it")]
    Several {
        /// As it was given.
        start: String,
        /// How many.
        count: usize,
    },
    /// No run lies in a folder.
    #[error("no run lies below `{0}`\nhint: name a folder as `runs/redline/v0.9.1/`")]
    EmptyFolder(String),
    /// A text names no cell.
    #[error(
        "`{0}` is not a cell\nhint: write `ENGINE/HARDWARE/MODEL/CONFIG/SCENARIO@REV`, with `*` for any"
    )]
    NotACell(String),
    /// A cell holds no run.
    #[error("no run is in a cell `{0}`\nhint: `redline-results list` shows the parts of each cell")]
    NoCell(String),
    /// No metric is called so, or it does not gate.
    #[error("no metric `{name}`\nhint: the gated ones are {gated}")]
    NoMetric {
        /// As it was given.
        name: String,
        /// Names of those that gate, with commas between them.
        gated: String,
    },
    /// A text is no day and no time.
    #[error("`{0}` is not a time\nhint: write `2026-01-31` or `2026-01-31T12:00:00Z`, in UTC")]
    NotATime(String),
    /// A waiver would be over before it began.
    #[error("`{0}` is past\nhint: a waiver lasts until a day to come")]
    Past(String),
    /// What is said lacks what its kind needs.
    #[error("the event is not sound: {0}")]
    Unsound(String),
}

/// What a user says about records; ids may be given by their beginnings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// Ids, or folders below `results/`, of what it is about.
    pub targets: Vec<String>,
    /// Why, for whoever reads it later.
    pub reason: String,
    /// Evidence for the reason: URLs or files.
    pub evidence: Vec<String>,
    /// Id of the record that takes the place of what is retracted.
    pub replaced_by: Option<String>,
    /// Day or time at which a waiver ends.
    pub until: Option<String>,
    /// The cells that a waiver or an epoch is of, as a pattern.
    pub cell: Option<String>,
    /// The metric that a waiver is of.
    pub metric: Option<String>,
    /// The release that a waiver is of.
    pub release: Option<String>,
    /// Day or time at which an epoch begins.
    pub since: Option<String>,
}

/// The event that `draft` means in `registry`, written at `unix_s` (seconds since 1970) as `id`.
///
/// # Errors
/// The draft names something that the registry does not hold, or lacks what its kind needs.
pub fn compose(
    registry: &Registry,
    kind: EventKind,
    draft: Draft,
    (id, unix_s): (String, i64),
) -> Result<Event, EventError> {
    let targets = draft.targets.iter().map(|target| resolve(registry, target));
    let targets = targets.collect::<Result<_, _>>()?;
    let replaced_by = draft.replaced_by.map(|start| resolve_id(registry, &start)).transpose()?;
    if let Some(pattern) = &draft.cell {
        find_cell(registry, pattern)?;
    }
    if let Some(name) = draft.metric.as_deref().filter(|name| metric::by_name(name).is_none()) {
        let gating = METRICS.iter().filter(|metric| metric.gates != Gates::Never);
        let gated: Vec<&str> = gating.map(|metric| metric.name).collect();
        return Err(EventError::NoMetric { name: name.to_owned(), gated: gated.join(", ") });
    }
    let expires = draft.until.map(|text| time(&text, "T23:59:59Z")).transpose()?;
    if let Some(text) = expires.as_ref().filter(|text| unix_s_of(text) <= Some(unix_s)) {
        return Err(EventError::Past(text.clone()));
    }
    let event = Event {
        schema: event::SCHEMA.to_owned(),
        id,
        kind,
        at: event::rfc3339_of(unix_s).unwrap_or_default(),
        targets,
        reason: draft.reason,
        evidence: draft.evidence,
        replaced_by,
        expires,
        cell: draft.cell,
        metric: draft.metric,
        release: draft.release,
        since: draft.since.map(|text| time(&text, "T00:00:00Z")).transpose()?,
    };
    let problems = event.problems();
    if problems.is_empty() { Ok(event) } else { Err(EventError::Unsound(problems.join("; "))) }
}

/// A folder as it is, or the whole id that `target` begins.
fn resolve(registry: &Registry, target: &str) -> Result<String, EventError> {
    if !target.ends_with('/') {
        return resolve_id(registry, target);
    }
    let folder = target.strip_prefix("results/").unwrap_or(target);
    let runs = registry.runs.iter().map(|run| &run.path);
    let mut paths = runs.chain(registry.kernels.iter().map(|kernels| &kernels.path));
    if paths.any(|path| path.starts_with(folder)) {
        return Ok(folder.to_owned());
    }
    Err(EventError::EmptyFolder(target.to_owned()))
}

fn resolve_id(registry: &Registry, start: &str) -> Result<String, EventError> {
    let runs = registry.runs.iter().map(|run| &run.record.id);
    let kernels = registry.kernels.iter().map(|kernels| &kernels.record.id);
    let events = registry.events.iter().map(|event| &event.record.id);
    let ids = runs.chain(kernels).chain(events).filter(|id| id.starts_with(start));
    let mut ids: Vec<&String> = ids.collect();
    ids.sort();
    ids.dedup();
    match ids.as_slice() {
        [] => Err(EventError::NoTarget(start.to_owned())),
        [one] => Ok((*one).clone()),
        [first, ..] if *first == start => Ok((*first).clone()),
        several => Err(EventError::Several { start: start.to_owned(), count: several.len() }),
    }
}

fn find_cell(registry: &Registry, pattern: &str) -> Result<(), EventError> {
    if !is_cell_pattern(pattern) {
        return Err(EventError::NotACell(pattern.to_owned()));
    }
    if registry.runs.iter().any(|run| cell_of(&run.record).matches(pattern)) {
        return Ok(());
    }
    Err(EventError::NoCell(pattern.to_owned()))
}

/// RFC 3339 of a time, or of a day with `clock` added.
fn time(text: &str, clock: &str) -> Result<String, EventError> {
    let full = if text.contains('T') { text.to_owned() } else { format!("{text}{clock}") };
    unix_s_of(&full).map(|_| full).ok_or_else(|| EventError::NotATime(text.to_owned()))
}
