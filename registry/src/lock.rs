//! Writers of one clone take turns. The kernel's lock on a file in the git folder ends with its
//! owner, so a lock cannot go stale; the file says whose it is.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Name of the lock file in the git folder.
const NAME: &str = "redline-results.lock";
/// How often and how long a writer waits for its turn: a minute in all.
const TRIES: u32 = 1_200;
const PAUSE: Duration = Duration::from_millis(50);

/// A lock that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another writer (process {owner}) holds `{}`", path.display())]
    Held { path: PathBuf, owner: String },
    #[error("cannot lock `{}`", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// The right to write; given up when dropped.
#[derive(Debug)]
pub struct WriterLock {
    /// Unlocked by being closed.
    _file: File,
}

impl WriterLock {
    /// Waits for the turn of this process, for a minute at most.
    ///
    /// # Errors
    /// Another process kept the lock, or the file cannot be written.
    pub fn acquire(git_dir: &Path) -> Result<Self, LockError> {
        Self::acquire_within(git_dir, TRIES)
    }

    fn acquire_within(git_dir: &Path, tries: u32) -> Result<Self, LockError> {
        let path = git_dir.join(NAME);
        let failed = |source| LockError::File { path: path.clone(), source };
        let options = File::options().create(true).truncate(false).write(true).to_owned();
        let mut file = options.open(&path).map_err(failed)?;
        for turn in 1.. {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::Error(source)) => return Err(failed(source)),
                Err(TryLockError::WouldBlock) if turn >= tries => {
                    let owner = fs::read_to_string(&path).unwrap_or_default().trim().to_owned();
                    return Err(LockError::Held { path, owner });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(PAUSE),
            }
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_lock_names_its_owner_and_a_dead_owner_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        // What a killed writer leaves behind: the file, without the kernel's lock.
        fs::write(dir.path().join(NAME), "1\n").unwrap();
        let held = WriterLock::acquire_within(dir.path(), 1).unwrap();
        let second = WriterLock::acquire_within(dir.path(), 1).unwrap_err();
        let owner = format!("another writer (process {})", std::process::id());
        assert!(second.to_string().starts_with(&owner), "{second}");
        drop(held);
        WriterLock::acquire_within(dir.path(), 1).unwrap();
    }
}
