//! Findings of the storage rules: what is wrong with a file of the registry, never why a run was
//! slow. All of them are reported at once.

use std::fmt;

use serde::Serialize;

use crate::table::plain;

/// One storage rule. `E01` and `E03` of the literature on result registries are [`PATH`] and
/// [`HASH`] here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct StorageRule {
    /// `S..`.
    pub id: &'static str,
    /// The claim that must hold.
    pub title: &'static str,
}

/// Holds where the bytes are a record's JSON, and not too many.
pub const READ: StorageRule = StorageRule { id: "S01", title: "a record can be read" };
/// Holds where the record says of which schema it is, and keeps to it.
pub const SCHEMA: StorageRule = StorageRule { id: "S02", title: "its schema is known" };
/// Holds where nothing was changed since it was sealed.
pub const HASH: StorageRule = StorageRule { id: "S03", title: "its hash is that of its content" };
/// Holds where what a record says of itself is where it lies.
pub const PATH: StorageRule = StorageRule { id: "S04", title: "its path is its key" };
/// Holds where no other record has its id.
pub const ID: StorageRule = StorageRule { id: "S05", title: "its id is a ULID and its own" };
/// Holds where records came in by addition alone.
pub const HISTORY: StorageRule =
    StorageRule { id: "S06", title: "a committed record is never changed" };
/// Holds where the rules give the findings that are stored.
pub const FINDINGS: StorageRule =
    StorageRule { id: "S07", title: "its findings are those of the rules it names" };
/// Holds where the engine was built from a commit that anyone can build again.
pub const RELEASE: StorageRule =
    StorageRule { id: "S08", title: "it is of a release, not of a working tree" };
/// Holds where each file is a record, a page, or the `README.md`.
pub const LAYOUT: StorageRule =
    StorageRule { id: "S09", title: "nothing but records lies between records" };
/// Holds where a record may be shown to anyone.
pub const PRIVATE: StorageRule =
    StorageRule { id: "S10", title: "it holds no path of the machine and no secret" };

/// Holds where an event can be followed.
pub const EVENT: StorageRule =
    StorageRule { id: "S11", title: "an event names what its kind needs" };
/// Holds where this program is as new as the record; else it is told and not judged.
pub const LATER: StorageRule =
    StorageRule { id: "S12", title: "it is of a version that this program knows" };

/// Every storage rule, in the order of ids.
pub const STORAGE_RULES: &[StorageRule] =
    &[READ, SCHEMA, HASH, PATH, ID, HISTORY, FINDINGS, RELEASE, LAYOUT, PRIVATE, EVENT, LATER];

/// Something that a storage rule found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// Path below `results/`.
    pub path: String,
    /// Id of the rule.
    pub rule: &'static str,
    /// True when the registry is unsound; false for a remark.
    pub breach: bool,
    /// Message of the request's failure.
    pub detail: String,
    /// What can be done about it.
    pub hint: Option<String>,
}

impl Finding {
    /// A breach of `rule` by the file at `path`.
    pub fn breach(rule: StorageRule, path: &str, detail: impl Into<String>) -> Self {
        Self { path: path.into(), rule: rule.id, breach: true, detail: detail.into(), hint: None }
    }

    /// A remark: worth saying, not unsound.
    pub fn remark(rule: StorageRule, path: &str, detail: impl Into<String>) -> Self {
        Self { breach: false, ..Self::breach(rule, path, detail) }
    }

    /// The same finding with what to do about it.
    #[must_use]
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = if self.breach { "breach" } else { "remark" };
        // Paths and details quote files, and a file may hold terminal escapes.
        write!(f, "{level} {} {}: {}", self.rule, plain(&self.path), plain(&self.detail))?;
        match &self.hint {
            Some(hint) => write!(f, "\n  hint: {}", plain(hint)),
            None => Ok(()),
        }
    }
}
