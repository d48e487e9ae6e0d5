//! Examination of one file of the registry: facts and findings as a pure function of path and
//! bytes, so that an index may store them. No files, no git.

use judge::facts::{RunFacts, run_facts};
use judge::finding::Finding;
use schema::run::Kind;
use serde::{Deserialize, Serialize};

use crate::storage::{self, Parsed};

/// Facts about a file that could be read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Kind of the file: `runs`, `imports`, `kernels`, `campaigns`, `events` or `pages`.
    pub kind: String,
    /// Id of the record; pages have none.
    pub id: Option<String>,
    /// Facts about the run; only measured and imported runs have them.
    pub run: Option<RunFacts>,
}

/// Parses and verifies the file at `path` below `results/`. Returns its facts and every finding.
pub fn examine(path: &str, bytes: &[u8]) -> (Option<Facts>, Vec<Finding>) {
    match storage::read_with_value(path, bytes) {
        Ok((parsed, value)) => {
            let findings = storage::verify_value(path, value.as_ref(), &parsed);
            (Some(facts(&parsed)), findings)
        }
        Err(finding) => (None, vec![finding]),
    }
}

fn facts(parsed: &Parsed) -> Facts {
    let run = match parsed {
        Parsed::Run(record) => Some(run_facts(record)),
        _ => None,
    };
    Facts { kind: kind_name(parsed).to_owned(), id: parsed.id().map(str::to_owned), run }
}

fn kind_name(parsed: &Parsed) -> &'static str {
    match parsed {
        Parsed::Run(record) if record.kind == Kind::Imported => "imports",
        Parsed::Run(_) => "runs",
        Parsed::Kernels(_) => "kernels",
        Parsed::Campaign(_) => "campaigns",
        Parsed::Event(_) => "events",
        Parsed::Derived => "pages",
    }
}
