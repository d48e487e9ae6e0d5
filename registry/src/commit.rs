//! Commits new files on the checked-out branch. The commit's tree is HEAD's plus the new blobs,
//! git's index gets entries for the new paths only, and whatever the user staged or changed stays.
//! Files come into `results/` completely or not at all: each is written under a temporary name and
//! renamed, and everything is undone unless it is kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use git2::build::TreeUpdateBuilder;
use git2::{ErrorCode, FileMode, Index, IndexEntry, IndexTime, ObjectType, Oid, Signature, Time};

use crate::repository::{Environment, RESULTS, WorkTree};
use crate::turn::Turn;
use store::layout::leftover_name;

/// Limit on the number of attempts at a commit; an attempt fails when HEAD moved or a lock was
/// held.
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

/// Commits `additions` at the time `unix_s`, in seconds since 1970, in the writer's turn. Returns
/// the new commit and the paths of the files that it adds or replaces; HEAD and no paths where HEAD
/// contains all files already.
pub(crate) fn commit(
    (tree, turn): (&WorkTree, &mut Turn),
    additions: &[Addition],
    message: &str,
    unix_s: i64,
) -> Result<(Option<Oid>, Vec<String>)> {
    let mut staged = Staged { tree, entries: Vec::new(), kept: false };
    // Dropped before `staged`: on a full disk this frees the space that git's index needs.
    let mut landing = Landing::new(&tree.results());
    for _ in 0..TRIES {
        tree.wait_for_index()?;
        // The branch is read in every attempt, because another program may have moved it.
        let (branch, head) = tree.tip()?;
        let new = not_in_head(tree, head, additions)?;
        if new.is_empty() {
            // Files that an earlier attempt put in place are in HEAD by now.
            staged.kept = true;
            drop(staged);
            landing.keep();
            return Ok((head, Vec::new()));
        }
        // Files come before index entries, because an entry contains the times of its file.
        for addition in &new {
            let blob = Oid::hash_object(ObjectType::Blob, &addition.bytes)?;
            landing.put(addition, &mut || turn.note(blob, &addition.path))?;
        }
        let blobs = new.iter().map(|addition| tree.repo.blob(&addition.bytes));
        let blobs: Vec<Oid> = blobs.collect::<Result<_, _>>()?;
        if !staged.stage(&new, &blobs)? {
            thread::sleep(PAUSE);
            continue;
        }
        let commit = write_commit(tree, head, &new, &blobs, (message, unix_s))?;
        let subject = message.lines().next().unwrap_or_default();
        let log = format!("commit: {subject}");
        let moved = match head {
            Some(head) => tree.repo.reference_matching(&branch, commit, true, head, &log),
            // This is not forced, so that another program's first commit is not replaced.
            None => tree.repo.reference(&branch, commit, false, &log),
        };
        match moved {
            Ok(_) => {
                staged.kept = true;
                drop(staged);
                landing.keep();
                let paths = new.iter().map(|addition| addition.path.clone()).collect();
                return Ok((Some(commit), paths));
            }
            // Another program committed in the meantime, or is doing so: try again.
            Err(error) if is_contention(&error) => thread::sleep(PAUSE),
            Err(error) => return Err(error.into()),
        }
    }
    // A lock that outlasted all attempts is named, so that the user can remove it.
    tree.no_lock_stays(&tree.tip()?.0)?;
    Err(contention())
}

/// Builds the error of a commit that failed at every attempt, because other programs kept changing
/// HEAD or git's index.
pub(crate) fn contention() -> anyhow::Error {
    let message = "HEAD or the index kept changing while the commit was made\nhint: try again";
    Environment(message.to_owned()).into()
}

fn is_contention(error: &git2::Error) -> bool {
    // `Exists` and `NotFound` mean that another program has just made or deleted the branch.
    let codes = [ErrorCode::Modified, ErrorCode::Locked, ErrorCode::Exists, ErrorCode::NotFound];
    codes.contains(&error.code())
}

/// Returns those of `additions` that HEAD does not contain, or contains with other content if they
/// are pages or `README.md`. A record that HEAD contains with other content is an error.
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
        let blob = Oid::hash_object(ObjectType::Blob, &addition.bytes)?;
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
    (message, unix_s): (&str, i64),
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
    let author = Signature::new(name, email, &Time::new(unix_s, 0))?;
    let parents: Vec<_> =
        head.map(|head| repo.find_commit(head)).transpose()?.into_iter().collect();
    let parents: Vec<_> = parents.iter().collect();
    // No reference is named: the branch is moved afterwards, and only if it still points to this
    // parent.
    repo.commit(None, &author, &author, message, &tree, &parents)
}

/// Entries that a commit has added to git's index. Dropping this restores the entries from before,
/// unless `kept` is set.
struct Staged<'a> {
    tree: &'a WorkTree,
    /// Path of each entry that was added to git's index, and the entry that the index had under
    /// this path before; `None` if it had none.
    entries: Vec<(String, Option<IndexEntry>)>,
    kept: bool,
}

impl Staged<'_> {
    /// Adds entries for the files `new` to git's index; `false` when another program held the lock
    /// of the index.
    fn stage(&mut self, new: &[&Addition], blobs: &[Oid]) -> Result<bool> {
        let mut index = self.tree.repo.index()?;
        // The index is read again, because a git command may have written it in the meantime.
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
            // A later attempt finds this commit's own entries in the index: only the first ones
            // are from before it.
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

/// Files put in place so far. When this is dropped without [`Landing::keep`], new files are removed
/// again, and replaced ones get their old content back.
struct Landing {
    root: PathBuf,
    landed: Vec<PathBuf>,
    folders: Vec<PathBuf>,
    replaced: Vec<(PathBuf, Vec<u8>)>,
    kept: bool,
}

impl Landing {
    /// Creates a [`Landing`] for files below `root`, without any file yet.
    fn new(root: &Path) -> Self {
        let root = root.to_owned();
        Self { root, landed: Vec::new(), folders: Vec::new(), replaced: Vec::new(), kept: false }
    }

    /// Writes a file below the root, after `note`. An existing file with the same bytes is left
    /// alone; one with other bytes is replaced only if it is a derived one.
    ///
    /// # Errors
    ///
    /// The path has an entry that must not be replaced, lies behind a link or a file, or cannot be
    /// read or written; or `note` fails.
    fn put(&mut self, new: &Addition, note: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let Addition { path, bytes, derived } = new;
        let target = self.root.join(path);
        self.make_folders(path)?;
        match fs::symlink_metadata(&target) {
            Ok(found) => {
                let is_file = found.is_file();
                let old = if is_file { fs::read(&target) } else { Ok(Vec::new()) };
                let old = old.with_context(|| cannot_write(&target))?;
                // The file was here before, so it is not listed as landed, and no undo removes it.
                if is_file && old == *bytes {
                    return Ok(());
                }
                if !is_file || !derived {
                    bail!(
                        "`{}` exists with other content\nhint: a record is never replaced; move the \
                         file away",
                        target.display()
                    );
                }
                note()?;
                write_aside(&target, bytes)?;
                self.replaced.push((target, old));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                note()?;
                write_aside(&target, bytes)?;
                self.landed.push(target);
            }
            Err(error) => return Err(error).with_context(|| cannot_write(&target)),
        }
        Ok(())
    }

    /// Keeps all files that were put in place, which a drop would undo otherwise.
    fn keep(mut self) {
        self.kept = true;
    }

    /// Creates the folders above `path` one by one, and refuses to go through a link or a file.
    fn make_folders(&mut self, path: &str) -> Result<()> {
        let mut folder = self.root.clone();
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        // The empty part stands for the root itself, which a new registry does not have yet.
        for part in std::iter::once("").chain(above.split('/').filter(|part| !part.is_empty())) {
            if !part.is_empty() {
                folder.push(part);
            }
            match fs::symlink_metadata(&folder) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => bail!(
                    "`{}` is a symbolic link or no folder, and records are not written through it",
                    folder.display()
                ),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir(&folder).with_context(|| cannot_write(&folder))?;
                    self.folders.push(folder.clone());
                }
                Err(error) => return Err(error).with_context(|| cannot_write(&folder)),
            }
        }
        Ok(())
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        // Errors cannot be reported from `drop`; the next `check` finds what stays behind.
        for path in &self.landed {
            let _ = fs::remove_file(path);
        }
        for (path, old) in &self.replaced {
            let _ = write_aside(path, old);
        }
        // The innermost folder comes first. One that got other files meanwhile stays.
        for folder in self.folders.iter().rev() {
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Writes a file under a temporary name in its folder, and renames it to `target`.
pub(crate) fn write_aside(target: &Path, bytes: &[u8]) -> Result<()> {
    let name = target.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    // It lies in the target's folder, because a rename is atomic only in one file system.
    let aside = target.with_file_name(leftover_name(&name, std::process::id()));
    let written = write_whole(&aside, bytes).and_then(|()| fs::rename(&aside, target));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written.with_context(|| cannot_write(target))
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    // A leftover with this process id is from a killed process, so it may be replaced.
    let _ = fs::remove_file(path);
    // `create_new` also refuses to write through a symbolic link of that name.
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(bytes)?;
    // Renamed before the data is on the disk, a record could be empty after a power failure.
    file.sync_all()
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write `{}`", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(landing: &mut Landing, path: &str, text: &str) -> Result<()> {
        let (path, bytes, derived) = (path.to_owned(), text.into(), path == "README.md");
        landing.put(&Addition { path, bytes, derived }, &mut || Ok(()))
    }

    #[test]
    fn what_is_not_kept_leaves_no_trace() {
        let dir = tempfile::tempdir().unwrap();
        let results = dir.path().join("results");
        fs::create_dir(&results).unwrap();
        fs::write(results.join("README.md"), "old").unwrap();
        let mut landing = Landing::new(&results);
        put(&mut landing, "runs/a/b.json", "record").unwrap();
        put(&mut landing, "README.md", "new").unwrap();
        assert_eq!(fs::read(results.join("README.md")).unwrap(), b"new");
        drop(landing);
        assert_eq!(fs::read(results.join("README.md")).unwrap(), b"old");
        assert!(!results.join("runs").exists());
    }

    #[test]
    fn a_record_is_never_replaced_and_no_link_is_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (results, elsewhere) = (dir.path().join("results"), dir.path().join("elsewhere"));
        fs::create_dir_all(results.join("runs")).unwrap();
        fs::create_dir(&elsewhere).unwrap();
        fs::write(results.join("runs/a.json"), "old").unwrap();
        std::os::unix::fs::symlink(&elsewhere, results.join("kernels")).unwrap();
        let mut landing = Landing::new(&results);
        put(&mut landing, "runs/a.json", "old").unwrap();
        let occupied = put(&mut landing, "runs/a.json", "new").unwrap_err();
        assert!(occupied.to_string().contains("exists with other content"), "{occupied}");
        let linked = put(&mut landing, "kernels/a.json", "new").unwrap_err();
        assert!(linked.to_string().contains("is a symbolic link or no folder"), "{linked}");
        landing.keep();
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
        assert_eq!(fs::read(results.join("runs/a.json")).unwrap(), b"old");
    }
}
