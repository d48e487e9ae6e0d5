//! Files that the user names on the command line: read only if they are regular files, and within a
//! limit, since a pipe may never end and a device has no end.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use nix::fcntl::OFlag;

/// Returns the text of the file at `path`, which messages call `what`.
///
/// # Errors
/// The file cannot be read, is a pipe, a device or the like, is longer than `bytes_max` or is not
/// UTF-8.
pub(crate) fn read_text(path: &Path, what: &str, bytes_max: u64) -> Result<String> {
    let shown = path.display();
    let failed = || format!("failed to read the {what} `{shown}`");
    // Without this flag opening a pipe waits until somebody writes into it.
    let without_waiting = OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(without_waiting).open(path);
    let file = file.with_context(failed)?;
    if !file.metadata().with_context(failed)?.is_file() {
        bail!("the {what} `{shown}` is not a regular file");
    }
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text).with_context(failed)?;
    if text.len() as u64 > bytes_max {
        bail!("the {what} `{shown}` is longer than {bytes_max} bytes");
    }
    Ok(text)
}
