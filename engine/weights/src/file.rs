//! Files of a checkpoint, and those that the user names on the command line: opened only if they are
//! regular files, since a pipe may never end and a device has no end, and read within a limit, since
//! they may come from anywhere.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::OFlag;

use super::CheckpointError;

/// Limit on the size in bytes of a JSON file of a checkpoint, and of its chat template. Those of
/// published models have up to a few hundred KB.
const SMALL_BYTES_MAX: u64 = 16 << 20;

/// Opens the regular file at `path`, or the one that a link there leads to.
///
/// # Errors
/// Fails if the file cannot be opened, or is a pipe, a device or the like.
pub(crate) fn open(path: &Path) -> Result<File, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
    // Without this flag opening a pipe waits until somebody writes into it.
    let without_waiting = OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(without_waiting).open(path);
    let file = file.map_err(failed)?;
    if file.metadata().map_err(failed)?.is_file() {
        return Ok(file);
    }
    Err(CheckpointError::Unsound(format!("`{}` is not a regular file", path.display())))
}

/// Reads the regular file at `path`.
///
/// # Errors
/// Fails if the file cannot be read, is not regular, or is longer than `bytes_max`.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, CheckpointError> {
    let failed = |source| CheckpointError::Read { path: path.to_owned(), source };
    let file = open(path)?;
    let mut length = file.metadata().map_err(failed)?.len();
    let mut bytes = Vec::new();
    if length <= bytes_max {
        // A file may grow, and those of `/proc` state no length.
        file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(failed)?;
        length = bytes.len() as u64;
    }
    if length <= bytes_max {
        return Ok(bytes);
    }
    let path = path.display();
    Err(CheckpointError::Unsound(format!(
        "`{path}` has {length} bytes, more than the limit of {bytes_max} bytes"
    )))
}

/// Reads the regular file at `path` as UTF-8.
///
/// # Errors
/// Fails as [`read()`] does, or if the file is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, CheckpointError> {
    String::from_utf8(read(path, bytes_max)?)
        .map_err(|_| CheckpointError::Unsound(format!("`{}` is not UTF-8", path.display())))
}

/// Reads a text file of a checkpoint, of at most 16 MiB, such as its chat template.
///
/// # Errors
/// Fails as [`read_text`] does.
pub fn read_small_text(path: &Path) -> Result<String, CheckpointError> {
    read_text(path, SMALL_BYTES_MAX)
}

/// Reads and parses a JSON file of a checkpoint, of at most 16 MiB.
///
/// # Errors
/// Fails if the file cannot be read, is not regular, is longer or is not JSON.
pub fn read_json(path: &Path) -> Result<serde_json::Value, CheckpointError> {
    read_json_within(path, SMALL_BYTES_MAX)
}

/// Reads and parses a JSON file of a checkpoint, of at most `bytes_max`.
///
/// # Errors
/// Fails as [`read_json`] does.
pub(crate) fn read_json_within(
    path: &Path,
    bytes_max: u64,
) -> Result<serde_json::Value, CheckpointError> {
    serde_json::from_slice(&read(path, bytes_max)?)
        .map_err(|err| CheckpointError::damaged(path, format!("it is not JSON: {err}")))
}
