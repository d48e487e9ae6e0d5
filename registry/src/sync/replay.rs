//! Puts this clone's commits behind those of the remote. Only additions of records are moved;
//! rendered files are rendered again afterwards.

use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use git2::build::TreeUpdateBuilder;
use git2::{Commit, Delta, ErrorCode, FileMode, Oid, Signature, Sort, Time};

use super::Means;
use crate::errors::Unsound;
use crate::history::short;
use crate::record::held_records;
use crate::repository::{RESULTS, WorkTree};
use judge::finding::{Finding, HISTORY, ID};
use store::layout::FileKind;
use store::storage::{self, examine};

/// Result of uniting two histories: the new tip and counts.
#[derive(Debug)]
pub struct Joined {
    pub tip: Oid,
    pub records_in: usize,
    pub commits_moved: usize,
}

/// Builds the history of `theirs` followed by the commits that only `ours` has. No branch is moved
/// yet.
pub fn join(tree: &WorkTree, ours: Option<Oid>, theirs: Oid, means: Means<'_>) -> Result<Joined> {
    let base = match ours.map(|ours| tree.repo.merge_base(ours, theirs)) {
        Some(Ok(base)) => Some(base),
        Some(Err(error)) if error.code() == ErrorCode::NotFound => bail!(
            "this branch and `{}` have no commit in common\nhint: clone the registry and record there",
            means.remote
        ),
        Some(Err(error)) => return Err(error.into()),
        None => None,
    };
    let records_in = verify(tree, ours, base, theirs)?;
    if let (true, Some(ours)) = (base == Some(theirs), ours) {
        return Ok(Joined { tip: ours, records_in: 0, commits_moved: 0 });
    }
    let mut tip = theirs;
    let mut commits_moved = 0;
    for commit in only_here(tree, ours, theirs)? {
        if let Some(moved) = put_behind(tree, &commit, tip, means)? {
            tip = moved;
            commits_moved += 1;
        }
    }
    let held = held_records(tree, Some(tip))?;
    let ids = held.keys().filter(|path| !path.starts_with("imports/"));
    let ids = ids.filter_map(|path| Some((path.rsplit('/').next()?.split('.').next()?, &**path)));
    let repeated = storage::repeated_ids(ids, ID);
    refuse(repeated)?;
    Ok(Joined { tip, records_in, commits_moved })
}

/// Checks the remote's records: new ones are sound, and none that both histories had is changed or
/// missing. Returns the number of new ones.
fn verify(tree: &WorkTree, ours: Option<Oid>, base: Option<Oid>, theirs: Oid) -> Result<usize> {
    let (known, now) = (held_records(tree, base)?, held_records(tree, Some(theirs))?);
    let mine = held_records(tree, ours)?;
    let mut findings = Vec::new();
    for (path, blob) in &known {
        let detail = match now.get(path) {
            Some(theirs) if theirs == blob => continue,
            Some(_) => "the remote has another record under this path",
            None => "the remote no longer has it",
        };
        findings.push(Finding::breach(HISTORY, path, detail));
    }
    let new: BTreeMap<&String, &Oid> =
        now.iter().filter(|(path, blob)| mine.get(*path) != Some(blob)).collect();
    for (path, blob) in &new {
        let blob = tree.repo.find_blob(**blob)?;
        findings.extend(examine(path, blob.content()).1.into_iter().filter(|f| f.breach));
    }
    refuse(findings)?;
    Ok(new.len())
}

/// Returns the commits of `ours` that `theirs` lacks, oldest first.
fn only_here(tree: &WorkTree, ours: Option<Oid>, theirs: Oid) -> Result<Vec<Commit<'_>>> {
    let Some(ours) = ours else { return Ok(Vec::new()) };
    let mut walk = tree.repo.revwalk()?;
    walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)?;
    walk.push(ours)?;
    walk.hide(theirs)?;
    walk.map(|id| Ok(tree.repo.find_commit(id?)?)).collect()
}

/// Commits the records of `commit` again on top of `tip`; `None` when `tip` contains them all.
fn put_behind(
    tree: &WorkTree,
    commit: &Commit<'_>,
    tip: Oid,
    means: Means<'_>,
) -> Result<Option<Oid>> {
    let base = tree.repo.find_commit(tip)?.tree()?;
    let mut update = TreeUpdateBuilder::new();
    let mut count = 0;
    for (path, blob) in records_of(tree, commit)? {
        let place = format!("{RESULTS}/{path}");
        match base.get_path(place.as_ref()) {
            Ok(entry) if entry.id() == blob => {}
            Ok(_) => {
                let detail = "this clone and the remote have different records under this path";
                refuse(vec![Finding::breach(HISTORY, &path, detail)])?;
            }
            Err(error) if error.code() == ErrorCode::NotFound => {
                update.upsert(place, blob, FileMode::Blob);
                count += 1;
            }
            Err(error) => return Err(error.into()),
        }
    }
    if count == 0 {
        return Ok(None);
    }
    let repo = &tree.repo;
    let moved = repo.find_tree(update.create_updated(repo, &base)?)?;
    let author = commit.author();
    let at = Time::new(means.clock.unix_s, 0);
    let name = String::from_utf8_lossy(author.name_bytes()).into_owned();
    let email = String::from_utf8_lossy(author.email_bytes()).into_owned();
    let committer = Signature::new(&name, &email, &at)?;
    let message = String::from_utf8_lossy(commit.message_bytes()).into_owned();
    let parent = repo.find_commit(tip)?;
    Ok(Some(repo.commit(None, &author, &committer, &message, &moved, &[&parent])?))
}

/// Returns the records that a commit adds. A commit that changes anything else, except rendered
/// files, is an error.
fn records_of(tree: &WorkTree, commit: &Commit<'_>) -> Result<Vec<(String, Oid)>> {
    let id = short(commit.id());
    ensure!(
        commit.parent_count() <= 1,
        "commit {id} is only here and joins two histories\nhint: bring it there yourself, such as by \
         `git pull --rebase`, then sync again"
    );
    let before = commit.parents().next().map(|parent| parent.tree()).transpose()?;
    let diff = tree.repo.diff_tree_to_tree(before.as_ref(), Some(&commit.tree()?), None)?;
    let mut records = Vec::new();
    for delta in diff.deltas() {
        let file =
            if delta.status() == Delta::Deleted { delta.old_file() } else { delta.new_file() };
        let path = file.path_bytes().map(String::from_utf8_lossy).unwrap_or_default().into_owned();
        let below = path.strip_prefix(RESULTS).and_then(|path| path.strip_prefix('/'));
        match below.map(|below| (below, FileKind::of(below))) {
            Some((_, kind)) if kind.is_derived() => {}
            Some((below, kind)) if kind.is_record() && delta.status() == Delta::Added => {
                records.push((below.to_owned(), file.id()));
            }
            _ => bail!(
                "commit {id} is only here and changes `{path}`, and only records are moved\nhint: \
                 bring it there yourself, such as by `git pull --rebase`, then sync again"
            ),
        }
    }
    Ok(records)
}

/// Refuses the remote's records if there are findings about them.
fn refuse(findings: Vec<Finding>) -> Result<()> {
    if findings.is_empty() {
        return Ok(());
    }
    bail!(Unsound::new("the remote's records", "nothing was taken", findings))
}
