//! Files that are whole or not there: written beside their place, then renamed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use anyhow::Context;
use schema::canonical::{to_canonical, to_file_text};
use serde::Serialize;

/// Writes `value` to `path` as JSON, all or nothing.
pub fn json<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &to_file_text(value)?)
}

/// The same in one line, for what is long and for programs.
pub fn compact<T: Serialize>(path: &Path, value: &T) -> anyhow::Result<()> {
    text(path, &(to_canonical(value)? + "\n"))
}

/// Writes `text` to `path`, all or nothing.
pub fn text(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = path.file_name().with_context(|| format!("`{}` is no file", path.display()))?;
    let beside = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    let written = put(&beside, text.as_bytes()).and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        // The failure is what matters; a file that is left over says so by its name.
        let _ = fs::remove_file(&beside);
    }
    written.with_context(|| format!("cannot write `{}`", path.display()))
}

fn put(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
