//! Events: statements about records after the fact (retraction, annotation, waiver, epoch), since a
//! record itself is never edited.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::id::ulid_unix_ms;
use crate::metric;
use crate::scenario::{InvalidFile, from_toml};
use crate::verdict::{Cell, is_cell_pattern};

/// Schema name of an event file.
pub const SCHEMA: &str = "event.v1";

/// Name that a waiver gives in place of a metric to accept outputs that a release changed.
pub const OUTPUTS: &str = "outputs";

/// Event file `results/events/<yyyy>/<ULID>.toml`, written by a person or by `redline-results`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Name of this schema, always `event.v1`.
    pub schema: String,
    /// ULID of the event, which is the file's stem.
    pub id: String,
    /// Kind of the event: retraction, annotation, waiver or epoch.
    pub kind: EventKind,
    /// Time at which the event was written, RFC 3339 in UTC.
    pub at: String,
    /// Records that the event is about: ids of runs, kernel records or earlier events, or folders
    /// below `results/` that end in `/`, with their content at the time of the event.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<String>,
    /// Reason for the event in one sentence; pages show it with the event.
    pub reason: String,
    /// Evidence for the reason: URLs or files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub evidence: Vec<String>,
    /// Id of the run that replaces the retracted run; left out where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// Time at which a waiver ends, RFC 3339 in UTC; left out for other kinds of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
    /// Cells that a waiver or epoch applies to, as `engine/hardware/model/config/scenario@rev` with
    /// `*` for any part; left out for other kinds of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Name of the metric whose regression or new failure a waiver accepts, or `outputs` where it
    /// accepts changed outputs; left out for other kinds of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Candidate release that a waiver applies to; where left out, the waiver applies to every
    /// release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Person or group that accepts the regression of a waiver; left out by waivers of earlier
    /// versions and for other kinds of events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_by: Option<String>,
    /// Time at which an epoch begins, RFC 3339 in UTC; where left out, the epoch begins at the time
    /// `at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
}

/// Kind of an event: its effect on the records that it names.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// Retraction: each named record is wrong, is shown struck through and never compared. Where a
    /// named record is itself an event, that event no longer applies.
    Retract,
    /// Annotation: a remark without effect on figures or verdicts.
    Annotate,
    /// Waiver: a regression or new failure is accepted until the waiver's `expires`.
    Waive,
    /// Epoch: the machine or its data changed, and trend series are cut at the time of that change.
    Epoch,
}

impl Event {
    /// Returns an event of this schema with the given kind, reason and evidence; id, time and all
    /// other fields are left empty for the caller to fill.
    pub fn draft(kind: EventKind, reason: &str, evidence: &[String]) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            id: String::new(),
            kind,
            at: String::new(),
            targets: Vec::new(),
            reason: reason.to_owned(),
            evidence: evidence.to_vec(),
            replaced_by: None,
            expires: None,
            cell: None,
            metric: None,
            release: None,
            accepted_by: None,
            since: None,
        }
    }

    /// True when the event is about the record `id` stored at `path` below `results/`. A folder
    /// target covers only records planned before the event: a later measurement in the same folder
    /// is not meant.
    pub fn names(&self, id: &str, path: &str) -> bool {
        let later = match (ulid_unix_ms(id), ulid_unix_ms(&self.id)) {
            (Some(record), Some(event)) => record > event,
            _ => false,
        };
        self.targets.iter().any(|target| {
            target == id || (!later && target.ends_with('/') && path.starts_with(target.as_str()))
        })
    }

    /// True when the event has a cell pattern and the pattern matches `cell`.
    pub fn covers(&self, cell: &Cell) -> bool {
        self.cell.as_deref().is_some_and(|pattern| cell.matches(pattern))
    }

    /// Returns the subject of the event as text: its targets, cell pattern and metric, as far as it
    /// has them, separated by commas.
    pub fn subject(&self) -> String {
        let cell = self.cell.iter().cloned();
        let metric = self.metric.iter().cloned();
        let parts: Vec<String> = self.targets.iter().cloned().chain(cell).chain(metric).collect();
        parts.join(", ")
    }

    /// True when a waiver has ended at `unix_s`, in seconds since 1970; also true where its end is
    /// missing or is not an RFC 3339 time in UTC.
    pub fn has_expired(&self, unix_s: i64) -> bool {
        self.expires.as_deref().and_then(unix_s_of).is_none_or(|expires| expires <= unix_s)
    }

    /// Returns the start of an epoch in seconds since 1970: of `since`, else of `at`; `None` where
    /// that text is not an RFC 3339 time in UTC.
    pub fn since_unix_s(&self) -> Option<i64> {
        unix_s_of(self.since.as_deref().unwrap_or(&self.at))
    }

    /// Returns the mistakes in the event, such as missing fields that its kind needs, unreadable
    /// times or bad targets, as lower-case fragments; empty where there are none.
    pub fn problems(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut ask = |holds: bool, problem: &str| {
            if !holds {
                found.push(problem.to_owned());
            }
        };
        let times = [Some(&self.at), self.expires.as_ref(), self.since.as_ref()];
        let readable = times.into_iter().flatten().all(|text| unix_s_of(text).is_some());
        ask(readable, "a time is not RFC 3339 in UTC, such as `2026-01-31T12:00:00Z`");
        ask(!self.reason.trim().is_empty(), "`reason` is empty");
        ask(self.targets.iter().all(|target| is_target(target)), NO_TARGET);
        let cell = self.cell.as_deref();
        ask(
            cell.is_none_or(is_cell_pattern),
            "`cell` is not `engine/hardware/model/config/scenario@rev`",
        );
        match self.kind {
            EventKind::Retract | EventKind::Annotate => {
                ask(!self.targets.is_empty(), "`targets` is empty");
            }
            EventKind::Waive => {
                let metric = self.metric.as_deref();
                ask(cell.is_some(), "a waiver without `cell`");
                ask(
                    metric.is_some_and(|name| name == OUTPUTS || metric::by_name(name).is_some()),
                    "a waiver whose `metric` no table shows",
                );
                ask(self.expires.is_some(), "a waiver without `expires`");
            }
            EventKind::Epoch => ask(cell.is_some(), "an epoch without `cell`"),
        }
        found
    }
}

const NO_TARGET: &str = "a target is neither an id nor a folder below `results/` that ends in `/`";

fn is_target(target: &str) -> bool {
    let fit = |part: &str| !part.is_empty() && part != ".." && !part.contains(char::is_whitespace);
    match target.strip_suffix('/') {
        // A folder needs two levels at least: `runs/` would be every run of the registry.
        Some(folder) => folder.contains('/') && folder.split('/').all(fit),
        None => fit(target) && !target.contains('/'),
    }
}

/// Returns the seconds since 1970 of an RFC 3339 time in UTC that ends in `Z`, or `None` for other
/// text.
pub fn unix_s_of(text: &str) -> Option<i64> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    (at.offset().is_utc() && text.ends_with('Z')).then(|| at.unix_timestamp())
}

/// Returns an RFC 3339 time in UTC for seconds since 1970, or `None` outside the years 0 to 9999.
pub fn rfc3339_of(unix_s: i64) -> Option<String> {
    OffsetDateTime::from_unix_timestamp(unix_s).ok()?.format(&Rfc3339).ok()
}

/// Parses an event file.
///
/// # Errors
/// The text is not TOML with the fields of an event.
pub fn parse(text: &str) -> Result<Event, InvalidFile> {
    from_toml(text)
}

/// Returns the `schema` key of an event file, whatever its other keys are; `None` where the text is
/// not TOML or has no such key.
pub fn schema_of(text: &str) -> Option<String> {
    let table: toml::Table = toml::from_str(text).ok()?;
    Some(table.get("schema")?.as_str()?.to_owned())
}

/// Returns the TOML text of an event's file.
///
/// # Errors
/// Never for an event that [`parse`] could read.
pub fn to_text(event: &Event) -> Result<String, toml::ser::Error> {
    toml::to_string(event)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RETRACTION: &str = r#"
        schema = "event.v1"
        id = "01JD5XQ0000000000000000000"
        kind = "retract"
        at = "2026-01-02T00:00:00Z"
        targets = ["01JD5XQ0000000000000000001", "runs/redline/v0.9.0/"]
        reason = "The clocks were not locked."
    "#;

    fn waiver() -> Event {
        let mut event = parse(RETRACTION).expect("an event");
        event.kind = EventKind::Waive;
        event.targets.clear();
        event.cell = Some("redline/*/m/cpu-f32-tp1/balanced@1".into());
        event.metric = Some("tpot_us_p50".into());
        event.expires = Some("2026-02-01T00:00:00Z".into());
        event
    }

    #[test]
    fn an_event_names_runs_by_id_or_folder() {
        let event = parse(RETRACTION).expect("an event");
        assert!(event.problems().is_empty());
        assert!(event.names("01JD5XQ0000000000000000001", "runs/redline/v0.9.1/x.json"));
        assert!(event.names("01JD5XP0000000000000000000", "runs/redline/v0.9.0/x.json"));
        assert!(!event.names("01JD5XP0000000000000000000", "runs/redline/v0.9.01/x.json"));
        // A run that was measured after the retraction.
        assert!(!event.names("01JD5XR0000000000000000000", "runs/redline/v0.9.0/y.json"));
    }

    #[test]
    fn a_waiver_covers_its_cells_until_it_expires() {
        let event = waiver();
        assert_eq!(event.problems(), Vec::<String>::new());
        let cell = |hardware: &str, model: &str| Cell {
            engine: "redline".into(),
            hardware: hardware.into(),
            model: model.into(),
            config: "cpu-f32-tp1".into(),
            scenario: "balanced@1".into(),
        };
        assert!(event.covers(&cell("h200-141g", "m")) && !event.covers(&cell("h200-141g", "n")));
        let end = unix_s_of("2026-02-01T00:00:00Z").expect("a time");
        assert_eq!(rfc3339_of(end).as_deref(), Some("2026-02-01T00:00:00Z"));
        assert!(!event.has_expired(end - 1) && event.has_expired(end));
        assert_eq!(parse(&to_text(&event).expect("text")).expect("an event"), event);
    }

    #[test]
    fn an_event_that_lacks_what_its_kind_needs_says_so() {
        type Spoil = fn(&mut Event);
        let cases: [(Spoil, &str); 8] = [
            (|e| e.expires = None, "without `expires`"),
            (|e| e.expires = Some("tomorrow".into()), "not RFC 3339"),
            (|e| e.at = "2026-01-02T00:00:00+01:00".into(), "not RFC 3339"),
            (|e| e.metric = Some("ttft".into()), "no table shows"),
            (|e| e.cell = Some("redline/balanced@1".into()), "is not `engine/hardware"),
            (|e| e.cell = None, "without `cell`"),
            (|e| e.reason = " ".into(), "`reason` is empty"),
            (|e| e.targets = vec!["runs/../../etc/".into()], "nor a folder"),
        ];
        for (spoil, problem) in cases {
            let mut event = waiver();
            spoil(&mut event);
            let found = event.problems().join("; ");
            assert!(found.contains(problem), "`{problem}` is not in `{found}`");
        }
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        assert!(parse("schema = \"event.v1\"\nreasons = \"x\"").is_err());
    }
}
