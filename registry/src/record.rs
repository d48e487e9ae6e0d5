//! Adds staged results (new records and pages) to the registry: all checks first, then one commit.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use git2::{ObjectType, TreeWalkMode, TreeWalkResult};
use rayon::prelude::*;
use schema::version::is_later;
use schema::{campaign, event, kernel, run};
use serde::{Deserialize, Serialize};

use crate::commit::{Addition, commit};
use crate::repository::{Environment, RESULTS, Unsound, WorkTree};
use crate::undo::{take_turn, undo_killed};
use judge::finding::{Finding, HISTORY, ID};
use store::folder::{Listing, Stamp, StoreError, read_folder};
use store::layout::FileKind;
use store::storage::{self, Parsed};

/// Name of the program that renders pages.
const SITE: &str = "redline-site";

/// Result of adding staged results to a registry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Hash of the new commit; that of HEAD where HEAD contained all staged files already.
    pub commit: Option<String>,
    /// Name of the branch that the records were committed on.
    pub branch: String,
    /// Paths of the files that the new commit adds or replaces, below the repository's root.
    pub paths: Vec<String>,
    /// Number of staged files that HEAD contained already, byte for byte.
    pub known: usize,
    /// Notes for the user, such as hooks that were not run.
    pub notes: Vec<String>,
    /// Remarks of the storage rules about the staged files.
    pub remarks: Vec<Finding>,
}

/// Checks every file of `staged` and commits all of them, or none, at the time `unix_s` (seconds
/// since 1970).
///
/// # Errors
///
/// `staged` cannot be read or has no record and no page; a file is unsound (all findings are
/// returned); a later version of the program wrote to the registry; the repository is not fit for a
/// commit, another program keeps a lock on it, or it cannot be read or written. No half-written
/// file stays behind.
pub fn record(registry: &Path, staged: &Path, message: &str, unix_s: i64) -> Result<Recorded> {
    let tree = WorkTree::open(registry)?;
    undo_killed(&tree)?;
    // An unfit repository is reported before any file is read; it is checked again under the lock.
    tree.ready()?;
    let folder = read_folder(staged)?;
    let mut findings = folder.findings;
    let mut additions = Vec::new();
    let mut ids = Vec::new();
    for (path, bytes) in folder.files {
        match storage::verified(&path, &bytes) {
            Ok((parsed, found)) => {
                findings.extend(found);
                ids.extend(parsed.id().map(|id| (id.to_owned(), path.clone())));
                let future = parsed.id().and_then(|id| {
                    storage::from_the_future(&path, id, unix_s.unsigned_abs() * 1_000)
                });
                // A new record with a future id would sort behind all later ones, so it is
                // refused.
                findings.extend(future.map(|remark| Finding { breach: true, ..remark }));
                let derived = parsed == Parsed::Derived;
                additions.push(Addition { path, bytes, derived });
            }
            // A leftover is only reported; any other stray file is a breach, because it would be
            // dropped silently.
            Err(finding) if FileKind::of(&path) == FileKind::Leftover => findings.push(finding),
            Err(finding) => findings.push(Finding { breach: true, ..finding }),
        }
    }
    let later = later_records(&tree.results())?;
    if let Some(first) = later.first() {
        bail!(
            "{} of the registry's records were written by a later version of this program, such as \
             `results/{first}`\nhint: record with that version: this one cannot tell what it would \
             break",
            later.len()
        );
    }
    // From here on no other process of this program changes the clone.
    let mut turn = take_turn(&tree)?;
    let head = tree.ready()?;
    findings.extend(against_head(&tree, &additions, &ids)?);
    findings.sort();
    if findings.iter().any(|finding| finding.breach) {
        let (whose, outcome) = ("the overlay's files", "nothing was recorded");
        bail!(Unsound::new(whose, outcome, findings));
    }
    if additions.is_empty() {
        let staged = staged.display();
        bail!("`{staged}` holds no record and no page\nhint: lay it out like results/");
    }
    let (commit, new) = commit((&tree, &mut turn), &additions, message, unix_s)?;
    Ok(Recorded {
        commit: commit.map(|commit| commit.to_string()),
        branch: head.branch,
        known: additions.len() - new.len(),
        paths: new.into_iter().map(|path| format!("{RESULTS}/{path}")).collect(),
        notes: head.notes,
        remarks: findings,
    })
}

/// Fields of a record that determine which version of this program can read it.
#[derive(Deserialize)]
struct Version {
    schema: String,
    #[serde(default)]
    checks_rev: u32,
}

/// Returns the paths of the records below `results` that a later version of this program wrote.
fn later_records(results: &Path) -> Result<Vec<String>, StoreError> {
    let listing = Listing::of(results)?;
    let later = |(path, _): &(String, Stamp)| {
        let known = match FileKind::of(path) {
            FileKind::Run | FileKind::Import => run::SCHEMA,
            FileKind::Kernels => kernel::SCHEMA,
            FileKind::Campaign => campaign::SCHEMA,
            FileKind::Event => event::SCHEMA,
            _ => return Ok(None),
        };
        let bytes = listing.read(path)?;
        let version = match FileKind::of(path) {
            FileKind::Event => String::from_utf8(bytes)
                .ok()
                .and_then(|text| event::schema_of(&text))
                .map(|schema| Version { schema, checks_rev: 0 }),
            // An unreadable record does not show a later version; `check` reports it.
            _ => serde_json::from_slice(&bytes).ok(),
        };
        let later = version.is_some_and(|version: Version| {
            is_later(&version.schema, known) || version.checks_rev > judge::CHECKS_REV
        });
        Ok(later.then(|| path.clone()))
    };
    listing.files.par_iter().filter_map(|file| later(file).transpose()).collect()
}

/// Finds contradictions between staged records and the records of HEAD: other content under the
/// same path, or the same id under another path.
fn against_head(
    tree: &WorkTree,
    additions: &[Addition],
    ids: &[(String, String)],
) -> Result<Vec<Finding>> {
    let (_, head) = tree.tip()?;
    let held = held_records(tree, head)?;
    let mut found = Vec::new();
    for addition in additions.iter().filter(|addition| !addition.derived) {
        let blob = git2::Oid::hash_object(ObjectType::Blob, &addition.bytes)?;
        if held.get(&addition.path).is_some_and(|held| *held != blob) {
            let detail = "a record with other content is committed under this path";
            found.push(Finding::breach(HISTORY, &addition.path, detail));
        }
    }
    // An id is the stem of the file's name, which rule S04 has checked for every committed record.
    let held_ids = held.keys().filter(|path| !path.starts_with("imports/")).filter_map(|path| {
        let name = path.rsplit('/').next()?;
        Some((name.split('.').next()?, path.as_str()))
    });
    let imports = |path: &str| path.starts_with("imports/");
    let new = ids.iter().filter(|(_, path)| !imports(path)).map(|(id, path)| (&**id, &**path));
    found.extend(storage::repeated_ids(held_ids.chain(new), ID));
    Ok(found)
}

/// Returns the git blobs of the records in a commit by path below `results/`; none without a
/// commit.
pub(crate) fn held_records(
    tree: &WorkTree,
    commit: Option<git2::Oid>,
) -> Result<BTreeMap<String, git2::Oid>, git2::Error> {
    let mut held = BTreeMap::new();
    let root = tree.tree_of(commit)?;
    let Some(results) = root.get_name(RESULTS) else { return Ok(held) };
    if results.kind() != Some(ObjectType::Tree) {
        return Ok(held);
    }
    let results = tree.repo.find_tree(results.id())?;
    results.walk(TreeWalkMode::PreOrder, |folder, entry| {
        if entry.kind() == Some(ObjectType::Blob) {
            let name = String::from_utf8_lossy(entry.name_bytes());
            let path = format!("{folder}{name}");
            if FileKind::of(&path).is_record() {
                held.insert(path, entry.id());
            }
        }
        TreeWalkResult::Ok
    })?;
    Ok(held)
}

/// Has the site's own program, which lies in the folder `tools`, render every page and the
/// `README.md` of the registry in `dir`, with the records of `staged` if given, into `out`.
///
/// # Errors
///
/// The program is not in `tools`, cannot be started, or fails.
pub fn render(tools: &Path, dir: &Path, staged: Option<&Path>, out: &Path) -> Result<()> {
    let program = tools.join(SITE);
    if !program.is_file() {
        let (tools, hint) = (tools.display(), "start this as `cargo xtask`, which builds both");
        bail!(Environment(format!("`{SITE}` is not in `{tools}`\nhint: {hint}")));
    }
    let mut command = Command::new(&program);
    command.arg("pages").arg("--registry").arg(dir).arg("--out").arg(out);
    if let Some(staged) = staged {
        command.arg("--overlay").arg(staged);
    }
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start `{}`", program.display()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let (status, said) = (output.status, said.trim());
    bail!(Environment(format!("`{SITE} pages` ended with {status}: {said}")))
}
