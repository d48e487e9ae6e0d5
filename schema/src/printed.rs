//! What a published report prints about a result, word by word, so that an imported record loses
//! nothing of its source.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::untrusted::is_web_address;

/// Limit on the number of notes that a record keeps.
pub const NOTES_MAX: usize = 40;
/// Limit on the length of a text of a note, in characters.
pub const NOTE_CHARS_MAX: usize = 900;
/// Limit on the number of links that a note keeps.
pub const LINKS_MAX: usize = 10;

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
    /// Sentences, list items and rows of other tables around the result, in their order. Each note of
    /// a report is kept by one result: the one above it in its section, else the next one. Left out
    /// where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<PrintedNote>,
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

/// Sentence, list item or table row of a published report outside of its results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrintedNote {
    /// Heading above the note, such as `Conclusion`; left out where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub section: Option<String>,
    /// Words of the note without their markup; cells of a table row have ` | ` between them.
    pub text: String,
    /// Links in the note, in their order; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<PrintedLink>,
}

/// Link in a note of a published report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PrintedLink {
    /// Words that are linked, which the text of the note has as well.
    pub text: String,
    /// Address that they lead to; always `https`.
    pub url: String,
}

impl Printed {
    /// Returns what is wrong with the form of the notes: too many, too long, or a link that is no
    /// web address. `None` where they are sound.
    pub fn fault_in_notes(&self) -> Option<String> {
        if self.notes.len() > NOTES_MAX {
            return Some(format!("{} notes, more than {NOTES_MAX}", self.notes.len()));
        }
        for PrintedNote { section, text, links } in &self.notes {
            let mut texts = links.iter().map(|link| &link.text).chain([text]).chain(section);
            if texts.any(|text| text.chars().count() > NOTE_CHARS_MAX) {
                return Some(format!("a text of more than {NOTE_CHARS_MAX} characters"));
            }
            if links.len() > LINKS_MAX {
                return Some(format!("a note with {} links, more than {LINKS_MAX}", links.len()));
            }
            if !links.iter().all(|link| is_web_address(&link.url)) {
                return Some("a link that is no `https` address".to_owned());
            }
        }
        None
    }

    /// Returns the text of the first row called `label`; `None` where the result has no such row.
    pub fn text(&self, label: &str) -> Option<&str> {
        self.rows.iter().find(|row| row.label == label).map(|row| row.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_have_limits() {
        let link = |url: &str| PrintedLink { text: "here".to_owned(), url: url.to_owned() };
        let note = |chars: usize, links: Vec<PrintedLink>| PrintedNote {
            text: "x".repeat(chars),
            links,
            ..PrintedNote::default()
        };
        let fault = |notes| Printed { notes, ..Printed::default() }.fault_in_notes();
        let sound = note(NOTE_CHARS_MAX, vec![link("https://example.org/a"); LINKS_MAX]);
        assert_eq!(fault(vec![sound.clone(); NOTES_MAX]), None);
        for (notes, expected) in [
            (vec![sound; NOTES_MAX + 1], "41 notes, more than 40"),
            (vec![note(NOTE_CHARS_MAX + 1, Vec::new())], "a text of more than 900 characters"),
            (
                vec![note(1, vec![link("https://example.org/a"); LINKS_MAX + 1])],
                "a note with 11 links, more than 10",
            ),
            (vec![note(1, vec![link("javascript:alert(1)")])], "a link that is no `https` address"),
        ] {
            assert_eq!(fault(notes).as_deref(), Some(expected));
        }
    }
}
