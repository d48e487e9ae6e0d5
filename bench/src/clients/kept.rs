//! What was measured, kept from one call to the next, so that rows can be measured one at a time.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::clients::figure::Row;
use campaign::files::{read_text, write_whole};
use campaign::stop::Stop;
use judge::summary::{self, Summary};

const SCHEMA: &str = "client-bench.v1";

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    pub schema: String,
    pub rows: BTreeMap<Row, RowResult>,
}

/// A row and where it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RowResult {
    /// RFC 3339, UTC.
    pub measured_at: String,
    pub commit: Option<String>,
    /// The tree had changes beside that commit.
    pub dirty: bool,
    pub cpu: String,
    pub kernel: String,
    /// Figure, tool, and the value of each repeat.
    pub values: BTreeMap<String, BTreeMap<String, Vec<f64>>>,
    /// Tools that gave nothing, and why.
    pub absent: BTreeMap<String, String>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { schema: SCHEMA.to_owned(), rows: BTreeMap::new() }
    }
}

impl Kept {
    /// What is in the file at `path`; nothing where there is none.
    ///
    /// # Errors
    /// It has another form.
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

    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), Stop> {
        // Plain data is always JSON.
        let text = serde_json::to_string_pretty(self).unwrap_or_default();
        Ok(write_whole(path, format!("{text}\n").as_bytes())?)
    }
}

impl RowResult {
    /// The repeats of a figure, where the tool has any.
    #[must_use]
    pub fn repeats(&self, figure: &str, tool: &str) -> Option<Summary> {
        summary::of(self.values.get(figure)?.get(tool)?)
    }

    /// When, where and of which commit it is, as a sentence.
    #[must_use]
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
