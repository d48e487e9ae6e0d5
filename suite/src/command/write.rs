//! Atomic file writes: a temporary file in the same folder is written, synced and renamed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use schema::canonical::{to_canonical, to_file_text};
use serde::Serialize;

/// Writes `value` to `path` as indented JSON; the file is complete or not there.
pub fn json<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &to_file_text(value)?)
}

/// Writes `value` to `path` as one line of canonical JSON, for large values that only programs
/// read.
pub fn compact<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &(to_canonical(value)? + "\n"))
}

/// Writes `text` to `path` atomically; the file is complete or not there.
pub fn text(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = path.file_name().with_context(|| format!("`{}` is not a file", path.display()))?;
    // The same folder means the same file system, on which a rename is atomic.
    let beside = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = put(&beside, text.as_bytes()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // Only the write error is reported; a leftover temporary file is recognizable by its name.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write `{}`", path.display()))
}

fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    // Without this, a power failure could leave an empty file under the final name.
    file.sync_all()
}
