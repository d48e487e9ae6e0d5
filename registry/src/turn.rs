//! Turn of the one writer of a clone: a lock, whose file names the writer and what it puts in place.
//! A writer that is killed leaves the file filled, and the next one undoes what it says.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use git2::Oid;

use crate::repository::{Environment, LOCK_PAUSE};

/// Name of the lock's file in the git folder.
const FILE: &str = "redline-results.lock";
/// Number of attempts to get the lock; with the pause between them, a minute in all.
const TRIES: u32 = 1_200;

/// Right to write to a clone, which ends when this is dropped. The kernel releases the lock when the
/// owner ends, however it ends.
#[derive(Debug)]
pub(crate) struct Turn {
    path: PathBuf,
    file: File,
    /// True once the file names this process.
    is_begun: bool,
    pub(crate) left: Option<Left>,
}

/// What a writer that was killed has left in the lock's file.
#[derive(Debug)]
pub(crate) struct Left {
    /// Process id of the writer; `None` if it was killed before it had written the number.
    pub(crate) pid: Option<u32>,
    /// Time at which it last wrote to the file.
    pub(crate) at: SystemTime,
    /// Files that it has put in place, or was about to: git blob, and path below `results/`.
    pub(crate) put: Vec<(Oid, String)>,
}

impl Turn {
    /// Waits for the lock of a clone, a minute at most, and takes it.
    ///
    /// # Errors
    ///
    /// Another process kept the lock, or the file cannot be opened, locked or read.
    pub(crate) fn take(git_dir: &Path) -> Result<Self> {
        Self::take_within(git_dir, TRIES)
    }

    fn take_within(git_dir: &Path, tries: u32) -> Result<Self> {
        let path = git_dir.join(FILE);
        for _ in 1..tries {
            if let Some(turn) = Self::attempt(&path)? {
                return Ok(turn);
            }
            thread::sleep(LOCK_PAUSE);
        }
        if let Some(turn) = Self::attempt(&path)? {
            return Ok(turn);
        }
        let text = fs::read_to_string(&path).unwrap_or_default();
        let (owner, path) = (text.lines().next().unwrap_or_default(), path.display());
        bail!(Environment(format!("another writer (process {owner}) holds `{path}`")))
    }

    /// Takes the lock of a clone whose last writer was killed; `None` where the last writer ended by
    /// itself, or runs.
    ///
    /// # Errors
    ///
    /// The file cannot be opened, locked or read.
    pub(crate) fn after_killed(git_dir: &Path) -> Result<Option<Self>> {
        let path = git_dir.join(FILE);
        if fs::metadata(&path).map_or(0, |facts| facts.len()) == 0 {
            return Ok(None);
        }
        Ok(Self::attempt(&path)?.filter(|turn| turn.left.is_some()))
    }

    /// Takes the lock if it is free.
    fn attempt(path: &Path) -> Result<Option<Self>> {
        let failed = || format!("cannot lock `{}`", path.display());
        let mut options = File::options();
        // The file is not truncated, because it may still name the process that holds the lock.
        options.create(true).truncate(false).read(true).write(true);
        let mut file = options.open(path).with_context(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).with_context(failed)?;
        let at = file.metadata().and_then(|facts| facts.modified()).with_context(failed)?;
        let left = (!bytes.is_empty()).then(|| Left::parse(&String::from_utf8_lossy(&bytes), at));
        Ok(Some(Self { path: path.to_owned(), file, is_begun: false, left }))
    }

    /// Writes this process's id to the file, in place of what a killed writer has left.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn begin(&mut self) -> Result<()> {
        self.left = None;
        self.is_begun = true;
        let emptied = self.file.set_len(0).and_then(|()| self.file.rewind());
        let pid = format!("{}\n", std::process::id());
        let begun = emptied.and_then(|()| self.file.write_all(pid.as_bytes()));
        begun.with_context(|| format!("cannot write `{}`", self.path.display()))
    }

    /// Notes that a file with this git blob is about to be put in place at `path`, below `results/`.
    ///
    /// # Errors
    ///
    /// The file of the lock cannot be written.
    pub(crate) fn note(&mut self, blob: Oid, path: &str) -> Result<()> {
        let line = format!("{blob} {path}\n");
        let written = self.file.write_all(line.as_bytes());
        written.with_context(|| format!("cannot write `{}`", self.path.display()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // What a killed writer left stays where it could not be undone.
        if self.is_begun {
            let _ = self.file.set_len(0);
        }
    }
}

impl Left {
    fn parse(text: &str, at: SystemTime) -> Self {
        let mut lines = text.lines();
        let pid = lines.next().and_then(|line| line.parse().ok());
        // A last line that was written in part names a file that was not put in place.
        let put = lines.filter_map(|line| {
            let (blob, path) = line.split_once(' ')?;
            Some((Oid::from_str(blob).ok()?, path.to_owned()))
        });
        Self { pid, at, put: put.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_names_its_owner_and_a_dead_owner_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        // A killed writer leaves the file behind, without the kernel's lock.
        let blob = "1".repeat(40);
        fs::write(dir.path().join(FILE), format!("1\n{blob} README.md\n{blob} runs/x")).unwrap();
        let mut held = Turn::take_within(dir.path(), 1).unwrap();
        let left = held.left.as_ref().unwrap();
        assert_eq!((left.pid, left.put[0].1.as_str()), (Some(1), "README.md"));
        held.begin().unwrap();
        let second = Turn::take_within(dir.path(), 1).unwrap_err();
        let owner = format!("another writer (process {})", std::process::id());
        assert!(second.to_string().starts_with(&owner), "{second}");
        assert!(Turn::after_killed(dir.path()).unwrap().is_none(), "its owner runs");
        drop(held);
        assert!(Turn::after_killed(dir.path()).unwrap().is_none(), "its owner has ended");
        assert!(Turn::take_within(dir.path(), 1).unwrap().left.is_none());
    }
}
