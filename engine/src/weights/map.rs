//! Read-only memory maps of weight files: the one place outside `device` that may be unsafe.
#![expect(unsafe_code, reason = "mapping a file is unsafe by nature; see the one block below")]

use std::fs::File;
use std::ops::Deref;
use std::path::Path;

use super::LoadError;

/// The bytes of a file, read from disk as they are touched.
#[derive(Debug)]
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps the whole of `path`.
    ///
    /// # Errors
    /// The file cannot be opened, or is empty.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let failed = |source| LoadError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() == 0 {
            return Err(LoadError::damaged(path, "the file is empty"));
        }
        // SAFETY: the map is read-only and private. Should another process shorten the file while
        // it is mapped, a read past its new end ends this process with SIGBUS; weights are files
        // that nobody rewrites in place, and the map is dropped once they are packed.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(failed)?;
        Ok(Self(map))
    }
}

impl Deref for Map {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
