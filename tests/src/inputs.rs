//! Inputs that a machine may lack: reference outputs, the default model and the conversations.

use std::path::{Path, PathBuf};

use crate::skip::skip;

/// SHA-256 of the default model's file, lower-case hex.
pub const MODEL: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";

/// SHA-256 of the conversations as `fetch` stores them, lower-case hex.
pub const CONVERSATIONS: &str = "67ef1f76b4e6d51be9765fd2df485115ff2d2cdeada529d1eddb3c389d2884a4";

/// SHA-256 of the conversations as their package has them, cut off at the end; lower-case hex.
pub const CONVERSATIONS_AS_PACKED: &str =
    "99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772";

/// Cache folder that inputs were downloaded into; prints a skip message and returns `None` if the
/// run has none.
#[must_use]
pub fn cache() -> Option<PathBuf> {
    absent("REDLINE_CACHE", variable("REDLINE_CACHE"))
}

/// Path of a committed fixture, given its path in `tests/fixtures`.
///
/// Programs that a bundle carries to another machine find the folder below their working directory.
#[must_use]
pub fn fixture(path: &str) -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path);
    if here.exists() { here } else { Path::new("tests/fixtures").join(path) }
}

/// The folder of published pages that Redline's pages succeed, if `REDLINE_PUBLISHED_PAGES` names one:
/// they are other people's text and not part of the tree.
#[must_use]
pub fn published_pages() -> Option<PathBuf> {
    let folder = variable("REDLINE_PUBLISHED_PAGES");
    if folder.is_none() {
        skip("the published pages", "set REDLINE_PUBLISHED_PAGES to their folder");
    }
    folder
}

/// Path of a downloaded input by its SHA-256; prints a skip message and returns `None` if it is
/// missing.
#[must_use]
pub fn cached(sha256: &str) -> Option<PathBuf> {
    let folder = cache()?.join("sha256").join(sha256);
    let file = std::fs::read_dir(&folder)
        .ok()
        .and_then(|entries| entries.filter_map(Result::ok).map(|e| e.path()).find(|p| is_input(p)));
    absent(sha256, file)
}

fn is_input(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|e| e == "gguf" || e == "json")
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn absent(what: &str, path: Option<PathBuf>) -> Option<PathBuf> {
    if path.is_none() {
        skip(&format!("`{what}`"), "cargo xtask fetch, then cargo xtask ci");
    }
    path
}

/// All files below a folder, sorted by path; empty if the folder does not exist.
#[must_use]
pub fn files_under(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files = Vec::new();
    for path in entries.filter_map(Result::ok).map(|entry| entry.path()) {
        if path.is_dir() {
            files.extend(files_under(&path));
        } else {
            files.push(path);
        }
    }
    files.sort();
    files
}
