//! Read-only memory maps of weight files: the only `unsafe` code of this crate.
#![expect(unsafe_code, reason = "mapping a file is unsafe by nature; each block says why it may")]

use std::ops::Deref;
use std::path::Path;

use super::CheckpointError;
use super::file;

/// Read-only memory map of a weight file; bytes are read from disk when they are first accessed.
#[derive(Debug)]
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps the whole weight file at `path` into memory.
    ///
    /// # Errors
    /// Fails if the file cannot be opened or mapped, is not regular, or is empty.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
        let file = file::open(path)?;
        if file.metadata().map_err(failed)?.len() == 0 {
            return Err(CheckpointError::damaged(path, "the file is empty"));
        }
        // SAFETY: the map is read-only and private. Should another process shorten the file while
        // it is mapped, a read past its new end ends this process with SIGBUS; weights are files
        // that nobody rewrites in place, and the map is dropped once they are packed.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed)?;
        Ok(Self(map))
    }

    /// Releases the memory of all bytes of the weight file accessed so far. Later accesses read the
    /// file again, which the system may still have in its page cache.
    pub fn release(&self) {
        // SAFETY: nothing was ever written to the map, so its pages are those of the file and come
        // back unchanged. A system that ignores the advice keeps the memory.
        let _ = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
