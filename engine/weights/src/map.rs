//! Read-only memory maps of weight files: the one place outside `device` that may be unsafe.
#![expect(unsafe_code, reason = "mapping a file is unsafe by nature; each block says why it may")]

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use super::CheckpointError;

/// The bytes of a file, read from disk as they are touched.
#[derive(Debug)]
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps the whole of `path`.
    ///
    /// # Errors
    /// The file cannot be opened, or is empty.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() == 0 {
            return Err(CheckpointError::damaged(path, "the file is empty"));
        }
        // SAFETY: the map is read-only and private. Should another process shorten the file while
        // it is mapped, a read past its new end ends this process with SIGBUS; weights are files
        // that nobody rewrites in place, and the map is dropped once they are packed.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed)?;
        Ok(Self(map))
    }

    /// Gives back the memory of all that was read so far. What is read again comes from the file,
    /// which the system still holds where it has room.
    pub fn release(&self) {
        // SAFETY: nothing was ever written to the map, so that its pages are those of the file and
        // come back as they were. A system that does not take the advice keeps the memory.
        let _ = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
