//! File with API keys, as `--api-key-file` names it.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::OFlag;

use crate::http::Key;

/// Largest size in bytes of a file with API keys.
const BYTES_MAX: u64 = 64 << 10;

/// Reads API keys, one from each line; empty lines, and those that begin with `#`, are skipped. After
/// a key and white space a line may limit the number of the key's open requests.
///
/// # Errors
/// The file cannot be read, is a pipe, a device or the like, is longer than 64 KiB, holds no key, or
/// has a line that is no key.
pub fn read(path: &Path) -> Result<Vec<Key>> {
    let shown = path.display();
    let failed = || format!("failed to read `{shown}`");
    // Without this flag opening a pipe waits until somebody writes into it.
    let without_waiting = OFlag::O_NONBLOCK.bits();
    let file = File::options().read(true).custom_flags(without_waiting).open(path);
    let file = file.with_context(failed)?;
    if !file.metadata().with_context(failed)?.is_file() {
        bail!("the key file `{shown}` is not a regular file");
    }
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).with_context(failed)?;
    if text.len() as u64 > BYTES_MAX {
        bail!("the key file `{shown}` is longer than {BYTES_MAX} bytes");
    }
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let keys = lines.map(|(number, line)| {
        key_of(line).with_context(|| format!("line {number} of the key file `{shown}` is no key"))
    });
    let keys = keys.collect::<Result<Vec<_>>>()?;
    ensure!(!keys.is_empty(), "the key file `{shown}` is empty");
    Ok(keys)
}

/// Reads a line. The error does not repeat it, because logs are read by more people than keys are
/// meant for.
fn key_of(line: &str) -> Result<Key> {
    let mut words = line.split_whitespace();
    let (key, limit) = (words.next().unwrap_or_default(), words.next());
    ensure!(
        !key.chars().any(char::is_control),
        "it has a control character, which no HTTP header can carry"
    );
    let limit = limit.map(str::parse::<u32>).transpose().ok().filter(|limit| *limit != Some(0));
    match (limit, words.next()) {
        (Some(limit), None) => Ok(Key::new(key, limit)),
        _ => bail!("after a key only a number of open requests may follow, at least 1"),
    }
}
