//! Writer lock: only one process writes to a clone at a time. The kernel releases its lock on a
//! file in the git folder when the owner ends, so a lock cannot go stale; the file names the
//! owner.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Name of the lock file in the git folder.
const NAME: &str = "redline-results.lock";
/// Number of attempts to get the lock; with the pause between them, a minute in all.
const TRIES: u32 = 1_200;
/// Pause between two attempts to get the lock.
const PAUSE: Duration = Duration::from_millis(50);

/// Error: the writer lock cannot be acquired.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error("another writer (process {owner}) holds `{}`", path.display())]
    Held { path: PathBuf, owner: String },
    #[error("cannot lock `{}`", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// The right to write to a clone; released when dropped.
#[derive(Debug)]
pub struct WriterLock {
    /// Open lock file. Closing it releases the kernel's lock.
    _file: File,
}

impl WriterLock {
    /// Waits for the lock, for a minute at most.
    ///
    /// # Errors
    ///
    /// Another process kept the lock, or the lock file cannot be written.
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
        // The previous owner's id may be longer than this one's.
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
        // A killed writer leaves the file behind, without the kernel's lock.
        fs::write(dir.path().join(NAME), "1\n").unwrap();
        let held = WriterLock::acquire_within(dir.path(), 1).unwrap();
        let second = WriterLock::acquire_within(dir.path(), 1).unwrap_err();
        let owner = format!("another writer (process {})", std::process::id());
        assert!(second.to_string().starts_with(&owner), "{second}");
        drop(held);
        WriterLock::acquire_within(dir.path(), 1).unwrap();
    }
}
