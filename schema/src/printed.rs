//! What a published report prints about a result, word by word, so that an imported record loses
//! nothing of its source.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Text that a published report prints about one result. Labels and texts are as printed, except
/// that a path or an address of somebody's machine is `{path}`, `{url}` or `{host}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Printed {
    /// Headings above the result, from the title of the report to the nearest one; left out where
    /// there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headings: Vec<String>,
    /// Name of the variant below the last heading, such as `Baseline`; left out where the report
    /// gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variant: Option<String>,
    /// Name of the workload profile that the report states for the result; left out where it states
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Settings of the benchmark tool: those of the profile, or the arguments that the result's log
    /// echoes, in their order; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<PrintedRow>,
    /// Other figures in the result's log, such as `warmup time`, in their order; left out where
    /// there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log: Vec<PrintedRow>,
    /// Rows of the result itself, in their order.
    pub rows: Vec<PrintedRow>,
}

/// Row of a published report: a label and the text beside it.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct PrintedRow {
    /// Title of the section that the row stands in, such as `Time to First Token`; left out for a
    /// row before the first section.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section: Option<String>,
    /// Label of the row with its unit, as printed; empty for a line without one.
    pub label: String,
    /// Text of the row with all its digits, as printed.
    pub text: String,
}

impl Printed {
    /// Returns the text of the first row called `label`; `None` where the result has no such row.
    pub fn text(&self, label: &str) -> Option<&str> {
        self.rows.iter().find(|row| row.label == label).map(|row| row.text.as_str())
    }
}
