//! An event: what is said about records afterwards, since a record is never edited.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The schema name that an event carries.
pub const SCHEMA: &str = "event.v1";

/// `results/events/<yyyy>/<ULID>.toml`, written by people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Always `event.v1`.
    pub schema: String,
    /// ULID; the file's stem.
    pub id: String,
    pub kind: EventKind,
    /// RFC 3339, UTC.
    pub at: String,
    /// Ids of runs, or folders below `results/` that end in `/`.
    pub targets: Vec<String>,
    /// A sentence, shown wherever the event shows.
    pub reason: String,
    #[serde(default)]
    pub evidence: Vec<String>,
    /// Id of the run that takes the place of a retracted one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_by: Option<String>,
    /// RFC 3339, UTC; a waiver has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<String>,
}

/// What an event does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// The record was wrong: it is shown struck through and never compared.
    Retract,
    Annotate,
    /// A regression is accepted until `expires`.
    Waive,
    /// The machine or the data changed: series break here.
    Epoch,
}

impl Event {
    /// True when the event speaks of the run `id` stored at `path` below `results/`.
    #[must_use]
    pub fn names(&self, id: &str, path: &str) -> bool {
        self.targets.iter().any(|target| {
            target == id || (target.ends_with('/') && path.starts_with(target.as_str()))
        })
    }
}

/// Reads an event file.
///
/// # Errors
/// The text is not TOML of this shape.
pub fn parse(text: &str) -> Result<Event, Box<toml::de::Error>> {
    toml::from_str(text).map_err(Box::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_runs_by_id_or_folder() {
        let event = parse(
            r#"
            schema = "event.v1"
            id = "01JD5XQ0000000000000000000"
            kind = "retract"
            at = "2026-01-02T00:00:00Z"
            targets = ["01JD5XQ0000000000000000001", "runs/redline/v0.9.0/"]
            reason = "The clocks were not locked."
            "#,
        )
        .expect("an event");
        assert!(event.names("01JD5XQ0000000000000000001", "runs/redline/v0.9.1/x.json"));
        assert!(event.names("other", "runs/redline/v0.9.0/x.json"));
        assert!(!event.names("other", "runs/redline/v0.9.01/x.json"));
    }

    #[test]
    fn a_misspelt_key_is_refused() {
        assert!(parse("schema = \"event.v1\"\nreasons = \"x\"").is_err());
    }
}
