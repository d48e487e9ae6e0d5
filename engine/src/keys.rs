//! File with API keys, as `--api-key-file` names it.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use crate::http::Key;
use engine_weights::read_text;

/// Largest size in bytes of a file with API keys.
const BYTES_MAX: u64 = 64 << 10;

/// Reads API keys, one from each line; empty lines, and those that begin with `#`, are skipped. After
/// a key and white space a line may limit the number of the key's open requests.
///
/// # Errors
/// The file cannot be read, is a pipe, a device or the like, is longer than 64 KiB, is not UTF-8,
/// holds no key, or has a line that is no key.
pub fn read(path: &Path) -> Result<Vec<Key>> {
    let shown = path.display();
    let text = read_text(path, BYTES_MAX).context("the key file cannot be used")?;
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
