//! Git history of a registry. Append-only check: the first committed version of a record is the
//! record, and changed, moved and deleted ones are found in HEAD, in git's index and in the working
//! tree. Commits between two releases, where this clone has them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use git2::{Delta, DiffOptions, ErrorCode, Oid, Repository, Sort};
use schema::comparison::{Commit, Commits, Diff};
use serde_json::Value;

use crate::record::held_records;
use crate::repository::{RESULTS, WorkTree};
use crate::survey::Surveyed;
use judge::Registry;
use judge::finding::{Finding, HISTORY};
use store::layout::FileKind;

/// Number of differing fields of two versions of a record up to which a finding names them; further
/// ones are only counted.
const FIELDS_NAMED: usize = 4;
/// Number of characters after which a finding cuts a value that differs between two versions of a
/// record.
const VALUE_CHARS: usize = 40;
/// Paths that Redline's engine is built from: a commit that touches none of them cannot change its
/// speed.
const SOURCES: [&str; 3] = ["engine", "Cargo.toml", "Cargo.lock"];

/// First committed version of a record: its git blob, and the commit that added it.
#[derive(Debug, Clone, Copy)]
struct First {
    blob: Oid,
    commit: Oid,
}

/// Returns the breaches of the append-only rule: committed records that a commit, the git index or
/// the working tree has changed, moved or deleted.
///
/// # Errors
///
/// The repository, or an edited record in its working tree, cannot be read.
pub(crate) fn breaches(tree: &WorkTree, files: &[Surveyed]) -> Result<Vec<Finding>> {
    let head = match tree.repo.head() {
        Ok(head) => Some(head.peel_to_commit()?.id()),
        Err(error) if error.code() == ErrorCode::UnbornBranch => None,
        Err(error) => return Err(error.into()),
    };
    let held = held_records(tree, head)?;
    let first = first_versions(&tree.repo, head)?;
    let mut found = Vec::new();
    for (path, first) in &first {
        found.extend(committed(&tree.repo, path, *first, &held)?);
    }
    let mut index = tree.repo.index()?;
    index.read(false)?;
    let present: BTreeMap<&str, &str> =
        files.iter().map(|file| (file.path.as_str(), file.blob.as_str())).collect();
    for (path, blob) in &held {
        let staged = index.get_path(format!("{RESULTS}/{path}").as_ref(), 0);
        let present = present.get(path.as_str()).copied();
        found.extend(uncommitted(tree, path, *blob, (present, staged.map(|entry| entry.id)))?);
    }
    Ok(found)
}

/// Returns the first committed version of each record by path, over the first-parent history of
/// `head` as far as this clone has it.
fn first_versions(
    repo: &Repository,
    head: Option<Oid>,
) -> Result<BTreeMap<String, First>, git2::Error> {
    let mut first = BTreeMap::new();
    let mut next = head;
    while let Some(id) = next {
        let commit = repo.find_commit(id)?;
        // The oldest commit of a shallow clone names a parent that the clone lacks.
        let parent = commit.parent_id(0).ok().and_then(|id| repo.find_commit(id).ok());
        let results = |commit: &git2::Commit<'_>| -> Result<Option<Oid>, git2::Error> {
            Ok(commit.tree()?.get_name(RESULTS).map(|entry| entry.id()))
        };
        let now = results(&commit)?;
        let before = parent.as_ref().map(results).transpose()?.flatten();
        // Equal tree hashes show without a diff that the commit left `results/` alone.
        if now != before {
            let subtree = |id: Option<Oid>| id.map(|id| repo.find_tree(id)).transpose();
            let (before, now) = (subtree(before)?, subtree(now)?);
            let diff = repo.diff_tree_to_tree(before.as_ref(), now.as_ref(), None)?;
            // Edits and deletions are found later, by comparing HEAD with the first versions.
            for delta in diff.deltas().filter(|delta| delta.status() == Delta::Added) {
                let Some(path) = delta.new_file().path().and_then(|path| path.to_str()) else {
                    continue;
                };
                if FileKind::of(path).is_record() {
                    // The walk goes back in time, so an older addition overwrites a later one.
                    let version = First { blob: delta.new_file().id(), commit: id };
                    first.insert(path.to_owned(), version);
                }
            }
        }
        next = parent.map(|parent| parent.id());
    }
    Ok(first)
}

/// Returns a finding if HEAD does not contain the record at `path` as it was first committed.
/// `held` are the records of HEAD, git blobs by path.
fn committed(
    repo: &Repository,
    path: &str,
    first: First,
    held: &BTreeMap<String, Oid>,
) -> Result<Option<Finding>, git2::Error> {
    let detail = match held.get(path) {
        Some(now) if *now == first.blob => return Ok(None),
        Some(now) => {
            let (before, after) = (repo.find_blob(first.blob)?, repo.find_blob(*now)?);
            format!("edited since: {}", differences(before.content(), after.content()))
        }
        None => match held.iter().find(|(_, blob)| **blob == first.blob) {
            Some((to, _)) => format!("moved to `{to}` since"),
            None => "deleted since".to_owned(),
        },
    };
    let commit = short(first.commit);
    let restore = format!("restore it: `git checkout {commit} -- {RESULTS}/{path}`, and commit");
    let detail = format!("recorded in {commit}, {detail}");
    Ok(Some(Finding::breach(HISTORY, path, detail).with_hint(restore)))
}

/// Returns a finding if the record at `path` has a change that is not committed. `blob` is its git
/// blob in HEAD, `present` and `staged` those in the working tree and in git's index.
fn uncommitted(
    tree: &WorkTree,
    path: &str,
    blob: Oid,
    (present, staged): (Option<&str>, Option<Oid>),
) -> Result<Option<Finding>> {
    let detail = if present.is_none() {
        "deleted from the working tree".to_owned()
    } else if present != Some(&blob.to_string()) {
        let file = tree.results().join(path);
        let bytes = fs::read(&file).with_context(|| format!("cannot read `{}`", file.display()))?;
        let before = tree.repo.find_blob(blob)?;
        format!("edited in the working tree: {}", differences(before.content(), &bytes))
    } else if staged.is_none() {
        "its deletion is staged".to_owned()
    } else if staged != Some(blob) {
        "another version of it is staged".to_owned()
    } else {
        return Ok(None);
    };
    let restore = format!("restore it: `git restore --staged --worktree {RESULTS}/{path}`");
    Ok(Some(Finding::breach(HISTORY, path, detail).with_hint(restore)))
}

/// Returns the first ten characters of a commit's hash.
pub(crate) fn short(id: Oid) -> String {
    id.to_string().chars().take(10).collect()
}

/// Formats the fields in which two versions of a record differ, with their old and new values; for
/// versions that are not JSON, their sizes in bytes.
fn differences(before: &[u8], after: &[u8]) -> String {
    let (Ok(before), Ok(after)) =
        (serde_json::from_slice::<Value>(before), serde_json::from_slice::<Value>(after))
    else {
        // Events are TOML, and a damaged record need not be JSON.
        return format!("{} bytes became {}", before.len(), after.len());
    };
    let mut fields = Vec::new();
    compare(String::new(), &before, &after, &mut fields);
    if fields.is_empty() {
        return "spaces or the order of keys".to_owned();
    }
    let more = fields.len().saturating_sub(FIELDS_NAMED);
    fields.truncate(FIELDS_NAMED);
    let tail = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}{tail}", fields.join(", "))
}

fn compare(path: String, before: &Value, after: &Value, fields: &mut Vec<String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let keys = old.keys().chain(new.keys().filter(|key| !old.contains_key(*key)));
            for key in keys {
                let value = |of: Option<&Value>| of.cloned().unwrap_or_default();
                compare(below(key), &value(old.get(key)), &value(new.get(key)), fields);
            }
        }
        (old, new) if old != new => {
            fields.push(format!("`{path}` {} to {}", brief(old), brief(new)))
        }
        _ => {}
    }
}

fn brief(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= VALUE_CHARS {
        return text;
    }
    format!("{}...", text.chars().take(VALUE_CHARS).collect::<String>())
}

/// Returns the two commits from which the releases of `diff` were built, and those between them
/// that changed the engine's sources. `None` where the runs of a release name no commit or several,
/// or where those commits cannot be read from a repository around `dir`, as for another engine.
pub fn commits_between(dir: &Path, registry: &Registry, diff: &Diff) -> Option<Commits> {
    let baseline = commit_of(registry, diff, &diff.baseline)?;
    let candidate = commit_of(registry, diff, &diff.candidate)?;
    let repository = Repository::discover(dir).ok()?;
    let changes = changes(&repository, &baseline, &candidate).ok()?;
    Some(Commits { baseline, candidate, changes })
}

/// Returns the commit from which, by their records, the runs of a release were built, counting only
/// the engines that `diff` compares; `None` if the records name no commit or several.
fn commit_of(registry: &Registry, diff: &Diff, release: &str) -> Option<String> {
    let engines: BTreeSet<&str> = diff.cells.iter().map(|cell| cell.cell.engine.as_str()).collect();
    let runs = registry.standing().map(|run| &run.record.engine);
    let of =
        runs.filter(|engine| engine.release == release && engines.contains(engine.name.as_str()));
    let commits: BTreeSet<&str> = of.filter_map(|engine| engine.commit.as_deref()).collect();
    let only = commits.first()?;
    (commits.len() == 1).then(|| (*only).to_owned())
}

/// Returns the commits after `from` up to `to` that have one parent and touch the engine's sources,
/// newest first.
fn changes(repo: &Repository, from: &str, to: &str) -> Result<Vec<Commit>, git2::Error> {
    let mut walk = repo.revwalk()?;
    walk.set_sorting(Sort::TOPOLOGICAL)?;
    walk.push(Oid::from_str(to)?)?;
    walk.hide(Oid::from_str(from)?)?;
    let mut found = Vec::new();
    for id in walk {
        let commit = repo.find_commit(id?)?;
        // A merge adds nothing of its own: its parents' commits are listed already.
        if commit.parent_count() != 1 {
            continue;
        }
        let mut options = DiffOptions::new();
        for source in SOURCES {
            options.pathspec(source);
        }
        let (before, after) = (commit.parent(0)?.tree()?, commit.tree()?);
        let delta = repo.diff_tree_to_tree(Some(&before), Some(&after), Some(&mut options))?;
        if delta.deltas().len() > 0 {
            let subject = commit.summary().ok().flatten().unwrap_or_default().to_owned();
            found.push(Commit { id: commit.id().to_string(), subject });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn differences_name_fields_and_values() {
        let before = br#"{"a": {"b": 1, "c": 2}, "d": "x", "list": [1, 2]}"#;
        let after = br#"{"a": {"b": 1, "c": 3}, "e": true, "list": [1]}"#;
        expect!["`a.c` 2 to 3, `d` \"x\" to null, `list` [1,2] to [1], `e` null to true"]
            .assert_eq(&differences(before, after));
        expect!["spaces or the order of keys"].assert_eq(&differences(b"[1, 2]", b"[1,2]"));
        expect!["9 bytes became 1"].assert_eq(&differences(b"{\"a\": 1}\n", b"{"));
    }
}
