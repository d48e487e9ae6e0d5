//! Undoes what a killed writer has left: its locks, and the files that it had put in place or in
//! git's index without a commit. The clone is then as it was before that writer began, or after its
//! commit.

use std::fs;
use std::io;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use git2::{ErrorCode, IndexEntry, IndexTime, ObjectType, Oid};

use crate::commit::write_aside;
use crate::repository::{FETCHED, LOCK_PAUSE, RESULTS, WorkTree, locked};
use crate::turn::{Left, Turn};
use store::layout::leftover_name;

/// Number of pauses after which a lock of git counts as left behind, where no git program runs.
const LOCK_TRIES: u32 = 5;
/// Time after the last note of a writer within which it makes its last lock.
const LOCK_AFTER: Duration = Duration::from_secs(60);

/// Waits for the writer's turn of a clone, and undoes what a killed writer has left.
///
/// # Errors
///
/// Another writer keeps its turn, a git program holds a lock, or a file cannot be read or written.
pub(crate) fn take_turn(tree: &WorkTree) -> Result<Turn> {
    begin(tree, Turn::take(tree.repo.path())?)
}

/// Undoes what a killed writer has left in a clone. Does nothing where none was killed, or another
/// one writes.
///
/// # Errors
///
/// A git program holds a lock, or a file cannot be read or written.
pub fn undo_killed(tree: &WorkTree) -> Result<()> {
    Turn::after_killed(tree.repo.path())?.map_or(Ok(()), |turn| begin(tree, turn).map(drop))
}

fn begin(tree: &WorkTree, mut turn: Turn) -> Result<Turn> {
    if let Some(left) = &turn.left {
        undo(tree, left)?;
    }
    turn.begin()?;
    Ok(turn)
}

fn undo(tree: &WorkTree, left: &Left) -> Result<()> {
    let (branch, head) = tree.tip()?;
    // A sync deletes the reference of what it has fetched, for which packed references are locked.
    let of_sync = [&format!("{FETCHED}.lock"), "packed-refs.lock"];
    let of_sync = of_sync.map(|name| tree.repo.commondir().join(name));
    let locks = tree.locks(&branch).into_iter().chain([tree.index_lock()]).chain(of_sync);
    for lock in locks {
        release(tree, &lock, left)?;
    }
    let base = tree.tree_of(head)?;
    let mut index = tree.repo.index()?;
    index.read(true)?;
    for (blob, path) in left.put.iter().rev() {
        let target = tree.results().join(path);
        let name = target.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        if let Some(pid) = left.pid {
            // Most often there is none: the writer has renamed it.
            let _ = fs::remove_file(target.with_file_name(leftover_name(&name, pid)));
        }
        let committed = match base.get_path(format!("{RESULTS}/{path}").as_ref()) {
            Ok(entry) if entry.id() == *blob => continue,
            Ok(entry) => Some(entry.id()),
            Err(error) if error.code() == ErrorCode::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        restore(tree, &target, *blob, committed)?;
        let path = format!("{RESULTS}/{path}");
        if index.get_path(path.as_ref(), 0).is_some_and(|entry| entry.id == *blob) {
            match committed {
                Some(committed) => index.add(&entry_without_times(&path, committed))?,
                None => index.remove_path(path.as_ref())?,
            }
        }
    }
    Ok(index.write()?)
}

/// Gives the file `target` the content of the blob `committed`, or removes it if there is none. A
/// file that is not the one that the killed writer has put in place, or begun to write, is left
/// alone.
fn restore(tree: &WorkTree, target: &Path, blob: Oid, committed: Option<Oid>) -> Result<()> {
    let Ok(bytes) = fs::read(target) else { return Ok(()) };
    // A checkout of libgit2 writes into the file itself.
    let is_begun = || tree.repo.find_blob(blob).is_ok_and(|put| put.content().starts_with(&bytes));
    if Oid::hash_object(ObjectType::Blob, &bytes)? != blob && !is_begun() {
        return Ok(());
    }
    match committed {
        Some(committed) => write_aside(target, tree.repo.find_blob(committed)?.content()),
        None => {
            let failed = || format!("cannot remove `{}`", target.display());
            fs::remove_file(target).with_context(failed)?;
            let results = tree.results();
            let above = target.ancestors().skip(1).take_while(|dir| dir.starts_with(&results));
            // A folder that has other files stays, and so do those above it.
            above.take_while(|dir| fs::remove_dir(dir).is_ok()).for_each(drop);
            Ok(())
        }
    }
}

/// Builds the index entry of a committed file, without times and size: the file may be missing or
/// have changes of the user, which git would not see if the entry had the times of that file.
fn entry_without_times(path: &str, committed: Oid) -> IndexEntry {
    IndexEntry {
        ctime: IndexTime::new(0, 0),
        mtime: IndexTime::new(0, 0),
        dev: 0,
        ino: 0,
        mode: 0o100_644,
        uid: 0,
        gid: 0,
        file_size: 0,
        id: committed,
        flags: 0,
        flags_extended: 0,
        path: path.as_bytes().to_vec(),
    }
}

/// Removes a lock of git that the killed writer has left: one that was made soon after its last note,
/// stays, and belongs to no git program that runs here. A program in a container or on another machine
/// is not seen, so that a younger lock is never removed.
fn release(tree: &WorkTree, lock: &Path, left: &Left) -> Result<()> {
    let Ok(made) = fs::metadata(lock).and_then(|facts| facts.modified()) else { return Ok(()) };
    for _ in 0..LOCK_TRIES {
        thread::sleep(LOCK_PAUSE);
        if !lock.exists() {
            return Ok(());
        }
    }
    if !(left.at..left.at + LOCK_AFTER).contains(&made) || git_runs_in(&tree.root) {
        return Err(locked(lock));
    }
    fs::remove_file(lock).with_context(|| format!("cannot remove `{}`", lock.display()))
}

/// True if a program of git may run in the working tree `root`.
fn git_runs_in(root: &Path) -> bool {
    let root = root.canonicalize().unwrap_or_else(|_| root.to_owned());
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|process| {
        let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
        let is_in = || match fs::read_link(process.join("cwd")) {
            Ok(dir) => dir.starts_with(&root),
            // The folder of another user's process may be this one. A process that has ended has
            // none.
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        (name.trim_end() == "git" || name.starts_with("git-")) && is_in()
    })
}
