//! `cargo xtask tidy`: the house rules as code. Each finding names a file, a line and what to do.
//!
//! Rules about dependencies and layers are the invariants of ARCHITECTURE.md; the others keep the
//! tree readable. docs/STYLE.md gives the reason for each.

mod cycles;
mod dependencies;
mod docs;
mod layers;
mod source;
mod top_level;
mod vocabulary;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::shell::Shell;

/// Violation of a house rule by a file, or by the tree as a whole.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path of the file that breaks the house rule, from the root.
    pub path: PathBuf,
    /// Number of the line that breaks the house rule, from 1; 0 for the file as a whole.
    pub line: usize,
    /// Message about the violation: what is wrong, and what to do.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whoever commits a file chooses its name.
        let path = self.path.to_string_lossy();
        write!(f, "{}:{}: {}", path.escape_debug(), self.line.max(1), self.message)
    }
}

/// File of the tree that git tracks, or would track (untracked and not ignored). `text` is `None`
/// if it is not UTF-8.
#[derive(Debug)]
pub struct File {
    pub path: PathBuf,
    pub bytes: u64,
    pub text: Option<String>,
}

impl File {
    /// Builds a finding at a line of this file; line 0 is the file as a whole.
    pub fn finding(&self, line: usize, message: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, message: message.into() }
    }

    pub fn is_rust(&self) -> bool {
        self.path.extension().is_some_and(|extension| extension == "rs")
    }

    /// Returns true if the file is `folder` itself or lies below it.
    pub fn under(&self, folder: &str) -> bool {
        self.path.starts_with(folder)
    }
}

/// Tidy rule: a function from all files of the tree to its findings.
type Rule = fn(&[File]) -> Vec<Finding>;

/// All rules of `cargo xtask tidy`; `cargo xtask ci` also runs `cargo-deny` for licences.
const RULES: &[Rule] = &[
    dependencies::check,
    layers::check,
    cycles::check,
    source::check,
    docs::check,
    top_level::check,
    vocabulary::check,
];

/// Applies all rules to the working tree and prints the findings; exit code 2 if there are any.
///
/// # Errors
/// Git cannot list the files, or one cannot be read.
pub fn run(shell: &Shell) -> Result<u8> {
    let files = tracked_files(shell)?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&files)).collect();
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}");
    }
    Ok(if findings.is_empty() { 0 } else { 2 })
}

/// Reads all files of the working tree that git tracks or would track.
fn tracked_files(shell: &Shell) -> Result<Vec<File>> {
    let listed = shell.read(
        Path::new("git"),
        // Git does not quote unusual names with `-z`.
        &["ls-files", "-z", "--cached", "--others", "--exclude-standard"],
    )?;
    let mut files = Vec::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        let full = shell.root.join(path);
        // Git also lists files that were deleted in the working tree.
        if !full.is_file() {
            continue;
        }
        let bytes = std::fs::read(&full).with_context(|| format!("failed to read `{path}`"))?;
        let size = bytes.len() as u64;
        files.push(File { path: path.into(), bytes: size, text: String::from_utf8(bytes).ok() });
    }
    Ok(files)
}

#[cfg(test)]
fn file(path: &str, text: &str) -> File {
    File { path: path.into(), bytes: text.len() as u64, text: Some(text.to_owned()) }
}

#[cfg(test)]
fn messages(findings: &[Finding]) -> Vec<String> {
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn the_name_of_a_file_does_not_act_on_the_terminal() {
    let found = file("a\u{1b}[31m\u{202e}\nb.rs", "").finding(3, "long");
    assert_eq!(found.to_string(), r"a\u{1b}[31m\u{202e}\nb.rs:3: long");
}
