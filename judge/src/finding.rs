//! Storage rules of a registry and their findings: what is wrong with a file, never why a run was
//! slow. All findings are reported at once.

use std::fmt;

use schema::untrusted::one_line;
use serde::Serialize;

use crate::table::grouped;

/// Storage rule: a claim that must hold for a file of the registry. The rules called `E01` and
/// `E03` in lists of quality rules are the storage rules [`PATH`] and [`HASH`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StorageRule {
    /// Id of the storage rule: `S..`.
    pub id: &'static str,
    /// Claim that must hold for a file of the registry, in a few words.
    pub title: &'static str,
}

/// Rule S01: a file is UTF-8, within the size limit, and, where its path is that of a record, has
/// the form of that kind of record (JSON, or TOML for an event).
pub const READ: StorageRule = StorageRule { id: "S01", title: "a record can be read" };
/// Rule S02: a record names the schema of its kind that this program knows; a later one breaks S12.
pub const SCHEMA: StorageRule = StorageRule { id: "S02", title: "its schema is known" };
/// Rule S03: nothing in a record (an event excepted, which has no hash) changed since it was
/// sealed.
pub const HASH: StorageRule = StorageRule { id: "S03", title: "its hash is that of its content" };
/// Rule S04: a record lies at the path that its content determines.
pub const PATH: StorageRule = StorageRule { id: "S04", title: "its path is its key" };
/// Rule S05: the id of a record that is not imported is a ULID, and no other record has it.
pub const ID: StorageRule = StorageRule { id: "S05", title: "its id is a ULID and its own" };
/// Rule S06: records were only ever added, never changed.
pub const HISTORY: StorageRule =
    StorageRule { id: "S06", title: "a committed record is never changed" };
/// Rule S07: the checks that a run record stores are those that its own revision of the quality
/// rules gives.
pub const FINDINGS: StorageRule =
    StorageRule { id: "S07", title: "its findings are those of the rules it names" };
/// Rule S08: the engine of a run or kernel record was built from a clean commit of a release, which
/// anyone can build again.
pub const RELEASE: StorageRule =
    StorageRule { id: "S08", title: "it is of a release, not of a working tree" };
/// Rule S09: each file is a record, a page, or the `README.md`.
pub const LAYOUT: StorageRule =
    StorageRule { id: "S09", title: "nothing but records lies between records" };
/// Rule S10: command, environment and configuration in a run record, and the texts that an imported
/// one keeps of its report, hold no secret and no path of the machine, so that it may be published.
pub const PRIVATE: StorageRule =
    StorageRule { id: "S10", title: "it holds no path of the machine and no secret" };

/// Rule S11: an event has the fields that its kind needs, readable times and well-formed targets.
pub const EVENT: StorageRule =
    StorageRule { id: "S11", title: "an event names what its kind needs" };
/// Rule S12: the schema and the quality rules that a record names are not newer than this program.
pub const LATER: StorageRule =
    StorageRule { id: "S12", title: "it is of a version that this program knows" };

/// All storage rules, ordered by id.
pub const STORAGE_RULES: &[StorageRule] =
    &[READ, SCHEMA, HASH, PATH, ID, HISTORY, FINDINGS, RELEASE, LAYOUT, PRIVATE, EVENT, LATER];

/// Finding of a storage rule about one file.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Path, below `results/`, of the file that the finding is about.
    pub path: String,
    /// Id of the storage rule that the file breaks.
    pub rule: &'static str,
    /// True when the finding makes the registry unsound; false for a remark.
    pub breach: bool,
    /// Observation behind the finding, as a sentence.
    pub detail: String,
    /// Advice on how to resolve the finding; `None` where there is none.
    pub hint: Option<String>,
}

impl Finding {
    /// Creates the finding that the file at `path` breaks `rule`, which makes the registry unsound.
    pub fn breach(rule: StorageRule, path: &str, detail: impl Into<String>) -> Self {
        Self { path: path.into(), rule: rule.id, breach: true, detail: detail.into(), hint: None }
    }

    /// Creates a remark by `rule` on the file at `path`; a remark does not make the registry
    /// unsound.
    pub fn remark(rule: StorageRule, path: &str, detail: impl Into<String>) -> Self {
        Self { breach: false, ..Self::breach(rule, path, detail) }
    }

    /// Returns the finding with `hint` as its advice on how to resolve it.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Largest number of findings that a command prints which was not asked for them.
const SHOWN_MAX: usize = 20;

/// Formats the findings of a command that was not asked for them, one a line: the first 20 and the
/// number of the others, with the command that shows those of a registry. A folder may hold any
/// number of files.
pub fn first_of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<String> {
    let mut findings = findings.into_iter();
    let mut lines: Vec<String> =
        findings.by_ref().take(SHOWN_MAX).map(ToString::to_string).collect();
    match findings.count() {
        0 => {}
        more => {
            let more = grouped(&more.to_string());
            lines.push(format!(
                "and {more} more; `redline-results check` shows those of a registry"
            ));
        }
    }
    lines
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.breach { "breach" } else { "remark" };
        // Paths and details quote files, and a file may hold terminal escapes.
        write!(f, "{level} {} {}: {}", self.rule, one_line(&self.path), one_line(&self.detail))?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {}", one_line(hint)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_findings_the_first_are_shown_and_the_others_counted() {
        let findings = vec![Finding::breach(READ, "a.json", "not JSON"); 20_000];
        assert_eq!(first_of(&findings[..20]), vec![findings[0].to_string(); 20]);
        let lines = first_of(&findings);
        assert_eq!(lines.len(), 21);
        assert!(lines[20].starts_with("and 19,980 more; "), "{}", lines[20]);
        for (number, shown) in [(1, "1"), (980, "980"), (1_000, "1,000"), (1_234_567, "1,234,567")]
        {
            assert_eq!(grouped(&number.to_string()), shown);
        }
    }
}
