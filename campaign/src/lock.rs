//! Lock file that allows one campaign at a time in a clone: two would share the cores and disturb
//! each other's measurement.

use std::fs::{self, File, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crate::files::{FileError, make_dir};
use crate::stop::{Stop, environment};

/// Time for which taking a lock is retried although its holder has ended: a program that the holder
/// was starting may still have the lock until it has called `exec`.
const LEFT_BEHIND: Duration = Duration::from_secs(5);
/// Pause between two attempts to take a lock.
const PAUSE: Duration = Duration::from_millis(10);

/// A lock file that this process holds. The kernel releases it when the process ends, however it
/// ends, so that a file left behind by a killed campaign blocks nobody.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Takes the lock file at `path`, or fails if another process holds it: at once if that process
    /// runs, else after a few seconds. `pid` is this process's id, which is written to the file for
    /// the error message of others.
    ///
    /// # Errors
    /// Another process holds the lock, or the file cannot be created, locked or written.
    pub fn take(path: &Path, pid: u32) -> Result<Self, Stop> {
        Self::take_or(path, pid, "another release-bench runs in this clone")
    }

    /// Takes the lock file like [`Self::take`]; `held` is the error message if another process
    /// holds it.
    ///
    /// # Errors
    /// Another process holds the lock, or the file cannot be created, locked or written.
    pub fn take_or(path: &Path, pid: u32, held: &str) -> Result<Self, Stop> {
        make_dir(path.parent().unwrap_or(Path::new(".")))?;
        let mut waited = Duration::ZERO;
        loop {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = options.open(path).map_err(FileError::at("open", path))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let mut text = String::new();
                    // The process id only improves the message; the lock is held without it.
                    let _ = file.read_to_string(&mut text);
                    let pid: Option<u32> = text.trim().parse().ok();
                    // A process killed while it started a program leaves its lock to that program
                    // until that has called `exec`.
                    let gone = pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
                    if gone && waited < LEFT_BEHIND {
                        thread::sleep(PAUSE);
                        waited += PAUSE;
                        continue;
                    }
                    let process = pid.map(|pid| format!(" (process {pid})")).unwrap_or_default();
                    return Err(environment!("{held}{process}")
                        .with_hint("wait for it to end, or stop it with Ctrl-C"));
                }
                Err(TryLockError::Error(source)) => {
                    return Err(FileError::at("lock", path)(source).into());
                }
            }
            // The previous holder removes the file when it is done: a lock on a removed file would
            // exclude nobody, so try again.
            if is_at(&file, path) {
                let emptied = file.set_len(0).and_then(|()| file.rewind());
                let written = emptied.and_then(|()| writeln!(file, "{pid}"));
                written.map_err(FileError::at("write", path))?;
                return Ok(Self { path: path.to_owned(), _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while still locked, so that no newer lock's file is removed.
        let _ = fs::remove_file(&self.path);
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::metadata(path)) {
        (Ok(held), Ok(there)) => held.ino() == there.ino() && held.dev() == there.dev(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_learns_who_holds_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target/release-bench.lock");
        let own = std::process::id();
        let first = Lock::take(&path, own).unwrap();
        let second = Lock::take(&path, 42).unwrap_err();
        let holder = format!("another release-bench runs in this clone (process {own})");
        assert_eq!(second.cause().0, holder);
        assert_eq!(second.exit(), schema::exit::Exit::Environment);
        drop(first);
        assert!(!path.exists());
        Lock::take(&path, 42).unwrap();
    }

    #[test]
    fn a_file_left_behind_by_a_dead_process_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("release-bench.lock");
        fs::write(&path, "123456\n").unwrap();
        let lock = Lock::take(&path, 7).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "7\n");
        drop(lock);
    }
}
