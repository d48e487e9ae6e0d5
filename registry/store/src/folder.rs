//! The files of a folder laid out like `results/`: their names and stamps, and their bytes. Knows
//! nothing of what is in them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::spread;
use crate::storage::RECORD_BYTES_MAX;
use judge::finding::{Finding, LAYOUT};

/// A folder that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read `{}`", path.display())]
pub struct StoreError {
    /// The folder, or the file in it.
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// What changes when a file does, as far as its folder tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub bytes: u64,
    pub inode: u64,
    /// Last change of the content, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Last change of the file, its times included: no program sets this one.
    pub changed_ns: i64,
}

impl Stamp {
    /// Returns the stamp of a file with these facts.
    #[must_use]
    pub fn of(facts: &fs::Metadata) -> Self {
        let ns = |s: i64, ns: i64| s.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            bytes: facts.size(),
            inode: facts.ino(),
            modified_ns: ns(facts.mtime(), facts.mtime_nsec()),
            changed_ns: ns(facts.ctime(), facts.ctime_nsec()),
        }
    }
}

/// The files of a folder in the order of their paths, with forward slashes, and what cannot be
/// followed.
#[derive(Debug, Default)]
pub struct Listing {
    pub root: PathBuf,
    pub files: Vec<(String, Stamp)>,
    pub findings: Vec<Finding>,
}

impl Listing {
    /// Lists every file below `root`. Symbolic links are findings and never followed; a folder
    /// that does not exist is empty.
    ///
    /// # Errors
    /// A folder exists and cannot be read.
    pub fn of(root: &Path) -> Result<Self, StoreError> {
        Self::of_wanted(root, &|_| true)
    }

    /// As [`Listing::of`], without what lies at or below a path that is not wanted. Paths of
    /// folders are asked for as those of files are.
    ///
    /// # Errors
    /// A folder exists and cannot be read.
    pub fn of_wanted(
        root: &Path,
        wanted: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Self, StoreError> {
        let mut listing = Self { root: root.to_owned(), ..Self::default() };
        match fs::symlink_metadata(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(listing),
            Err(source) => return Err(StoreError { path: root.to_owned(), source }),
            Ok(_) => {}
        }
        // Level by level, so that the many folders of the lower ones are read side by side.
        let mut level = vec![String::new()];
        while !level.is_empty() {
            let read = spread::map(&level, |folder| Entries::of(root, folder, wanted));
            level = Vec::new();
            for entries in read {
                let mut entries = entries?;
                level.append(&mut entries.folders);
                listing.files.append(&mut entries.files);
                listing.findings.append(&mut entries.findings);
            }
        }
        listing.files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(listing)
    }

    /// The bytes of one of its files, one more at most than a record may have, so that a huge file
    /// costs little.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, StoreError> {
        let file = self.root.join(path);
        let mut bytes = Vec::new();
        let limit = RECORD_BYTES_MAX as u64 + 1;
        let read = fs::File::open(&file).and_then(|file| file.take(limit).read_to_end(&mut bytes));
        read.map(|_| bytes).map_err(|source| StoreError { path: file, source })
    }
}

/// What one folder holds, by paths below the root.
#[derive(Default)]
struct Entries {
    folders: Vec<String>,
    files: Vec<(String, Stamp)>,
    findings: Vec<Finding>,
}

impl Entries {
    fn of(
        root: &Path,
        folder: &str,
        wanted: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Self, StoreError> {
        let dir = root.join(folder);
        let failed = |path: &Path, source| StoreError { path: path.to_owned(), source };
        let mut entries = Self::default();
        for entry in fs::read_dir(&dir).map_err(|error| failed(&dir, error))? {
            let entry = entry.map_err(|error| failed(&dir, error))?;
            let name = entry.file_name();
            let shown = name.to_string_lossy();
            let path =
                if folder.is_empty() { shown.into_owned() } else { format!("{folder}/{shown}") };
            if !wanted(&path) {
                continue;
            }
            let kind = entry.file_type().map_err(|error| failed(&entry.path(), error))?;
            if name.to_str().is_none() {
                entries.findings.push(Finding::breach(LAYOUT, &path, "its name is not UTF-8"));
            } else if kind.is_dir() {
                entries.folders.push(path);
            } else if kind.is_file() {
                let facts = entry.metadata().map_err(|error| failed(&entry.path(), error))?;
                entries.files.push((path, Stamp::of(&facts)));
            } else {
                let detail = "not a regular file; links are not followed";
                entries.findings.push(Finding::breach(LAYOUT, &path, detail));
            }
        }
        Ok(entries)
    }
}

/// The files of a folder with their bytes.
#[derive(Debug, Default)]
pub struct Folder {
    pub files: BTreeMap<String, Vec<u8>>,
    pub findings: Vec<Finding>,
}

/// Reads every file below `root`, as [`Listing::of`] lists them.
///
/// # Errors
/// A folder or file exists and cannot be read.
pub fn read_folder(root: &Path) -> Result<Folder, StoreError> {
    let listing = Listing::of(root)?;
    let read = spread::map(&listing.files, |(path, _)| Ok((path.clone(), listing.read(path)?)));
    Ok(Folder { files: read.into_iter().collect::<Result<_, _>>()?, findings: listing.findings })
}
