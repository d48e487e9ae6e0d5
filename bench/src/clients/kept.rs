//! Results of the client comparison kept in a file between calls, so that rows can be measured one
//! at a time.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clients::figure::Row;
use campaign::files::{read_text, write_whole};
use campaign::stop::Stop;
use judge::summary::{self, Summary};

const SCHEMA: &str = "client-bench.v1";

/// Content of the results file, by row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub schema: String,
    pub rows: BTreeMap<Row, RowResult>,
}

/// Results of a row, with the date, commit and machine of the measurement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// Time of the measurement, RFC 3339 in UTC.
    pub measured_at: String,
    pub commit: Option<String>,
    /// True when the tree had changes beyond the commit.
    pub dirty: bool,
    pub cpu: String,
    pub kernel: String,
    /// Values of each figure, by figure and client, one for each repeat.
    pub values: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
    /// Clients without results, each with the reason.
    pub absent: BTreeMap<String, String>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { schema: SCHEMA.to_owned(), rows: BTreeMap::new() }
    }
}

impl Kept {
    /// Reads the results file at `path`; empty if there is none.
    ///
    /// # Errors
    /// The file has another form.
    pub fn open(path: &Path) -> Result<Self, Stop> {
        if !path.is_file() {
            return Ok(Self::default());
        }
        let read: Result<Self, _> = serde_json::from_str(&read_text(path)?);
        read.map_err(|error| {
            Stop::wrong_use(format!("`{}` holds no figures of clients: {error}", path.display()))
                .with_hint("remove it, and measure again")
        })
    }

    /// Writes the results file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Stop> {
        // This data always has a JSON form.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        Ok(write_whole(path, format!("{text}\n").as_bytes())?)
    }
}

impl RowResult {
    /// Returns the values of a figure over the repeats; `None` if the client has none.
    pub fn repeats(&self, figure: &str, tool: &str) -> Option<Summary> {
        summary::of(self.values.get(figure)?.get(tool)?)
    }

    /// Sentence that states date, commit, processor and kernel of the measurement.
    pub fn provenance(&self) -> String {
        let commit = self.commit.as_deref();
        let commit = commit.map_or("an unknown commit", |id| id.get(..10).unwrap_or(id));
        let changes = if self.dirty { " with changes" } else { "" };
        let day = self.measured_at.get(..10).unwrap_or("an unknown day");
        let (cpu, kernel) = (&self.cpu, &self.kernel);
        format!("Measured on {day} at {commit}{changes}: {cpu}, Linux {kernel}.")
    }

    /// Adds the values of one repeat.
    pub fn add(&mut self, tool: &str, values: BTreeMap<&'static str, f64>) {
        for (figure, value) in values {
            let by_tool = self.values.entry(figure.to_owned()).or_default();
            by_tool.entry(tool.to_owned()).or_default().push(value);
        }
    }
}
