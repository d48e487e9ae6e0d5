//! Files that are written whole or not at all, and errors that name the path.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use schema::exit::Exit;
use tempfile::NamedTempFile;

use crate::stop::Ends;

/// A file operation that failed, and where.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`", .path.display())]
pub struct FileError {
    pub action: &'static str,
    pub path: PathBuf,
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`: `fs::read(p).map_err(FileError::at("read", p))`.
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

/// Makes a folder and those above it.
///
/// # Errors
/// The folder cannot be made.
pub fn make_dir(path: &Path) -> Result<(), FileError> {
    fs::create_dir_all(path).map_err(FileError::at("make the folder", path))
}

/// # Errors
/// The file cannot be read, or is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, FileError> {
    fs::read_to_string(path).map_err(FileError::at("read", path))
}

/// Writes `bytes` to a temporary file beside `path`, then renames it.
///
/// # Errors
/// The folder is not writable, or full; nothing is left behind.
pub fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let mut file = temp_near(path)?;
    file.write_all(bytes).map_err(FileError::at("write", path))?;
    put(file, path)
}

/// A temporary file in the folder that `path` is to lie in, so that a rename can put it there.
///
/// # Errors
/// The folder cannot be made or is not writable.
pub fn temp_near(path: &Path) -> Result<NamedTempFile, FileError> {
    let dir = path.parent().unwrap_or(Path::new("."));
    make_dir(dir)?;
    NamedTempFile::new_in(dir).map_err(FileError::at("write in", dir))
}

/// Renames a finished temporary file to `path`.
///
/// # Errors
/// The data cannot be brought to the disk, or the rename fails.
pub fn put(file: NamedTempFile, path: &Path) -> Result<(), FileError> {
    file.as_file().sync_all().map_err(FileError::at("write", path))?;
    // Temporary files are private; what others may read is decided by the folder.
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
/// The file is not ours.
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
