//! Composes an event from the user's input: resolves abbreviated ids and refuses names that match
//! nothing. Pure: no files, no clock.

use schema::event::{self, Event, EventKind, unix_s_of};
use schema::metric::{self, Gates, METRICS};
use schema::verdict::is_cell_pattern;

use judge::Registry;
use judge::diff::cells::cell_of;

/// Error: the input does not make a valid event.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EventError {
    /// No id begins with the given text.
    #[error(
        "nothing has an id that begins with `{0}`\nhint: `redline-results list` shows runs; a folder below results/ ends in `/`"
    )]
    NoTarget(String),
    /// Several ids begin with the given text.
    #[error("{count} ids begin with `{start}`\nhint: give more of it")]
    Several {
        /// Beginning of an id as the user wrote it.
        start: String,
        /// Number of ids that begin with it.
        count: usize,
    },
    /// No run is below the given folder.
    #[error("no run lies below `{0}`\nhint: name a folder as `runs/redline/v0.9.1/`")]
    EmptyFolder(String),
    /// The text is not a cell pattern.
    #[error(
        "`{0}` is not a cell\nhint: write `ENGINE/HARDWARE/MODEL/CONFIG/SCENARIO@REV`, with `*` for any"
    )]
    NotACell(String),
    /// The cell pattern matches no run.
    #[error("no run is in a cell `{0}`\nhint: `redline-results list` shows the parts of each cell")]
    NoCell(String),
    /// The metric does not exist, so no waiver can name it.
    #[error("no metric `{name}`\nhint: the gated ones are {gated}")]
    NoMetric {
        /// Metric name as the user wrote it.
        name: String,
        /// Names of the release-blocking metrics, separated by commas.
        gated: String,
    },
    /// The text is neither a day nor a time.
    #[error("`{0}` is not a time\nhint: write `2026-01-31` or `2026-01-31T12:00:00Z`, in UTC")]
    NotATime(String),
    /// The waiver would end before now.
    #[error("`{0}` is past\nhint: a waiver lasts until a day to come")]
    Past(String),
    /// The event lacks fields that its kind needs.
    #[error("the event is not sound: {0}")]
    Unsound(String),
}

/// User's input for an event. Ids may be abbreviated to their beginnings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Draft {
    /// Ids of the records or events that the event is about, or folders below `results/`.
    pub targets: Vec<String>,
    /// Reason for the event, for later readers.
    pub reason: String,
    /// Evidence for the reason: addresses or files.
    pub evidence: Vec<String>,
    /// Id of the record that replaces the retracted one.
    pub replaced_by: Option<String>,
    /// Day or time at which a waiver ends.
    pub until: Option<String>,
    /// Pattern of the cells that a waiver or an epoch applies to.
    pub cell: Option<String>,
    /// Name of the metric that a waiver applies to.
    pub metric: Option<String>,
    /// Release that a waiver applies to.
    pub release: Option<String>,
    /// Day or time at which an epoch begins.
    pub since: Option<String>,
}

/// Composes an event from `draft`; `id` is its id, and `unix_s` its time (seconds since 1970).
///
/// # Errors
///
/// The draft names something that the registry does not contain, or lacks fields that its kind
/// needs.
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

/// Returns a folder unchanged, else the full id that begins with `target`.
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

/// Returns the RFC 3339 text of a time, or of a day with `clock` appended.
fn time(text: &str, clock: &str) -> Result<String, EventError> {
    let full = if text.contains('T') { text.to_owned() } else { format!("{text}{clock}") };
    unix_s_of(&full).map(|_| full).ok_or_else(|| EventError::NotATime(text.to_owned()))
}
