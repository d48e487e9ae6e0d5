//! File operations with errors that name the path, and atomic writes: a file is written completely
//! or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use schema::exit::Exit;
use tempfile::NamedTempFile;

use crate::stop::Ends;

/// A failed file operation and its path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`", .path.display())]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl FileError {
    /// Makes the error conversion for `map_err`: `fs::read(p).map_err(FileError::at("read", p))`.
    pub fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self { action, path, source }
    }
}

impl Ends for FileError {
    fn exit(&self) -> Exit {
        Exit::Environment
    }

    fn hint(&self) -> Option<String> {
        let place = self.path.parent().unwrap_or(&self.path).display();
        match self.source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Some(format!("free some space where `{place}` lies, then run the command again"))
            }
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Some(format!("`{place}` must be writable"))
            }
            _ => None,
        }
    }
}

/// Makes a folder and its parents.
///
/// # Errors
/// The folder cannot be made.
pub fn make_dir(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(FileError::at("make the folder", path))
}

/// Reads a UTF-8 file.
///
/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(FileError::at("read", path))
}

/// Writes `bytes` to `path` atomically: to a temporary file beside it, which is then renamed.
///
/// # Errors
/// The folder is not writable or the disk is full; no partial file remains.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = temp_near(path)?;
    file.write_all(bytes).map_err(FileError::at("write", path))?;
    put(file, path)
}

/// Makes a temporary file in the folder of `path`, so that it can be renamed to `path`.
///
/// # Errors
/// The folder cannot be made or is not writable.
pub fn temp_near(path: &Path) -> Result<NamedTempFile, FileError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    make_dir(dir)?;
    NamedTempFile::new_in(dir).map_err(FileError::at("write in", dir))
}

/// Flushes a finished temporary file to disk and renames it to `path`.
///
/// # Errors
/// The flush or the rename fails.
pub fn put(file: NamedTempFile, path: &Path) -> Result<(), FileError> {
    // Without the flush, a crash after the rename could leave an empty file under the final name.
    file.as_file().sync_all().map_err(FileError::at("write", path))?;
    // Temporary files are readable by their owner only, but results must be readable by others.
    set_mode(file.path(), 0o644).map_err(FileError::at("write", path))?;
    match file.persist(path) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(FileError { action: "write", path: path.to_owned(), source: error.error })
        }
    }
}

/// Sets the permission bits of a file.
///
/// # Errors
/// The file belongs to another user.
pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stop::Stop;

    #[test]
    fn a_full_disk_is_named_with_what_to_do() {
        let path = Path::new("/somewhere/results/run.json");
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let stop = Stop::from(FileError::at("write", path)(full));
        assert_eq!(stop.exit(), Exit::Environment);
        assert_eq!(
            stop.to_string(),
            "error: cannot write `/somewhere/results/run.json`: no storage space\n\
             hint: free some space where `/somewhere/results` lies, then run the command again"
        );
    }

    #[test]
    fn a_file_in_the_way_of_a_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let blocker = dir.path().join("target");
        fs::write(&blocker, "").unwrap();
        let error = write_whole(&blocker.join("x/y.json"), b"{}").unwrap_err();
        assert!(error.to_string().contains("target/x"), "{error}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing half-written is left");
    }
}
