//! Commits that lead from one release to another, where this clone has them.

use std::collections::BTreeSet;
use std::path::Path;

use git2::{DiffOptions, Oid, Repository, Sort};
use schema::comparison::{Commit, Commits, Diff};

use judge::Registry;

/// Paths that an engine is built from: a commit that touches none of them cannot change its speed.
const SOURCES: [&str; 3] = ["engine", "Cargo.toml", "Cargo.lock"];

/// Returns the commits between the two releases of `diff`. `None` where a release has no commit or
/// several, or where the repository around `dir` lacks them, as for another engine.
pub fn between(dir: &Path, registry: &Registry, diff: &Diff) -> Option<Commits> {
    let baseline = commit_of(registry, diff, &diff.baseline)?;
    let candidate = commit_of(registry, diff, &diff.candidate)?;
    let repository = Repository::discover(dir).ok()?;
    let changes = changes(&repository, &baseline, &candidate).ok()?;
    Some(Commits { baseline, candidate, changes })
}

/// The one commit that all compared runs of a release were built from.
fn commit_of(registry: &Registry, diff: &Diff, release: &str) -> Option<String> {
    let engines: BTreeSet<&str> = diff.cells.iter().map(|cell| cell.cell.engine.as_str()).collect();
    let runs = registry.standing().map(|run| &run.record.engine);
    let of =
        runs.filter(|engine| engine.release == release && engines.contains(engine.name.as_str()));
    let commits: BTreeSet<&str> = of.filter_map(|engine| engine.commit.as_deref()).collect();
    let only = commits.first()?;
    (commits.len() == 1).then(|| (*only).to_owned())
}

/// Returns the commits with one parent that touch the sources, newest first.
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
