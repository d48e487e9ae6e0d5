//! Append-only check over the git history: the first committed version of a record is the record.
//! Finds changed, moved and deleted records in HEAD, in git's index and in the working tree.

use std::collections::BTreeMap;
use std::fs;

use git2::{Delta, ErrorCode, Oid, Repository};
use serde_json::Value;

use crate::record::held_records;
use crate::repository::{RESULTS, RepositoryError, WorkTree};
use crate::survey::Surveyed;
use judge::finding::{Finding, HISTORY};
use store::layout::FileKind;

/// Number of fields that are named when two versions of a record differ.
const FIELDS_NAMED: usize = 4;
/// Number of characters of a value that are shown.
const VALUE_CHARS: usize = 40;

/// First committed version of a record, and the commit that added it.
#[derive(Debug, Clone, Copy)]
struct First {
    blob: Oid,
    commit: Oid,
}

/// Returns the breaches of the append-only rule by committed, staged and uncommitted files.
///
/// # Errors
///
/// The repository cannot be read.
pub fn breaches(tree: &WorkTree, files: &[Surveyed]) -> Result<Vec<Finding>, RepositoryError> {
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
    let present: BTreeMap<&str, Oid> =
        files.iter().map(|file| (file.path.as_str(), file.blob)).collect();
    for (path, blob) in &held {
        let staged = index.get_path(format!("{RESULTS}/{path}").as_ref(), 0);
        let now = Now {
            present: present.get(path.as_str()).copied(),
            staged: staged.map(|entry| entry.id),
        };
        found.extend(uncommitted(tree, path, *blob, now)?);
    }
    Ok(found)
}

/// Blobs that a path has in the working tree and in git's index.
#[derive(Clone, Copy)]
struct Now {
    present: Option<Oid>,
    staged: Option<Oid>,
}

/// Returns the first version of each record by path, over the first-parent history as far as this
/// clone has it.
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
        if now != before {
            let subtree = |id: Option<Oid>| id.map(|id| repo.find_tree(id)).transpose();
            let (before, now) = (subtree(before)?, subtree(now)?);
            let diff = repo.diff_tree_to_tree(before.as_ref(), now.as_ref(), None)?;
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

fn committed(
    repo: &Repository,
    path: &str,
    first: First,
    held: &BTreeMap<String, Oid>,
) -> Result<Option<Finding>, git2::Error> {
    let commit = short(first.commit);
    let restore = format!("restore it: `git checkout {commit} -- {RESULTS}/{path}`, and commit");
    let Some(now) = held.get(path) else {
        let moved = held.iter().find(|(_, blob)| **blob == first.blob);
        let detail = match moved {
            Some((to, _)) => format!("recorded in {commit}, moved to `{to}` since"),
            None => format!("recorded in {commit}, deleted since"),
        };
        return Ok(Some(Finding::breach(HISTORY, path, detail).with_hint(restore)));
    };
    if *now == first.blob {
        return Ok(None);
    }
    let (before, after) = (repo.find_blob(first.blob)?, repo.find_blob(*now)?);
    let differ = differences(before.content(), after.content());
    let detail = format!("recorded in {commit}, edited since: {differ}");
    Ok(Some(Finding::breach(HISTORY, path, detail).with_hint(restore)))
}

fn uncommitted(
    tree: &WorkTree,
    path: &str,
    blob: Oid,
    now: Now,
) -> Result<Option<Finding>, RepositoryError> {
    let restore = format!("restore it: `git restore --staged --worktree {RESULTS}/{path}`");
    if now.present.is_none() {
        let finding = Finding::breach(HISTORY, path, "deleted from the working tree");
        return Ok(Some(finding.with_hint(restore)));
    }
    if now.present != Some(blob) {
        let file = tree.results().join(path);
        let bytes =
            fs::read(&file).map_err(|source| RepositoryError::File { path: file, source })?;
        let before = tree.repo.find_blob(blob)?;
        let differ = differences(before.content(), &bytes);
        let detail = format!("edited in the working tree: {differ}");
        return Ok(Some(Finding::breach(HISTORY, path, detail).with_hint(restore)));
    }
    let detail = match now.staged {
        Some(staged) if staged == blob => return Ok(None),
        Some(_) => "another version of it is staged",
        None => "its deletion is staged",
    };
    Ok(Some(Finding::breach(HISTORY, path, detail).with_hint(restore)))
}

fn short(id: Oid) -> String {
    id.to_string().chars().take(10).collect()
}

/// Names the fields in which two versions of a record differ, with their values.
fn differences(before: &[u8], after: &[u8]) -> String {
    let (Ok(before), Ok(after)) =
        (serde_json::from_slice::<Value>(before), serde_json::from_slice::<Value>(after))
    else {
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
                let value = |map: &serde_json::Map<String, Value>| map.get(key).cloned();
                let (old, new) = (value(old), value(new));
                if old != new {
                    let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
                    compare(below(key), &old, &new, fields);
                }
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
