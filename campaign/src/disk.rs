//! Changes to the file system, each announced before it is made. In the program nobody listens. In
//! a simulation the listener lets a disk be full, stops the process at a change, or notes what a
//! power failure would undo.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;

/// A change that is about to be made.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), expect(dead_code, reason = "only simulations read the paths"))]
pub enum Change<'a> {
    /// A folder is created.
    MakeDir(&'a Path),
    /// A file is created under a temporary name in this folder.
    CreateTemp(&'a Path),
    /// An empty file is created.
    Create(&'a Path),
    /// Bytes are appended to a file.
    Append(&'a Path, &'a [u8]),
    /// A file is cut to this length in bytes.
    Cut(&'a Path, u64),
    /// A file's content is flushed to the disk.
    Sync(&'a Path),
    /// A file gets another name, in place of a file of that name.
    Rename(&'a Path, &'a Path),
    /// A file is removed.
    Remove(&'a Path),
    /// The names in a folder are flushed to the disk.
    SyncDir(&'a Path),
}

#[cfg(test)]
pub use crate::simulation::machine::announce;

/// Announces a change.
///
/// # Errors
/// None: only a simulation keeps a change from happening.
#[cfg(not(test))]
pub fn announce(_: Change<'_>) -> io::Result<()> {
    Ok(())
}

/// Flushes the names in a folder to the disk: a file that was created or renamed keeps its name in
/// a power failure only after this.
///
/// # Errors
/// The folder does not exist, or cannot be flushed.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    announce(Change::SyncDir(dir))?;
    // The empty path is the parent of a bare file name.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        // A folder above those of the user need not be readable, and some file systems flush none.
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied | ErrorKind::InvalidInput | ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        flushed => flushed,
    }
}
