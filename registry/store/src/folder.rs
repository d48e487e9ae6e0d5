//! Files of a folder laid out like `results/`: names, stamps and bytes. Independent of their
//! content.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::storage::RECORD_BYTES_MAX;
use judge::finding::{Finding, LAYOUT};

/// Error: a folder or a file in it cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read `{}`", path.display())]
pub struct StoreError {
    /// Path of the folder or file.
    pub path: PathBuf,
    /// I/O error of reading the folder or file.
    #[source]
    pub source: io::Error,
}

/// Stamp of a file: size, inode and times, by which a change is noticed without reading the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    pub bytes: u64,
    pub inode: u64,
    /// Time of the last change of the content, in nanoseconds since 1970.
    pub modified_ns: i64,
    /// Time of the last change of content or metadata, in nanoseconds since 1970. Programs cannot
    /// set it, unlike the modification time.
    pub changed_ns: i64,
}

impl Stamp {
    /// Returns the stamp of a file with this metadata.
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

/// Regular files of a folder in the order of their paths (with forward slashes), and findings about
/// entries that are neither a regular file nor a folder, or whose names are not UTF-8.
#[derive(Debug, Default)]
pub struct Listing {
    pub root: PathBuf,
    pub files: Vec<(String, Stamp)>,
    pub findings: Vec<Finding>,
}

impl Listing {
    /// Lists every regular file below `root`. Other entries that are no folders, such as symbolic
    /// links, become findings and are never followed; a `root` that does not exist is empty.
    ///
    /// # Errors
    ///
    /// `root` exists and is no folder, or a folder or the metadata of an entry cannot be read.
    pub fn of(root: &Path) -> Result<Self, StoreError> {
        Self::of_wanted(root, &|_| true)
    }

    /// Lists the files below `root`, except those at or below a path that `wanted` rejects.
    /// `wanted` is asked about folders too, so that a rejected folder is not read.
    ///
    /// # Errors
    ///
    /// `root` exists and is no folder, or a folder or the metadata of an entry cannot be read.
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
        // The tree is read level by level, so that the many folders of the lower levels are read
        // in parallel.
        let mut level = vec![String::new()];
        while !level.is_empty() {
            let read = level.par_iter().map(|folder| entries_of(root, folder, wanted));
            let read = read.collect::<Result<Vec<_>, _>>()?;
            level = Vec::new();
            for (mut entries, mut folders) in read {
                level.append(&mut folders);
                listing.files.append(&mut entries.files);
                listing.findings.append(&mut entries.findings);
            }
        }
        // The system lists the entries of a folder in no defined order.
        listing.files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(listing)
    }

    /// Reads the bytes of a listed file. At most one byte more than a record may have is read, so
    /// that a huge file costs little.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, StoreError> {
        let file = self.root.join(path);
        let mut bytes = Vec::new();
        let limit = RECORD_BYTES_MAX as u64 + 1;
        let read = fs::File::open(&file).and_then(|file| file.take(limit).read_to_end(&mut bytes));
        read.map(|_| bytes).map_err(|source| StoreError { path: file, source })
    }
}

/// Lists the files of one folder without those of its subfolders, by paths below `root`; also
/// returns the paths of the subfolders.
fn entries_of(
    root: &Path,
    folder: &str,
    wanted: &(dyn Fn(&str) -> bool + Sync),
) -> Result<(Listing, Vec<String>), StoreError> {
    let dir = root.join(folder);
    let failed = |path: &Path, source| StoreError { path: path.to_owned(), source };
    let (mut entries, mut folders) = (Listing::default(), Vec::new());
    for entry in fs::read_dir(&dir).map_err(|error| failed(&dir, error))? {
        let entry = entry.map_err(|error| failed(&dir, error))?;
        let name = entry.file_name();
        let shown = name.to_string_lossy();
        let path = if folder.is_empty() { shown.into_owned() } else { format!("{folder}/{shown}") };
        if !wanted(&path) {
            continue;
        }
        let kind = entry.file_type().map_err(|error| failed(&entry.path(), error))?;
        if name.to_str().is_none() {
            entries.findings.push(Finding::breach(LAYOUT, &path, "its name is not UTF-8"));
        } else if kind.is_dir() {
            folders.push(path);
        } else if kind.is_file() {
            let facts = entry.metadata().map_err(|error| failed(&entry.path(), error))?;
            entries.files.push((path, Stamp::of(&facts)));
        } else {
            let detail = "not a regular file; links are not followed";
            entries.findings.push(Finding::breach(LAYOUT, &path, detail));
        }
    }
    Ok((entries, folders))
}

/// Regular files of a folder by path, with their bytes, and findings about other entries.
#[derive(Debug, Default)]
pub struct Folder {
    pub files: BTreeMap<String, Vec<u8>>,
    pub findings: Vec<Finding>,
}

/// Reads every file below `root` that [`Listing::of`] lists, each up to one byte more than a record
/// may have.
///
/// # Errors
///
/// `root` exists and is no folder, or a folder, a file or its metadata cannot be read.
pub fn read_folder(root: &Path) -> Result<Folder, StoreError> {
    let listing = Listing::of(root)?;
    let read = |(path, _): &(String, Stamp)| Ok((path.clone(), listing.read(path)?));
    let files = listing.files.par_iter().map(read).collect::<Result<_, _>>()?;
    Ok(Folder { files, findings: listing.findings })
}
