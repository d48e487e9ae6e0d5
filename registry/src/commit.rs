//! Commits new files on the checked-out branch. The commit's tree is HEAD's plus the new blobs,
//! git's index gets entries for the new paths only, and whatever the user staged or changed stays.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use git2::build::TreeUpdateBuilder;
use git2::{ErrorCode, FileMode, Index, IndexEntry, IndexTime, Oid, Signature, Time};

use crate::errors::Environment;
use crate::landing::{Landing, Watch};
use crate::repository::{RESULTS, WorkTree};

/// Number of attempts at a commit, which fails when HEAD moved or a lock was held.
const TRIES: u32 = 50;
/// Pause between two attempts at a commit.
const PAUSE: Duration = Duration::from_millis(50);

/// A file to be committed below `results/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// Path of the file below `results/`.
    pub path: String,
    /// Content of the file to be committed.
    pub bytes: Vec<u8>,
    /// True for a page or `README.md`, which may replace an older version.
    pub derived: bool,
}

/// Time of a commit. It enters at `main`, so that commits can be reproduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Time of the commit, in seconds since 1970.
    pub unix_s: i64,
}

/// Commits `additions`. Returns the commit and its paths, or HEAD and no paths where HEAD contains
/// all files already.
pub(crate) fn commit(
    tree: &WorkTree,
    additions: &[Addition],
    message: &str,
    (clock, watch): (Clock, Watch<'_>),
) -> Result<(Option<Oid>, Vec<String>)> {
    let mut staged = Staged { tree, entries: Vec::new(), kept: false };
    // Dropped before `staged`: on a full disk this frees the space that git's index needs.
    let mut landing = Landing::new(&tree.results(), watch);
    for _ in 0..TRIES {
        tree.wait_for_index()?;
        let (branch, head) = tree.tip()?;
        let new = not_in_head(tree, head, additions)?;
        if new.is_empty() {
            // Files that an earlier attempt put in place are in HEAD by now.
            staged.kept = true;
            drop(staged);
            landing.keep();
            return Ok((head, Vec::new()));
        }
        for addition in &new {
            landing.put(&addition.path, &addition.bytes, addition.derived)?;
        }
        let blobs = new.iter().map(|addition| tree.repo.blob(&addition.bytes));
        let blobs: Vec<Oid> = blobs.collect::<Result<_, _>>()?;
        watch("git has the content");
        if !staged.stage(&new, &blobs)? {
            pause();
            continue;
        }
        watch("the index has the entries");
        let commit = write_commit(tree, head, &new, &blobs, (message, clock))?;
        watch("the commit is there, and no branch leads to it");
        let subject = message.lines().next().unwrap_or_default();
        let log = format!("commit: {subject}");
        let moved = match head {
            Some(head) => tree.repo.reference_matching(&branch, commit, true, head, &log),
            None => tree.repo.reference(&branch, commit, false, &log),
        };
        match moved {
            Ok(_) => {
                watch("the branch leads to the commit");
                staged.kept = true;
                drop(staged);
                landing.keep();
                let paths = new.iter().map(|addition| addition.path.clone()).collect();
                return Ok((Some(commit), paths));
            }
            // Another program committed in the meantime, or is doing so: try again.
            Err(error) if is_contention(&error) => pause(),
            Err(error) => return Err(error.into()),
        }
    }
    // A lock that outlasted all attempts is named, so that the user can remove it.
    tree.no_lock_stays(&tree.tip()?.0)?;
    Err(contention())
}

/// Makes the error of a commit that other programs outran.
pub(crate) fn contention() -> anyhow::Error {
    let message = "HEAD or the index kept changing while the commit was made\nhint: try again";
    Environment(message.to_owned()).into()
}

fn pause() {
    thread::sleep(PAUSE);
}

fn is_contention(error: &git2::Error) -> bool {
    let codes = [ErrorCode::Modified, ErrorCode::Locked, ErrorCode::Exists, ErrorCode::NotFound];
    codes.contains(&error.code())
}

/// Returns the additions that HEAD lacks. A record in HEAD with other content is an error.
fn not_in_head<'a>(
    tree: &WorkTree,
    head: Option<Oid>,
    additions: &'a [Addition],
) -> Result<Vec<&'a Addition>> {
    let base = tree.tree_of(head)?;
    let mut new = Vec::new();
    for addition in additions {
        let path = format!("{RESULTS}/{}", addition.path);
        let held = match base.get_path(path.as_ref()) {
            Ok(entry) => Some(entry.id()),
            Err(error) if error.code() == ErrorCode::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let blob = Oid::hash_object(git2::ObjectType::Blob, &addition.bytes)?;
        match held {
            Some(held) if held == blob => {}
            Some(_) if !addition.derived => bail!(
                "`results/{}` is committed with other content\nhint: a record is never replaced",
                addition.path
            ),
            _ => new.push(addition),
        }
    }
    Ok(new)
}

fn write_commit(
    tree: &WorkTree,
    head: Option<Oid>,
    new: &[&Addition],
    blobs: &[Oid],
    (message, clock): (&str, Clock),
) -> Result<Oid, git2::Error> {
    let mut update = TreeUpdateBuilder::new();
    for (addition, blob) in new.iter().zip(blobs) {
        update.upsert(format!("{RESULTS}/{}", addition.path), *blob, FileMode::Blob);
    }
    let repo = &tree.repo;
    let base = tree.tree_of(head)?;
    let tree = repo.find_tree(update.create_updated(repo, &base)?)?;
    let config = repo.config()?.snapshot()?;
    // A container often has no git identity, and a campaign must not fail at its last step.
    let name = config.get_str("user.name").unwrap_or("Redline");
    let email = config.get_str("user.email").unwrap_or("redline@localhost");
    let author = Signature::new(name, email, &Time::new(clock.unix_s, 0))?;
    let parents: Vec<_> =
        head.map(|head| repo.find_commit(head)).transpose()?.into_iter().collect();
    let parents: Vec<_> = parents.iter().collect();
    // No reference is named: the branch is moved afterwards, and only if it still points to this
    // parent.
    repo.commit(None, &author, &author, message, &tree, &parents)
}

/// Entries that were added to git's index; removed again when dropped without being kept.
struct Staged<'a> {
    tree: &'a WorkTree,
    /// Path of each entry, and the entry that was there before.
    entries: Vec<(String, Option<IndexEntry>)>,
    kept: bool,
}

impl Staged<'_> {
    /// Adds index entries for the new paths; `false` when another program held git's index.
    fn stage(&mut self, new: &[&Addition], blobs: &[Oid]) -> Result<bool> {
        let mut index = self.tree.repo.index()?;
        index.read(true)?;
        let mut before = Vec::new();
        for (addition, blob) in new.iter().zip(blobs) {
            let path = format!("{RESULTS}/{}", addition.path);
            let entry = entry_of(self.tree, &path, *blob)?;
            before.push((path.clone(), index.get_path(path.as_ref(), 0)));
            index.add(&entry)?;
        }
        match index.write() {
            Ok(()) => {}
            Err(error) if error.code() == ErrorCode::Locked => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        for (path, entry) in before {
            if !self.entries.iter().any(|(known, _)| *known == path) {
                self.entries.push((path, entry));
            }
        }
        Ok(true)
    }

    fn unstage(&self) -> Result<(), git2::Error> {
        let mut index: Index = self.tree.repo.index()?;
        index.read(true)?;
        for (path, before) in &self.entries {
            match before {
                Some(entry) => index.add(entry)?,
                None => index.remove_path(path.as_ref())?,
            }
        }
        index.write()
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.kept && !self.entries.is_empty() {
            // An entry that cannot be removed shows in `git status`, where the user sees it.
            let _ = self.unstage();
        }
    }
}

/// Builds the index entry of a file just written, with its times and size, so that `git status`
/// need not read the file.
fn entry_of(tree: &WorkTree, path: &str, blob: Oid) -> Result<IndexEntry> {
    let file = tree.root.join(path);
    let facts = fs::symlink_metadata(&file);
    let facts = facts.with_context(|| format!("cannot read `{}`", file.display()))?;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the index keeps the low 32 bits of each of these"
    )]
    Ok(IndexEntry {
        ctime: IndexTime::new(facts.ctime() as i32, facts.ctime_nsec() as u32),
        mtime: IndexTime::new(facts.mtime() as i32, facts.mtime_nsec() as u32),
        dev: facts.dev() as u32,
        ino: facts.ino() as u32,
        mode: 0o100_644,
        uid: facts.uid(),
        gid: facts.gid(),
        file_size: facts.size() as u32,
        id: blob,
        flags: 0,
        flags_extended: 0,
        path: path.as_bytes().to_vec(),
    })
}
