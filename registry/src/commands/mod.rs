//! Commands of `redline-results`: those that write to the registry and those that only read it.
//! `main` reads clock, random bits and environment, and passes them in.

pub mod additions;
pub mod imports;
pub mod queries;
pub mod submissions;

use std::path::{Path, PathBuf};

use judge::Registry;
use judge::finding::{Finding, first_of};
use registry::survey::Place;
use schema::untrusted;

/// Clock, random bits and program facts that `main` reads once and passes to the commands.
#[derive(Debug, Clone)]
pub struct World {
    /// Current time in milliseconds since 1970: that of the clock, or of the environment variable
    /// `SOURCE_DATE_EPOCH` where it is set.
    pub unix_ms: u64,
    /// Random bits of the operating system for the id of a new event.
    pub random: u128,
    /// Folder that contains `redline-results` and the other programs of the same build.
    pub tools: PathBuf,
    /// Name of this build of `redline-results`; it does not use the index of another build.
    pub program: String,
}

impl World {
    /// Returns the location of the index of the registry in `dir`.
    pub fn place(&self, dir: &Path) -> Place {
        Place { root: dir.to_owned(), program: self.program.clone() }
    }

    /// Returns the current time in seconds since 1970.
    pub fn unix_s(&self) -> i64 {
        i64::try_from(self.unix_ms / 1_000).unwrap_or(i64::MAX)
    }
}

/// Returns `loaded` unchanged, after printing its findings, such as those about unreadable files,
/// to standard error.
fn reported(loaded: Registry) -> Registry {
    print_findings(&loaded.findings);
    loaded
}

/// Prints the first of `findings` to standard error.
fn print_findings<'a>(findings: impl IntoIterator<Item = &'a Finding>) {
    for line in first_of(findings) {
        eprintln!("{line}");
    }
}

fn print_notes(notes: &[String]) {
    for note in notes {
        eprintln!("note: {}", untrusted::lines(note));
    }
}

fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&untrusted::json(&serde_json::to_string_pretty(value)?))
}

/// Writes `text` and a line end to standard output, with hidden characters other than line feeds as
/// escapes, because records and files of others are quoted.
fn print(text: &str) -> anyhow::Result<()> {
    Ok(whole_file::print(&(untrusted::lines(text) + "\n"))?)
}
